//! The columns of `kubectl get` for every built-in kind, compared with upstream's in `columns.txt`.
use anyhow::{Context as _, ensure};
use kelson_blackbox::{Needs::Api, Outcome, Raw, Subject, Test};
use serde_json::Value;

/// A kind's list and its columns: types other than string, formats, and which are only shown with `-o wide`.
const COLUMNS: &str = include_str!("columns.txt");
const TABLE: &str = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io";

pub fn tests() -> Vec<Test> {
    vec![Test { name: "columns::of_every_kind", needs: Api, run: of_every_kind }]
}

fn shown(column: &Value) -> String {
    let of = |field: &str| column[field].as_str().unwrap_or_default();
    let kind = Some(of("type")).filter(|kind| *kind != "string");
    let wide = (column["priority"] != 0).then_some("wide");
    let more: Vec<&str> = [kind, Some(of("format")), wide].into_iter().flatten().filter(|w| !w.is_empty()).collect();
    if more.is_empty() { of("name").to_owned() } else { format!("{} ({})", of("name"), more.join(" ")) }
}

fn of_every_kind(s: &Subject) -> Outcome {
    let raw = Raw::open(&s.kubectl)?;
    let mut wrong = Vec::new();
    for line in COLUMNS.lines() {
        let (path, expected) = line.split_once(": ").with_context(|| line.to_owned())?;
        let table = raw.send("GET", &format!("{path}?limit=1"), &[TABLE], b"")?.json();
        let columns = table["columnDefinitions"].as_array().with_context(|| format!("{path}: {table}"))?;
        let columns = columns.iter().map(shown).collect::<Vec<_>>().join(", ");
        if columns != expected {
            wrong.push(format!("{path}:\n  {columns}\n  {expected}"));
        }
    }
    ensure!(wrong.is_empty(), "columns, and those expected:\n{}", wrong.join("\n"));
    Ok(())
}
