//! The flags of a component: upstream's, from the facts in this directory, with those that have an effect here, from
//! the typed arguments of the command. A flag that is only in the facts is accepted and has no effect.
use std::collections::BTreeMap;

use clap::{ArgAction, Command};

use super::values::Kind;

/// A flag of an upstream component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// The type of its value.
    pub kind: Kind,
    /// The name of its value in the help; upstream's name of the type.
    pub shown: String,
    /// Its one-letter form.
    pub short: Option<char>,
    /// Whether upstream has deprecated it.
    pub deprecated: bool,
    /// Whether it has an effect here.
    pub effect: bool,
    /// Whether an empty value differs from no flag at all.
    pub empty_counts: bool,
    /// The help of the flag.
    pub help: String,
}

/// The flags of one component, by name.
#[derive(Debug)]
pub struct Table(BTreeMap<String, Flag>);

impl Table {
    /// Reads `facts`, one flag per line (`NAME TYPE [-LETTER] [deprecated]`), and the typed arguments of `command`.
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

    /// Returns the flag of this name, which may be written with underscores, and its name with dashes.
    pub fn named(&self, name: &str) -> Option<(&str, &Flag)> {
        let usual = name.replace('_', "-");
        self.0.get_key_value(usual.as_str()).map(|(name, flag)| (name.as_str(), flag))
    }

    /// Returns the flag with this letter.
    pub fn lettered(&self, letter: char) -> Option<(&str, &Flag)> {
        self.iter().find(|(_, flag)| flag.short == Some(letter))
    }

    /// Returns all flags, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Flag)> {
        self.0.iter().map(|(name, flag)| (name.as_str(), flag))
    }
}

/// Lists for which an empty value has a meaning.
const EMPTY_COUNTS: [&str; 1] = ["admission-control"];

impl Flag {
    fn new(kind: Kind, shown: &str) -> Self {
        let (shown, help) = (shown.to_owned(), String::new());
        Self { kind, shown, short: None, deprecated: false, effect: false, empty_counts: false, help }
    }
}
