//! What clients see of each kind: conditions of its objects, and events with their reasons, messages and sources,
//! compared with upstream's. The files in `messages/` were recorded on an upstream cluster: `$` is a command of kubectl
//! with its input behind `|`, and `>` names objects (or `events`, those without a word behind `!`) whose lines below
//! must appear. A node without containers runs with the subject.
use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Kubectl, Needs::Api, Outcome, Process, Subject, Test, binary, eventually, repo_root};
use serde_json::Value;

macro_rules! scenarios {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("messages/", $name, ".txt")))),*] };
}

/// Scenarios that do not interfere with each other.
const SIDE_BY_SIDE: &[(&str, &str)] = scenarios![
    "autoscaler",
    "autoscaler-other",
    "budget",
    "claims",
    "cronjob",
    "daemonset",
    "daemonset-fails",
    "deployment",
    "deployment-fails",
    "job",
    "job-policies",
    "job-refused",
    "namespace",
    "nodes",
    "others",
    "replicaset",
    "services",
    "statefulset",
    "statefulset-fails",
];
/// Scenarios whose messages count nodes, or that have a separate node.
const ONE_BY_ONE: &[(&str, &str)] = scenarios!["claims-of-pods", "claims-of-sets", "pods", "preemption", "taints"];
const STAGES: &str = include_str!("messages/stages.yaml");
const NODE: &str = include_str!("messages/node.yaml");
/// An autoscaler syncs four times a minute, a schedule has its minute, and a node is silent for fifty seconds.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "messages::of_workloads", needs: Api, run: |s| with_node(s, side_by_side) },
        Test { name: "messages::of_nodes_and_volumes", needs: Api, run: |s| with_node(s, one_by_one) },
    ]
}

fn side_by_side(k: &Kubectl) -> Outcome {
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let started: Vec<_> =
            SIDE_BY_SIDE.iter().map(|(name, text)| scope.spawn(move || play(k, name, text))).collect();
        let ended = started.into_iter().map(|thread| thread.join());
        ended.filter_map(|done| done.ok()?.err().map(|e| format!("{e:#}"))).collect()
    });
    ensure!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    Ok(())
}

fn one_by_one(k: &Kubectl) -> Outcome {
    ONE_BY_ONE.iter().try_for_each(|(name, text)| play(k, name, text))
}

/// The program that plays the node, killed when dropped.
struct Player(Child);

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs with a control plane whose only node is the one without containers.
fn with_node(s: &Subject, run: fn(&Kubectl) -> Outcome) -> Outcome {
    let own = match &s.server {
        // The upstream cluster had no metrics-server.
        Some(_) => {
            Some(Process::start(&["--disable-agent", "--disable=metrics-server"], &repo_root().join(".cache/images"))?)
        }
        None => None,
    };
    let k = own.as_ref().map_or_else(|| s.kubectl.clone(), Process::kubectl);
    let scratch = tempfile::tempdir()?;
    let (stages, log) = (scratch.path().join("stages.yaml"), scratch.path().join("log"));
    fs::write(&stages, STAGES)?;
    let out = fs::File::create(&log)?;
    let mut command = k.other_program(&binary());
    command.args(["hollow", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake", "--node-ip=192.0.2.7"]);
    command.arg("--config").arg(&stages).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    let player = Player(command.spawn().context("kelson hollow")?);
    k.apply(NODE)?;
    k.ok(&["wait", "--for=condition=Ready", "node/told-a", "--timeout=60s"])?;
    let outcome = run(&k);
    drop(player);
    let _ = k.run(&["delete", "node", "told-a", "--wait=false"]);
    if let Some(own) = own {
        own.finish(false)?;
    }
    outcome.with_context(|| fs::read_to_string(&log).unwrap_or_default())
}

fn play(k: &Kubectl, name: &str, text: &str) -> Outcome {
    let k = k.fresh_namespace(&format!("told-{name}"))?;
    eventually("the namespace has its account", PATIENCE, || k.ok(&["get", "serviceaccount", "default"]).map(drop))?;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let at = || format!("{name}: {line}");
        if let Some(command) = line.strip_prefix("$ ") {
            let mut input = String::new();
            while let Some(more) = lines.next_if(|l| l.starts_with('|')) {
                input.push_str(more.strip_prefix("| ").unwrap_or_default());
                input.push('\n');
            }
            let words = words(command);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let out = k.with_input(&words, input.as_bytes()).with_context(at)?;
            ensure!(out.code == 0, "{}: {}", at(), out.stderr);
        } else if let Some(what) = line.strip_prefix("> ") {
            let mut expected = BTreeSet::new();
            while let Some(more) = lines.next_if(|l| !l.is_empty() && !l.starts_with(['$', '>', '#'])) {
                expected.insert(more.to_owned());
            }
            let what: Vec<&str> = what.split(' ').filter(|word| !word.starts_with('~')).collect();
            eventually("what is shown", PATIENCE, || same(&shown(&k, &what)?, &expected)).with_context(at)?;
        }
    }
    let _ = k.run(&["delete", "namespace", &format!("told-{name}"), "--wait=false"]);
    Ok(())
}

fn same(found: &BTreeSet<String>, expected: &BTreeSet<String>) -> Outcome {
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>, sign: char| -> String {
        a.difference(b).map(|line| format!("\n{sign} {line}")).collect()
    };
    let (more, less) = (only(found, expected, '+'), only(expected, found, '-'));
    ensure!(more.is_empty() && less.is_empty(), "{less}{more}");
    Ok(())
}

/// Splits a command into words; a string in single quotes is one word.
fn words(command: &str) -> Vec<String> {
    let (mut out, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in command.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => out.push(std::mem::take(&mut word)),
            c => word.push(c),
        }
    }
    out.push(word);
    out
}

fn shown(k: &Kubectl, what: &[&str]) -> anyhow::Result<BTreeSet<String>> {
    match what {
        ["events", without @ ..] => {
            let mut lines = events(&k.json(&["get", "events"])?);
            lines.retain(|line| !without.iter().any(|word| line.contains(word.trim_start_matches('!'))));
            Ok(lines)
        }
        ["nodeevents", name] => {
            let of = format!("involvedObject.name={name}");
            Ok(events(&k.namespaced("default").json(&["get", "events", "--field-selector", &of])?))
        }
        _ => {
            let out = k.run(&[&["get"], what, &["-o", "json"]].concat())?;
            if out.code != 0 {
                return Ok([normal(&format!("! {}", out.stderr.trim()))].into());
            }
            let found: Value = serde_json::from_str(&out.stdout)?;
            Ok(match found["items"].as_array() {
                Some(items) => items.iter().flat_map(|item| conditions(item, true)).collect(),
                None => conditions(&found, false).into_iter().collect(),
            })
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn events(list: &Value) -> BTreeSet<String> {
    let line = |event: &Value| {
        let about = &event["involvedObject"];
        let source = text(&event["source"]["component"]);
        let source = if source.is_empty() { text(&event["reportingComponent"]) } else { source };
        let action = event["action"].as_str().map(|a| format!("/{a}")).unwrap_or_default();
        normal(&format!(
            "{} {} {}/{} {source}{action}: {}",
            text(&event["type"]),
            text(&event["reason"]),
            text(&about["kind"]),
            text(&about["name"]),
            text(&event["message"]),
        ))
    };
    list["items"].as_array().into_iter().flatten().map(line).collect()
}

/// Returns phase and conditions of an object, and for slices those of each endpoint; with its name if it is one of
/// several.
fn conditions(object: &Value, named: bool) -> Vec<String> {
    let (kind, status) = (text(&object["kind"]), &object["status"]);
    let before = if named { format!("{kind}/{} ", text(&object["metadata"]["name"])) } else { String::new() };
    let mut out = Vec::new();
    if let Some(phase) = status["phase"].as_str() {
        let more = ["reason", "message"].into_iter().filter_map(|field| status[field].as_str());
        let more: String = more.map(|word| format!(" {word}")).collect();
        out.push(format!("phase {phase}{more}"));
    }
    for c in status["conditions"].as_array().into_iter().flatten() {
        let (reason, message) = (text(&c["reason"]), text(&c["message"]));
        out.push(format!("{} {} {reason}: {message}", text(&c["type"]), text(&c["status"])));
    }
    for endpoint in object["endpoints"].as_array().into_iter().flatten() {
        let whose = text(&endpoint["targetRef"]["name"]);
        out.push(format!("{} {whose}", endpoint["conditions"]));
    }
    out.into_iter().map(|line| normal(format!("{before}{line}").trim())).collect()
}

/// Removes parts that differ in every run: generated parts of names, UIDs, ends of lines.
fn normal(text: &str) -> String {
    let mut out = String::new();
    let in_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| !in_word(c)).unwrap_or(rest.len());
        if end > 0 {
            out.push_str(&normal_word(&rest[..end]));
            rest = &rest[end..];
        } else {
            if first == '\n' {
                out.push_str("\\n")
            } else {
                out.push(first)
            }
            rest = &rest[first.len_utf8()..];
        }
    }
    out
}

fn normal_word(word: &str) -> String {
    const GENERATED: &str = "bcdfghjklmnpqrstvwxz2456789";
    let parts: Vec<&str> = word.split('-').collect();
    let is_uid = parts.iter().map(|p| p.len()).eq([8, 4, 4, 4, 12]);
    if is_uid && word.chars().all(|c| c.is_ascii_hexdigit() || c == '-') {
        return "UID".to_owned();
    }
    let generated = |part: &str| {
        (part.len() >= 5 && part.chars().all(|c| GENERATED.contains(c)))
            || (part.len() >= 8 && part.chars().all(|c| c.is_ascii_digit()))
    };
    let parts = parts.iter().enumerate();
    let parts: Vec<&str> = parts.map(|(i, part)| if i > 0 && generated(part) { "*" } else { part }).collect();
    parts.join("-")
}
