//! A user's first contact: a server that prints next steps, whose node has its role, and whose log has no warning about
//! files the server itself created, also when it starts again.
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::{Needs::OwnNode, Outcome, Process, Subject, Test, eventually, repo_root};

/// A debug build starts a node within seconds; a loaded machine takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn tests() -> Vec<Test> {
    vec![Test { name: "first_start::it_says_what_to_do_next", needs: OwnNode, run: it_says_what_to_do_next }]
}

fn it_says_what_to_do_next(_: &Subject) -> Outcome {
    let server = Process::start(&["--node-labels=tier=edge"], &repo_root().join(".cache/images"))?;
    let ready = |what: &str| {
        eventually(what, PATIENCE, || {
            let nodes = server.kubectl().ok(&["get", "nodes", "--no-headers"])?;
            let words: Vec<&str> = nodes.split_whitespace().collect();
            ensure!(words.get(1) == Some(&"Ready") && words.get(2) == Some(&"control-plane"), "{nodes}");
            Ok(())
        })
    };
    ready("a ready node with its role")?;
    // The API serves before the server prints this; the node starts after it.
    let said = server.log();
    for command in ["export KUBECONFIG=", "kubectl get nodes", "kelson token create --print-join-command"] {
        ensure!(said.contains(command), "{command}: {said}");
    }
    let tier = server.kubectl().ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.labels.tier}"])?;
    ensure!(tier == "edge", "the label that a flag sets: {tier:?}");
    server.terminate()?;
    server.launch()?;
    ready("the node of the second start")?;
    let log = server.log();
    for alarm in ["readable by other users", "no node is ready", "no node has been ready"] {
        ensure!(!log.contains(alarm), "{alarm}: {log}");
    }
    server.finish(false)
}
