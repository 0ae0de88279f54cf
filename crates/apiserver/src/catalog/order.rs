//! The order of version names for clients (apimachinery `pkg/version`): stable before beta before alpha, higher numbers first, then all
//! other names in alphabetical order.
use std::cmp::Ordering;

/// The parts of a name such as `v2beta1` in comparable form: stage, major and minor number.
fn parsed(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, rest) = rest.split_at(digits);
    let number = |text: &str| if text.starts_with('0') { None } else { text.parse::<u64>().ok() };
    let major = number(major)?;
    if rest.is_empty() {
        return Some((2, major, 0));
    }
    let (stage, minor) = match rest.strip_prefix("beta") {
        Some(minor) => (1, minor),
        None => (0, rest.strip_prefix("alpha")?),
    };
    Some((stage, major, number(minor)?))
}

/// Orders version names, the preferred one first.
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    match (parsed(a), parsed(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_versions_come_first() {
        let mut names =
            ["foo10", "v1alpha1", "v10", "v2", "foo1", "v11alpha2", "v3beta1", "v12alpha1", "v1", "v11beta2", "v01"];
        names.sort_by(|a, b| compare_versions(a, b));
        let expected =
            ["v10", "v2", "v1", "v11beta2", "v3beta1", "v12alpha1", "v11alpha2", "v1alpha1", "foo1", "foo10", "v01"];
        assert_eq!(names, expected);
    }
}
