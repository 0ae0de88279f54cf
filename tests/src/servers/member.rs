//! The member of etcd of a machine: a process of the test, or one that the server starts and supervises.
use std::path::Path;
use std::process::Command;

use rustix::process::{Signal, kill_process};

use super::program::{Program, pid_of};
use super::{Network, etcd};

/// The process that runs etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datastore {
    /// The test runs etcd, and the servers are given `--etcd-servers`.
    External,
    /// Each server starts and supervises a member (`--cluster-init`, `--server` and `--token`), which is killed with it.
    Managed,
}

/// Returns the processes that a process has started and that run this program.
fn children(parent: u32, program: &str) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let all = lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>());
    let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    all.filter(|pid| name(pid).trim() == program).collect()
}

/// Returns the process of the member of a server.
pub fn pid(server: &mut Program) -> Option<u32> {
    children(server.pid()?, "etcd").first().copied()
}

/// Sends the member of a server a signal.
pub fn signal(server: &mut Program, signal: Signal) {
    if let Some(pid) = pid(server).and_then(pid_of) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
}

/// Asks the member of the server on a machine. `dir` is the data directory of the server. The text is empty if it does not answer.
fn etcdctl(network: &Network, machine: usize, dir: &Path, args: &[&str]) -> String {
    let file = |name: &str| dir.join("etcd/pki").join(name).display().to_string();
    let out = Command::new("nsenter")
        .arg(format!("--net=/run/netns/{}", network.machine(machine)))
        .arg(etcd("etcdctl"))
        .env("ETCDCTL_API", "3")
        .args(["--dial-timeout=1s", "--command-timeout=1s", "--endpoints=https://127.0.0.1:2379"])
        .args(["--cacert", &file("ca.crt"), "--cert", &file("client.crt"), "--key", &file("client.key")])
        .args(args)
        .output();
    out.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default()
}

/// Reports whether the member of the server on a machine is the leader. `dir` is the data directory of the server.
pub fn is_leader(network: &Network, machine: usize, dir: &Path) -> bool {
    etcdctl(network, machine, dir, &["endpoint", "status"]).split(", ").nth(4) == Some("true")
}

/// Returns how many members vote, as the member of the server on a machine knows. `dir` is the data directory of the server.
pub fn voters(network: &Network, machine: usize, dir: &Path) -> usize {
    let list = etcdctl(network, machine, dir, &["member", "list"]);
    list.lines().filter(|line| line.split(", ").nth(1) == Some("started") && line.ends_with(", false")).count()
}

/// Returns the flags with which the first server gets its member.
pub fn first_flags() -> Vec<String> {
    vec!["--cluster-init".to_owned(), binary_flag()]
}

/// Returns the flags with which a server joins the one with this URL and data directory. They have no effect if it is a member
/// already.
pub fn join_flags(url: &str, of: &Path) -> anyhow::Result<Vec<String>> {
    let token = std::fs::read_to_string(of.join("server-token"))?;
    Ok(vec![format!("--server={url}"), format!("--token={}", token.trim()), binary_flag()])
}

fn binary_flag() -> String {
    format!("--etcd-binary={}", etcd("etcd").display())
}
