//! What a release of etcd can be relied on for. Pure.

/// Whether a progress notification that was asked for says the truth: before these releases it could overtake events (etcd
/// issue 15220; upstream's storage asks for none there either, `storage/feature/feature_support_checker.go`).
pub(crate) fn progress_is_sound(version: &str) -> bool {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse::<u64>().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    match (next(), next(), next()) {
        (3, 4, patch) => patch >= 31,
        (3, 5, patch) => patch >= 13,
        (3, minor, _) => minor >= 6,
        (major, _, _) => major > 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_in_which_progress_is_sound() {
        for (version, sound) in [
            ("3.3.99", false),
            ("3.4.23", false),
            ("3.4.31", true),
            ("3.5.0", false),
            ("3.5.12", false),
            ("3.5.13", true),
            ("3.6.0-rc.1", true),
            ("4.0.0", true),
            ("", false),
            ("next", false),
        ] {
            assert_eq!(progress_is_sound(version), sound, "{version}");
        }
    }
}
