//! `kelson config view`: every flag of a command with its value and where that comes from.
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command};
use serde_json::{Map, Value, json};

use super::expand::COMMANDS;
use super::expand::{Expanded, expand, lenient, of_words};
use super::keys::keys;
use crate::k3s;

/// Printed instead of a secret value.
const MASK: &str = "(hidden)";

/// The component whose configuration is printed, and the format.
#[derive(Args, Debug)]
pub struct ViewArgs {
    /// Output format: `text`, `json` or `yaml`.
    #[arg(long, short, value_name = "FORM", default_value = "text", value_parser = ["text", "json", "yaml"])]
    pub output: String,
    /// Configuration file, as with --config of the command.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Command whose flags are printed.
    #[arg(value_name = "COMMAND", default_value = COMMANDS[0], value_parser = COMMANDS)]
    pub command: String,
    /// Flags with which the command is started.
    #[arg(value_name = "FLAGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub flags: Vec<OsString>,
}

/// A flag with the value in effect.
#[derive(Debug, PartialEq, Eq)]
struct EffectiveFlag {
    flag: String,
    is_list: bool,
    values: Vec<String>,
    sources: Vec<String>,
}

/// Returns the requested configuration in the requested format.
///
/// # Errors
/// The command line or a file is invalid. Missing required flags are not an error, since the view shows what is set.
pub fn view(args: &ViewArgs, cli: &Command) -> anyhow::Result<String> {
    let words = words(args);
    let expanded = expand(cli, words, k3s::hint)?;
    let Some((name, command)) = of_words(cli, &expanded.words) else {
        anyhow::bail!("kelson {} has no configuration file on this system", args.command);
    };
    match cli.clone().try_get_matches_from(&expanded.words) {
        Err(e) if e.kind() != ErrorKind::MissingRequiredArgument => {
            let origin = expanded.origin(&e).map(|origin| format!("\n{origin}")).unwrap_or_default();
            anyhow::bail!("{}{origin}", e.to_string().trim_start_matches("error: ").trim_end());
        }
        _ => {}
    }
    let Some(matches) = lenient(cli, name, &expanded.words) else { anyhow::bail!("the words ask for help") };
    let shown = effective(command, &matches, &expanded);
    Ok(match args.output.as_str() {
        "json" => format!("{:#}\n", tree(name, &shown)),
        "yaml" => kelson_codec::yaml::to_yaml(&tree(name, &shown)),
        _ => table(&shown),
    })
}

/// Returns the command line whose flags are shown.
fn words(args: &ViewArgs) -> Vec<OsString> {
    let mut words = vec![OsString::from("kelson"), OsString::from(&args.command)];
    if let Some(file) = &args.config {
        words.push("--config".into());
        words.push(file.into());
    }
    words.extend(args.flags.iter().cloned());
    words
}

fn effective(command: &Command, matches: &ArgMatches, expanded: &Expanded) -> Vec<EffectiveFlag> {
    let keys = keys(command);
    let mut all = Vec::new();
    for arg in command.get_arguments() {
        let Some((flag, key)) = arg.get_long().and_then(|flag| keys.get_key_value(flag)) else { continue };
        let id = arg.get_id().as_str();
        let raw = matches.try_get_raw(id).ok().flatten();
        let mut values: Vec<String> = raw.into_iter().flatten().map(|v| v.to_string_lossy().into_owned()).collect();
        let sources = match (matches.value_source(id), expanded.settings.get(flag)) {
            (Some(ValueSource::CommandLine), Some(set)) => set.from.iter().map(ToString::to_string).collect(),
            (Some(ValueSource::CommandLine), None) => vec!["flag".to_owned()],
            (Some(ValueSource::EnvVariable), _) => {
                let name = arg.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                vec![format!("environment {name}")]
            }
            _ => vec!["default".to_owned()],
        };
        if key.is_secret {
            values.iter_mut().for_each(|value| MASK.clone_into(value));
        }
        all.push(EffectiveFlag { flag: flag.clone(), is_list: key.is_list, values, sources });
    }
    all.sort_by(|one, other| one.flag.cmp(&other.flag));
    all
}

fn table(all: &[EffectiveFlag]) -> String {
    let shown =
        |one: &EffectiveFlag| if one.is_list { format!("[{}]", one.values.join(",")) } else { one.values.concat() };
    let rows: Vec<[String; 3]> = std::iter::once(["KEY", "VALUE", "SOURCE"].map(String::from))
        .chain(all.iter().map(|one| [one.flag.clone(), shown(one), one.sources.join(" ")]))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    let mut out = String::new();
    for [key, value, source] in &rows {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{key:first$}  {value:second$}  {source}");
    }
    out
}

fn tree(command: &str, all: &[EffectiveFlag]) -> Value {
    let settings: Map<String, Value> = all
        .iter()
        .map(|one| {
            let value = match one.is_list {
                true => json!(one.values),
                false => one.values.first().map_or(Value::Null, |value| json!(value)),
            };
            (one.flag.clone(), json!({"value": value, "sources": one.sources}))
        })
        .collect();
    json!({"command": command, "settings": settings})
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn view_of(output: &str, text: &str, words: &[&str]) -> anyhow::Result<String> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("config.yaml");
        std::fs::write(&file, text)?;
        let (command, flags) = words.split_first().unwrap_or((&"server", &[]));
        let flags = flags.iter().map(OsString::from).collect();
        let (output, command) = (output.to_owned(), (*command).to_owned());
        let args = ViewArgs { output, config: Some(file.clone()), command, flags };
        Ok(view(&args, &crate::cli::Cli::command())?.replace(&file.display().to_string(), "FILE"))
    }

    #[test]
    fn every_flag_has_a_value_and_a_source() {
        let text = view_of("json", "secure-port: 7443\ntls-san:\n- a\n", &["server", "--data-dir=/d"]).unwrap();
        let tree: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(tree["command"], "server");
        let of = |key: &str| tree["settings"][key].clone();
        assert_eq!(of("secure-port"), json!({"value": "7443", "sources": ["FILE:1"]}));
        assert_eq!(of("tls-san"), json!({"value": ["a"], "sources": ["FILE:2"]}));
        assert_eq!(of("data-dir"), json!({"value": "/d", "sources": ["flag"]}));
        assert_eq!(of("bind-address"), json!({"value": "0.0.0.0", "sources": ["default"]}));
        assert_eq!(of("token-auth-file"), json!({"value": null, "sources": ["default"]}));
        assert!(view_of("yaml", "", &[]).unwrap().contains("command: server\n"), "the server is the default");
        let table = view_of("text", "secure-port: 7443\n", &[]).unwrap();
        let row = table.lines().find(|line| line.starts_with("secure-port ")).unwrap();
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["secure-port", "7443", "FILE:1"]);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, words, want) in [
            ("secure-port: high", &[][..], "FILE:1 sets secure-port"),
            ("secure-prot: 1", &[], "FILE:1: unknown key \"secure-prot\"; did you mean \"secure-port\"?"),
            ("https-listen-port: 1", &[], "FILE:1: unknown key \"https-listen-port\"; it is k3s' name for secure-port"),
            ("", &["server", "--no-such"], "--no-such"),
        ] {
            let dir = format!("{:#}", view_of("text", text, words).unwrap_err());
            let want = want.strip_prefix("FILE").unwrap_or(want);
            assert!(dir.contains(want), "{text:?}: {dir}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn secrets_are_masked_and_missing_files_are_not_errors() {
        let text = view_of("json", "token: abcdef.0123456789abcdef\n", &["agent"]).unwrap();
        assert!(!text.contains("0123456789abcdef"), "{text}");
        let tree: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(tree["settings"]["token"], json!({"value": MASK, "sources": ["FILE:1"]}));
        assert_eq!(tree["settings"]["server"]["value"], json!([]));
    }
}
