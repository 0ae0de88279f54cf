//! Parses command lines as upstream's components do: `--name=value`, `--name value`, booleans without a value, letters,
//! underscores for dashes, lists that are collected; for other flags the last value is used.
use std::collections::BTreeSet;
use std::ffi::OsString;

use super::table::{Flag, Table};
use super::values::{Kind, truth};

/// The result of parsing a command line.
#[derive(Debug, PartialEq, Eq)]
pub enum ParsedArgs {
    /// Print the list of flags.
    Help,
    /// Print the version, with the value of `--version=`.
    Version(String),
    /// Run the component.
    Run(Spoken),
}

/// A command line to run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Spoken {
    /// The flags that have an effect, for the typed arguments: one word per flag, `--name=value`.
    pub words: Vec<String>,
    /// Names of given flags that have no effect here.
    pub without_effect: Vec<String>,
    /// Names of given flags that are deprecated.
    pub deprecated: Vec<String>,
}

impl Spoken {
    /// Logs which flags were accepted and have no effect.
    pub fn log(&self) {
        if !self.without_effect.is_empty() {
            tracing::info!(flags = self.without_effect.join(" "), "flags without effect");
        }
    }
}

/// Parses `words`, without the name of the program. `component` is its name.
///
/// # Errors
/// The first invalid word, with upstream's message.
pub fn read(component: &str, table: &Table, words: impl IntoIterator<Item = OsString>) -> Result<ParsedArgs, String> {
    let mut reader = Reader { table, given: Vec::new(), rest: Vec::new(), help: false };
    let mut words = words.into_iter().map(|word| {
        word.into_string()
            .map_err(|word| format!("command-line argument is not valid UTF-8: {}", word.to_string_lossy()))
    });
    while let Some(word) = words.next() {
        let word = word?;
        let next = || words.next().transpose();
        if word == "--" {
            reader.rest.extend(words.collect::<Result<Vec<_>, _>>()?);
            break;
        } else if let Some(long) = word.strip_prefix("--") {
            reader.long(&word, long, next)?;
        } else if let Some(letters) = word.strip_prefix('-').filter(|l| !l.is_empty()) {
            reader.letters(letters, next)?;
        } else {
            reader.rest.push(word);
        }
        // Upstream stops parsing here as well.
        if reader.help {
            return Ok(ParsedArgs::Help);
        }
    }
    let version = reader.given.iter().rev().find(|(_, flag, _)| flag.kind == Kind::Version);
    if let Some((_, _, value)) = version.filter(|(_, _, value)| truth(value) != Some(false)) {
        return Ok(ParsedArgs::Version(value.clone()));
    }
    if !reader.rest.is_empty() {
        return Err(format!("{component:?} does not take any arguments, got {}", quoted(&reader.rest)));
    }
    Ok(ParsedArgs::Run(reader.spoken()))
}

/// Formats a list as Go does: `["a" "b"]`.
fn quoted(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    format!("[{}]", words.join(" "))
}

struct Reader<'t> {
    table: &'t Table,
    given: Vec<(&'t str, &'t Flag, String)>,
    rest: Vec<String>,
    help: bool,
}

impl<'t> Reader<'t> {
    fn long(
        &mut self,
        word: &str,
        long: &str,
        next: impl FnOnce() -> Result<Option<String>, String>,
    ) -> Result<(), String> {
        if long.starts_with(['-', '=']) {
            return Err(format!("bad flag syntax: {word}"));
        }
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value.to_owned())));
        let Some((name, flag)) = self.table.named(name) else {
            if name == "help" {
                self.help = true;
                return Ok(());
            }
            return Err(format!("unknown flag: --{name}"));
        };
        let value = match (value, flag.kind.alone()) {
            (Some(value), _) => value,
            (None, Some(alone)) => alone.to_owned(),
            (None, None) => next()?.ok_or_else(|| format!("flag needs an argument: --{name}"))?,
        };
        self.take(name, flag, &value)
    }

    /// Parses `-v4`, `-v=4`, `-v 4`, and several letters of which all but the last are booleans.
    fn letters(&mut self, letters: &str, next: impl FnOnce() -> Result<Option<String>, String>) -> Result<(), String> {
        let mut left = letters.chars();
        while let Some(letter) = left.next() {
            let Some((name, flag)) = self.table.lettered(letter) else {
                if letter == 'h' {
                    self.help = true;
                    return Ok(());
                }
                return Err(format!("unknown shorthand flag: {letter:?} in -{letters}"));
            };
            let after = left.as_str();
            let value = match (after.strip_prefix('='), flag.kind.alone()) {
                (Some(value), _) => value.to_owned(),
                (None, Some(alone)) => {
                    self.take(name, flag, alone)?;
                    continue;
                }
                (None, None) if !after.is_empty() => after.to_owned(),
                (None, None) => next()?.ok_or_else(|| format!("flag needs an argument: {letter:?} in -{letters}"))?,
            };
            return self.take(name, flag, &value);
        }
        Ok(())
    }

    fn take(&mut self, name: &'t str, flag: &'t Flag, value: &str) -> Result<(), String> {
        let value = flag.kind.read(value).map_err(|why| {
            let shown = flag.short.map_or_else(|| format!("--{name}"), |letter| format!("-{letter}, --{name}"));
            format!("invalid argument {value:?} for {shown:?} flag: {why}")
        })?;
        self.given.push((name, flag, value));
        Ok(())
    }

    fn spoken(self) -> Spoken {
        let mut spoken = Spoken::default();
        let mut last = BTreeSet::new();
        // In reverse, so that the last value of a flag that is not a list comes first.
        for (name, flag, value) in self.given.into_iter().rev() {
            if flag.kind != Kind::List && !last.insert(name) {
                continue;
            }
            let seen = |names: &Vec<String>| names.iter().any(|n| n == name);
            if flag.deprecated && !seen(&spoken.deprecated) {
                spoken.deprecated.push(name.to_owned());
            }
            if flag.effect {
                // An empty value counts as if the flag were absent.
                if !value.is_empty() || flag.empty_counts {
                    spoken.words.push(format!("--{name}={value}"));
                }
            } else if !seen(&spoken.without_effect) {
                spoken.without_effect.push(name.to_owned());
            }
        }
        for list in [&mut spoken.words, &mut spoken.without_effect, &mut spoken.deprecated] {
            list.reverse();
        }
        spoken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, ArgAction, Command};

    const FACTS: &str = "admission-control strings deprecated\nallow-privileged bool\nbind-address ip\ncert-dir string
event-ttl duration\nfeature-gates mapStringBool\nplugins strings\nport int\nprofiling bool\nv Level -v\nversion version\nwatch-cache-sizes strings";

    fn asked(words: &[&str]) -> Result<ParsedArgs, String> {
        let long = |name: &'static str| Arg::new(name).long(name);
        let list = |name: &'static str| long(name).action(ArgAction::Append);
        let command = Command::new("x")
            .args(["bind-address", "event-ttl", "port", "v", "allow-privileged", "log-level"].map(long))
            .args(["admission-control", "plugins", "feature-gates"].map(list))
            .arg(long("cert-dir").default_value("/run"))
            .arg(long("fast").num_args(0..=1).default_missing_value("true"));
        read("kube-x", &Table::of(FACTS, &command), words.iter().map(OsString::from))
    }

    fn run(words: &[&str]) -> Vec<String> {
        match asked(words) {
            Ok(ParsedArgs::Run(spoken)) => spoken.words,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    #[test]
    fn every_spelling() {
        let rows: [(&[&str], &[&str]); 17] = [
            (&["--port=1"], &["--port=1"]),
            (&["--port", "1"], &["--port=1"]),
            (&["--port=1", "--port", "2"], &["--port=2"]),
            (&["--bind_address=::1"], &["--bind-address=::1"]),
            (&["--allow-privileged"], &["--allow-privileged=true"]),
            (&["--allow-privileged=F"], &["--allow-privileged=false"]),
            (&["--allow-privileged", "--port", "1"], &["--allow-privileged=true", "--port=1"]),
            (&["--plugins=a", "--plugins", "b,c"], &["--plugins=a", "--plugins=b,c"]),
            (&["--plugins=a", "--plugins="], &["--plugins=a"]),
            (&["--admission-control="], &["--admission-control="]),
            (&["--cert-dir="], &["--cert-dir="]),
            (
                &["--feature-gates=A=true", "--feature-gates=B=false"],
                &["--feature-gates=A=true", "--feature-gates=B=false"],
            ),
            (&["-v4"], &["--v=4"]),
            (&["-v=4"], &["--v=4"]),
            (&["-v", "4", "--event-ttl", "5m"], &["--v=4", "--event-ttl=5m"]),
            (&["--fast", "--log-level=debug"], &["--fast=true", "--log-level=debug"]),
            (&["--cert-dir", "--port"], &["--cert-dir=--port"]),
        ];
        for (words, want) in rows {
            assert_eq!(run(words), want, "{words:?}");
        }
    }

    #[test]
    fn what_has_no_effect_is_named_once() {
        let words =
            ["--profiling", "--watch-cache-sizes=a#1", "--watch-cache-sizes=b#2", "--admission-control=X", "--port=1"];
        let Ok(ParsedArgs::Run(spoken)) = asked(&words) else { panic!("runs") };
        assert_eq!(spoken.without_effect, ["profiling", "watch-cache-sizes"]);
        assert_eq!(spoken.deprecated, ["admission-control"]);
        assert_eq!(spoken.words, ["--admission-control=X", "--port=1"]);
    }

    #[test]
    fn what_is_refused_and_how() {
        let rows: [(&[&str], &str); 10] = [
            (&["--prot=1"], "unknown flag: --prot"),
            (&["--port"], "flag needs an argument: --port"),
            (&["-x"], "unknown shorthand flag: 'x' in -x"),
            (&["-v"], "flag needs an argument: 'v' in -v"),
            (&["--=1"], "bad flag syntax: --=1"),
            (&["---port"], "bad flag syntax: ---port"),
            (
                &["--port=one"],
                r#"invalid argument "one" for "--port" flag: strconv.ParseInt: parsing "one": invalid syntax"#,
            ),
            (&["-v=x"], r#"invalid argument "x" for "-v, --v" flag: strconv.ParseUint: parsing "x": invalid syntax"#),
            (&["--allow-privileged", "false"], r#""kube-x" does not take any arguments, got ["false"]"#),
            (&["--", "--port=1", "b"], r#""kube-x" does not take any arguments, got ["--port=1" "b"]"#),
        ];
        for (words, want) in rows {
            assert_eq!(asked(words).unwrap_err(), want, "{words:?}");
        }
    }

    #[test]
    fn help_and_version_go_before_everything_else() {
        for words in [&["--help"][..], &["-h"], &["--port=1", "--help", "--nonsense"]] {
            assert_eq!(asked(words), Ok(ParsedArgs::Help), "{words:?}");
        }
        assert_eq!(asked(&["--version", "left"]), Ok(ParsedArgs::Version("true".into())));
        assert_eq!(asked(&["--version=raw"]), Ok(ParsedArgs::Version("raw".into())));
        assert!(matches!(asked(&["--version=false"]), Ok(ParsedArgs::Run(_))));
    }
}
