//! The cache of recently compiled patterns in this process. Authors use few patterns, and each of them often.
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use regex::Regex;

/// The bounds of the cache: the number of patterns, and the sum of their states, which is a few megabytes at most.
const KEPT_MAX: usize = 512;
const STATES_MAX: usize = 64 << 10;

struct KeptPattern {
    regex: Regex,
    states: usize,
    used: u64,
}

#[derive(Default)]
struct PatternCache {
    entries: HashMap<Box<str>, KeptPattern>,
    states: usize,
    uses: u64,
}

impl PatternCache {
    fn find(&mut self, pattern: &str) -> Option<Regex> {
        self.uses += 1;
        let entry = self.entries.get_mut(pattern)?;
        entry.used = self.uses;
        Some(entry.regex.clone())
    }

    /// Adds a pattern. If the cache is full, the older half of the others is removed.
    fn keep(&mut self, pattern: &str, regex: &Regex, states: usize) {
        if states > STATES_MAX {
            return;
        }
        while self.entries.len() >= KEPT_MAX || (self.states + states > STATES_MAX && !self.entries.is_empty()) {
            let mut ages: Vec<u64> = self.entries.values().map(|entry| entry.used).collect();
            ages.sort_unstable();
            let middle = ages[(ages.len() - 1) / 2];
            self.entries.retain(|_, entry| entry.used > middle);
            self.states = self.entries.values().map(|entry| entry.states).sum();
        }
        self.uses += 1;
        self.states += states;
        let entry = KeptPattern { regex: regex.clone(), states, used: self.uses };
        if let Some(before) = self.entries.insert(pattern.into(), entry) {
            self.states -= before.states;
        }
    }
}

static KEPT: LazyLock<Mutex<PatternCache>> = LazyLock::new(Mutex::default);

fn lock() -> MutexGuard<'static, PatternCache> {
    // The cache is valid after a panic, since no change of it can be interrupted.
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Finds a compiled pattern.
pub(super) fn find(pattern: &str) -> Option<Regex> {
    lock().find(pattern)
}

/// Adds a pattern to the cache, unless it is too large.
pub(super) fn keep(pattern: &str, regex: &Regex, states: usize) {
    lock().keep(pattern, regex, states);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded() {
        let mut kept = PatternCache::default();
        for i in 0..KEPT_MAX * 2 {
            let pattern = format!("kept{i}");
            kept.keep(&pattern, &Regex::new(&pattern).unwrap(), 200);
            assert!(kept.find(&pattern).is_some_and(|regex| regex.is_match(&pattern)));
            assert!(kept.entries.len() <= KEPT_MAX && kept.states <= STATES_MAX);
        }
        assert_eq!(kept.states, kept.entries.values().map(|entry| entry.states).sum::<usize>());
        kept.keep("huge", &Regex::new("huge").unwrap(), STATES_MAX + 1);
        assert!(kept.find("huge").is_none());
    }
}
