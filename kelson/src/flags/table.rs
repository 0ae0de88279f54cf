//! Which flags a component has: upstream's, by the facts beside this file, and what of them is taken up here, by the typed
//! arguments of the command. A flag that is in the facts alone is accepted and has no effect.
use std::collections::BTreeMap;

use clap::{ArgAction, Command};

use super::values::Kind;

/// What a component of upstream's knows of one of its flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// What it takes.
    pub kind: Kind,
    /// The word that help shows for its value; upstream's name of the type.
    pub shown: String,
    /// The letter that stands for it.
    pub short: Option<char>,
    /// Upstream says not to use it any more, and still takes it.
    pub deprecated: bool,
    /// Whether it does anything here.
    pub effect: bool,
    /// Whether an empty value says something else than no flag at all.
    pub empty_counts: bool,
    /// What help says of it.
    pub help: String,
}

/// The flags of one component, by name.
#[derive(Debug)]
pub struct Table(BTreeMap<String, Flag>);

impl Table {
    /// From `facts`, a line each (`NAME TYPE [-LETTER] [deprecated]`), and the typed arguments of `command`.
    pub fn of(facts: &str, command: &Command) -> Self {
        let mut flags = BTreeMap::new();
        for line in facts.lines() {
            let mut words = line.split(' ');
            let (Some(name), Some(shown)) = (words.next(), words.next()) else { continue };
            let mut flag = Flag::new(Kind::of(shown), shown);
            for word in words {
                match word.strip_prefix('-').and_then(|letter| letter.chars().next()) {
                    Some(letter) => flag.short = Some(letter),
                    None => flag.deprecated |= word == "deprecated",
                }
            }
            flags.insert(name.to_owned(), flag);
        }
        for arg in command.get_arguments() {
            let Some(name) = arg.get_long() else { continue };
            let flag = flags.entry(name.to_owned()).or_insert_with(|| {
                let kind = match arg.get_action() {
                    ArgAction::Append => Kind::List,
                    _ if arg.get_num_args().is_some_and(|n| n.min_values() == 0) => Kind::Bool,
                    _ => Kind::Text,
                };
                Flag::new(kind, arg.get_value_names().and_then(|n| n.first()).map_or("string", |n| n.as_str()))
            });
            flag.effect = true;
            flag.empty_counts = !arg.get_default_values().is_empty() || EMPTY_COUNTS.contains(&name);
            flag.help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        }
        Self(flags)
    }

    /// The flag of this name, which may be spelt with underscores, and its name in the usual spelling.
    pub fn named(&self, name: &str) -> Option<(&str, &Flag)> {
        let usual = name.replace('_', "-");
        self.0.get_key_value(usual.as_str()).map(|(name, flag)| (name.as_str(), flag))
    }

    /// The flag of this letter.
    pub fn lettered(&self, letter: char) -> Option<(&str, &Flag)> {
        self.iter().find(|(_, flag)| flag.short == Some(letter))
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Flag)> {
        self.0.iter().map(|(name, flag)| (name.as_str(), flag))
    }
}

/// Lists that mean something when they are given and empty.
const EMPTY_COUNTS: [&str; 1] = ["admission-control"];

impl Flag {
    fn new(kind: Kind, shown: &str) -> Self {
        let (shown, help) = (shown.to_owned(), String::new());
        Self { kind, shown, short: None, deprecated: false, effect: false, empty_counts: false, help }
    }
}
