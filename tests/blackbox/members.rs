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
    vec![Test { name: "members::a_server_stores_its_objects_in_its_member", needs: OwnServer, run: one_member }]
}

fn one_member(_: &Subject) -> Outcome {
    let etcd = repo_root().join(".cache/bin/etcd").display().to_string();
    let (peer, client) = (free_port()?.to_string(), free_port()?.to_string());
    let flags = [
        "--disable-agent",
        "--cluster-init",
        "--etcd-binary",
        &etcd,
        "--etcd-peer-port",
        &peer,
        "--etcd-client-port",
        &client,
    ];
    let server = Process::start(&flags, Path::new("/nonexistent"))?;
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

fn member(server: &Process, words: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new(binary());
    Ok(command.arg("member").args(words).arg("--data-dir").arg(&server.dir).output()?)
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
