//! A server that stores its objects in an etcd member that it starts.
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Needs::OwnServer, Outcome, Process, Subject, Test, binary, eventually, free_port, repo_root};
use serde_json::Value;

/// The time that the kernel may take to end a process whose parent was killed.
const END_MAX: Duration = Duration::from_secs(20);

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "members::a_server_stores_its_objects_in_its_member", needs: OwnServer, run: one_member },
        Test { name: "members::a_snapshot_is_restored_into_a_new_member", needs: OwnServer, run: restored },
    ]
}

/// Starts a server with a member on these ports.
fn start(peer: &str, client: &str) -> anyhow::Result<Process> {
    let etcd = repo_root().join(".cache/bin/etcd").display().to_string();
    let flags = [
        "--disable-agent",
        "--cluster-init",
        "--etcd-binary",
        &etcd,
        "--etcd-peer-port",
        peer,
        "--etcd-client-port",
        client,
    ];
    Process::start(&flags, Path::new("/nonexistent"))
}

fn one_member(_: &Subject) -> Outcome {
    let (peer, client) = (free_port()?.to_string(), free_port()?.to_string());
    let server = start(&peer, &client)?;
    let k = server.kubectl();
    k.ok(&["create", "configmap", "kept", "--from-literal=a=1"])?;
    let revision = || k.ok(&["get", "configmap", "kept", "-o", "jsonpath={.metadata.resourceVersion}"]);
    let before = revision()?;
    let list = member(&server, &["list", "-o", "json"])?;
    let rows: Value = serde_json::from_slice(&list.stdout).with_context(|| text(&list.stderr))?;
    let row = &rows[0];
    ensure!(row["role"] == "leader" && row["isRunning"] == true, "{rows:#}");
    ensure!(row["peerUrls"][0] == format!("https://127.0.0.1:{peer}"), "{rows:#}");
    let refused = member(&server, &["remove", row["name"].as_str().unwrap_or_default()])?;
    ensure!(!refused.status.success() && text(&refused.stderr).contains("is the only voter"), "{refused:?}");
    let metrics = k.ok(&["get", "--raw", "/metrics"])?;
    ensure!(metrics.contains("kelson_etcd_member_count{role=\"voter\"} 1"), "the metrics of the member are shown");
    ensure!(k.ok(&["get", "--raw", "/readyz/etcd-member"])? == "ok", "the check is shown");
    // The member ends with the server, however that ends.
    ensure!(is_running(&server), "etcd is started");
    server.kill()?;
    eventually("etcd ends with its server", END_MAX, || {
        ensure!(!is_running(&server), "it runs");
        Ok(())
    })?;
    server.launch()?;
    ensure!(revision()? == before, "the object is as it was");
    server.terminate()?;
    ensure!(!is_running(&server), "etcd is stopped\n{}", server.log_tail());
    server.finish(false)
}

/// A snapshot of a server with a member, in place of what the server has later: the steps of the documentation.
fn restored(_: &Subject) -> Outcome {
    let scratch = tempfile::tempdir()?;
    let file = scratch.path().join("bundle").display().to_string();
    let server = start(&free_port()?.to_string(), &free_port()?.to_string())?;
    let k = server.kubectl();
    k.ok(&["create", "configmap", "kept", "--from-literal=a=1"])?;
    let revision = |name: &str| {
        let text = k.ok(&["get", "configmap", name, "-o", "jsonpath={.metadata.resourceVersion}"])?;
        text.parse::<u64>().with_context(|| text.clone())
    };
    let kept = revision("kept")?;
    succeeds(&server, "snapshot", &["save", &file, "--unsealed"])?;
    k.ok(&["create", "configmap", "later", "--from-literal=a=1"])?;
    let later = revision("later")?;
    server.terminate()?;
    let said = succeeds(&server, "snapshot", &["restore", &file])?;
    ensure!(said.contains("etcd.before-") && said.contains("--cluster-init"), "{said}");
    server.launch()?;
    ensure!(is_running(&server), "the objects are in etcd again");
    ensure!(revision("kept")? == kept, "the object is as it was");
    let gone = k.fails(&["get", "configmap", "later"])?;
    ensure!(gone.stderr.contains("NotFound"), "the object is from after the snapshot");
    k.ok(&["create", "configmap", "later", "--from-literal=a=2"])?;
    ensure!(revision("later")? > later, "revisions never go back");
    server.finish(false)
}

fn member(server: &Process, words: &[&str]) -> anyhow::Result<Output> {
    run(server, "member", words)
}

fn run(server: &Process, command: &str, words: &[&str]) -> anyhow::Result<Output> {
    Ok(Command::new(binary()).arg(command).args(words).arg("--data-dir").arg(&server.dir).output()?)
}

fn succeeds(server: &Process, command: &str, words: &[&str]) -> anyhow::Result<String> {
    let output = run(server, command, words)?;
    ensure!(output.status.success(), "{command} {words:?}: {}", text(&output.stderr));
    Ok(text(&output.stdout))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Reports whether an etcd runs on the data directory.
fn is_running(server: &Process) -> bool {
    let wanted = format!("--data-dir={}", server.dir.join("etcd/data").display());
    let lines = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.into_iter().any(|line| line.split(|byte| *byte == 0).any(|word| word == wanted.as_bytes()))
}
