//! The output of `--help` and `--version`, in the layout in which tools look for flags: one flag at the start of a
//! line.
use std::fmt::Write as _;

use kelson_meta::version;

use super::table::Table;

/// Returns the list of a component's flags.
pub fn flags(component: &str, about: &str, table: &Table) -> String {
    let mut out = format!("{about}\n\nUsage:\n  {component} [flags]\n\nFlags:\n\n");
    let mut rows: Vec<(String, String)> = Vec::new();
    for (name, flag) in table.iter().filter(|(_, flag)| !flag.deprecated) {
        let letter = flag.short.map_or("    ".to_owned(), |letter| format!("-{letter}, "));
        let shown = match flag.shown.as_str() {
            "bool" => String::new(),
            "version" => " version[=true]".to_owned(),
            other => format!(" {other}"),
        };
        let meaning = match (flag.help.as_str(), flag.effect) {
            (_, _) if flag.shown == "version" => "Print the version (with =raw all build information) and exit.",
            (_, false) => "Accepted for compatibility; without effect.",
            ("", true) => "As in upstream Kubernetes.",
            (said, true) => said,
        };
        rows.push((format!("  {letter}--{name}{shown}"), meaning.to_owned()));
    }
    rows.push(("  -h, --help".to_owned(), "Print this list and exit.".to_owned()));
    let width = rows.iter().map(|(flag, _)| flag.len()).max().unwrap_or(0);
    for (flag, meaning) in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{flag:width$}   {}", meaning.replace('\n', " "));
    }
    out
}

/// Returns the version, as requested by `--version=ASKED`.
pub fn version(asked: &str) -> String {
    if asked != "raw" {
        return format!("Kubernetes {}\n", version::GIT_VERSION);
    }
    let build = version::build();
    format!(
        "version.Info{{Major:{:?}, Minor:{:?}, GitVersion:{:?}, GitCommit:{:?}, GitTreeState:\"clean\", BuildDate:{:?}, Platform:{:?}}}\n",
        version::MAJOR,
        version::MINOR,
        version::GIT_VERSION,
        build.commit,
        build.date,
        version::platform(),
    )
}
