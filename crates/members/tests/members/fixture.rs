//! Servers with members: what each test starts, kills and asks.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use kelson_etcd::client::Client;
use kelson_etcd::endpoint::{Connector, Endpoints};
use kelson_etcd::proto::{PutRequest, RangeRequest};
use kelson_members::{AdmitError, Cluster, Joiner, Layout, Member, MemberError, MemberOptions, MemberRow, Role, Start};
use kelson_meta::SystemClock;
use kelson_tasks::Tasks;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

/// Longest wait for anything; a slow machine under load takes seconds.
pub const PATIENCE: Duration = Duration::from_secs(90);
const ASK: Duration = Duration::from_millis(50);

/// Returns the etcd of the tests.
pub fn binary() -> PathBuf {
    let cached = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/bin/etcd");
    std::env::var_os("ETCD").map_or(cached, PathBuf::from)
}

/// Returns a port that is free now, below those that the system gives to outgoing connections, and not the same one twice.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 20_000 + u16::try_from(std::process::id() % 100).unwrap() * 100;
    std::iter::repeat_with(|| base + NEXT.fetch_add(1, Ordering::Relaxed))
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .unwrap()
}

/// A machine: a data directory with a name and ports.
pub struct Machine {
    pub dir: TempDir,
    pub options: MemberOptions,
}

impl Machine {
    pub fn new(name: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let options = MemberOptions {
            data_dir: dir.path().to_owned(),
            binary: Some(binary()),
            name: name.to_owned(),
            peer_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            peer_address_given: false,
            peer_port: Some(free_port()),
            client_port: Some(free_port()),
            quota_bytes: 0,
            tasks: Tasks::root("test"),
            clock: Arc::new(SystemClock),
        };
        Self { dir, options }
    }

    pub fn layout(&self) -> Layout {
        self.options.layout()
    }

    pub async fn start(&self, start: Start) -> Result<Member, MemberError> {
        let started = tokio::time::timeout(PATIENCE, Member::start(self.options.clone(), start)).await;
        started.unwrap_or_else(|_| panic!("{} starts", self.options.name))
    }

    /// Gives the machine the CA of another one, which a join transfers.
    pub fn receive_ca(&self, from: &Self) {
        std::fs::create_dir_all(self.layout().pki()).unwrap();
        for file in ["ca.crt", "ca.key"] {
            std::fs::copy(from.layout().pki_file(file), self.layout().pki_file(file)).unwrap();
        }
    }

    /// Joins through a member, asking again as a server does.
    pub async fn join(&self, through: &Member) -> Member {
        let joined = async {
            loop {
                let joiner = Joiner::prepare(self.options.clone()).await.unwrap();
                let initial = loop {
                    match through.admit(joiner.name(), &joiner.peer_urls()).await {
                        Ok(initial) => break initial,
                        Err(error) if error.is_temporary() => tokio::time::sleep(ASK).await,
                        Err(error) => panic!("{}: {error}", self.options.name),
                    }
                };
                match joiner.start(initial).await {
                    Ok(member) => return member,
                    Err(MemberError::StaleCluster) => {}
                    Err(error) => panic!("{}: {error}", self.options.name),
                }
            }
        };
        tokio::time::timeout(PATIENCE, joined).await.unwrap_or_else(|_| panic!("{} joins", self.options.name))
    }

    /// Deletes the data of etcd, as a lost disk does.
    pub fn lose_disk(&self) {
        std::fs::remove_dir_all(self.layout().dir()).unwrap();
    }

    pub async fn list(&self) -> Result<Vec<MemberRow>, MemberError> {
        Cluster::open(self.dir.path()).await?.list().await
    }

    /// Waits until the list of members is like this.
    pub async fn until(&self, what: &str, holds: impl Fn(&[MemberRow]) -> bool) -> Vec<MemberRow> {
        let wait = async {
            loop {
                if let Ok(rows) = self.list().await
                    && holds(&rows)
                {
                    return rows;
                }
                tokio::time::sleep(ASK).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{what}"))
    }

    /// Returns the ID of the etcd process, found by its data directory.
    pub fn pid(&self) -> Option<u32> {
        let wanted = format!("--data-dir={}", self.layout().data().display());
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == wanted.as_bytes())
        })
    }
}

/// Kills a process without a word.
pub async fn kill(pid: u32) {
    let killed = tokio::process::Command::new("kill").args(["-9", &pid.to_string()]).status().await;
    assert!(killed.unwrap().success());
}

/// Returns a client as the API server's.
pub fn client(member: &Member) -> Client<Channel> {
    let endpoints = Arc::new(Endpoints::new(&member.servers(), &member.tls()).unwrap());
    let channel = Endpoint::from_static("http://etcd").connect_with_connector_lazy(Connector::new(&endpoints, 0));
    Client::new(channel, 1 << 30)
}

/// Writes a key, again while the outcome is unknown.
pub async fn put(member: &Member, key: &str) {
    let write = async {
        let request = || PutRequest { key: key.as_bytes().to_vec().into(), value: "v".into(), ..PutRequest::default() };
        while client(member).put(request()).await.is_err() {
            tokio::time::sleep(ASK).await;
        }
    };
    tokio::time::timeout(PATIENCE, write).await.unwrap_or_else(|_| panic!("{key} is written"));
}

/// Reports whether a key is there, as a quorum knows it.
pub async fn has(member: &Member, key: &str) -> bool {
    let read = async {
        loop {
            let request = RangeRequest { key: key.as_bytes().to_vec().into(), ..RangeRequest::default() };
            match client(member).range(request).await {
                Ok(answer) => return !answer.kvs.is_empty(),
                Err(_) => tokio::time::sleep(ASK).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap_or_else(|_| panic!("{key} is read"))
}

/// Asks for admission once.
pub async fn admit(through: &Member, name: &str, url: &str) -> AdmitError {
    through.admit(name, &[url.to_owned()]).await.unwrap_err()
}

/// Returns the names of voters, sorted.
pub fn voters(rows: &[MemberRow]) -> Vec<&str> {
    rows.iter().filter(|row| row.role != Role::Learner).map(|row| row.name.as_str()).collect()
}

/// Returns the name of the leader.
pub fn leader(rows: &[MemberRow]) -> Option<&str> {
    rows.iter().find(|row| row.role == Role::Leader).map(|row| row.name.as_str())
}
