//! Documents and the command line agree: the pages of `docs/reference` that are written from flags and feature gates, every command line of
//! Kelson in the documents, and the configuration files in `examples`. `KELSON_WRITE_DOCS=1` makes the first test write the pages.
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Arg, Command, CommandFactory as _};
use kelson_auth::authenticate::jwt::AuthenticationConfiguration;
use kelson_meta::gates::FeatureGates;

use crate::cli::Cli;
use crate::config::keys;
use crate::control_plane::is_asked;
use crate::flags::{ParsedArgs, Table, help, read};
use crate::{etcd, upstream};

const WRITE: &str = "KELSON_WRITE_DOCS";
const HOW: &str =
    "Written from the code by `KELSON_WRITE_DOCS=1 cargo test -p kelson reference`, and compared by that test.\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A cell of a table of Markdown.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn all_of(arg: &Arg) -> String {
    let values = arg.get_default_values().iter().map(|v| v.to_string_lossy().into_owned());
    values.collect::<Vec<_>>().join(",")
}

/// One row of a flag or of a positional argument.
fn row(arg: &Arg) -> String {
    let value = arg.get_value_names().filter(|_| arg.get_action().takes_values());
    let value = value.map(|names| names.iter().map(|n| n.as_str()).collect::<Vec<_>>().join(" ")).unwrap_or_default();
    let name = match (arg.get_long(), arg.get_short()) {
        (Some(long), Some(short)) => format!("`--{long}`, `-{short}`"),
        (Some(long), None) => format!("`--{long}`"),
        (None, Some(short)) => format!("`-{short}`"),
        (None, None) => format!("`{value}`"),
    };
    let value = if arg.is_positional() || value.is_empty() { String::new() } else { format!("`{}`", cell(&value)) };
    let default = all_of(arg);
    let default = if default.is_empty() { default } else { format!("`{}`", cell(&default)) };
    let variable = arg.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
    let about = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    format!("| {name} | {value} | {default} | {variable} | {} |\n", cell(&about))
}

/// A command and those below it.
fn command(out: &mut String, name: &str, of: &Command) {
    let about = of.get_long_about().or(of.get_about()).map(ToString::to_string).unwrap_or_default();
    // Writing to a string cannot fail.
    let _ = write!(out, "\n## {name}\n\n{about}.\n", about = about.trim().trim_end_matches('.'));
    let shown = |arg: &&Arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version");
    let mut rows: Vec<&Arg> = of.get_arguments().filter(shown).collect();
    rows.sort_by_key(|arg| (!arg.is_positional(), arg.get_long().unwrap_or_default().to_owned()));
    if !rows.is_empty() {
        out.push_str("\n| flag | value | default | variable | meaning |\n|---|---|---|---|---|\n");
        out.extend(rows.into_iter().map(row));
    }
    for below in of.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        command(out, &format!("{name} {}", below.get_name()), below);
    }
}

fn commands() -> String {
    let mut out = format!(
        "# Commands of `kelson`\n\n{HOW}\nUpstream's components have their flags in pages of their names: [README](README.md). A flag of \
         `server` or `agent` is also a key of the [configuration file](configuration.md).\n"
    );
    let mut cli = Cli::command();
    cli.build();
    for below in cli.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        command(&mut out, &format!("kelson {}", below.get_name()), below);
    }
    out
}

fn configuration() -> String {
    let mut out = format!(
        "# Keys of the configuration file\n\n{HOW}\n[configuration.md](../configuration.md) says how the file is read. A key has the meaning of its \
         [flag](kelson.md).\n"
    );
    let cli = Cli::command();
    for name in ["server", "agent"] {
        let _ = write!(out, "\n## {name}\n\n| key | value |\n|---|---|\n");
        let Some(of) = cli.find_subcommand(name) else { continue };
        for (key, of) in keys(of) {
            let kind = match (of.is_list, of.is_bool) {
                (true, _) => "list",
                (_, true) => "true or false",
                _ => "value",
            };
            let secret = if of.is_secret { ", not shown by `kelson config view`" } else { "" };
            let other = if of.flag == key { String::new() } else { format!(", another name of `{}`", of.flag) };
            let _ = writeln!(out, "| `{key}` | {kind}{secret}{other} |");
        }
    }
    out
}

fn gates() -> String {
    let mut out = format!(
        "# Feature gates\n\n{HOW}\nThe gates of the supported release with upstream's stages and defaults. `--feature-gates NAME=true` is taken by \
         `kelson server` and by each component. The last column says whether the control plane does something else when the gate changes; kubelets read \
         those in the field `featureGates` of their configuration as well. A gate without effect is accepted and named in the log.\n\n\
         | gate | stage | default | has an effect in the control plane |\n|---|---|---|---|\n"
    );
    let mut all: Vec<_> = FeatureGates::default().all().collect();
    all.sort_by_key(|gate| gate.0);
    for (name, stage, on) in all {
        let effect = if is_asked(name) { "yes" } else { "" };
        let _ = writeln!(out, "| `{name}` | {} | {on} | {effect} |", stage.label());
    }
    out
}

/// A component under upstream's name, by its table.
fn component(name: &str, about: &str, table: &Table) -> String {
    let mut out = format!(
        "# Flags of `{name}`\n\n{HOW}\n{about} These are upstream's flags. Those that have no effect here are accepted and named in the log.\n\n\
         | flag | value | meaning |\n|---|---|---|\n"
    );
    for (flag, of) in table.iter().filter(|(_, of)| !of.deprecated && of.effect) {
        let meaning = if of.help.is_empty() { "As in upstream Kubernetes." } else { of.help.as_str() };
        let _ = writeln!(out, "| `--{flag}` | `{}` | {} |", cell(&of.shown), cell(meaning));
    }
    let without: Vec<String> =
        table.iter().filter(|(_, of)| !of.deprecated && !of.effect).map(|(flag, _)| format!("`--{flag}`")).collect();
    if !without.is_empty() {
        let _ = write!(out, "\n## Without effect\n\n{}\n", without.join(", "));
    }
    out
}

fn pages() -> Vec<(String, String)> {
    let mut pages = vec![
        ("kelson.md".to_owned(), commands()),
        ("configuration.md".to_owned(), configuration()),
        ("feature-gates.md".to_owned(), gates()),
        ("etcd.md".to_owned(), component("etcd", "Run a single-member store with etcd's API.", &etcd::table())),
    ];
    for of in upstream::all() {
        let table = Table::of(of.facts, &of.command());
        pages.push((format!("{}.md", of.name), component(of.name, of.about, &table)));
    }
    pages
}

#[test]
fn the_reference_is_written_from_the_code() {
    for (name, want) in pages() {
        let file = root().join("docs/reference").join(&name);
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&file, want).expect("docs/reference");
            continue;
        }
        let found = std::fs::read_to_string(&file).unwrap_or_default();
        let line = found.lines().zip(want.lines()).find(|(found, want)| found != want);
        assert!(
            found == want,
            "docs/reference/{name} differs from the code: {line:?}; {WRITE}=1 cargo test -p kelson reference writes it"
        );
    }
}

/// Every Markdown file of the documents and of the examples.
fn documents() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    let mut folders = vec![root().join("docs"), root().join("examples")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of documents") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The command lines of Kelson in the fenced blocks of a document: the words after the program's name, with what continues in
/// further lines, and `0` for `…`.
fn command_lines(text: &str) -> Vec<Vec<String>> {
    let (mut found, mut fenced, mut before) = (Vec::new(), false, String::new());
    for line in text.lines().map(str::trim) {
        if line.starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if !fenced {
            continue;
        }
        if let Some(continued) = line.strip_suffix('\\') {
            before.push_str(continued);
            continue;
        }
        let line = std::mem::take(&mut before) + line;
        let line = line.trim_start_matches("$ ").trim_start_matches("sudo ");
        let line = line.split([';', '|', '>', '&']).next().unwrap_or_default();
        let mut words = line.split_whitespace().map(|word| word.trim_matches(['\'', '"']));
        if words.next().is_some_and(|first| first == "kelson" || first.ends_with("/kelson")) {
            let words = words.take_while(|word| !word.starts_with('#'));
            found.push(words.map(|word| word.replace('…', "0")).collect());
        }
    }
    found
}

/// Whether a command line is one that Kelson reads.
fn parsed(words: &[String]) -> Result<(), String> {
    let all: Vec<OsString> =
        std::iter::once("kelson".to_owned()).chain(words.iter().cloned()).map(OsString::from).collect();
    if words.first().is_some_and(|first| first == "etcd") {
        return read("etcd", &etcd::table(), all[2..].iter().cloned()).map(drop);
    }
    if let Some((component, rest)) = upstream::named(&all) {
        let table = Table::of(component.facts, &component.command());
        return match read(component.name, &table, rest)? {
            ParsedArgs::Run(spoken) => component.matches(&spoken).map(drop),
            _ => Ok(()),
        };
    }
    match Cli::command().try_get_matches_from(&all) {
        Err(e) if e.use_stderr() => Err(e.to_string()),
        _ => Ok(()),
    }
}

#[test]
fn command_lines_of_the_documents_are_read() {
    let (mut faults, mut count) = (Vec::new(), 0usize);
    for path in documents() {
        let text = std::fs::read_to_string(&path).expect("a document");
        for words in command_lines(&text) {
            count += 1;
            if let Err(why) = parsed(&words) {
                faults.push(format!("{}: kelson {}: {why}", path.display(), words.join(" ")));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 20, "{count} command lines found");
}

#[test]
fn configurations_of_the_examples_are_valid() {
    let file = |name: &str| root().join("examples").join(name);
    let text = |name: &str| std::fs::read(file(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    kelson_audit::Policy::load(&file("audit/policy.yaml")).expect("an audit policy");
    let issuers = AuthenticationConfiguration::parse(&text("oidc/authentication.yaml")).expect("token issuers");
    assert_eq!(issuers.issuers.len(), 1);
    kelson_credentials::config::load_text(&text("private-registry/providers.yaml")).expect("credential providers");
    for name in ["oidc/server.yaml", "audit/server.yaml", "private-registry/server.yaml", "air-gapped/agent.yaml"] {
        let command = if name.ends_with("agent.yaml") { "agent" } else { "server" };
        let words = ["kelson", command, "--config"].map(OsString::from).into_iter();
        let words = words.chain([file(name).into_os_string()]).collect();
        let expanded = crate::config::expand(&Cli::command(), words, |_| None);
        let expanded = expanded.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(expanded.words.len() > 4, "{name} sets no flag");
        Cli::command().try_get_matches_from(&expanded.words).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn command_lines_are_found() {
    let text = "kelson x\n```\n$ kelson token create --ttl 1h # a comment\nsudo target/release/kelson server \\\n  --data-dir /tmp/k\n\
                kubectl get x\nkelson kube-scheduler … > file\n```\n";
    let found: Vec<String> = command_lines(text).iter().map(|words| words.join(" ")).collect();
    assert_eq!(found, ["token create --ttl 1h", "server --data-dir /tmp/k", "kube-scheduler 0"]);
    assert!(parsed(&["token".into(), "create".into(), "--no-such".into()]).is_err());
    assert!(parsed(&["kubelet".into(), "--no-such".into()]).is_err());
    assert!(help::flags("x", "y", &etcd::table()).contains("--data-dir"));
}
