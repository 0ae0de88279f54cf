//! Helpers for tests of metrics.

/// Asserts that the output has each of these lines.
#[track_caller]
pub(super) fn check(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|l| l == *line), "{line} in\n{text}");
    }
}
