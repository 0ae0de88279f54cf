//! Plugins as processes: sound ones, and every way to misbehave. Each ends in bounded time, leaves no process behind and
//! says what happened without a credential.
#![allow(clippy::unwrap_used)]
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kelson_credentials::check::check_with;
use kelson_credentials::config::{self, ProviderConfig};
use kelson_credentials::plugin::exec::{Executor, ProcessExecutor, STDERR_SHOWN_BYTES_MAX};
use kelson_credentials::plugin::protocol::{KeyType, Request, Response};
use kelson_credentials::plugin::{FaultReason, PluginFault};

const SECRET: &str = "swordfish-9a8b7c6d";

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bench = Self { dir };
        bench.install(&format!("#!/bin/bash\nD='{}'\n{script}\n", bench.dir.path().display()));
        bench
    }

    /// Writes the plugin by a process that has ended. While a test has a file open for writing, another test may start
    /// a process that inherits the descriptor for a moment, and the kernel does not execute a file that can still be
    /// written.
    fn install(&self, text: &str) {
        fs::write(self.file("written"), text).unwrap();
        let mut copy = std::process::Command::new("install");
        copy.args(["-m", "755"]).args([self.file("written"), self.file("plugin")]);
        assert!(copy.status().unwrap().success());
    }

    fn config(&self) -> ProviderConfig {
        let text = format!(
            "{{apiVersion: kubelet.config.k8s.io/v1, kind: CredentialProviderConfig, providers: [{{name: plugin, matchImages: [r.io], defaultCacheDuration: 1m, apiVersion: credentialprovider.kubelet.k8s.io/v1, args: [one, two words], env: [{{name: OVERLAY, value: {SECRET}-env}}, {{name: HOME, value: /nowhere}}]}}]}}"
        );
        config::load_text(text.as_bytes()).unwrap().providers.remove(0)
    }

    async fn run_for(&self, run_max: Duration) -> Result<Response, PluginFault> {
        let executor = ProcessExecutor { bin_dir: self.dir.path().to_owned(), run_max };
        let request = Request {
            image: "r.io/app".into(),
            token: Some(format!("{SECRET}-token").as_str().into()),
            ..Default::default()
        };
        executor.run(&self.config(), &request).await
    }

    async fn run(&self) -> Result<Response, PluginFault> {
        self.run_for(Duration::from_secs(60)).await
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap()
    }
}

fn answer() -> String {
    format!(
        "echo '{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\"cacheKeyType\":\"Registry\",\"cacheDuration\":\"5m\",\"auth\":{{\"r.io\":{{\"username\":\"user\",\"password\":\"{SECRET}\"}}}}}}'"
    )
}

/// Reports whether a process has ended, including a zombie that another process will reap.
fn gone(pid: &str) -> bool {
    match fs::read_to_string(Path::new("/proc").join(pid.trim()).join("stat")) {
        Ok(stat) => stat.rsplit(')').next().is_some_and(|s| s.trim_start().starts_with('Z')),
        Err(_) => true,
    }
}

async fn until_gone(pid: &str) {
    let wait = async {
        while !gone(pid) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("process is still there");
}

fn clean(fault: &PluginFault) {
    assert!(!format!("{fault:?} {fault:#?}").contains("swordfish"), "{fault:?}");
    assert!(fault.stderr.len() <= STDERR_SHOWN_BYTES_MAX);
}

#[tokio::test]
async fn request_environment_and_answer() {
    let b = Bench::new(&format!(
        "cat > $D/in; printf '%s|' \"$OVERLAY\" \"$HOME\" \"${{PATH:+inherited}}\" \"$@\" > $D/env; {}",
        answer()
    ));
    let r = b.run().await.unwrap();
    assert_eq!(
        (r.key_type, r.cache_duration, r.auth["r.io"].password.reveal()),
        (KeyType::Registry, Some(Duration::from_secs(300)), SECRET)
    );
    assert_eq!(b.read("env"), format!("{SECRET}-env|/nowhere|inherited|one|two words|"));
    assert_eq!(
        b.read("in"),
        format!(
            "{{\"kind\":\"CredentialProviderRequest\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\"image\":\"r.io/app\",\"serviceAccountToken\":\"{SECRET}-token\"}}\n"
        )
    );
}

#[tokio::test]
async fn a_plugin_that_does_not_read_its_input() {
    let b = Bench::new(&format!("exec 0<&-; {}", answer()));
    assert!(b.run().await.is_ok());
}

#[tokio::test]
async fn failing_with_credentials_on_both_streams() {
    let b = Bench::new(&format!(
        "{}; echo \"cannot log in with {SECRET} and token {SECRET}-token, $OVERLAY\" >&2; exit 3",
        answer()
    ));
    let e = b.run().await.unwrap_err();
    assert_eq!((e.reason, e.message.as_str()), (FaultReason::Exit, "exit status 3"));
    assert!(e.stderr.starts_with("cannot log in with [redacted] and token [redacted]"), "{}", e.stderr);
    clean(&e);
}

#[tokio::test]
async fn nonsense_of_every_kind() {
    for (script, reason) in [
        ("echo swordfish-nonsense; echo swordfish-nonsense >&2".to_owned(), FaultReason::InvalidResponse),
        ("true".to_owned(), FaultReason::InvalidResponse),
        (answer().replace("k8s.io/v1", "k8s.io/v1beta1"), FaultReason::WrongApiVersion),
        (answer().replace("kubelet.k8s.io", "swordfish"), FaultReason::WrongApiVersion),
        (answer().replace("ProviderResponse", "swordfish"), FaultReason::WrongKind),
        (answer().replace("Registry", "swordfish"), FaultReason::InvalidResponse),
        ("kill -SEGV $$".to_owned(), FaultReason::Exit),
    ] {
        let e = Bench::new(&script).run().await.unwrap_err();
        assert_eq!(e.reason, reason, "{script}");
        clean(&e);
    }
}

#[tokio::test]
async fn a_missing_or_broken_executable() {
    let b = Bench::new("");
    fs::remove_file(b.file("plugin")).unwrap();
    assert_eq!(b.run().await.unwrap_err().reason, FaultReason::Start);
    b.install("#!/no/such/interpreter\n");
    assert_eq!(b.run().await.unwrap_err().reason, FaultReason::Start);
}

#[tokio::test]
async fn a_hanging_plugin_is_killed_with_its_children() {
    let b = Bench::new("sleep 1000 & echo $! > $D/child; echo $$ > $D/self; wait");
    let e = b.run_for(Duration::from_millis(700)).await.unwrap_err();
    assert_eq!(e.reason, FaultReason::Timeout);
    until_gone(&b.read("self")).await;
    until_gone(&b.read("child")).await;
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_nothing() {
    let b = Bench::new("sleep 1000 & echo $! > $D/child; echo $$ > $D/self; wait");
    let child = b.file("self");
    let started = async {
        while fs::read_to_string(&child).unwrap_or_default().trim().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = b.run() => panic!("it does not end by itself"),
        () = started => {}
    }
    until_gone(&b.read("self")).await;
    until_gone(&b.read("child")).await;
}

#[tokio::test]
async fn floods() {
    let b = Bench::new("echo $$ > $D/self; exec yes swordfish");
    let e = b.run().await.unwrap_err();
    assert_eq!(e.reason, FaultReason::TooLarge);
    clean(&e);
    until_gone(&b.read("self")).await;
    // A flood on stderr does not block and is not kept.
    let b = Bench::new(&format!("head -c 5000000 /dev/zero | tr '\\0' 'x' >&2; {}", answer()));
    assert!(b.run().await.is_ok());
    let e = Bench::new("yes some words >&2 & sleep 0.1; exit 1").run().await.unwrap_err();
    assert!(e.stderr.contains("some words"));
    clean(&e);
}

#[tokio::test]
async fn children_that_hold_the_pipes_open_do_not_hang_us() {
    let b = Bench::new(&format!("sleep 1000 & echo $! > $D/child; {}", answer()));
    let began = std::time::Instant::now();
    assert_eq!(b.run().await.unwrap().auth["r.io"].username, "user");
    assert!(began.elapsed() < Duration::from_secs(30));
    until_gone(&b.read("child")).await;
    // Even one that left the group cannot.
    let b = Bench::new(&format!("setsid sleep 3 & {}", answer()));
    assert!(b.run().await.is_ok());
}

#[tokio::test]
async fn a_child_may_answer_after_the_plugin_has_ended() {
    let b = Bench::new(&format!("(sleep 1; {}) & exit 0", answer()));
    assert_eq!(b.run().await.unwrap().auth["r.io"].username, "user");
    // In two parts, and the pipe stays open.
    let text = answer().replace("echo '", "printf %s '");
    let (first, second) = text.split_once("\"cacheDuration").unwrap();
    let b = Bench::new(&format!("({first}'; sleep 1; printf %s '\"cacheDuration{second}; sleep 1000) & exit 0"));
    assert_eq!(b.run().await.unwrap().auth["r.io"].username, "user");
    // A plugin that failed has no time for it, and one that says nothing has what plugins have.
    let e = Bench::new(&format!("(sleep 1000; {}) & exit 3", answer())).run().await.unwrap_err();
    assert_eq!(e.reason, FaultReason::Exit);
    let e = Bench::new("sleep 1000 & exit 0").run_for(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(e.reason, FaultReason::Timeout);
}

#[tokio::test]
async fn dry_run() {
    let b = Bench::new(&answer());
    let config = |b: &Bench| config::Config { providers: vec![b.config()], hash: "sha256:x".into() };
    let executor = Arc::new(ProcessExecutor::new(b.dir.path()));
    let report = check_with("r.io/app:1", config(&b), executor.clone()).await;
    assert!(report.fault.is_none(), "{}", report.text);
    for want in [
        "plugin: responded in ",
        "cache key type: Registry",
        "cache duration: 5m0s",
        "r.io: user us***, password set",
        "1. r.io from credential provider \"plugin\"",
    ] {
        assert!(report.text.contains(want), "{want} in {}", report.text);
    }
    assert!(!report.text.contains("swordfish") && !report.text.contains("user user"));
    assert!(check_with("other.io/app:1", config(&b), executor.clone()).await.fault.is_some());
    assert!(check_with("not an image", config(&b), executor).await.fault.is_some());
    let b = Bench::new("echo no such role >&2; exit 1");
    let report = check_with("r.io/app", config(&b), Arc::new(ProcessExecutor::new(b.dir.path()))).await;
    assert!(
        report.fault.is_some()
            && report.text.contains("plugin: FAILED after")
            && report.text.contains("stderr: no such role"),
        "{}",
        report.text
    );
}
