//! The keys that a configuration file may have: the flags of a command, from its clap definition.
use std::collections::BTreeMap;

use clap::{Arg, ArgAction, Command};

/// The flag that names the file itself, which a file cannot set.
const CONFIG: &str = "config";
/// The minimum similarity of two names for a suggestion; 1 means equal.
const LIKENESS_MIN: f64 = 0.8;

/// A key of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The flag that it sets, without dashes.
    pub flag: String,
    /// Whether it takes several values.
    pub is_list: bool,
    /// Whether it is a boolean.
    pub is_bool: bool,
    /// Whether its value is never printed.
    pub is_secret: bool,
}

impl Key {
    fn of(arg: &Arg, flag: &str) -> Self {
        Self {
            flag: flag.to_owned(),
            is_list: matches!(arg.get_action(), ArgAction::Append),
            is_bool: matches!(arg.get_action(), ArgAction::SetTrue)
                || arg.get_num_args().is_some_and(|n| n.min_values() == 0),
            is_secret: arg.is_hide_env_values_set() && flag != CONFIG,
        }
    }
}

/// Returns the keys of a command, by each name that its flags have.
pub fn keys(command: &Command) -> BTreeMap<String, Key> {
    let mut keys = BTreeMap::new();
    for arg in command.get_arguments() {
        let Some(flag) = arg.get_long().filter(|flag| ![CONFIG, "help", "version"].contains(flag)) else { continue };
        for name in std::iter::once(flag).chain(arg.get_all_aliases().into_iter().flatten()) {
            keys.insert(name.to_owned(), Key::of(arg, flag));
        }
    }
    keys
}

/// Returns the name most similar to `name`, if one is similar enough.
pub fn nearest<'n>(name: &str, among: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let likeness = among.map(|other| (strsim::jaro(name, other), other));
    let best = likeness.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(likeness, _)| *likeness >= LIKENESS_MIN).map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_flags_and_their_other_names() {
        let command = Command::new("x")
            .arg(Arg::new("port").long("port"))
            .arg(Arg::new("list").long("list").action(ArgAction::Append))
            .arg(Arg::new("hash").long("hash").alias("discovery-hash"))
            .arg(Arg::new("deep").long("deep").num_args(0..=1).default_missing_value("true"))
            .arg(Arg::new("token").long("token").env("X_TOKEN").hide_env_values(true))
            .arg(Arg::new("config").long("config"))
            .arg(Arg::new("word"));
        let all = keys(&command);
        let names: Vec<&str> = all.keys().map(String::as_str).collect();
        assert_eq!(names, ["deep", "discovery-hash", "hash", "list", "port", "token"]);
        assert_eq!(all["discovery-hash"].flag, "hash");
        assert!(all["list"].is_list && all["deep"].is_bool && all["token"].is_secret);
        assert!(!all["port"].is_list && !all["port"].is_bool && !all["port"].is_secret);
    }

    #[test]
    fn a_misspelt_name_has_a_nearest_one() {
        let names = ["secure-port", "bind-address", "data-dir"];
        for (name, want) in [
            ("secure-prot", Some("secure-port")),
            ("secureport", Some("secure-port")),
            ("data_dir", Some("data-dir")),
            ("xyz", None),
        ] {
            assert_eq!(nearest(name, names.into_iter()), want, "{name}");
        }
    }
}
