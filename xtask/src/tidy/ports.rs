//! `docs/reference/ports.md` says where the code sets each port: the last cell of a row is `FILE NAME`, and the file has that name
//! and the number of the row within three lines.
use super::tree::Tree;

const PATH: &str = "docs/reference/ports.md";
/// A constant is on one line, a flag's default in the attribute before its field.
const LINES: usize = 3;

/// Rows whose source does not say the same.
pub fn faults(tree: &Tree) -> Vec<String> {
    let text = tree.other(PATH).unwrap_or_default();
    let rows = rows(&text);
    let mut found = Vec::new();
    if rows.is_empty() {
        found.push(format!("{PATH} has no table of ports"));
    }
    for (port, file, name) in rows {
        let source = tree.files.iter().find(|f| f.path == file);
        if !source.is_some_and(|f| is_said(&f.text, port, name)) {
            found.push(format!("{PATH}: {file} does not set {name} to {port}"));
        }
    }
    found
}

/// Port, file and name of each row.
fn rows(text: &str) -> Vec<(&str, &str, &str)> {
    let rows = text.lines().skip_while(|line| !line.starts_with("| port |")).skip(2).take_while(|l| l.starts_with('|'));
    rows.filter_map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let (file, name) = cells.last()?.trim_matches('`').split_once(' ')?;
        Some((cells.first()?.split('/').next()?, file, name))
    })
    .collect()
}

fn is_said(text: &str, port: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    lines.windows(LINES).any(|near| {
        let has = |word: &str| near.iter().any(|line| line.replace('_', "").contains(&word.replace('_', "")));
        has(name) && has(port)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_sources() {
        let text = "| port | who | source |\n|---|---|---|\n| 8472/UDP | nodes | `a/b.rs VXLAN_PORT` |\n\nEnd.\n";
        assert_eq!(rows(text), [("8472", "a/b.rs", "VXLAN_PORT")]);
        let code = "/// X.\npub const VXLAN_PORT: u16 = 8472;\n\nfn f() {}\n";
        assert!(is_said(code, "8472", "VXLAN_PORT") && !is_said(code, "8473", "VXLAN_PORT"));
        assert!(is_said("#[arg(long, default_value_t = 6443)]\npub secure_port: u16,\n}\n", "6443", "secure_port"));
    }
}
