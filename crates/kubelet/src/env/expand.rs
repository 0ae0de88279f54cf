//! `$(VAR)` expansion in commands, arguments, values and `subPathExpr`: `$$` is a dollar, an unknown reference stays as
//! it is (upstream: `third_party/forked/golang/expansion`).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::EnvVar;

/// Expands `input`, asking `lookup` for each name.
pub fn expand<'a>(input: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut out = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some(tail) = after.strip_prefix('(') {
            match tail.find(')') {
                Some(end) => {
                    let name = &tail[..end];
                    match lookup(name) {
                        Some(value) => out.push_str(value),
                        None => {
                            out.push_str("$(");
                            out.push_str(name);
                            out.push(')');
                        }
                    }
                    rest = &tail[end + 1..];
                }
                None => {
                    out.push_str("$(");
                    rest = tail;
                }
            }
        } else {
            // An operator followed by anything else is that text itself.
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

/// Expands from a list of pairs, the last of equal names winning.
pub fn expand_from(input: &str, env: &[(String, String)]) -> String {
    expand(input, |name| env.iter().rev().find(|(k, _)| k == name).map(|(_, v)| v.as_str()))
}

/// Expands from what a container's spec says alone, as commands of probes are: a value that comes from elsewhere counts as
/// empty.
pub fn expand_static(input: &str, env: &[EnvVar]) -> String {
    expand(input, |name| env.iter().rev().find(|v| v.name == name).map(|v| v.value.as_deref().unwrap_or_default()))
}

/// Expands from a list of pairs, but a reference to a name that is unknown or empty is an error: `subPathExpr` must not
/// silently keep the one, nor with the other show the whole volume.
pub fn expand_strict(input: &str, env: &[(String, String)]) -> Result<String, String> {
    let missing = std::cell::RefCell::new(BTreeSet::new());
    let out = expand(input, |name| {
        let found = env.iter().rev().find(|(k, _)| k == name).map(|(_, v)| v.as_str());
        if found.is_none_or(str::is_empty) {
            missing.borrow_mut().insert(name.to_owned());
        }
        found
    });
    let missing = missing.into_inner();
    if missing.is_empty() {
        return Ok(out);
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
            assert_eq!(expand_from(input, &env), want, "{input}");
        }
        let missing = Err("missing value for EMPTY, NO".to_owned());
        assert_eq!(expand_strict("$(NO)/$(A)/$(EMPTY)/$(NO)", &env), missing);
        assert_eq!(expand_strict("$(A)/b", &env).as_deref(), Ok("a/b"));
    }

    #[test]
    fn commands_of_probes_know_the_spec_alone() {
        let var = |name: &str, value: Option<&str>| EnvVar {
            name: name.into(),
            value: value.map(Into::into),
            ..EnvVar::default()
        };
        let env = [var("A", Some("1")), var("FROM", None), var("A", Some("2"))];
        assert_eq!(expand_static("$(A)$(FROM)|$(NO)|$$(A)", &env), "2|$(NO)|$(A)");
    }
}
