//! `kelson migrate k3s`: translates the settings of a k3s installation, and reports those without a counterpart.
#![allow(clippy::disallowed_methods, reason = "blocking: a command that does nothing else")]
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Command, Subcommand};

use super::table::ALIASES;
use super::translate::{Foreign, Outcome, find, translate};
use crate::config::{Key, merge, read};

/// k3s' configuration file.
const CONFIG_FILE: &str = "/etc/rancher/k3s/config.yaml";
/// The prefix of its environment variables. Others in an environment file (for instance proxies) are not its settings.
const VARIABLES: &str = "K3S_";

/// The sources of `kelson migrate`.
#[derive(Subcommand, Debug)]
pub enum MigrateCommand {
    /// Translate the settings of k3s: print a configuration file, and report settings without a counterpart. Exits with
    /// 1 if there are any.
    K3s(K3sArgs),
}

/// The settings that are translated.
#[derive(Args, Debug)]
pub struct K3sArgs {
    /// Print only the report.
    #[arg(long)]
    pub check: bool,
    /// k3s' configuration file; files in the directory of its name with `.d` are laid over it [default: /etc/rancher/k3s/config.yaml, where it is there]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// File of environment variables, as the unit of k3s has it: /etc/systemd/system/k3s.service.env
    #[arg(long, value_name = "FILE")]
    pub env_file: Option<PathBuf>,
    /// `server` or `agent` [default: agent where --env-file sets K3S_URL, else server]
    #[arg(long, value_name = "COMMAND", value_parser = ["server", "agent"])]
    pub role: Option<String>,
    /// Flags with which k3s is started, after `--`.
    #[arg(value_name = "FLAG", last = true)]
    pub flags: Vec<String>,
}

/// Runs `kelson migrate` for the commands of `cli`.
///
/// # Errors
/// A file cannot be read, or a setting has no counterpart.
pub fn run(command: MigrateCommand, cli: &Command) -> anyhow::Result<()> {
    let MigrateCommand::K3s(args) = command;
    let variables = args.env_file.as_deref().map(variables).transpose()?.unwrap_or_default();
    let is_agent = variables.iter().any(|v| v.name == "K3S_URL");
    let name = args.role.clone().unwrap_or_else(|| if is_agent { "agent" } else { "server" }.to_owned());
    let Some(command) = cli.find_subcommand(&name) else { bail!("command {name} does not exist") };
    let mut settings = config(args.config.as_deref(), &name)?;
    settings.extend(variables);
    settings.extend(flags(&args.flags, &name)?);
    let outcomes = translate(command, &settings);
    let report = report(&name, &outcomes);
    if args.check {
        out!("{report}");
    } else {
        eprint!("{report}");
        out!("{}", configuration(&outcomes));
    }
    let refused: usize = outcomes.iter().map(|outcome| outcome.refused.len()).sum();
    if refused > 0 {
        bail!("{refused} of k3s' settings have no counterpart; see the lines marked with !");
    }
    Ok(())
}

/// Reads the settings of k3s' configuration files.
fn config(named: Option<&Path>, command: &str) -> anyhow::Result<Vec<Foreign>> {
    let files = match named {
        None if !Path::new(CONFIG_FILE).exists() => Vec::new(),
        named => read(Some(named.unwrap_or(Path::new(CONFIG_FILE))))?,
    };
    // k3s also appends to single values, so every key may be a list here.
    let key = |flag: &str| Key { flag: flag.to_owned(), is_list: true, is_bool: false, is_secret: false };
    let known = ALIASES.iter().filter(|alias| alias.is_of(command));
    let mut keys: BTreeMap<String, Key> = known
        .flat_map(|alias| {
            [alias.flag.to_owned()].into_iter().chain(alias.letter.map(String::from)).map(move |n| (n, key(alias.flag)))
        })
        .collect();
    // An unknown setting is reported like one without a counterpart.
    for (_, data) in &files {
        for setting in kelson_codec::yaml::settings(data).unwrap_or_default() {
            let name = setting.name.trim_end_matches('+').to_owned();
            keys.entry(name.clone()).or_insert_with(|| key(&name));
        }
    }
    let merged = merge(&keys, &files, |_| None)?;
    Ok(merged
        .into_iter()
        .map(|(name, set)| {
            let from: Vec<String> = set.from.iter().map(ToString::to_string).collect();
            Foreign { name, values: set.values, from: from.join(" ") }
        })
        .collect())
}

/// Reads k3s' variables from a file of `NAME=VALUE` lines.
fn variables(file: &Path) -> anyhow::Result<Vec<Foreign>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    Ok(of_environment(&text, &file.display().to_string()))
}

fn of_environment(text: &str, file: &str) -> Vec<Foreign> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim().trim_start_matches("export ").trim()));
    let pairs =
        lines.filter(|(_, line)| !line.starts_with('#')).filter_map(|(at, line)| Some((at, line.split_once('=')?)));
    pairs
        .filter(|(_, (name, _))| name.starts_with(VARIABLES))
        .map(|(at, (name, value))| {
            let quote =
                value.chars().next().filter(|c| matches!(c, '"' | '\'') && value.len() > 1 && value.ends_with(*c));
            let value = quote.map_or(value, |_| &value[1..value.len() - 1]);
            Foreign { name: name.to_owned(), values: vec![value.to_owned()], from: format!("{file}:{at}") }
        })
        .collect()
}

/// Reads the settings of a k3s command line, without the names of program and command.
fn flags(words: &[String], command: &str) -> anyhow::Result<Vec<Foreign>> {
    let mut found: Vec<Foreign> = Vec::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let dashless = word.trim_start_matches('-');
        if dashless == word {
            match word.as_str() {
                "k3s" | "server" | "agent" => continue,
                _ => bail!("expected a flag of k3s, got {word:?}"),
            }
        }
        let (name, value) = dashless.split_once('=').map_or((dashless, None), |(n, v)| (n, Some(v.to_owned())));
        let letter = |alias: &&super::alias::Alias| alias.is_of(command) && name.chars().eq(alias.letter);
        let name = ALIASES.iter().find(letter).map_or(name, |alias| alias.flag).to_owned();
        let next = words.next_if(|next| value.is_none() && !next.starts_with('-') && takes_value(&name, command));
        let value = value.or_else(|| next.cloned()).unwrap_or_else(|| "true".to_owned());
        match found.iter_mut().find(|setting| setting.name == name) {
            Some(setting) => setting.values.push(value),
            None => found.push(Foreign { from: format!("--{name}"), name, values: vec![value] }),
        }
    }
    Ok(found)
}

/// Reports whether the word after a flag is its value.
fn takes_value(name: &str, command: &str) -> bool {
    find(name, command).is_some_and(|alias| !alias.is_truth)
}

/// Formats a line for each setting: its counterpart, or why there is none. Lines of settings without a counterpart
/// begin with `!`.
fn report(command: &str, outcomes: &[Outcome]) -> String {
    let mut out = format!("k3s {command} -> kelson {command}\n");
    for outcome in outcomes {
        let what = format!("{} = {}", outcome.name, outcome.shown);
        let hides = find(&outcome.name, command).is_some_and(|alias| alias.is_secret);
        let here: Vec<String> = outcome
            .here
            .iter()
            .map(|(flag, value)| if hides { format!("{flag}: {}", outcome.shown) } else { format!("{flag}: {value}") })
            .collect();
        // Writing to a string cannot fail.
        if !here.is_empty() {
            let _ = writeln!(out, "  {what} -> {}  ({})", here.join(", "), outcome.from);
        }
        if let Some(why) = outcome.unneeded.as_ref().filter(|_| here.is_empty() && outcome.refused.is_empty()) {
            let _ = writeln!(out, "  {what} -> nothing to set: {why}  ({})", outcome.from);
        }
        for why in &outcome.refused {
            let _ = writeln!(out, "! {what} -> no counterpart: {why}  ({})", outcome.from);
        }
    }
    out
}

/// Formats Kelson's configuration file. A list that several settings add to is one key.
fn configuration(outcomes: &[Outcome]) -> String {
    let mut all: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (flag, value) in outcomes.iter().flat_map(|outcome| &outcome.here) {
        all.entry(flag).or_default().push(value);
    }
    let tree: serde_json::Map<String, serde_json::Value> = all
        .into_iter()
        .map(|(flag, values)| match values.as_slice() {
            [one] => (flag.to_owned(), (*one).into()),
            several => (flag.to_owned(), several.to_vec().into()),
        })
        .collect();
    if tree.is_empty() {
        return String::new();
    }
    kelson_codec::yaml::to_yaml(&tree.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn foreign(name: &str, values: &[&str]) -> (String, Vec<String>) {
        (name.to_owned(), values.iter().map(|v| (*v).to_owned()).collect())
    }

    fn pairs(all: Vec<Foreign>) -> Vec<(String, Vec<String>)> {
        all.into_iter().map(|setting| (setting.name, setting.values)).collect()
    }

    #[test]
    fn flags_as_a_unit_has_them() {
        let words = "server --disable traefik --disable=servicelb -d /data --cluster-init --tls-san a --write-kubeconfig-mode 644";
        let words: Vec<String> = words.split(' ').map(String::from).collect();
        let want = [
            foreign("disable", &["traefik", "servicelb"]),
            foreign("data-dir", &["/data"]),
            foreign("cluster-init", &["true"]),
            foreign("tls-san", &["a"]),
            foreign("write-kubeconfig-mode", &["644"]),
        ];
        assert_eq!(pairs(flags(&words, "server").unwrap()), want);
        assert!(flags(&["word".to_owned()], "server").is_err());
    }

    #[test]
    fn variables_of_an_environment_file() {
        let text = "# note\nK3S_TOKEN='a b'\nexport K3S_URL=\"https://a\"\nHTTP_PROXY=x\nK3S_NODE_NAME=n\n";
        let want =
            [foreign("K3S_TOKEN", &["a b"]), foreign("K3S_URL", &["https://a"]), foreign("K3S_NODE_NAME", &["n"])];
        let found = of_environment(text, "f");
        assert_eq!(found[1].from, "f:3");
        assert_eq!(pairs(found), want);
    }

    #[test]
    fn a_file_of_k3s_becomes_one_of_ours_and_a_report() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        let text = "https-listen-port: 7443\ndisable:\n- traefik\n- local-storage\ntls-san+: a\nwrite-kubeconfig-mode: \"0644\"\nunheard-of: 1\ntoken: s3cret\n";
        std::fs::write(&file, text).unwrap();
        let settings = config(Some(&file), "server").unwrap();
        let cli = crate::cli::Cli::command();
        let outcomes = translate(cli.find_subcommand("server").unwrap(), &settings);
        assert_eq!(configuration(&outcomes), "disable: local-storage\nsecure-port: \"7443\"\ntls-san: a\n");
        let report = report("server", &outcomes);
        assert!(report.contains("  https-listen-port = 7443 -> secure-port: 7443  ("), "{report}");
        let refused: Vec<&str> = report.lines().filter(|line| line.starts_with('!')).collect();
        assert_eq!(refused.len(), 3, "{report}");
        assert!(!report.contains("s3cret"), "{report}");
    }
}
