//! Adds the settings of configuration files to a command line: flags that neither the command line nor the environment
//! sets are inserted before the given words.
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use super::keys::keys;
use super::layers::{ConfigError, ConfigSettings, merge, read};

/// The commands that have a configuration file.
pub const COMMANDS: [&str; 2] = ["server", "agent"];

/// A command line, and the settings from files.
#[derive(Debug, Default)]
pub struct Expanded {
    /// All words; the first is the program's name.
    pub words: Vec<OsString>,
    /// The flags that only the files set.
    pub settings: ConfigSettings,
}

/// Adds the settings of configuration files to the words of `kelson server` and `kelson agent`; other commands are not
/// changed. `hint` explains an unknown key.
///
/// # Errors
/// An unreadable file, or an invalid key or value.
pub fn expand(
    cli: &Command,
    words: Vec<OsString>,
    hint: impl Fn(&str) -> Option<String>,
) -> Result<Expanded, ConfigError> {
    let Some((name, command)) = of_words(cli, &words) else { return Ok(Expanded { words, ..Expanded::default() }) };
    // Errors in the words are reported when all of them are parsed; a request for help takes precedence over the
    // configuration.
    let Some(given) = lenient(cli, name, &words) else { return Ok(Expanded { words, ..Expanded::default() }) };
    let named = given.try_get_one::<PathBuf>("config").ok().flatten();
    let files = read(named.map(PathBuf::as_path))?;
    let mut settings = merge(&keys(command), &files, hint)?;
    settings.retain(|flag, _| !is_given(command, &given, flag));
    let of_files = settings
        .iter()
        .flat_map(|(flag, set)| set.values.iter().map(move |value| OsString::from(format!("--{flag}={value}"))));
    let mut all: Vec<OsString> = words[..2].to_vec();
    all.extend(of_files);
    all.extend_from_slice(&words[2..]);
    Ok(Expanded { words: all, settings })
}

/// Returns the command of a line, if it has a configuration file.
pub fn of_words<'c>(cli: &'c Command, words: &[OsString]) -> Option<(&'static str, &'c Command)> {
    let word = words.get(1)?;
    let name = COMMANDS.into_iter().find(|name| word == *name)?;
    let command = cli.find_subcommand(name)?;
    command.get_arguments().any(|arg| arg.get_id() == "config").then_some((name, command))
}

/// Parses the words of a command as far as they are valid. `None` when they request help.
pub fn lenient(cli: &Command, name: &str, words: &[OsString]) -> Option<ArgMatches> {
    let matches = cli.clone().ignore_errors(true).try_get_matches_from(words).ok()?;
    matches.subcommand_matches(name).cloned()
}

/// Reports whether the command line or the environment sets a flag.
fn is_given(command: &Command, matches: &ArgMatches, flag: &str) -> bool {
    let id = command.get_arguments().find(|arg| arg.get_long() == Some(flag)).map(clap::Arg::get_id);
    let source = id.and_then(|id| matches.value_source(id.as_str()));
    matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

impl Expanded {
    /// Returns the location in a file of the flag that an error is about, if there is one.
    pub fn origin(&self, error: &clap::Error) -> Option<String> {
        let flags: Vec<&String> = match error.get(ContextKind::InvalidArg)? {
            ContextValue::String(one) => vec![one],
            ContextValue::Strings(several) => several.iter().collect(),
            _ => return None,
        };
        let name = |shown: &str| {
            let shown = shown.trim_start_matches("--");
            shown.split([' ', '=', '[']).next().unwrap_or_default().to_owned()
        };
        let set = flags.into_iter().find_map(|flag| self.settings.get_key_value(&name(flag)))?;
        let from: Vec<String> = set.1.from.iter().map(ToString::to_string).collect();
        Some(format!("{} sets {}", from.join(", "), set.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, ArgAction, value_parser};

    fn test_cli() -> Command {
        let server = Command::new("server")
            .arg(Arg::new("config").long("config").value_parser(value_parser!(PathBuf)))
            .arg(Arg::new("secure_port").long("secure-port").value_parser(value_parser!(u16)).default_value("6443"))
            .arg(Arg::new("tls_san").long("tls-san").action(ArgAction::Append).value_delimiter(','))
            .arg(Arg::new("path").long("path").env("PATH"))
            .arg(Arg::new("token").long("token").required(true));
        Command::new("kelson").subcommand(server).subcommand(Command::new("other"))
    }

    fn expanded(text: &str, words: &[&str]) -> Result<Expanded, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        std::fs::write(&file, text).unwrap();
        let mut all: Vec<OsString> = ["kelson", "server", "--config"].map(OsString::from).into();
        all.push(file.into());
        all.extend(words.iter().map(OsString::from));
        expand(&test_cli(), all, |_| None)
    }

    #[test]
    fn words_of_files_stand_before_those_that_were_given() {
        let text = "secure-port: 7443\ntls-san: [a, b]\npath: /nowhere\ntoken: t\n";
        let shown = |words: &[&str]| {
            let all = expanded(text, words).unwrap();
            let words = all.words.iter().map(|word| word.to_string_lossy().into_owned());
            words.filter(|word| word.starts_with("--") && word != "--config").collect::<Vec<_>>()
        };
        assert_eq!(shown(&[]), ["--secure-port=7443", "--tls-san=a", "--tls-san=b", "--token=t"], "PATH is set");
        assert_eq!(shown(&["--secure-port=1"]), ["--tls-san=a", "--tls-san=b", "--token=t", "--secure-port=1"]);
        assert_eq!(
            shown(&["--tls-san", "c"]),
            ["--secure-port=7443", "--token=t", "--tls-san"],
            "a list of the command line replaces that of the file"
        );
        assert!(test_cli().try_get_matches_from(expanded(text, &[]).unwrap().words).is_ok());
    }

    #[test]
    fn other_commands_and_calls_for_help_read_no_file() {
        for words in [&["kelson", "other"][..], &["kelson"], &["kelson", "server", "--help", "--config=/none"]] {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            assert_eq!(expand(&test_cli(), words.clone(), |_| None).unwrap().words, words);
        }
    }

    #[test]
    fn an_error_of_the_command_line_names_the_file_that_it_comes_from() {
        let all = expanded("token: t\nsecure-port: high\n", &[]).unwrap();
        let error = test_cli().try_get_matches_from(&all.words).unwrap_err();
        let origin = all.origin(&error).unwrap();
        assert!(origin.ends_with("config.yaml:2 sets secure-port"), "{origin}");
        let given = expanded("token: t\n", &["--secure-port=high"]).unwrap();
        let error = test_cli().try_get_matches_from(&given.words).unwrap_err();
        assert_eq!(given.origin(&error), None);
    }
}
