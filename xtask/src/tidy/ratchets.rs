//! The limits that may only fall, in `xtask/ratchets.txt`: a name and a number per line. A measure without a line has
//! the limit 0.
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};

use super::tree::Tree;

/// Everything that is measured, by the name of its limit.
pub type Measures = BTreeMap<String, usize>;

/// The limit of `cargo xtask units`, which runs cargo.
pub const UNITS: &str = "build.units";
/// The limit of `cargo xtask size`, which needs a release binary: its size in kilobytes.
pub const SIZE: &str = "binary.kilobytes";

const PATH: &str = "xtask/ratchets.txt";
const HEAD: &str =
    "# Limits that only fall. `cargo xtask ratchet` lowers them; raising one takes a reason in the commit.\n";

/// The limits by name.
#[derive(Debug)]
pub struct Limits(Measures);

impl Limits {
    pub fn read(tree: &Tree) -> Result<Self> {
        let mut limits = Measures::new();
        for line in tree.other(PATH)?.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
            let (name, value) = line.split_once(' ').with_context(|| format!("{PATH}: {line}"))?;
            limits.insert(name.to_owned(), value.trim().parse().with_context(|| format!("{PATH}: {line}"))?);
        }
        Ok(Self(limits))
    }

    /// Returns the limit of a measure.
    pub fn get(&self, name: &str) -> usize {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Returns limits without a measure.
    pub fn unknown(&self, measures: &Measures) -> Vec<String> {
        let gone =
            self.0.keys().filter(|name| ![UNITS, SIZE].contains(&name.as_str()) && !measures.contains_key(*name));
        gone.map(|name| format!("{PATH}: {name} is measured no more: take it out")).collect()
    }

    /// Lowers a limit, never raises it.
    pub fn lower(&mut self, name: &str, value: usize) {
        if let Some(limit) = self.0.get_mut(name) {
            *limit = value.min(*limit);
        }
    }

    /// Writes the limits that are not 0.
    pub fn write(&self, tree: &Tree) -> Result<()> {
        let mut text = HEAD.to_owned();
        for (name, value) in self.0.iter().filter(|(_, value)| **value > 0) {
            writeln!(text, "{name} {value}")?;
        }
        fs::write(tree.root.join(PATH), text).context(PATH)
    }
}
