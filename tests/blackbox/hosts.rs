//! Machines: two servers on one, nodes on two, and their cleanup.
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{
    Agent, Kubectl, Machine, Needs::OwnNode, Needs::OwnServer, Outcome, Process, Subject, Test, binary, eventually,
    repo_root, sh,
};

use crate::pods::{log_of, ready, script};
use crate::services::web;

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "hosts::two_servers_on_one_machine", needs: OwnNode, run: two_servers },
        Test { name: "hosts::tokens", needs: OwnServer, run: tokens },
        Test { name: "hosts::an_agent_that_cannot_join_says_why", needs: OwnNode, run: cannot_join },
        Test { name: "hosts::an_agent_joins_with_a_token_alone", needs: OwnNode, run: agent_joins },
    ]
}

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn images() -> PathBuf {
    repo_root().join(".cache/images")
}

/// Returns a cluster's ranges from its objects: its first node's pods, and the API's service address.
fn ranges(k: &Kubectl) -> anyhow::Result<(String, String)> {
    let pods = eventually("the node has a pod CIDR", PATIENCE, || {
        let cidr = k.ok(&["get", "nodes", "-o", "jsonpath={.items[0].spec.podCIDR}"])?;
        ensure!(!cidr.is_empty(), "none yet");
        Ok(cidr)
    })?;
    Ok((pods, k.ok(&["get", "svc", "-n", "default", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"])?))
}

fn answers_by_name(k: &Kubectl) -> Outcome {
    let got = eventually("the service answers by name", PATIENCE, || {
        k.ok(&["exec", "client", "--", "timeout", "5", "wget", "-qO-", "http://web/"])
    })?;
    ensure!(got.starts_with("web-"), "{got}");
    Ok(())
}

/// Only the data directory is given: both start at the same time, take different ranges, serve, and one is not
/// disturbed when the other ends.
fn two_servers(_: &Subject) -> Outcome {
    let start = || std::thread::spawn(|| Process::start(&[], &images()));
    let (first, second) = (start(), start());
    let join = |t: std::thread::JoinHandle<_>| t.join().map_err(|_| anyhow::anyhow!("panicked"))?;
    let (first, second): (Process, Process) = (join(first)?, join(second)?);
    let (one, two) = (first.kubectl(), second.kubectl());
    let (ranges_one, ranges_two) = (ranges(&one)?, ranges(&two)?);
    ensure!(ranges_one.0 != ranges_two.0 && ranges_one.1 != ranges_two.1, "{ranges_one:?} {ranges_two:?}");
    for (pods, _) in [&ranges_one, &ranges_two] {
        ensure!(pods.ends_with(".0.0/24"), "the first node has the first part: {pods}");
    }
    for k in [&one, &two] {
        let k = k.fresh_namespace("side")?;
        k.apply(&web(2))?;
        k.apply(&script("client", "sleep 6000", ""))?;
    }
    let (one, two) = (one.namespaced("side"), two.namespaced("side"));
    for (k, server) in [(&one, &first), (&two, &second)] {
        let serves = ready(k, "client")
            .and_then(|()| k.ok(&["rollout", "status", "deployment/web", "--timeout=120s"]))
            .and_then(|_| answers_by_name(k));
        serves.with_context(|| {
            let events = k.ok(&["get", "events", "--sort-by=.lastTimestamp"]).unwrap_or_default();
            format!("{events}\nlog of the server:\n{}", server.log_tail())
        })?;
    }
    // The chosen ranges are kept, and a contradicting flag is rejected with a message.
    first.terminate()?;
    let refused = Command::new(binary())
        .args(["server", "--cluster-cidr", "10.99.0.0/16", "--data-dir"])
        .arg(&first.dir)
        .output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("which cannot be changed"), "{said}");
    first.launch()?;
    ensure!(ranges(&first.kubectl())? == ranges_one, "the same ranges after a restart");
    answers_by_name(&one)?;
    let gateway = ranges_one.0.replace(".0/24", ".1/");
    ensure!(sh("ip -o address")?.contains(&gateway), "the bridge of the first");
    first.finish(false)?;
    ensure!(!sh("ip -o address")?.contains(&gateway), "the bridge of the first is gone");
    answers_by_name(&two)?;
    second.finish(false)
}

pub(crate) fn token(server: &Process, args: &[&str]) -> anyhow::Result<String> {
    let out = Command::new(binary()).arg("token").args(args).arg("--data-dir").arg(&server.dir).output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    ensure!(out.status.success(), "kelson token {args:?}: {text}{}", String::from_utf8_lossy(&out.stderr));
    Ok(text.trim().to_owned())
}

/// Returns the words after `kelson agent` of a new join command.
pub(crate) fn join_words(server: &Process) -> anyhow::Result<Vec<String>> {
    let command = token(server, &["create", "--print-join-command"])?;
    let words = command.strip_prefix("kelson agent ").with_context(|| command.clone())?;
    Ok(words.split(' ').map(str::to_owned).collect())
}

/// A token is a secret in kubeadm's format; its signature in `cluster-info` comes and goes with it, readable by all.
fn tokens(_: &Subject) -> Outcome {
    let server = Process::start(&["--disable-agent"], std::path::Path::new("/nonexistent"))?;
    let k = server.kubectl().namespaced("kube-system");
    let made = token(&server, &["create", "--ttl", "2h", "--description", "for a test"])?;
    let (id, secret) = made.split_once('.').context("ID.SECRET")?;
    ensure!(id.len() == 6 && secret.len() == 16, "{made}");
    let name = format!("bootstrap-token-{id}");
    let kind = k.ok(&["get", "secret", &name, "-o", "jsonpath={.type}"])?;
    ensure!(kind == "bootstrap.kubernetes.io/token", "{kind}");
    let anybody = format!("https://127.0.0.1:{}/api/v1/namespaces/kube-public/configmaps/cluster-info", server.port);
    let info = || sh(&format!("curl -sk {anybody}"));
    let signature = format!("jws-kubeconfig-{id}");
    eventually("the signature", PATIENCE, || {
        let text = info()?;
        ensure!(text.contains(&signature) && text.contains("certificate-authority-data"), "{text}");
        Ok(())
    })?;
    let list = token(&server, &["list"])?;
    ensure!(
        list.contains(id) && list.contains("for a test") && list.contains("1h") && !list.contains(secret),
        "{list}"
    );
    ensure!(token(&server, &["delete", id])? == format!("bootstrap token \"{id}\" deleted"), "deleted");
    eventually("no signature any more", PATIENCE, || {
        ensure!(!info()?.contains(&signature), "still there");
        Ok(())
    })?;
    // The cluster deletes an expired token.
    let short = token(&server, &["create", "--ttl", "1s"])?;
    eventually("the expired token is gone", PATIENCE, || {
        let all = token(&server, &["list"])?;
        ensure!(!all.contains(short.split('.').next().unwrap_or("?")), "{all}");
        Ok(())
    })?;
    server.finish(false)
}

/// An agent that cannot join reports the reason, and ends if waiting cannot help.
fn cannot_join(s: &Subject) -> Outcome {
    let server = s.server.as_ref().context("a server of ours")?;
    let words = join_words(server)?;
    let (url, good, pin) = (words[1].as_str(), words[3].as_str(), words[5].as_str());
    let id = good.split('.').next().context("ID")?;
    let wrong_secret = format!("{id}.0000000000000000");
    let taken = s.kubectl.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    s.kubectl.ok(&["wait", &format!("node/{taken}"), "--for=condition=Ready", "--timeout=60s"])?;
    let no_pin = format!("sha256:{}", "0".repeat(64));
    let rows: [(&[&str], &str); 6] = [
        (&["--server", url, "--token", "nonsense"], "--token: a bootstrap token must be six letters or digits, a dot"),
        (&["--server", url, "--token", &wrong_secret], "the token secret is wrong"),
        (&["--server", url, "--token", good, "--token-ca-cert-hash", &no_pin], "which is none of those given"),
        (&["--server", url, "--token", "zzzzzz.0000000000000000"], "does not exist or has expired"),
        (&["--server", "http://127.0.0.1:1", "--token", good], "must be an https URL"),
        (
            &["--server", url, "--token", good, "--node-name", &taken],
            "and status \"Ready\" already exists in the cluster",
        ),
    ];
    for (args, want) in rows {
        let mut agent = Agent::new(None, args, &images())?;
        agent.launch()?;
        let code = agent.ends_within(PATIENCE)?;
        let log = agent.log();
        ensure!(code == Some(1) && log.contains(want), "{args:?}: {code:?}\n{log}");
        ensure!(!log.contains("0000000000000000") && !log.contains(good), "no token in the log: {log}");
    }
    // A server may come up later: the agent waits, logs that once, and ends on request.
    let away = ["--server", "https://127.0.0.1:1", "--token", good, "--token-ca-cert-hash", pin];
    let mut agent = Agent::new(None, &away, &images())?;
    agent.launch()?;
    ensure!(agent.ends_within(Duration::from_secs(4))?.is_none(), "it waits\n{}", agent.log());
    ensure!(agent.log().matches("https://127.0.0.1:1 is not reachable").count() == 1, "{}", agent.log());
    ensure!(agent.terminate()? < Duration::from_secs(3), "ends at once");
    Ok(())
}

/// The whole life of a second node: joins with the server's address and a token, runs pods that reach the first node's
/// and are reached from them, is killed and adopts its containers, is disconnected and loses pods that do not tolerate
/// that, comes back, is deleted, and leaves nothing.
fn agent_joins(s: &Subject) -> Outcome {
    let server = s.server.as_ref().context("a server of ours")?;
    let machine = Machine::start(1)?;
    let words = join_words(server)?;
    let node = format!("far-{}", server.port);
    // Only the minimum; the pin of the printed command is tested elsewhere.
    let args = ["--server", &words[1], "--token", &words[3], "--node-name", &node];
    let mut agent = Agent::new(Some(&machine), &args, &images())?;
    agent.launch()?;
    let k = s.kubectl.fresh_namespace("h-agent")?;
    let seen = far_node(&k, &node, &machine).and_then(|()| both_ways(&k, &node));
    let seen = seen.and_then(|()| policies_across(&k)).and_then(|()| silence(&k, &node, &mut agent));
    seen.with_context(|| format!("the agent's log:\n{}", tail(&agent.log())))?;
    let took = agent.terminate()?;
    ensure!(took < Duration::from_secs(5), "SIGTERM took {took:?}");
    s.kubectl.ok(&["delete", "namespace", "h-agent", "--wait=false"])?;
    s.kubectl.ok(&["delete", "node", &node])?;
    agent.cleanup()?;
    nothing_left(&machine, &agent)
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

fn far_node(k: &Kubectl, node: &str, machine: &Machine) -> Outcome {
    eventually("the node is there", PATIENCE, || k.ok(&["get", "node", node]))?;
    k.ok(&["wait", &format!("node/{node}"), "--for=condition=Ready", "--timeout=60s"])?;
    let address =
        k.ok(&["get", "node", node, "-o", "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}"])?;
    ensure!(address == machine.address, "{address}");
    Ok(())
}

fn at(node: &str) -> String {
    format!("  nodeSelector: {{kubernetes.io/hostname: {node}}}\n")
}

fn both_ways(k: &Kubectl, far: &str) -> Outcome {
    let near = k.ok(&["get", "nodes", "-o", "jsonpath={range .items[*]}{.metadata.name}{'\\n'}{end}"])?;
    let near = near.lines().find(|n| *n != far).context("the first node")?.to_owned();
    for (name, node) in [("near", near.as_str()), ("far", far)] {
        let server = "mkdir /www; hostname > /www/index.html; dd if=/dev/zero of=/www/big bs=1k count=4096 2>/dev/null; \
                      echo started; exec httpd -f -p 8080 -h /www";
        k.apply(&script(name, server, &at(node)))?;
        // Not the pod's own name: that is in its hosts file.
        k.ok(&["expose", "pod", name, "--name", &format!("{name}-web"), "--port=80", "--target-port=8080"])?;
    }
    for name in ["near", "far"] {
        ready(k, name)?;
    }
    // Logs and exec go through the API server to the other machine.
    ensure!(log_of(k, "far", 1)?.trim() == "started", "logs");
    let code = k.run(&["exec", "far", "--", "sh", "-c", "exit 7"])?.code;
    ensure!(code == 7, "exec's exit code: {code}");
    let ip = |name: &str| k.ok(&["get", "pod", name, "-o", "jsonpath={.status.podIP}"]);
    let (near_ip, far_ip) = (ip("near")?, ip("far")?);
    for (from, url, want) in [
        ("near", format!("http://{far_ip}:8080/"), "far"),
        ("far", format!("http://{near_ip}:8080/"), "near"),
        ("near", "http://far-web/".to_owned(), "far"),
        ("far", "http://near-web/".to_owned(), "near"),
        ("far", "http://far-web/".to_owned(), "far"),
        ("near", "http://near-web/".to_owned(), "near"),
    ] {
        let got = eventually(&format!("{from} -> {url}"), PATIENCE, || {
            k.ok(&["exec", from, "--", "timeout", "5", "wget", "-qO-", &url])
        })?;
        ensure!(got.trim() == want, "{from} -> {url}: {got}");
        let size = format!("timeout 20 wget -qO- {url}big | wc -c");
        let got = k.ok(&["exec", from, "--", "sh", "-c", &size])?;
        ensure!(got.trim() == "4194304", "{from} -> {url}big, packets of full size: {got}");
    }
    // The API from a pod on the other machine, whose node reaches it by another route than the pod.
    let api = "timeout 5 nc kubernetes.default 443 < /dev/null";
    eventually("the API's service", PATIENCE, || k.ok(&["exec", "far", "--", "sh", "-c", api]))?;
    // The host itself, by address and by service.
    let service = k.ok(&["get", "svc", "far-web", "-o", "jsonpath={.spec.clusterIP}"])?;
    for url in [format!("http://{far_ip}:8080/"), format!("http://{service}/")] {
        let got = eventually(&url, PATIENCE, || sh(&format!("curl -sf -m 5 {url}")))?;
        ensure!(got.trim() == "far", "{url}: {got}");
    }
    Ok(())
}

/// Policies see the real pods at both ends of the tunnel: ingress on the receiver's node, egress on the sender's.
fn policies_across(k: &Kubectl) -> Outcome {
    let policy = |name: &str, spec: &str| {
        k.apply(&format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}}}\nspec: {spec}\n"
        ))
    };
    let until = |from: &str, to: &str, expected: bool| {
        eventually(&format!("{from} to {to}: {expected}"), PATIENCE, || {
            for url in [
                format!("http://{to}-web/"),
                format!("http://{}:8080/", k.ok(&["get", "pod", to, "-o", "jsonpath={.status.podIP}"])?),
            ] {
                let answered = k.run(&["exec", from, "--", "timeout", "2", "wget", "-qO-", &url])?.stdout.trim() == to;
                ensure!(answered == expected, "{url}: {answered}");
            }
            Ok(())
        })
    };
    policy(
        "near",
        "{podSelector: {matchLabels: {app: near}}, ingress: [{from: [{podSelector: {matchLabels: {app: other}}}]}]}",
    )?;
    until("far", "near", false)?;
    until("near", "far", true)?;
    policy(
        "near",
        "{podSelector: {matchLabels: {app: near}}, ingress: [{from: [{podSelector: {matchLabels: {app: far}}}]}]}",
    )?;
    until("far", "near", true)?;
    policy("far", "{podSelector: {matchLabels: {app: far}}, policyTypes: [Egress]}")?;
    until("far", "near", false)?;
    until("near", "far", true)?;
    k.ok(&["delete", "networkpolicy", "near", "far"])?;
    until("far", "near", true)
}

fn silence(k: &Kubectl, node: &str, agent: &mut Agent) -> Outcome {
    let patient = format!("{}  tolerations: [{{operator: Exists}}]\n", at(node));
    k.apply(&script("patient", "sleep 6000", &patient))?;
    let hasty = "  tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}]\n";
    k.apply(&script("hasty", "sleep 6000", &format!("{}{hasty}", at(node))))?;
    ready(k, "patient")?;
    ready(k, "hasty")?;
    let state = |pod: &str| {
        k.ok(&[
            "get",
            "pod",
            pod,
            "-o",
            "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}",
        ])
    };
    let before = state("patient")?;
    agent.kill()?;
    k.ok(&["wait", &format!("node/{node}"), "--for=condition=Ready=Unknown", "--timeout=120s"])?;
    let taints = eventually("the taint", PATIENCE, || {
        let taints = k.ok(&["get", "node", node, "-o", "jsonpath={.spec.taints[*].key}{.spec.taints[*].effect}"])?;
        ensure!(taints.contains("node.kubernetes.io/unreachable") && taints.contains("NoExecute"), "{taints}");
        Ok(taints)
    })?;
    ensure!(taints.contains("NoSchedule"), "{taints}");
    eventually("the pod that does not tolerate it is to go", PATIENCE, || {
        let at = k.ok(&["get", "pod", "hasty", "-o", "jsonpath={.metadata.deletionTimestamp}"])?;
        ensure!(!at.is_empty(), "not yet");
        Ok(())
    })?;
    let kept = k.ok(&["get", "pod", "patient", "-o", "jsonpath={.metadata.deletionTimestamp}"])?;
    ensure!(kept.is_empty(), "the one that does stays: {kept}");
    agent.launch()?;
    k.ok(&["wait", &format!("node/{node}"), "--for=condition=Ready", "--timeout=60s"])?;
    eventually("the evicted pod is gone", PATIENCE, || {
        ensure!(k.run(&["get", "pod", "hasty"])?.stderr.contains("not found"), "still there");
        Ok(())
    })?;
    eventually("the taints are gone", PATIENCE, || {
        let taints = k.ok(&["get", "node", node, "-o", "jsonpath={.spec.taints}"])?;
        ensure!(taints.is_empty(), "{taints}");
        Ok(())
    })?;
    ready(k, "patient")?;
    ensure!(state("patient")? == before, "adopted, not restarted: {before} {}", state("patient")?);
    Ok(())
}

fn nothing_left(machine: &Machine, agent: &Agent) -> Outcome {
    let links = machine.sh("ip -o link")?;
    ensure!(links.lines().count() == 2, "only the loopback and the cable: {links}");
    let rules = machine.sh("nft list ruleset")?;
    ensure!(rules.trim().is_empty(), "{rules}");
    let dir = agent.dir.display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    ensure!(!mounts.contains(&dir), "mounts below {dir}");
    let running = sh(&format!("ps -eo args | grep -F {dir} | grep -v grep || true"))?;
    ensure!(running.trim().is_empty(), "{running}");
    let reserved = sh(&format!("grep -rlF {dir} /run/kelson 2>/dev/null || true"))?;
    ensure!(reserved.trim().is_empty(), "{reserved}");
    Ok(())
}
