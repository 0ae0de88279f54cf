//! Generates the table of `docs/k3s.md` from the rows. A test compares the page with it; `KELSON_WRITE_DOCS=1` makes
//! that test write the page instead.
use std::fmt::Write as _;

use super::alias::{Alias, Counterpart, Scope};
use super::table::ALIASES;

const BEGIN: &str =
    "<!-- The table is written from kelson/src/k3s/table.rs: KELSON_WRITE_DOCS=1 cargo test -p kelson k3s::page -->\n";
const END: &str = "<!-- End of the table. -->\n";

/// Returns the rows of a scope by name, as a Markdown table.
fn table(scope: Scope) -> String {
    let mut rows: Vec<&Alias> = ALIASES.iter().filter(|alias| alias.scope == scope).collect();
    rows.sort_by_key(|alias| alias.flag);
    let mut out = "| k3s | variable | Kelson | |\n|---|---|---|---|\n".to_owned();
    for alias in rows {
        let here = match alias.to {
            Counterpart::Same => "same".to_owned(),
            Counterpart::Flag(here) | Counterpart::Converts(here, _) => format!("`--{here}`"),
            Counterpart::Arguments => "flags".to_owned(),
            Counterpart::Parts => "`--disable`".to_owned(),
            Counterpart::Unneeded => "not needed".to_owned(),
            Counterpart::Refused => "none".to_owned(),
        };
        let letter = alias.letter.map(|letter| format!(", `-{letter}`")).unwrap_or_default();
        let variable = if alias.variable.is_empty() { String::new() } else { format!("`{}`", alias.variable) };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| `--{}`{letter} | {variable} | {here} | {} |", alias.flag, alias.note);
    }
    out
}

fn tables() -> String {
    let mut out = String::new();
    for (title, scope) in [("Server and agent", Scope::Both), ("Server", Scope::Server), ("Agent", Scope::Agent)] {
        let _ = write!(out, "\n## {title}\n\n{}", table(scope));
    }
    out.push('\n');
    out
}

#[test]
fn the_page_has_the_rows_of_the_table() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/k3s.md");
    let page = std::fs::read_to_string(&file).expect("docs/k3s.md");
    let (head, rest) = page.split_once(BEGIN).expect("the beginning of the table");
    let (_, tail) = rest.split_once(END).expect("the end of the table");
    let want = format!("{head}{BEGIN}{}{END}{tail}", tables());
    if std::env::var_os("KELSON_WRITE_DOCS").is_some() {
        std::fs::write(&file, &want).expect("docs/k3s.md");
        return;
    }
    assert!(
        page == want,
        "docs/k3s.md is not what the table says; KELSON_WRITE_DOCS=1 cargo test -p kelson k3s::page writes it"
    );
}
