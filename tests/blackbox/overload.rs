//! Overload: while some clients hold connections, send bodies slowly and list much, nodes renew their leases and
//! administrators get answers. Small enough for every run; `bench/overload` does the same with thousands of clients.
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Needs::OwnServer, Outcome, Process, Subject, Test};

const SILENT_CONNECTIONS: usize = 300;
const SLOW_BODIES: usize = 60;
const HEAVY_LISTS_AT_ONCE: usize = 8;
/// The rate of a slow body in bytes per second.
const SLOW_RATE: &str = "500";
const LARGE_OBJECTS: usize = 6;
const LARGE_OBJECT_BYTES: usize = 800_000;
/// The duration of the test.
const FOR: Duration = Duration::from_secs(10);
/// A debug build on a machine with two cores gets more than the second that `bench/overload` requires.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

pub fn tests() -> Vec<Test> {
    vec![Test {
        name: "overload::leases_and_administrators_are_served",
        needs: OwnServer,
        run: leases_and_administrators_are_served,
    }]
}

/// Children that end with the test in any case.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Threads that list until this is dropped, with the number of successful and rejected requests.
struct Lists {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Drop for Lists {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn curl(port: u16, token: &str, path: &str, args: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command.args(["-sk", "--max-time", "30", "-H", &format!("Authorization: Bearer {token}")]).args(args);
    command.arg(format!("https://127.0.0.1:{port}{path}")).stdin(Stdio::null());
    command
}

/// Returns the code of an answer.
fn code(port: u16, token: &str, path: &str, args: &[&str]) -> anyhow::Result<u16> {
    let args = [args, &["-o", "/dev/null", "-w", "%{http_code}"]].concat();
    let out = curl(port, token, path, &args).output().context("curl")?;
    Ok(String::from_utf8_lossy(&out.stdout).trim().parse().unwrap_or(0))
}

fn slow_bodies(port: u16, body: &Path) -> anyhow::Result<Children> {
    let body = format!("@{}", body.display());
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let args =
        ["-o", "/dev/null", "--limit-rate", SLOW_RATE, "-H", "Content-Type: application/json", "--data-binary", &body];
    let mut children = Children(Vec::new());
    for _ in 0..SLOW_BODIES {
        children.0.push(curl(port, "joe-token", path, &args).stdout(Stdio::null()).spawn().context("curl")?);
    }
    Ok(children)
}

fn heavy_lists(port: u16) -> Lists {
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let threads = (0..HEAVY_LISTS_AT_ONCE).map(|_| {
        let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let path = "/api/v1/namespaces/heavy/configmaps?pretty=true";
                if code(port, "joe-token", path, &["-H", "Accept: application/yaml"])
                    .is_ok_and(|c| c == 200 || c == 429)
                {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    });
    let threads = threads.collect();
    Lists { stop, answered, threads }
}

fn leases_and_administrators_are_served(_: &Subject) -> Outcome {
    let dir = tempfile::tempdir()?;
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, "joe-token,joe,1\nnode-token,system:node:n1,2,\"system:nodes\"\n")?;
    let body = dir.path().join("body");
    std::fs::write(&body, format!("{{\"kind\":\"SelfSubjectAccessReview\",\"x\":\"{}\"}}", "x".repeat(60_000)))?;
    let tokens = tokens.to_str().context("a path")?;
    let server = Process::start(&["--disable-agent", "--token-auth-file", tokens], dir.path())?;
    let (port, kubectl) = (server.port, server.kubectl());
    kubectl.ok(&["create", "namespace", "heavy"])?;
    kubectl.ok(&["create", "clusterrolebinding", "joe", "--clusterrole=view", "--user=joe"])?;
    let data = "x".repeat(LARGE_OBJECT_BYTES);
    for i in 0..LARGE_OBJECTS {
        let map = format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"m{i}\",\"namespace\":\"heavy\"}},\
             \"data\":{{\"k\":\"{data}\"}}}}"
        );
        let out = kubectl.with_input(&["create", "-f", "-"], map.as_bytes())?;
        ensure!(out.code == 0, "{}", out.stderr);
    }
    let lease = r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"n1"},"spec":{"holderIdentity":"n1","leaseDurationSeconds":40}}"#;
    let json = ["-H", "Content-Type: application/json", "-d", lease];
    ensure!(code(port, "node-token", LEASE, &json)? == 201, "a node makes its lease");

    let silent: Vec<TcpStream> =
        (0..SILENT_CONNECTIONS).map_while(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()).collect();
    ensure!(silent.len() == SILENT_CONNECTIONS, "only {} connections were taken", silent.len());
    let _slow = slow_bodies(port, &body)?;
    let lists = heavy_lists(port);
    let begun = Instant::now();
    let (mut renewed, mut slowest) = (0, Duration::ZERO);
    while begun.elapsed() < FOR {
        let at = Instant::now();
        let patch = [
            "-X",
            "PATCH",
            "-H",
            "Content-Type: application/merge-patch+json",
            "-d",
            "{\"spec\":{\"leaseDurationSeconds\":41}}",
        ];
        let renewal = code(port, "node-token", &format!("{LEASE}/n1"), &patch)?;
        ensure!(renewal == 200, "a lease was not renewed: {renewal}, after {:?}", at.elapsed());
        slowest = slowest.max(at.elapsed());
        let at = Instant::now();
        kubectl.ok(&["get", "namespaces"])?;
        slowest = slowest.max(at.elapsed());
        renewed += 1;
    }
    ensure!(slowest < ANSWER_WITHIN, "an answer took {slowest:?}");
    ensure!(renewed > 1 && lists.answered.load(Ordering::Relaxed) > 0, "{renewed} renewals, and no list was answered");
    drop(lists);
    server.finish(false)
}
