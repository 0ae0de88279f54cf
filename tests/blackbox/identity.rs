//! Nodes' identities: how machines get theirs with a token, what they may not do with it, and that new authorities and
//! certificates disturb nobody. The nodes here run no pods, which none of this needs.
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{
    Agent, Kubectl, Machine, Needs::OwnNode, Outcome, Process, Subject, Test, binary, eventually, lines_of,
};

use crate::hosts::token;

pub fn tests() -> Vec<Test> {
    vec![Test { name: "identity::three_nodes_join_and_outlive_their_authorities", needs: OwnNode, run: three_nodes }]
}

const PATIENCE: Duration = Duration::from_secs(90);

/// A machine, its agent, and the name of its node.
struct Node {
    name: String,
    machine: Machine,
    agent: Agent,
}

impl Node {
    /// Asks the API as this node.
    fn kubectl(&self) -> Kubectl {
        Kubectl::new(self.agent.dir.join("kubelet/kubeconfig"))
    }
}

fn three_nodes(_: &Subject) -> Outcome {
    // The API is reached at an address of this machine that the others have a way to.
    let machines = [Machine::start(21)?, Machine::start(22)?, Machine::start(23)?];
    let here = machines[0]
        .address
        .replace(machines[0].address.rsplit('.').next().unwrap_or_default(), &last_byte_before(&machines[0].address)?);
    let args = ["--disable-agent", "--bind-address", "0.0.0.0", "--advertise-address", &here];
    let server = Process::start(&args, Path::new("/nonexistent"))?;
    let url = format!("https://{here}:{}", server.port);
    let token = token(&server, &["create"])?;
    let mut nodes = Vec::new();
    for (i, machine) in machines.into_iter().enumerate() {
        let name = format!("joined-{i}-{}", server.port);
        let words = ["--server", &url, "--token", &token, "--node-name", &name];
        let mut agent = Agent::new(Some(&machine), &words, Path::new("/nonexistent"))?;
        agent.launch()?;
        nodes.push(Node { name, machine, agent });
    }
    let done = joined(&server, &nodes).and_then(|()| limited(&nodes)).and_then(|()| rotated(&server, &nodes));
    done.with_context(|| {
        let logs: Vec<String> = nodes.iter().map(|node| last_lines(&node.agent.log())).collect();
        format!("logs of the agents:\n{}\nof the server:\n{}", logs.join("\n---\n"), server.log_tail())
    })?;
    for node in &mut nodes {
        node.agent.terminate()?;
    }
    server.finish(false)
}

/// The other end of a machine's cable has the address before its own.
fn last_byte_before(address: &str) -> anyhow::Result<String> {
    let last: u8 = address.rsplit('.').next().unwrap_or_default().parse().context("an IPv4 address")?;
    Ok((last - 1).to_string())
}

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// Each is a node at its own machine's address, under its own certificate.
fn joined(server: &Process, nodes: &[Node]) -> Outcome {
    let k = server.kubectl();
    for node in nodes {
        let address = "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}";
        eventually(&format!("{} has joined", node.name), PATIENCE, || {
            let at = k.ok(&["get", "node", &node.name, "-o", address])?;
            ensure!(at == node.machine.address, "{at:?}");
            Ok(())
        })?;
        let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        eventually("it reports", PATIENCE, || {
            let ready = k.ok(&["get", "node", &node.name, "-o", ready])?;
            ensure!(!ready.is_empty(), "no condition yet");
            Ok(())
        })?;
        let who = node.kubectl().ok(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"])?;
        ensure!(who == format!("system:node:{}", node.name), "{who}");
    }
    Ok(())
}

/// What a node's credentials do not open: other nodes, other nodes' leases, everybody's secrets, higher rights.
fn limited(nodes: &[Node]) -> Outcome {
    let (node, other) = (&nodes[0], &nodes[1].name);
    let k = node.kubectl();
    let own = format!("lease/{}", node.name);
    k.ok(&["get", "node", &node.name]).and_then(|_| k.ok(&["get", &own, "-n", "kube-node-lease"]))?;
    let patch = r#"{"metadata":{"labels":{"taken":"over"}}}"#;
    let attempts: [&[&str]; 12] = [
        &["get", "secrets", "-A"],
        &["get", "secrets", "-n", "kube-system"],
        &["get", "configmaps", "-n", "default"],
        &["patch", "node", other, "-p", patch],
        &["delete", "node", other],
        &["patch", "lease", other, "-n", "kube-node-lease", "--type=merge", "-p", patch],
        &["delete", "lease", other, "-n", "kube-node-lease"],
        &["create", "token", "default", "-n", "default"],
        &["create", "clusterrolebinding", "mine", "--clusterrole=cluster-admin", "--group=system:nodes"],
        &["create", "namespace", "mine"],
        &["patch", "node", &node.name, "-p", r#"{"metadata":{"labels":{"node-restriction.kubernetes.io/x":"y"}}}"#],
        &["get", "nodes", "--as=kubernetes-admin", "--as-group=system:masters"],
    ];
    for attempt in attempts {
        let refused = k.fails(attempt)?;
        let said = format!("{}{}", refused.stdout, refused.stderr);
        ensure!(said.to_lowercase().contains("forbidden") || said.contains("cannot"), "{attempt:?}: {said}");
    }
    Ok(())
}

fn certificate(server: &Process, args: &[&str]) -> anyhow::Result<String> {
    let out = Command::new(binary()).arg("certificate").args(args).arg("--data-dir").arg(&server.dir).output()?;
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    ensure!(out.status.success(), "kelson certificate {args:?}: {text}");
    Ok(text)
}

/// Asks all the time, as somebody who knows the old authority alone, until told to stop; gives how often, and every fault.
fn polled(old: Kubectl, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<(u32, Vec<String>)> {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let (mut asked, mut faults) = (0, Vec::new());
        while !stop.load(Ordering::SeqCst) {
            asked += 1;
            if let Err(fault) = old.ok(&["get", "--raw", "/api/v1/namespaces/default"]) {
                faults.push(format!("{fault:#}"));
            }
        }
        (asked, faults)
    })
}

/// Authorities are replaced while the nodes run, one client polls and another watches: nobody notices, until the old ones are dropped,
/// which the server refuses for as long as a node would be cut off.
fn rotated(server: &Process, nodes: &[Node]) -> Outcome {
    let old = server.dir.join("old.kubeconfig");
    std::fs::copy(server.dir.join("admin.kubeconfig"), &old)?;
    let old = Kubectl::new(old);
    let stop = Arc::new(AtomicBool::new(false));
    let poll = polled(old.namespaced("default"), &stop);
    let mut watch = old.spawn(&["get", "configmaps", "-n", "default", "--watch-only", "-o", "name"])?;
    let seen = lines_of(&mut watch)?;
    let result = turned(server, nodes, &old, &seen);
    stop.store(true, Ordering::SeqCst);
    let (asked, faults) = poll.join().map_err(|_| anyhow::anyhow!("panicked"))?;
    watch.kill()?;
    watch.wait()?;
    result?;
    ensure!(faults.is_empty(), "{} of {asked} requests failed: {:?}", faults.len(), faults.first());
    certificate(server, &["rotate-ca", "--finish"])?;
    eventually("the old authority is not believed any more", PATIENCE, || old.fails(&["get", "ns"]).map(drop))?;
    // What the nodes do goes on under the new ones alone.
    let k = server.kubectl();
    for node in nodes {
        let renewed =
            || k.ok(&["get", "lease", &node.name, "-n", "kube-node-lease", "-o", "jsonpath={.spec.renewTime}"]);
        let before = renewed()?;
        eventually(&format!("{} reports", node.name), PATIENCE, || {
            ensure!(renewed()? != before, "its lease is of {before}");
            Ok(())
        })?;
    }
    Ok(())
}

fn turned(server: &Process, nodes: &[Node], old: &Kubectl, seen: &std::sync::mpsc::Receiver<String>) -> Outcome {
    certificate(server, &["rotate-ca"])?;
    let k = server.kubectl();
    for node in nodes {
        let wanted = "jsonpath={.metadata.annotations.certificates\\.kelson\\.dev/authorities}";
        eventually(&format!("{} has the new authorities", node.name), PATIENCE, || {
            ensure!(!k.ok(&["get", "node", &node.name, "-o", wanted])?.is_empty(), "not yet");
            Ok(())
        })?;
    }
    // Each reported what it had before; that it has the new ones is what the server asks for itself.
    eventually("all nodes are renewed", PATIENCE, || {
        let refused = Command::new(binary()).args(["certificate", "list", "--data-dir"]).arg(&server.dir).output()?;
        let listed = String::from_utf8_lossy(&refused.stdout).into_owned();
        ensure!(listed.contains("ca (previous)"), "{listed}");
        let pins = k.ok(&[
            "get",
            "nodes",
            "-o",
            "jsonpath={.items[*].metadata.annotations.certificates\\.kelson\\.dev/authorities}",
        ])?;
        let pins: std::collections::BTreeSet<&str> = pins.split_whitespace().collect();
        ensure!(
            pins.len() == 1 && pins.iter().all(|pin| pin.contains(&signing_pin(server).unwrap_or_default())),
            "{pins:?}"
        );
        Ok(())
    })?;
    old.ok(&["create", "configmap", "after", "-n", "default"])?;
    let line = seen.recv_timeout(PATIENCE).context("the watch that began before goes on")?;
    ensure!(line.contains("configmap"), "{line}");
    Ok(())
}

/// The pin of the authority that signs now.
fn signing_pin(server: &Process) -> anyhow::Result<String> {
    let file = server.dir.join("pki/ca.crt");
    let digest = kelson_blackbox::sh(&format!(
        "openssl x509 -in {} -pubkey -noout | openssl pkey -pubin -outform DER | sha256sum | cut -d' ' -f1",
        file.display()
    ))?;
    Ok(format!("sha256:{}", digest.trim()))
}
