//! `pattern`: regular expressions in the syntax of RE2. Compiled ones are many times larger than their source, so only
//! recently used ones are kept.
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use kelson_cel::re2;
use regex::Regex;

use super::node::Name;

/// The number of compiled patterns that are kept for all schemas together.
const KEPT_MAX: usize = 256;
#[derive(Default)]
struct CompiledPatterns {
    compiled: HashMap<Name, (Arc<Regex>, u64)>,
    uses: u64,
}

static KEPT: LazyLock<Mutex<CompiledPatterns>> = LazyLock::new(Mutex::default);

/// Reports whether a string matches the pattern.
///
/// # Errors
/// Returns why the pattern is invalid.
pub fn matches(pattern: &Name, text: &str) -> Result<bool, String> {
    Ok(compiled(pattern)?.is_match(text))
}

fn compiled(pattern: &Name) -> Result<Arc<Regex>, String> {
    // The table stays consistent after a panic, because each change is complete.
    let lock = || KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    {
        let mut kept = lock();
        kept.uses += 1;
        let now = kept.uses;
        if let Some((regex, used)) = kept.compiled.get_mut(pattern) {
            *used = now;
            return Ok(Arc::clone(regex));
        }
    }
    let regex = Arc::new(compile(pattern)?);
    let mut kept = lock();
    if kept.compiled.len() >= KEPT_MAX {
        // The older half is removed at once, so that the search for old entries costs little per pattern.
        let mut ages: Vec<u64> = kept.compiled.values().map(|(_, used)| *used).collect();
        ages.sort_unstable();
        let middle = ages[ages.len() / 2];
        kept.compiled.retain(|_, (_, used)| *used > middle);
    }
    let now = kept.uses;
    kept.compiled.insert(pattern.clone(), (Arc::clone(&regex), now));
    Ok(regex)
}

/// Compiles a pattern.
///
/// # Errors
/// Returns why it is invalid.
pub fn compile(pattern: &str) -> Result<Regex, String> {
    re2::compile(pattern).map_err(|why| format!("{why}: `{pattern}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_re2() {
        for (pattern, yes, no) in [
            (r"^\d+$", "42", "٤٢"),
            (r"^\w+$", "a_1", "é"),
            (r"^[\w.-]+$", "a.b-c", "a b"),
            (r"^[[:alpha:]]+$", "ab", "a1"),
            (r"^[a[]$", "[", "]"),
            (r"^[]a]$", "]", "["),
            (r"^[a&&b]$", "&", "c"),
            (r"^a{,2}$", "a{,2}", "aa"),
            (r"^\{x\}$", "{x}", "x"),
            (r"^{x}$", "{x}", "x"),
            (r"^(a|b){2,3}$", "aba", "a"),
            (r"^\p{Lu}\pL*$", "Éa", "éa"),
            (r"^\x{41}$", "A", "x"),
            (r"^\Qa.b\E$", "a.b", "axb"),
            (r"^a+?b*$", "aab", "b"),
            (r"^(?:a|b)??c$", "ac", "abc"),
            (r"^\/x\-y$", "/x-y", "x"),
            ("a", "xax", "b"),
        ] {
            let pattern: Name = pattern.into();
            assert_eq!(matches(&pattern, yes), Ok(true), "{pattern} {yes}");
            assert_eq!(matches(&pattern, no), Ok(false), "{pattern} {no}");
        }
    }

    #[test]
    fn bombs_are_no_patterns() {
        for bad in ["(", "[a", "a**", "a{1001}", "(((((a{100}){100}){100}){100}){100})", "\\", "(?=a)", r"(a)\1"] {
            assert!(compile(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_more_are_kept_than_may_be() {
        for n in 0..KEPT_MAX * 2 {
            let pattern: Name = format!("^kept{n}$").into();
            assert_eq!(matches(&pattern, &format!("kept{n}")), Ok(true));
        }
        assert!(KEPT.lock().unwrap().compiled.len() <= KEPT_MAX);
    }
}
