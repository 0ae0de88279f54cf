//! Three servers with their etcd and a node each. How the members of etcd come about is [`Datastore`].
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use rustls::ClientConfig;
use serde_json::Value;

use super::disk::Disk;
use super::https::{Https, TOKEN, trust};
use super::member::{self, Datastore};
use super::network::Network;
use super::program::Program;
use crate::{binary, eventually, repo_root, sh};

/// The port of each server.
const PORT: u16 = 6443;
/// The time limit of a start, and of the end of all faults.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// The lines of a server's log in an error.
const TAIL: usize = 15;
/// Returns the library that gives a process its own clock, from Debian's package `libfaketime`.
fn clock_library() -> PathBuf {
    format!("/usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1", std::env::consts::ARCH).into()
}

/// One machine: its disk, and the processes on it.
pub struct Station {
    /// The number of the machine.
    pub number: usize,
    /// Its disk, where this machine can mount one.
    pub disk: Option<Disk>,
    /// The etcd process; `None` for one of the server.
    etcd: Option<Program>,
    /// The API server process.
    pub server: Program,
    /// A node without containers, which knows all servers.
    pub node: Program,
    /// The file with the shift of the server's clock, if clocks can be shifted.
    clock: Option<PathBuf>,
}

/// The servers of one test.
pub struct Cluster {
    /// The machines of the cluster.
    pub stations: Vec<Station>,
    /// The network between the machines.
    pub network: Network,
    /// The trust of clients in the servers.
    pub tls: Arc<ClientConfig>,
    pub(super) datastore: Datastore,
    dir: PathBuf,
    // The last field: removed after all processes have ended and all disks are unmounted.
    _scratch: tempfile::TempDir,
}

/// Returns the etcd that tests use: the one of `scripts/deps`, else the one in PATH.
pub fn etcd(program: &str) -> PathBuf {
    let local = repo_root().join(".cache/bin").join(program);
    if local.exists() { local } else { program.into() }
}

impl Cluster {
    /// Starts a cluster of servers. The calling thread moves to their network, so it must be the test's own.
    pub fn start(datastore: Datastore, servers: usize) -> anyhow::Result<Self> {
        let scratch = tempfile::Builder::new().prefix("kelson-test-").tempdir()?;
        let dir = scratch.path().to_owned();
        let network = Network::start(servers)?;
        network.enter()?;
        std::fs::write(dir.join("tokens.csv"), format!("{TOKEN},admin,1,\"system:masters\"\n"))?;
        let stations = (0..servers).map(|n| Station::new(datastore, &network, &dir, n, servers));
        let mut stations = stations.collect::<anyhow::Result<Vec<_>>>()?;
        for station in &mut stations {
            station.start_etcd()?;
        }
        stations[0].server.start()?;
        let ca = Station::dir(&dir, 0).join("server/pki/ca.crt");
        let tls = eventually("the first server has a CA", PATIENCE, || trust(&ca))
            .with_context(|| stations[0].server.log_tail(TAIL))?;
        let mut cluster = Self { stations, network, tls, datastore, dir, _scratch: scratch };
        cluster.until_ready(0)?;
        for n in 1..servers {
            match datastore {
                Datastore::External => cluster.share_authorities(n)?,
                Datastore::Managed => {
                    let first = format!("https://{}:{PORT}", Network::address(0));
                    let dir = Station::dir(&cluster.dir, 0).join("server");
                    let flags = || member::join_flags(&first, &dir);
                    let more = eventually("the first server has a token", PATIENCE, flags)?;
                    cluster.stations[n].server.add_args(&more.iter().map(String::as_str).collect::<Vec<_>>());
                }
            }
            cluster.stations[n].server.start()?;
        }
        for n in 0..servers {
            cluster.until_ready(n)?;
            cluster.stations[n].node.start()?;
        }
        cluster.until_all_vote()?;
        Ok(cluster)
    }

    /// Gives a server the CAs and keys of the first one.
    fn share_authorities(&self, to: usize) -> anyhow::Result<()> {
        let (from, to) =
            (Station::dir(&self.dir, 0).join("server/pki"), Station::dir(&self.dir, to).join("server/pki"));
        std::fs::create_dir_all(&to)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            // What it has issued is for its own address.
            if entry.file_type()?.is_file() {
                std::fs::copy(entry.path(), to.join(entry.file_name()))?;
            }
        }
        Ok(())
    }

    /// Returns a client of a server.
    pub fn client(&self, server: usize) -> Https {
        Https::new(Network::address(server).into(), PORT, Arc::clone(&self.tls))
    }

    /// Waits until a server is ready.
    pub fn until_ready(&self, server: usize) -> anyhow::Result<()> {
        let mut client = self.client(server);
        eventually(&format!("server {server} is ready"), PATIENCE, || {
            let (code, answer) = client.call("GET", "/readyz", &Value::Null)?;
            ensure!(code == 200, "{code} {answer}");
            Ok(())
        })
        .with_context(|| self.stations[server].server.log_tail(TAIL))
    }

    /// Waits until the members of all servers vote: a server is ready before its learner is promoted, and until then one fault more may
    /// end the quorum.
    pub fn until_all_vote(&self) -> anyhow::Result<()> {
        if self.datastore == Datastore::External {
            return Ok(());
        }
        let dir = Station::dir(&self.dir, 0).join("server");
        eventually("all members vote", PATIENCE, || {
            let voters = member::voters(&self.network, 0, &dir);
            ensure!(voters == self.stations.len(), "{voters} of {} members vote", self.stations.len());
            Ok(())
        })
    }

    /// Returns the machine whose member of etcd is the leader, if one says so.
    pub fn leader(&self) -> Option<usize> {
        if self.datastore == Datastore::Managed {
            let dir = |n: usize| Station::dir(&self.dir, n).join("server");
            return (0..self.stations.len()).find(|n| member::is_leader(&self.network, *n, &dir(*n)));
        }
        let said = self.etcdctl(&["endpoint", "status"]).unwrap_or_default();
        let leader = said.lines().find(|line| line.split(", ").nth(4) == Some("true"))?;
        (0..self.stations.len()).find(|n| leader.starts_with(&client_url(*n)))
    }

    /// Replaces a member of etcd whose data is lost.
    pub fn replace_member(&mut self, lost: usize) -> anyhow::Result<()> {
        if self.datastore == Datastore::Managed {
            return self.replace_server(lost);
        }
        self.stations[lost].kill_etcd();
        let _ = std::fs::remove_dir_all(Station::dir(&self.dir, lost).join("etcd"));
        let name = format!("m{lost}");
        let list = self.etcdctl(&["member", "list"])?;
        let of_it = |line: &&str| line.split(", ").nth(3) == Some(&*peer_url(lost));
        if let Some(line) = list.lines().find(of_it) {
            self.etcdctl(&["member", "remove", line.split(", ").next().context("an ID")?])?;
        }
        // Etcd accepts no new member while another one has been connected for less than five seconds ("unhealthy cluster"), and an
        // earlier fault may have cut it off. Nothing was changed then.
        let urls = format!("--peer-urls={}", peer_url(lost));
        crate::eventually("a member is added", PATIENCE, || self.etcdctl(&["member", "add", &name, &urls]))?;
        let args = etcd_args(&Station::dir(&self.dir, lost), lost, self.stations.len(), "existing");
        let station = &mut self.stations[lost];
        station.etcd.iter_mut().for_each(|etcd| etcd.set_args(args.clone()));
        station.start_etcd()
    }

    /// Has a server whose disk is lost join again, by another one.
    fn replace_server(&mut self, lost: usize) -> anyhow::Result<()> {
        let other = (lost + 1) % self.stations.len();
        let dir = |n: usize| Station::dir(&self.dir, n).join("server");
        let more = member::join_flags(&format!("https://{}:{PORT}", Network::address(other)), &dir(other))?;
        let args = server_args(self.datastore, &self.dir, lost, self.stations.len());
        let server = &mut self.stations[lost].server;
        server.kill();
        let _ = std::fs::remove_dir_all(dir(lost));
        server.set_args(args);
        server.add_args(&more.iter().map(String::as_str).collect::<Vec<_>>());
        server.start()
    }

    /// Starts upstream's API server on a machine and waits until it is ready.
    pub fn reference(&self, program: &Path, machine: usize) -> anyhow::Result<Reference> {
        let (dir, address) = (self.dir.join("reference"), Network::address(machine));
        std::fs::create_dir_all(&dir)?;
        sh(&format!("openssl genrsa -out {}/sa.key 2048 2>/dev/null", dir.display()))?;
        let members: Vec<String> = (0..self.stations.len()).map(client_url).collect();
        let (at, tokens) = (dir.display(), self.dir.join("tokens.csv"));
        let args = vec![
            format!("--etcd-servers={}", members.join(",")),
            "--etcd-prefix=/reference".to_owned(),
            format!("--advertise-address={address}"),
            format!("--bind-address={address}"),
            format!("--secure-port={REFERENCE_PORT}"),
            format!("--cert-dir={at}"),
            format!("--token-auth-file={}", tokens.display()),
            "--authorization-mode=RBAC".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={at}/sa.key"),
            format!("--service-account-signing-key-file={at}/sa.key"),
        ];
        let log = self.dir.join("reference.log");
        let mut program = Program::new(&self.network.machine(machine), "reference", program, args, log);
        program.start()?;
        let certificate = dir.join("apiserver.crt");
        let tls = eventually("the reference has a certificate", PATIENCE, || trust(&certificate))?;
        let started = Reference { program, address: address.into(), tls };
        let mut client = started.client();
        eventually("the reference is ready", PATIENCE, || {
            let (code, answer) = client.call("GET", "/readyz", &Value::Null)?;
            ensure!(code == 200, "{code} {answer}");
            Ok(())
        })
        .with_context(|| started.program.log_tail(TAIL))?;
        Ok(started)
    }

    /// Returns the URL of a member of etcd.
    pub fn client_url(&self, machine: usize) -> String {
        client_url(machine)
    }

    /// Returns the keys in etcd with a prefix, in their order.
    pub fn keys(&self, prefix: &str) -> anyhow::Result<Vec<String>> {
        let listed = self.etcdctl(&["get", "--prefix", "--keys-only", prefix])?;
        Ok(listed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }

    fn etcdctl(&self, args: &[&str]) -> anyhow::Result<String> {
        let members: Vec<String> = (0..self.stations.len()).map(client_url).collect();
        let out = Command::new(etcd("etcdctl"))
            .env("ETCDCTL_API", "3")
            .args(["--dial-timeout=1s", "--command-timeout=3s", "--endpoints", &members.join(",")])
            .args(args)
            .output()
            .context("etcdctl")?;
        // A status of two of three members is a status, although the exit code is not 0.
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        ensure!(out.status.success() || !text.is_empty(), "etcdctl {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        Ok(text)
    }

    /// Ends all faults: every process runs, with its own time, network and disk.
    pub fn heal(&mut self) -> anyhow::Result<()> {
        self.network.mend()?;
        for station in &mut self.stations {
            station.heal_disk();
            station.set_clock(0)?;
            station.signal_etcd(Signal::CONT);
            station.server.signal(Signal::CONT);
            station.start_etcd()?;
            station.server.start()?;
        }
        Ok(())
    }

    /// Returns the ends of all logs.
    pub fn logs(&self) -> String {
        self.stations.iter().map(Station::logs).collect()
    }
}

/// Upstream's API server on the etcd of a cluster, under a separate prefix.
pub struct Reference {
    /// The process of the reference.
    pub program: Program,
    address: IpAddr,
    tls: Arc<ClientConfig>,
}

/// The port of the reference.
const REFERENCE_PORT: u16 = 7443;

impl Reference {
    /// Returns a client of it.
    pub fn client(&self) -> Https {
        Https::new(self.address, REFERENCE_PORT, Arc::clone(&self.tls))
    }
}

fn client_url(machine: usize) -> String {
    format!("http://{}:2379", Network::address(machine))
}

fn peer_url(machine: usize) -> String {
    format!("http://{}:2380", Network::address(machine))
}

impl Station {
    fn dir(root: &Path, number: usize) -> PathBuf {
        root.join(format!("m{number}"))
    }

    fn new(datastore: Datastore, network: &Network, root: &Path, number: usize, all: usize) -> anyhow::Result<Self> {
        let dir = Self::dir(root, number);
        let disk = match Disk::mount(&dir) {
            Ok(disk) => Some(disk),
            Err(why) => {
                println!("disks are never slow or full: {why:#}");
                None
            }
        };
        std::fs::create_dir_all(&dir)?;
        let (netns, host) = (network.machine(number), format!("m{number}"));
        let log = |name: &str| root.join(format!("{name}{number}.log"));
        let etcd = (datastore == Datastore::External)
            .then(|| Program::new(&netns, &host, &etcd("etcd"), etcd_args(&dir, number, all, "new"), log("etcd")));
        let args = server_args(datastore, root, number, all);
        let mut server = Program::new(&netns, &host, &binary(), args, log("server"));
        if datastore == Datastore::Managed && number == 0 {
            server.add_args(&member::first_flags().iter().map(String::as_str).collect::<Vec<_>>());
        }
        let mut clock = None;
        if clock_library().exists() {
            let file = root.join(format!("clock{number}"));
            std::fs::write(&file, "+0\n")?;
            server.variable("LD_PRELOAD", clock_library().display().to_string());
            server.variable("FAKETIME_TIMESTAMP_FILE", file.display().to_string());
            server.variable("FAKETIME_CACHE_DURATION", "1".to_owned());
            server.variable("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned());
            clock = Some(file);
        }
        let config = dir.join("server/admin.kubeconfig").display().to_string();
        let servers: Vec<String> = (0..all).map(|n| format!("https://{}:{PORT}", Network::address(n))).collect();
        let (prefix, servers) = (format!("{host}-"), servers.join(","));
        let words = ["hollow", "--nodes", "1", "--name-prefix", &prefix, "--kubeconfig", &config, "--server", &servers];
        let words = words.map(str::to_owned).to_vec();
        let node = Program::new(&netns, &host, &binary(), words, log("node"));
        Ok(Self { number, disk, etcd, server, node, clock })
    }

    /// Starts etcd, if the test runs it.
    pub fn start_etcd(&mut self) -> anyhow::Result<()> {
        self.etcd.as_mut().map_or(Ok(()), Program::start)
    }

    /// Kills etcd. One of a server is restarted by it.
    pub fn kill_etcd(&mut self) {
        match &mut self.etcd {
            Some(etcd) => etcd.kill(),
            None => member::signal(&mut self.server, Signal::KILL),
        }
    }

    /// Sends etcd a signal, if it is running.
    pub fn signal_etcd(&mut self, signal: Signal) {
        match &mut self.etcd {
            Some(etcd) => etcd.signal(signal),
            None => member::signal(&mut self.server, signal),
        }
    }

    /// Returns the process ID of etcd, if it is running.
    pub fn etcd_pid(&mut self) -> Option<u32> {
        match &mut self.etcd {
            Some(etcd) => etcd.pid(),
            None => member::pid(&mut self.server),
        }
    }

    /// Shifts the wall clock of the server by seconds, if that is possible here.
    pub fn set_clock(&self, shift_s: i32) -> anyhow::Result<()> {
        let Some(file) = &self.clock else { return Ok(()) };
        Ok(std::fs::write(file, format!("{shift_s:+}\n"))?)
    }

    /// Ends the faults of the disk.
    pub fn heal_disk(&self) {
        if let Some(disk) = &self.disk {
            disk.thaw();
            disk.empty();
        }
    }

    fn logs(&self) -> String {
        const LINES: usize = 400;
        let part = |name: &str, program: &Program| format!("\n-- {name} {}\n{}", self.number, program.log_tail(LINES));
        self.etcd.iter().map(|etcd| part("etcd", etcd)).collect::<String>()
            + &part("server", &self.server)
            + &part("node", &self.node)
    }
}

fn etcd_args(dir: &Path, number: usize, all: usize, state: &str) -> Vec<String> {
    let (client, peer) = (client_url(number), peer_url(number));
    let cluster: Vec<String> = (0..all).map(|n| format!("m{n}={}", peer_url(n))).collect();
    vec![
        format!("--name=m{number}"),
        format!("--data-dir={}", dir.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster={}", cluster.join(",")),
        format!("--initial-cluster-state={state}"),
        // Those of members that servers supervise, in a network as fast as this one.
        "--heartbeat-interval=50".to_owned(),
        "--election-timeout=500".to_owned(),
        // A member that was away gets a snapshot now and then.
        "--snapshot-count=2000".to_owned(),
    ]
}

fn server_args(datastore: Datastore, root: &Path, number: usize, all: usize) -> Vec<String> {
    let members: Vec<String> = (0..all).map(|n| client_url((number + n) % all)).collect();
    let address = Network::address(number).to_string();
    let dir = Station::dir(root, number).join("server").display().to_string();
    let tokens = root.join("tokens.csv").display().to_string();
    let port = PORT.to_string();
    let words = [
        ["server", "--disable-agent"],
        ["--data-dir", &dir],
        ["--bind-address", "0.0.0.0"],
        ["--advertise-address", &address],
        ["--secure-port", &port],
        ["--cluster-cidr", "10.42.0.0/16"],
        ["--service-cidr", "10.43.0.0/16"],
        ["--token-auth-file", &tokens],
    ];
    let mut args: Vec<String> = words.concat().into_iter().map(str::to_owned).collect();
    if datastore == Datastore::External {
        args.push(format!("--etcd-servers={}", members.join(",")));
    }
    args
}
