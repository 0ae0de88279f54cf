//! What the tests of metrics look for in what is shown.

/// Fails unless each of these lines is among those of the text.
#[track_caller]
pub(super) fn check(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|l| l == *line), "{line} in\n{text}");
    }
}
