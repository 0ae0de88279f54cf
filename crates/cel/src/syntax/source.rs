//! The source of an expression by code points, and the format of errors with their positions (`ERROR: <input>:1:5: … | …^`).

/// One error in an expression. Its message is in the `message` of a cause that clients read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// The number of code points before the position; `None` if the error is about the whole expression.
    pub offset: Option<u32>,
    /// The message without the position.
    pub message: String,
}

/// The most errors that are listed. Further ones are only counted.
const REPORTED: usize = 100;
/// The longest line in bytes that is shown with its error.
const SNIPPET_BYTES: usize = 16384;

/// Formats errors in the order of their positions like cel-go's `Issues.String`, so that `"compilation failed: " + text` equals
/// upstream's message.
pub fn display(source: &str, issues: &[Issue]) -> String {
    let mut placed: Vec<(i64, i64, &Issue)> = issues
        .iter()
        .take(REPORTED)
        .map(|issue| {
            let (line, column) = place(source, issue.offset);
            (line, column, issue)
        })
        .collect();
    placed.sort_by_key(|(line, column, _)| (*line, *column));
    let mut lines: Vec<String> =
        placed.iter().map(|(line, column, issue)| one(source, *line, *column, &issue.message)).collect();
    if issues.len() > REPORTED {
        lines.push(format!("{} more errors were truncated", issues.len() - REPORTED));
    }
    lines.join("\n")
}

/// The line (from 1) and the column (from 0) of a position. Without a position both are -1, as in cel-go's `NoLocation`.
fn place(source: &str, offset: Option<u32>) -> (i64, i64) {
    let Some(offset) = offset else { return (-1, -1) };
    let (mut line, mut column) = (1, 0);
    for c in source.chars().take(offset as usize) {
        if c == '\n' {
            line += 1;
            column = 0;
        } else {
            column += 1;
        }
    }
    (line, column)
}

fn one(source: &str, line: i64, column: i64, message: &str) -> String {
    let mut text = format!("ERROR: <input>:{line}:{}: {message}", column + 1);
    let snippet = usize::try_from(line - 1).ok().and_then(|n| source.split('\n').nth(n));
    if let Some(snippet) = snippet.filter(|s| s.len() <= SNIPPET_BYTES) {
        text.push_str("\n | ");
        text.push_str(&snippet.replace('\t', " "));
        text.push_str("\n | ");
        let mut chars = snippet.chars();
        // A wide character is underlined with a wide dot, so that the mark is below its position.
        for c in chars.by_ref().take(column.max(0) as usize) {
            text.push(if c.len_utf8() > 1 { '\u{ff0e}' } else { '.' });
        }
        text.push(if chars.next().is_some_and(|c| c.len_utf8() > 1) { '\u{ff3e}' } else { '^' });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_into_the_line() {
        let issue = |offset, message: &str| Issue { offset: Some(offset), message: message.into() };
        assert_eq!(
            display("a\n  == é.b", &[issue(7, "second"), issue(0, "first")]),
            "ERROR: <input>:1:1: first\n | a\n | ^\nERROR: <input>:2:6: second\n |   == é.b\n | .....\u{ff3e}"
        );
        assert_eq!(display("x", &[Issue { offset: None, message: "no".into() }]), "ERROR: <input>:-1:0: no");
    }
}
