//! `kelson support-bundle`: what is needed to find a fault is in it, and no secret, wherever one was put.
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Needs::OwnServer, Outcome, Process, Subject, Test, binary, eventually, repo_root, sh};

pub fn tests() -> Vec<Test> {
    vec![Test { name: "support::a_bundle_has_everything_but_secrets", needs: OwnServer, run: bundle }]
}

/// A debug build on a machine under load.
const PATIENCE: Duration = Duration::from_secs(60);

/// A Secret, and a pod, an event and an annotation that repeat what is secret.
const OBJECTS: &str = r#"
apiVersion: v1
kind: Secret
metadata: {name: hidden, namespace: default}
stringData: {password: planted-in-secret, file: "planted-line-one\nplanted-line-two"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: hidden, namespace: default}
data: {settings: planted-in-configmap}
---
apiVersion: v1
kind: Pod
metadata: {name: visible-pod, namespace: default, annotations: {note: planted-in-annotation}}
spec:
  containers:
  - name: c
    image: example.test/visible-image:1
    command: [sh, -c, "login planted-in-command"]
    args: ["--password=planted-in-args"]
    env: [{name: PASSWORD, value: planted-in-env}]
---
apiVersion: v1
kind: Event
metadata: {name: visible-event, namespace: default}
involvedObject: {kind: Pod, namespace: default, name: visible-pod}
reason: Failed
message: "cannot log in with planted-in-secret at https://user:planted-in-url@registry.test"
type: Warning
"#;

/// Everything that was planted and must not be found.
const PLANTED: &[&str] = &[
    "planted-in-secret",
    "planted-line-one",
    "planted-line-two",
    "planted-in-configmap",
    "planted-in-annotation",
    "planted-in-command",
    "planted-in-args",
    "planted-in-env",
    "planted-in-url",
    "planted-in-header",
    "planted-static-token",
    // planted-in-secret in base64.
    "cGxhbnRlZC1pbi1zZWNyZXQ=",
    "planted-kms-key-0123456789abcdef",
];

fn bundle(_: &Subject) -> Outcome {
    let dir = tempfile::tempdir()?;
    let tokens = dir.path().join("tokens.csv");
    fs::write(&tokens, "planted-static-token,someone,1\n")?;
    let flags = ["--disable-agent".to_owned(), format!("--token-auth-file={}", tokens.display())];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Process::start(&flags, &repo_root().join(".cache/images"))?;
    // The pod waits for its service account, which a controller makes.
    eventually("the objects", PATIENCE, || server.kubectl().apply(OBJECTS))?;
    // A log may say anything, and a file of the user's be anywhere in the data directory.
    let log = server.dir.with_file_name("server.log");
    let token = fs::read_to_string(server.dir.join("node-token"))?.trim().to_owned();
    sh(&format!(
        "echo 'visible line: planted-in-secret {token} planted-static-token Authorization: Bearer planted-in-header' >>{}",
        log.display()
    ))?;
    fs::write(server.dir.join("encryption.yaml"), "secret: planted-kms-key-0123456789abcdef\n")?;
    sh(&format!("echo 'key planted-kms-key-0123456789abcdef' >>{}", log.display()))?;

    let (all, names) = made(&server.dir, &dir.path().join("up.tar.gz"))?;
    for name in [
        "README.txt",
        "status.txt",
        "status.json",
        "configuration.txt",
        "versions/kelson.json",
        "host/kernel.txt",
        "host/mounts.txt",
        "network/addresses.txt",
        "api/nodes.json",
        "api/pods.json",
        "api/events.json",
        "api/readyz.txt",
        "metrics/apiserver.txt",
    ] {
        ensure!(names.iter().any(|found| found.ends_with(name)), "{name}: {names:?}");
    }
    // Only root sees where the output of a process that keeps its memory private goes.
    if rustix::process::geteuid().is_root() {
        ensure!(
            names.iter().any(|name| name.ends_with("logs/server.log")) && all.contains("visible line"),
            "{names:?}"
        );
    }
    for text in ["visible-pod", "visible-image", "visible-event", "apiserver_request_total", "token-auth-file"] {
        ensure!(all.contains(text), "{text} is missing");
    }
    without_secrets(&all, &server.dir, &token)?;

    server.terminate()?;
    let (all, names) = made(&server.dir, &dir.path().join("down.tar.gz"))?;
    ensure!(all.contains("nothing runs with this data directory"), "{names:?}");
    ensure!(!names.iter().any(|name| name.contains("/api/")), "{names:?}");
    without_secrets(&all, &server.dir, &token)?;
    server.finish(false)
}

/// Makes a bundle; gives all of its text, and the names in it.
fn made(data: &Path, file: &Path) -> anyhow::Result<(String, Vec<String>)> {
    let out =
        Command::new(binary()).arg("support-bundle").arg("--data-dir").arg(data).arg("--output").arg(file).output()?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mode = sh(&format!("stat -c %a {}", file.display()))?;
    ensure!(mode.trim() == "600", "its owner's alone: {mode}");
    let names = sh(&format!("tar -tzf {}", file.display()))?;
    let all = sh(&format!("tar -xOzf {}", file.display()))?;
    Ok((all, names.lines().map(str::to_owned).collect()))
}

fn without_secrets(all: &str, data: &Path, token: &str) -> Outcome {
    let secret = token.split_once('.').context("a token")?.1;
    for planted in PLANTED.iter().copied().chain([token, secret]) {
        ensure!(
            !all.contains(planted),
            "{planted} is in the bundle: {:?}",
            all.lines().find(|line| line.contains(planted))
        );
    }
    // Keys as they are in files and in kubeconfigs.
    let keys = sh(&format!(
        "cat {d}/pki/*.key | grep -v -e '-----'; sed -n 's/.*client-key-data: //p' {d}/admin.kubeconfig",
        d = data.display()
    ))?;
    let lines: Vec<&str> = keys.lines().map(str::trim).filter(|line| line.len() > 16).collect();
    ensure!(lines.len() > 3, "keys are found: {}", lines.len());
    for line in lines {
        ensure!(!all.contains(line), "a private key is in the bundle");
    }
    ensure!(!all.contains("PRIVATE KEY"), "a private key is in the bundle");
    Ok(())
}
