//! Expands `$(VAR)` in commands, arguments, values and `subPathExpr`. `$$` is a dollar sign, and an unknown reference stays unchanged
//! (upstream: `third_party/forked/golang/expansion`). Unlike upstream, the result is bounded, because a few references to a long value
//! could exhaust memory.
use std::collections::{BTreeSet, HashMap};

use k8s_openapi::api::core::v1::EnvVar;

/// Maximum size of the result. The kernel allows arguments and environment of at most 6 MiB together.
pub const BYTES_MAX: usize = 8 << 20;

/// Arguments or environment variables are larger than [`BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {BYTES_MAX} bytes, with which no process can be started")]
pub struct TooLarge;

/// Remaining number of bytes.
pub struct Budget(usize);

impl Default for Budget {
    fn default() -> Self {
        Self(BYTES_MAX)
    }
}

impl Budget {
    /// Uses `bytes` of the budget.
    ///
    /// # Errors
    /// Fewer bytes remain.
    pub fn take(&mut self, bytes: usize) -> Result<(), TooLarge> {
        self.0 = self.0.checked_sub(bytes).ok_or(TooLarge)?;
        Ok(())
    }
}

/// Expands `input`; `lookup` returns the value of a name.
///
/// # Errors
/// The result is larger than the budget.
pub fn expand<'a>(
    input: &str,
    budget: &mut Budget,
    lookup: impl Fn(&str) -> Option<&'a str>,
) -> Result<String, TooLarge> {
    budget.take(input.len())?;
    let mut out = String::with_capacity(input.len());
    let mut rest = input;
    // After a failed search for a closing parenthesis, do not search again.
    let mut closes = true;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some(tail) = after.strip_prefix('(') {
            match closes.then(|| tail.find(')')).flatten() {
                Some(end) => {
                    let name = &tail[..end];
                    match lookup(name) {
                        Some(value) => {
                            budget.take(value.len())?;
                            out.push_str(value);
                        }
                        None => {
                            out.push_str("$(");
                            out.push_str(name);
                            out.push(')');
                        }
                    }
                    rest = &tail[end + 1..];
                }
                None => {
                    closes = false;
                    out.push_str("$(");
                    rest = tail;
                }
            }
        } else {
            // An operator followed by any other character is literal.
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Expands each word from a list of pairs; of equal names the last applies.
///
/// # Errors
/// The words are too large together.
pub fn expand_words(words: &[String], env: &[(String, String)], budget: &mut Budget) -> Result<Vec<String>, TooLarge> {
    let known: HashMap<&str, &str> = env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    words.iter().map(|word| expand(word, budget, |name| known.get(name).copied())).collect()
}

/// Expands with only the literal values of a container's spec, as upstream does for commands of probes. A value from another source counts
/// as empty.
///
/// # Errors
/// The words are too large together.
pub fn expand_static(words: &[String], env: &[EnvVar]) -> Result<Vec<String>, TooLarge> {
    let known: HashMap<&str, &str> =
        env.iter().map(|v| (v.name.as_str(), v.value.as_deref().unwrap_or_default())).collect();
    let mut budget = Budget::default();
    words.iter().map(|word| expand(word, &mut budget, |name| known.get(name).copied())).collect()
}

/// Expands from a list of pairs, but a reference to an unknown or empty name is an error: `subPathExpr` must neither keep the reference nor
/// mount the whole volume.
///
/// # Errors
/// The message of `CreateContainerConfigError`.
pub fn expand_strict(input: &str, env: &[(String, String)]) -> Result<String, String> {
    let missing = std::cell::RefCell::new(BTreeSet::new());
    let out = expand(input, &mut Budget::default(), |name| {
        let found = env.iter().rev().find(|(k, _)| k == name).map(|(_, v)| v.as_str());
        if found.is_none_or(str::is_empty) {
            missing.borrow_mut().insert(name.to_owned());
        }
        found
    });
    let missing = missing.into_inner();
    if missing.is_empty() {
        return out.map_err(|e| format!("subPathExpr: {e}"));
    }
    Err(format!("missing value for {}", missing.into_iter().collect::<Vec<_>>().join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let env = [("A", "a"), ("B", "$(A)"), ("EMPTY", "")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        for (input, want) in [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "a"),
            ("x$(A)y$(A)", "xaya"),
            ("$(B)", "$(A)"),
            ("$(EMPTY)|", "|"),
            ("$(NO)", "$(NO)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$$$$(A)", "$$(A)"),
            ("$A", "$A"),
            ("$", "$"),
            ("a$", "a$"),
            ("$(A", "$(A"),
            ("$()", "$()"),
            ("$($(A))", "$($(A))"),
            ("$($(A)", "$($(A)"),
            ("f$(A)$(", "fa$("),
        ] {
            let words = expand_words(&[input.to_owned()], &env, &mut Budget::default());
            assert_eq!(words, Ok(vec![want.to_owned()]), "{input}");
        }
        let missing = Err("missing value for EMPTY, NO".to_owned());
        assert_eq!(expand_strict("$(NO)/$(A)/$(EMPTY)/$(NO)", &env), missing);
        assert_eq!(expand_strict("$(A)/b", &env).as_deref(), Ok("a/b"));
    }

    #[test]
    fn probe_commands_expand_literal_values_only() {
        let var = |name: &str, value: Option<&str>| EnvVar {
            name: name.into(),
            value: value.map(Into::into),
            ..EnvVar::default()
        };
        let env = [var("A", Some("1")), var("FROM", None), var("A", Some("2"))];
        let words = ["$(A)$(FROM)|$(NO)|$$(A)".to_owned()];
        assert_eq!(expand_static(&words, &env), Ok(vec!["2|$(NO)|$(A)".to_owned()]));
    }

    #[test]
    fn too_large_expansions_are_rejected_early() {
        let env = [("A".to_owned(), "a".repeat(1 << 20))];
        let words = ["$(A)".repeat(100_000)];
        assert_eq!(expand_words(&words, &env, &mut Budget::default()), Err(TooLarge));
        let many = vec!["$(A)".to_owned(); 9];
        assert_eq!(expand_words(&many, &env, &mut Budget::default()), Err(TooLarge), "all words together");
        assert!(expand_words(&many[..7], &env, &mut Budget::default()).is_ok());
        assert!(expand_strict(&words[0], &env).is_err_and(|why| why.contains("more than 8388608 bytes")));
        // A million unclosed references take no longer than one.
        let open = ["$(".repeat(1_000_000)];
        assert_eq!(expand_words(&open, &env, &mut Budget::default()).as_deref(), Ok(&open[..]));
    }
}
