//! Identities of nodes: how machines get theirs with a token, what they may not do with it, and that rotating CAs and
//! certificates disturbs nothing: clients, watches, pods and their log streams.
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{
    Agent, Kubectl, Machine, Needs::OwnNode, Outcome, Process, Subject, Test, binary, eventually, lines_of,
};

use crate::hosts::{images, join_words, token};
use crate::pods::{ready, script};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "identity::three_nodes_join_and_outlive_their_authorities", needs: OwnNode, run: three_nodes },
        Test { name: "identity::repeated_renewals_interrupt_no_client", needs: OwnNode, run: rounds },
        Test {
            name: "identity::nodes_return_that_missed_a_replacement_of_all_authorities",
            needs: OwnNode,
            run: missed,
        },
    ]
}

const PATIENCE: Duration = Duration::from_secs(90);

/// A machine, its agent, and the name of its node.
struct Node {
    name: String,
    machine: Machine,
    agent: Agent,
}

impl Node {
    /// Returns a kubectl with the node's credentials.
    fn kubectl(&self) -> Kubectl {
        Kubectl::new(self.agent.dir.join("kubelet/kubeconfig"))
    }
}

fn three_nodes(_: &Subject) -> Outcome {
    // The API is reached at an address of this machine that the others have a route to.
    let machines = [Machine::start(21)?, Machine::start(22)?, Machine::start(23)?];
    let here = machines[0].gateway()?;
    let args = ["--disable-agent", "--bind-address", "0.0.0.0", "--advertise-address", &here];
    let server = Process::start(&args, Path::new("/nonexistent"))?;
    let url = format!("https://{here}:{}", server.port);
    let token = token(&server, &["create"])?;
    let mut nodes = Vec::new();
    for (i, machine) in machines.into_iter().enumerate() {
        let name = format!("joined-{i}-{}", server.port);
        // One node is given a server that is gone, too.
        let servers = if i == 0 { format!("{url},https://127.0.0.1:1") } else { url.clone() };
        let words = ["--server", &servers, "--token", &token, "--node-name", &name];
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

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// Checks that each is a node with its own machine's address and certificate.
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
        // The kubeconfig may still name the server that is gone: it follows the one that the node uses.
        eventually("its credentials are its own", PATIENCE, || {
            let who = node.kubectl().ok(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"])?;
            ensure!(who == format!("system:node:{}", node.name), "{who}");
            Ok(())
        })?;
    }
    Ok(())
}

/// Checks what a node's credentials do not allow: other nodes, other nodes' leases, secrets, more permissions.
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

fn certificate(dir: &Path, args: &[&str]) -> anyhow::Result<String> {
    let out = Command::new(binary()).arg("certificate").args(args).arg("--data-dir").arg(dir).output()?;
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    ensure!(out.status.success(), "kelson certificate {args:?}: {text}");
    Ok(text)
}

/// Sends requests continuously, as a client that only trusts the old CA, until stopped; returns their number, and all
/// errors.
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

/// CAs are rotated while the nodes run, one client polls and another watches, without errors, until the old ones are
/// dropped, which the server rejects for as long as a node would be cut off.
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
    certificate(&server.dir, &["rotate-ca", "--finish"])?;
    eventually("the old authority is not believed any more", PATIENCE, || old.fails(&["get", "ns"]).map(drop))?;
    // The nodes continue to work with only the new CAs.
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
    certificate(&server.dir, &["rotate-ca"])?;
    let k = server.kubectl();
    for node in nodes {
        let wanted = "jsonpath={.metadata.annotations.certificates\\.kelson\\.dev/authorities}";
        eventually(&format!("{} has the new authorities", node.name), PATIENCE, || {
            ensure!(!k.ok(&["get", "node", &node.name, "-o", wanted])?.is_empty(), "not yet");
            Ok(())
        })?;
    }
    // Each reported what it had before; the server itself checks that it has the new ones.
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
            pins.len() == 1 && pins.iter().all(|pin| pin.contains(&signing_pin(&server.dir).unwrap_or_default())),
            "{pins:?}"
        );
        Ok(())
    })?;
    old.ok(&["create", "configmap", "after", "-n", "default"])?;
    let line = seen.recv_timeout(PATIENCE).context("the watch that began before goes on")?;
    ensure!(line.contains("configmap"), "{line}");
    Ok(())
}

/// Returns the pin of the current signing CA of the server with this data directory.
pub(crate) fn signing_pin(dir: &Path) -> anyhow::Result<String> {
    let file = dir.join("pki/ca.crt");
    let digest = kelson_blackbox::sh(&format!(
        "openssl x509 -in {} -pubkey -noout | openssl pkey -pubin -outform DER | sha256sum | cut -d' ' -f1",
        file.display()
    ))?;
    Ok(format!("sha256:{}", digest.trim()))
}

/// The number of rounds in which all certificates of the server and two nodes are renewed. A machine that renews
/// one-minute certificates does as many in ten minutes.
const ROUNDS: usize = 8;
/// Counts, five times a second.
const COUNTER: &str = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.2; done";

/// While certificates of the server and of two nodes are replaced, round after round, pods run on both nodes, their
/// logs stream, a client polls and another one watches: no request fails, no stream ends or loses a line, nothing is
/// restarted.
fn rounds(_: &Subject) -> Outcome {
    let server = Process::start(&[], &images())?;
    let machine = Machine::start(24)?;
    let words = join_words(&server)?;
    let far = format!("turned-{}", server.port);
    let args = ["--server", &words[1], "--token", &words[3], "--node-name", &far];
    let mut agent = Agent::new(Some(&machine), &args, &images())?;
    agent.launch()?;
    let done = undisturbed(&server, &mut agent, &far);
    done.with_context(|| {
        format!("log of the agent:\n{}\nof the server:\n{}", last_lines(&agent.log()), server.log_tail())
    })?;
    agent.terminate()?;
    agent.cleanup()?;
    server.finish(false)
}

/// A pod's log from its beginning, while it is followed.
struct Followed {
    pod: &'static str,
    child: std::process::Child,
    lines: std::sync::mpsc::Receiver<String>,
    last: u64,
}

impl Followed {
    fn of(k: &Kubectl, pod: &'static str) -> anyhow::Result<Self> {
        let mut child = k.spawn(&["logs", "--follow", pod])?;
        let lines = lines_of(&mut child)?;
        Ok(Self { pod, child, lines, last: 0 })
    }

    /// Takes new lines, at least one: each counts one further than the one before.
    fn proceed(&mut self) -> Outcome {
        let pod = self.pod;
        let mut next = Some(self.lines.recv_timeout(PATIENCE).with_context(|| format!("the log of {pod} goes on"))?);
        while let Some(line) = next {
            let count: u64 = line.trim().parse().with_context(|| format!("{pod}: {line:?}"))?;
            ensure!(count == self.last + 1, "{pod}: {count} after {}", self.last);
            self.last = count;
            next = self.lines.try_recv().ok();
        }
        ensure!(self.child.try_wait()?.is_none(), "the log of {pod} has ended");
        Ok(())
    }
}

fn undisturbed(server: &Process, agent: &mut Agent, far: &str) -> Outcome {
    let k = server.kubectl().fresh_namespace("rounds")?;
    for node in [format!("node-{}", server.port), far.to_owned()] {
        let ready = ["wait", &format!("node/{node}"), "--for=condition=Ready", "--timeout=90s"];
        eventually(&format!("{node} is ready"), PATIENCE, || k.ok(&ready))?;
        let pod = if node == far { "far" } else { "near" };
        k.apply(&script(pod, COUNTER, &format!("  nodeSelector: {{kubernetes.io/hostname: {node}}}\n")))?;
    }
    let states = |pod: &str| {
        let id = "jsonpath={.metadata.uid} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}";
        k.ok(&["get", "pod", pod, "-o", id])
    };
    let pods = ["near", "far"];
    pods.iter().try_for_each(|pod| ready(&k, pod))?;
    let before = pods.iter().map(|pod| states(pod)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut logs = pods.iter().map(|pod| Followed::of(&k, pod)).collect::<anyhow::Result<Vec<_>>>()?;
    let stop = Arc::new(AtomicBool::new(false));
    let poll = polled(k.clone(), &stop);
    let mut watch = k.spawn(&["get", "configmaps", "--watch-only", "-o", "name"])?;
    let seen = lines_of(&mut watch)?;
    let turned = turns(server, agent, &mut logs);
    stop.store(true, Ordering::SeqCst);
    let (asked, faults) = poll.join().map_err(|_| anyhow::anyhow!("panicked"))?;
    turned?;
    ensure!(faults.is_empty(), "{} of {asked} requests failed: {:?}", faults.len(), faults.first());
    k.ok(&["create", "configmap", "after"])?;
    // Every namespace has one more object, which may be created late.
    let line =
        std::iter::repeat_with(|| seen.recv_timeout(PATIENCE)).find(|l| !matches!(l, Ok(l) if l.contains("root-ca")));
    let line = line.context("a line")?.context("the watch that began before goes on")?;
    ensure!(line.contains("after"), "{line}");
    for mut log in logs {
        log.child.kill()?;
        log.child.wait()?;
    }
    watch.kill()?;
    watch.wait()?;
    let after = pods.iter().map(|pod| states(pod)).collect::<anyhow::Result<Vec<_>>>()?;
    ensure!(before == after, "{before:?} became {after:?}");
    ensure!(agent.ends_within(Duration::ZERO)?.is_none(), "the agent runs");
    Ok(())
}

/// Returns the certificates in use: by the API server, and by each node as a client and as a server.
fn shown(server: &Process, agent: &Agent) -> anyhow::Result<Vec<String>> {
    let serial = "openssl x509 -noout -serial -fingerprint";
    let api = format!("openssl s_client -connect 127.0.0.1:{} </dev/null 2>/dev/null | {serial}", server.port);
    let mut all = vec![kelson_blackbox::sh(&api)?];
    for dir in [&server.dir, &agent.dir] {
        for name in ["client", "server"] {
            let file = dir.join(format!("kubelet/pki/kubelet-{name}-current.pem"));
            all.push(kelson_blackbox::sh(&format!("{serial} -in {}", file.display()))?);
        }
    }
    Ok(all)
}

fn turns(server: &Process, agent: &Agent, logs: &mut [Followed]) -> Outcome {
    eventually("both nodes have both certificates", PATIENCE, || shown(server, agent))?;
    for round in 0..ROUNDS {
        let before = shown(server, agent)?;
        certificate(&server.dir, &["renew"])?;
        certificate(&agent.dir, &["renew"])?;
        let what = ["the API's", "the near node's", "its server's", "the far node's", "its server's"];
        eventually(&format!("round {round}: all are new"), PATIENCE, || {
            let after = shown(server, agent)?;
            let old = what.iter().zip(before.iter().zip(&after)).find(|(_, (before, after))| before == after);
            ensure!(old.is_none(), "{:?} certificate is as before", old.map(|(what, _)| what));
            Ok(())
        })?;
        logs.iter_mut().try_for_each(Followed::proceed).with_context(|| format!("round {round}"))?;
    }
    Ok(())
}

/// A node that is disconnected while all CAs are rotated recovers by itself, with its join token. One that was off
/// meanwhile, and whose token is gone, says what to do, and only needs a new token.
fn missed(_: &Subject) -> Outcome {
    let machine = Machine::start(25)?;
    let here = machine.gateway()?;
    let args = ["--disable-agent", "--bind-address", "0.0.0.0", "--advertise-address", &here];
    let server = Process::start(&args, Path::new("/nonexistent"))?;
    let url = format!("https://{here}:{}", server.port);
    let name = format!("missed-{}", server.port);
    let first = token(&server, &["create"])?;
    let words = ["--server", &url, "--token", &first, "--node-name", &name];
    let mut agent = Agent::new(Some(&machine), &words, Path::new("/nonexistent"))?;
    agent.launch()?;
    let away = Away { server: &server, name: &name };
    let done = away.cut_off(&machine, &mut agent).and_then(|()| away.off(&mut agent, &url, &first));
    done.with_context(|| {
        format!("log of the agent:\n{}\nof the server:\n{}", last_lines(&agent.log()), server.log_tail())
    })?;
    agent.terminate()?;
    server.finish(false)
}

/// A node that misses a rotation.
struct Away<'a> {
    server: &'a Process,
    name: &'a str,
}

impl Away<'_> {
    fn renewed(&self) -> anyhow::Result<String> {
        let lease = ["get", "lease", self.name, "-n", "kube-node-lease", "-o", "jsonpath={.spec.renewTime}"];
        let at = self.server.kubectl().ok(&lease)?;
        ensure!(!at.is_empty(), "it has not renewed its lease");
        Ok(at)
    }

    /// Replaces all CAs, so that the previous ones are not trusted any more.
    fn replace_authorities(&self) -> Outcome {
        certificate(&self.server.dir, &["rotate-ca"])?;
        certificate(&self.server.dir, &["rotate-ca", "--finish", "--force"])?;
        // So it uses them immediately, and no old connection informs the node in time.
        self.server.kill()?;
        self.server.launch()
    }

    fn returns(&self, before: &str) -> Outcome {
        eventually("it reports under a certificate of the new authority", 2 * PATIENCE, || {
            ensure!(self.renewed()? != before, "its lease is of {before}");
            Ok(())
        })
    }

    fn cut_off(&self, machine: &Machine, agent: &mut Agent) -> Outcome {
        eventually("it has joined", PATIENCE, || self.renewed())?;
        machine.unplug()?;
        self.replace_authorities()?;
        let before = self.renewed()?;
        machine.plug_in()?;
        self.returns(&before)?;
        ensure!(agent.ends_within(Duration::ZERO)?.is_none(), "the same process goes on");
        let log = agent.log();
        ensure!(log.contains("CAs were rotated while this machine was disconnected"), "{log}");
        Ok(())
    }

    fn off(&self, agent: &mut Agent, url: &str, first: &str) -> Outcome {
        agent.terminate()?;
        let before = self.renewed()?;
        self.replace_authorities()?;
        token(self.server, &["delete", first])?;
        agent.launch()?;
        ensure!(agent.ends_within(PATIENCE)? == Some(1), "it ends where waiting cannot help");
        let log = agent.log();
        ensure!(log.contains("its CAs were rotated while this machine was off"), "{log}");
        let secret = first.split_once('.').map_or(first, |(_, secret)| secret);
        ensure!(log.contains("kelson token create") && !log.contains(secret), "{log}");
        let new = token(self.server, &["create"])?;
        agent.report(&["--server", url, "--token", &new, "--node-name", self.name]);
        agent.launch()?;
        self.returns(&before)?;
        ensure!(agent.log().contains("joining the cluster again"), "{}", agent.log());
        Ok(())
    }
}
