//! Lengths of functions and files.
use super::ratchets::Measures;
use super::source::block_end;
use super::tree::Tree;

/// A longer function or file counts as long.
const FUNCTION_LONG: usize = 70;
const FILE_LONG: usize = 450;

/// Measures the longest function and file, and how many are long.
pub fn measure(tree: &Tree, all: &mut Measures) {
    let functions = functions(tree);
    let longest = |lines: &[(usize, String)]| lines.iter().map(|(n, _)| *n).max().unwrap_or(0);
    let over = |lines: &[(usize, String)], limit| lines.iter().filter(|(n, _)| *n > limit).count();
    let files = files(tree);
    all.insert("function.longest".to_owned(), longest(&functions));
    all.insert("functions.over_70".to_owned(), over(&functions, FUNCTION_LONG));
    all.insert("file.longest".to_owned(), longest(&files));
    all.insert("files.over_450".to_owned(), over(&files, FILE_LONG));
}

/// Returns the longest functions, for a message.
pub fn longest(tree: &Tree, count: usize) -> Vec<String> {
    said(functions(tree), count)
}

/// Returns the longest files, for a message.
pub fn longest_files(tree: &Tree, count: usize) -> Vec<String> {
    said(files(tree), count)
}

fn said(mut lines: Vec<(usize, String)>, count: usize) -> Vec<String> {
    lines.sort_by(|a, b| b.cmp(a));
    lines.iter().take(count).map(|(n, what)| format!("{n} lines: {what}")).collect()
}

fn files(tree: &Tree) -> Vec<(usize, String)> {
    tree.code().map(|f| (f.text.lines().count(), f.path.clone())).collect()
}

fn functions(tree: &Tree) -> Vec<(usize, String)> {
    tree.code().flat_map(|f| lengths(&f.own).into_iter().map(|(n, name)| (n, format!("{}: {name}", f.path)))).collect()
}

/// Returns the number of lines of each function, from `fn` to its closing brace.
fn lengths(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let name: String = code[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        // `fn` without a name is a type; a signature that ends in `;` has no body.
        let Some(open) = code[at..].find(['{', ';']).filter(|_| !name.is_empty()) else { continue };
        if code.as_bytes()[at + open] == b'{' {
            found.push((code[at..block_end(code, at + open)].lines().count(), name));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_fn_to_brace() {
        let code = "fn a(f: fn (u8)) {\n  {}\n}\ntrait T {\n  fn b();\n  fn c() { }\n}\n";
        assert_eq!(lengths(code), [(3, "a".to_owned()), (1, "c".to_owned())]);
    }
}
