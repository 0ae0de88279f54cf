//! Translates settings of k3s by the table.
use std::collections::BTreeMap;

use clap::Command;
use clap::error::ErrorKind;

use super::alias::{Alias, Counterpart};
use super::table::ALIASES;
use crate::config::{Key, keys};

/// Parts of k3s that Kelson does not package: there is nothing to leave out.
const NOT_PACKAGED: &[&str] = &["traefik", "helm-controller", "runtimes", "ccm", "rolebindings"];

/// A setting of k3s from any source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// The flag, without dashes, or the name of an environment variable.
    pub name: String,
    /// Its values, in order.
    pub values: Vec<String>,
    /// The source: `FILE:LINE`, a flag or a variable.
    pub from: String,
}

/// The translation of a setting.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The flag or variable.
    pub name: String,
    /// The setting of the source.
    pub from: String,
    /// The value for printing.
    pub shown: String,
    /// Kelson's flags with their values, in order.
    pub here: Vec<(String, String)>,
    /// Why no setting is needed, if so.
    pub unneeded: Option<String>,
    /// The parts without a counterpart, with the reason.
    pub refused: Vec<String>,
}

/// Printed instead of a secret value.
const MASK: &str = "(hidden)";

/// Translates settings for Kelson's `command`, which has the same name as k3s'.
pub fn translate(command: &Command, settings: &[Foreign]) -> Vec<Outcome> {
    let keys = keys(command);
    settings.iter().map(|setting| Translator { command, keys: &keys }.one(setting)).collect()
}

/// Returns the row of a flag or variable of a command.
pub fn find(name: &str, command: &str) -> Option<&'static Alias> {
    ALIASES.iter().find(|a| a.is_of(command) && (a.flag == name || !a.variable.is_empty() && a.variable == name))
}

struct Translator<'a> {
    command: &'a Command,
    keys: &'a BTreeMap<String, Key>,
}

impl Translator<'_> {
    fn one(&self, setting: &Foreign) -> Outcome {
        let mut outcome = Outcome {
            name: setting.name.clone(),
            from: setting.from.clone(),
            shown: setting.values.join(","),
            here: Vec::new(),
            unneeded: None,
            refused: Vec::new(),
        };
        let command = self.command.get_name();
        let Some(alias) = find(&setting.name, command) else {
            outcome.refused.push(format!("k3s {command} is not known to have it"));
            return outcome;
        };
        if alias.is_secret {
            MASK.clone_into(&mut outcome.shown);
        }
        let (defaults, values): (Vec<&String>, Vec<&String>) =
            setting.values.iter().partition(|value| changes_nothing(alias, value));
        if values.is_empty() && !defaults.is_empty() {
            outcome.unneeded = Some("this is the default".to_owned());
            return outcome;
        }
        for value in values {
            self.value(alias, value, &mut outcome);
        }
        self.check(&mut outcome);
        outcome
    }

    fn value(&self, alias: &Alias, value: &str, outcome: &mut Outcome) {
        let mut set = |flag: &str, value: &str| outcome.here.push((flag.to_owned(), value.to_owned()));
        match alias.to {
            Counterpart::Same => set(alias.flag, value),
            Counterpart::Flag(here) => set(here, value),
            Counterpart::Converts(_, convert) => match convert(value) {
                Ok(all) => all.iter().for_each(|(flag, value)| set(flag, value)),
                Err(why) => outcome.refused.push(why),
            },
            Counterpart::Arguments => {
                let (flag, value) = value.split_once('=').unwrap_or((value, "true"));
                match self.keys.get(flag.trim_start_matches('-')) {
                    Some(key) => set(&key.flag, value),
                    None => outcome.refused.push(format!("{flag}: {}", alias.note)),
                }
            }
            Counterpart::Parts => {
                for part in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
                    match (self.parts().iter().any(|have| have == part), NOT_PACKAGED.contains(&part)) {
                        (true, _) => set("disable", part),
                        (false, true) => outcome.unneeded = Some(format!("{part} is not packaged")),
                        (false, false) => outcome.refused.push(format!("{part} is built in")),
                    }
                }
            }
            Counterpart::Unneeded => outcome.unneeded = Some(alias.note.to_owned()),
            Counterpart::Refused => outcome.refused.push(alias.note.to_owned()),
        }
    }

    /// Returns the parts that `--disable` accepts.
    fn parts(&self) -> Vec<String> {
        let arg = self.command.get_arguments().find(|arg| arg.get_long() == Some("disable"));
        arg.map(|arg| arg.get_possible_values().iter().map(|v| v.get_name().to_owned()).collect()).unwrap_or_default()
    }

    /// Reports values that the command rejects as having no counterpart.
    fn check(&self, outcome: &mut Outcome) {
        let mut once: Vec<&str> = Vec::new();
        let mut kept = Vec::new();
        for (flag, value) in &outcome.here {
            let is_list = self.keys.get(flag).is_some_and(|key| key.is_list);
            if once.contains(&flag.as_str()) && !is_list {
                outcome.refused.push(format!("{flag} takes one value"));
            } else if let Some(why) = self.wrong(flag, value) {
                outcome.refused.push(why);
            } else {
                kept.push((flag.clone(), value.clone()));
            }
            once.push(flag);
        }
        outcome.here = kept;
    }

    /// Returns why the command rejects a value.
    fn wrong(&self, flag: &str, value: &str) -> Option<String> {
        let words = [self.command.get_name().to_owned(), format!("--{flag}={value}")];
        let error = self.command.clone().try_get_matches_from(words).err()?;
        let about_value = matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation);
        about_value.then(|| {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        })
    }
}

/// Reports whether a value is the default of k3s.
fn changes_nothing(alias: &Alias, value: &str) -> bool {
    let is_off = matches!(alias.to, Counterpart::Refused | Counterpart::Unneeded) && value == "false";
    value.is_empty() || is_off || !alias.default.is_empty() && alias.default == value
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn translated(command: &str, name: &str, values: &[&str]) -> String {
        let cli = crate::cli::Cli::command();
        let command = cli.find_subcommand(command).expect("a command");
        let values = values.iter().map(|v| (*v).to_owned()).collect();
        let setting = Foreign { name: name.to_owned(), values, from: "here".to_owned() };
        let outcome = translate(command, &[setting]).remove(0);
        let here: Vec<String> = outcome.here.iter().map(|(flag, value)| format!("{flag}={value}")).collect();
        match (outcome.refused.first(), outcome.unneeded) {
            (Some(why), _) => format!("{} refused: {why}", here.join(" ")).trim_start().to_owned(),
            (None, Some(why)) if here.is_empty() => format!("unneeded: {why}"),
            _ => here.join(" "),
        }
    }

    #[test]
    fn settings_of_k3s_in_our_terms() {
        for (name, values, want) in [
            ("https-listen-port", &["7443"][..], "secure-port=7443"),
            ("tls-san", &["a", "b"], "tls-san=a tls-san=b"),
            ("debug", &["true"], "log-level=debug"),
            ("v", &["8"], "log-level=trace"),
            ("disable", &["traefik", "local-storage"], "disable=local-storage"),
            ("disable", &["metrics-server,servicelb"], "disable=metrics-server disable=servicelb"),
            ("disable", &["traefik"], "unneeded: traefik is not packaged"),
            ("disable", &["coredns"], "refused: coredns is built in"),
            ("disable-network-policy", &["true"], "disable=network-policy"),
            ("kube-apiserver-arg", &["audit-log-path=-"], "audit-log-path=-"),
            (
                "kube-apiserver-arg",
                &["no-such=1"],
                "refused: no-such: flags that Kelson's command has under the same name",
            ),
            ("datastore-endpoint", &["https://a:1,https://b:1"], "etcd-servers=https://a:1 etcd-servers=https://b:1"),
            ("flannel-backend", &["vxlan"], "unneeded: this is the default"),
            ("etcd-expose-metrics", &["false"], "unneeded: this is the default"),
            ("cluster-init", &["true"], "cluster-init=true"),
            ("K3S_KUBECONFIG_OUTPUT", &["/k"], "kubeconfig-out=/k"),
        ] {
            assert_eq!(translated("server", name, values), want, "{name}");
        }
    }

    #[test]
    fn what_has_no_counterpart_says_why() {
        for (name, values, want) in [
            ("datastore-endpoint", &["mysql://u:p@h/d"][..], "only etcd is supported"),
            ("cluster-cidr", &["10.42.0.0/16,fd00::/56"], "invalid value"),
            ("cluster-cidr", &["10.42.0.0/16", "fd00::/56"], "takes one value"),
            ("etcd-expose-metrics", &["true"], "with flags of its choice"),
            ("no-such-flag", &["1"], "is not known to have it"),
            ("flannel-backend", &["host-gw"], "the pod network is built in"),
        ] {
            let text = translated("server", name, values);
            assert!(text.contains("refused: ") && text.contains(want), "{name}: {text}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_flag_may_mean_something_else_to_an_agent() {
        assert_eq!(translated("agent", "K3S_URL", &["https://a:6443"]), "server=https://a:6443");
        assert_eq!(translated("agent", "node-label", &["tier=edge"]), "node-labels=tier=edge");
        let taint = translated("agent", "node-taint", &["a=b:Nope"]);
        assert!(taint.starts_with("refused: invalid value"), "{taint}");
        assert!(translated("server", "K3S_URL", &["https://a:6443"]).starts_with("refused"));
    }

    #[test]
    fn secrets_are_not_shown() {
        let cli = crate::cli::Cli::command();
        let command = cli.find_subcommand("server").expect("a command");
        let foreign =
            |name: &str| Foreign { name: name.to_owned(), values: vec!["s3cret".to_owned()], from: String::new() };
        for outcome in translate(command, &["token", "datastore-endpoint", "K3S_AGENT_TOKEN"].map(foreign)) {
            assert!(!format!("{} {:?}", outcome.shown, outcome.refused).contains("s3cret"), "{outcome:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn every_counterpart_is_a_flag_of_its_command() {
        let cli = crate::cli::Cli::command();
        for alias in ALIASES {
            let here = match alias.to {
                Counterpart::Same => alias.flag,
                Counterpart::Flag(here) | Counterpart::Converts(here, _) => here,
                _ => {
                    assert!(!alias.note.is_empty(), "--{} says why", alias.flag);
                    continue;
                }
            };
            for name in ["server", "agent"].into_iter().filter(|name| alias.is_of(name)) {
                let command = cli.find_subcommand(name).expect("a command");
                assert!(keys(command).contains_key(here), "kelson {name} has no --{here} for k3s' --{}", alias.flag);
            }
        }
    }

    #[test]
    fn a_flag_of_a_command_has_one_row() {
        for (at, alias) in ALIASES.iter().enumerate() {
            for other in &ALIASES[at + 1..] {
                let both = ["server", "agent"].iter().any(|name| alias.is_of(name) && other.is_of(name));
                assert!(!both || alias.flag != other.flag, "two rows for --{}", alias.flag);
                assert!(!both || alias.variable.is_empty() || alias.variable != other.variable, "{}", alias.variable);
            }
        }
    }
}
