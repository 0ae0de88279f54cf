//! Snapshots as bundles: a cluster comes back on an empty machine, with its objects, keys and encryption at rest.
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Kubectl, Needs::OwnServer, Outcome, Process, Subject, Test, binary};
use serde_json::json;

pub fn tests() -> Vec<Test> {
    vec![Test { name: "restore::a_bundle_on_an_empty_directory", needs: OwnServer, run: empty_directory }]
}

/// Runs `kelson snapshot` and returns its output and whether it succeeded.
fn snapshot(args: &[&str]) -> anyhow::Result<(bool, String)> {
    let out = Command::new(binary()).arg("snapshot").args(args).output()?;
    let text = [out.stdout, out.stderr].concat();
    Ok((out.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

fn succeeds(args: &[&str]) -> anyhow::Result<String> {
    let (is_done, text) = snapshot(args)?;
    ensure!(is_done, "{args:?}: {text}");
    Ok(text)
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("the path is not text")
}

fn empty_directory(_: &Subject) -> Outcome {
    let scratch = tempfile::tempdir()?;
    let at = |name: &str| scratch.path().join(name);
    let (passphrase, wrong, backups) = (at("passphrase"), at("wrong"), at("backups"));
    fs::write(&passphrase, "correct horse battery staple\n")?;
    fs::write(&wrong, "incorrect\n")?;
    fs::create_dir(&backups)?;
    let key = json!({"name": "one", "secret": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="});
    let config = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
        "resources": [{"resources": ["secrets"], "providers": [{"secretbox": {"keys": [key]}}]}]});
    fs::write(at("encryption.json"), config.to_string())?;
    let flag = format!("--encryption-provider-config={}", at("encryption.json").display());
    let none = Path::new("/nonexistent");
    let before = Process::start(&["--disable-agent", &flag], none)?;
    let k = before.kubectl();
    k.ok(&["create", "secret", "generic", "word", "--from-literal=x=hush-hush"])?;
    k.ok(&["create", "serviceaccount", "robot"])?;
    let token = k.ok(&["create", "token", "robot"])?;
    let (data, dir) = (text(&before.dir)?.to_owned(), text(&backups)?.to_owned());
    let pass = text(&passphrase)?;

    let (is_done, said) = snapshot(&["save", &dir, "--data-dir", &data])?;
    ensure!(!is_done && said.contains("--passphrase-file"), "a snapshot without a seal must be asked for: {said}");
    succeeds(&["save", &dir, "--passphrase-file", pass, "--data-dir", &data])?;
    let file = fs::read_dir(&backups)?.next().context("no snapshot")??.path();
    let file = text(&file)?;
    ensure!(succeeds(&["list", &dir])?.lines().count() == 2, "one snapshot is listed");
    let said = succeeds(&["verify", file, "--passphrase-file", pass])?;
    ensure!(said.contains("; sealed, of "), "{said}");
    let (is_done, said) = snapshot(&["verify", file, "--passphrase-file", text(&wrong)?])?;
    ensure!(!is_done && said.contains("passphrase is wrong"), "{said}");
    let sealed = fs::read(file)?;
    ensure!(!sealed.windows(9).any(|w| w == b"hush-hush" || w == b"PRIVATE K"), "the snapshot is readable");

    // The kubeconfig of an old client, and a server that must become the old cluster.
    let client = at("client.kubeconfig");
    fs::copy(before.dir.join("admin.kubeconfig"), &client)?;
    before.finish(false)?;
    let after = Process::start(&["--disable-agent"], none)?;
    after.terminate()?;
    fs::remove_dir_all(&after.dir)?;
    fs::create_dir(&after.dir)?;
    for _ in 0..2 {
        succeeds(&["restore", file, "--passphrase-file", pass, "--data-dir", text(&after.dir)?])?;
    }
    after.launch()?;
    let url = format!("https://127.0.0.1:{}", after.port);
    let k = Kubectl::new(client);
    let word = k.ok(&["--server", &url, "get", "secret", "word", "-o", "jsonpath={.data.x}"])?;
    ensure!(word == "aHVzaC1odXNo", "the secret is {word}");
    // The token is shown to the server by a kubectl without a certificate.
    let ca = after.dir.join("pki/ca.crt");
    let anyone = Kubectl::new("/dev/null".into());
    let asked = ["--server", &url, "--certificate-authority", text(&ca)?, "--token", token.trim(), "auth", "whoami"];
    let who = anyone.ok(&asked)?;
    ensure!(who.contains("system:serviceaccount:default:robot"), "{who}");
    after.finish(false)
}
