//! An etcd process, and stores on it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use kelson_etcd::client::Client;
use kelson_etcd::proto::{CompactionRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest};
use kelson_etcd_store::{EtcdError, EtcdOptions, EtcdStore, MediaType, TlsFiles};
use kelson_store::{AtRest, Body, Committed, Event, Key, RecordMeta, Resource, Store, StoreError, StoreOptions, Write};
use kelson_tasks::Tasks;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tonic::transport::{Channel, Endpoint};

/// Longest wait for anything; a slow machine under load takes seconds.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the etcd of the tests: `ETCD`, or the one that `scripts/deps` puts into `.cache/bin` because the system's is older
/// than 3.5.13, or the system's.
pub fn binary() -> PathBuf {
    let cached = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/bin/etcd");
    let found = if cached.exists() { cached } else { "etcd".into() };
    std::env::var_os("ETCD").map_or(found, PathBuf::from)
}

/// Starts a member in a directory: its name, the sockets it has there for clients and for members, and who the members are.
pub fn spawn(dir: &Path, [name, client, peer]: &[&str; 3], cluster: &str) -> Child {
    let binary = binary();
    let (client, peer) = (format!("unix://{client}"), format!("unix://{peer}"));
    let child = Command::new(&binary)
        .current_dir(dir)
        .args(["--name", name, "--data-dir", &format!("data-{name}"), "--log-level", "error"])
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", cluster])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    child.unwrap_or_else(|e| panic!("{}: {e} (make deps-test installs it)", binary.display()))
}

/// Creates a client of the member that listens on this socket.
pub fn client(socket: &Path) -> Client<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    Client::new(endpoint.connect_lazy(), 1 << 30)
}

/// Returns the options of a store on these members.
pub fn options(servers: Vec<String>, tasks: &Tasks, at_rest: Option<Arc<dyn AtRest>>) -> EtcdOptions {
    EtcdOptions {
        servers,
        tls: TlsFiles::default(),
        prefix: "/registry".to_owned(),
        media: MediaType::Protobuf,
        compaction_every: Duration::ZERO,
        health_max: Duration::from_secs(2),
        size_every: Duration::ZERO,
        lease_reuse_s: 60,
        store: StoreOptions { at_rest, ..StoreOptions::default() },
        tasks: tasks.child("etcd"),
    }
}

/// An etcd with one member.
pub struct Etcd {
    dir: TempDir,
    socket: PathBuf,
    process: Option<Child>,
    tasks: Tasks,
}

impl Etcd {
    pub async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let mut etcd = Self { socket: dir.path().join("c:1"), dir, process: None, tasks: Tasks::root("test") };
        etcd.run().await;
        etcd
    }

    /// Starts the first member of a new cluster on data that was made for it.
    pub async fn on(data: &Path) -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::rename(data, dir.path().join("data-default")).unwrap();
        let mut etcd = Self { socket: dir.path().join("c:1"), dir, process: None, tasks: Tasks::root("test") };
        etcd.run().await;
        etcd
    }

    /// Starts the process on the data there is, and waits until it answers.
    pub async fn run(&mut self) {
        // Sockets of a process that was killed are in the way.
        for socket in ["c:1", "d:1", "p:1"] {
            let _ = std::fs::remove_file(self.dir.path().join(socket));
        }
        let listen = self.socket.file_name().unwrap().display().to_string();
        self.process = Some(spawn(self.dir.path(), &["default", &listen, "p:1"], "default=unix://p:1"));
        let answers = async {
            while self.client().status().await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, answers).await.expect("etcd answers");
    }

    /// Ends the process without a word.
    pub async fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.kill().await.unwrap();
    }

    /// Ends the process and forgets all it had.
    pub async fn wipe(&mut self) {
        self.kill().await;
        std::fs::remove_dir_all(self.dir.path().join("data-default")).unwrap();
    }

    /// Has further stores reach etcd by another socket than those that are open, which reach nothing until [`Etcd::show`].
    pub fn hide(&mut self) -> PathBuf {
        std::mem::replace(&mut self.socket, self.dir.path().join("d:1"))
    }

    /// Has etcd reached by that socket as well.
    pub fn show(&self, socket: PathBuf) {
        std::os::unix::fs::symlink(&self.socket, socket).unwrap();
    }

    pub fn client(&self) -> Client<Channel> {
        client(&self.socket)
    }

    /// The bytes under a key.
    pub async fn value(&self, key: &str) -> Option<Vec<u8>> {
        let request = RangeRequest { key: key.as_bytes().to_vec().into(), ..Default::default() };
        let answer = self.client().range(request).await.unwrap();
        answer.kvs.first().map(|kv| kv.value.to_vec())
    }

    /// Writes a key as another client of etcd would.
    pub async fn put(&self, key: &str, value: &[u8]) -> i64 {
        let (key, value) = (key.as_bytes().to_vec().into(), value.to_vec().into());
        let answer = self.client().put(PutRequest { key, value, ..Default::default() }).await.unwrap();
        answer.header.unwrap().revision
    }

    /// Returns the ID of the lease of a key, and the lifetime in seconds with which it was granted.
    pub async fn lease(&self, key: &str) -> Option<(i64, i64)> {
        let request = RangeRequest { key: key.as_bytes().to_vec().into(), ..Default::default() };
        let id = self.client().range(request).await.unwrap().kvs.first()?.lease;
        let request = LeaseTimeToLiveRequest { id, keys: false };
        Some((id, self.client().lease_time_to_live(request).await.unwrap().granted_ttl))
    }

    pub async fn compact(&self, revision: u64) {
        let revision = i64::try_from(revision).unwrap();
        self.client().compact(CompactionRequest { revision, physical: true }).await.unwrap();
    }

    pub fn options(&self, tasks: &Tasks, at_rest: Option<Arc<dyn AtRest>>) -> EtcdOptions {
        options(vec![self.address()], tasks, at_rest)
    }

    /// Returns the value of `--etcd-servers` for this etcd.
    pub fn address(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    pub async fn open(&self) -> Store {
        self.try_open(None).await.unwrap()
    }

    pub async fn try_open(&self, at_rest: Option<Arc<dyn AtRest>>) -> Result<Store, EtcdError> {
        Ok(EtcdStore::open(self.options(&self.tasks, at_rest)).await?.store)
    }
}

pub fn resource(name: &str) -> Resource {
    Resource::parse(name)
}

pub fn key(resource: &str, name: &str) -> Key {
    Key::new(Resource::parse(resource), "default", name)
}

/// A ConfigMap with one value.
pub fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": value},
        "metadata": {"name": name, "namespace": "default", "uid": "8f2c1f0e-6c1e-4b8a-9d8e-0123456789ab", "resourceVersion": ""}})
}

/// Returns the bytes that the API server stores for an object, with fields in the order in which its type declares
/// them.
pub fn body(object: &Value) -> Body {
    Body::locate(kelson_codec::declared_json(object)).unwrap()
}

pub fn meta() -> RecordMeta {
    RecordMeta::with_uid("8f2c1f0e-6c1e-4b8a-9d8e-0123456789ab")
}

pub async fn create(store: &Store, name: &str, value: &str) -> Result<Committed, StoreError> {
    store.commit(Write::create(key("configmaps", name), body(&config_map(name, value)), meta())).await
}

pub async fn update(store: &Store, name: &str, revision: u64, value: &str) -> Result<Committed, StoreError> {
    store.commit(Write::update(key("configmaps", name), revision, body(&config_map(name, value)), meta())).await
}

/// The value of a ConfigMap as a store shows it.
pub fn shown(store: &Store, name: &str) -> Option<String> {
    let record = store.get(resource("configmaps"), "default", name)?;
    let object: Value = serde_json::from_slice(&record.bytes()).unwrap();
    assert_eq!(object["metadata"]["resourceVersion"], record.revision().to_string());
    Some(object["data"]["k"].as_str().unwrap().to_owned())
}

/// Formats each event as one line.
pub fn lines(events: &[Arc<Event>]) -> Vec<String> {
    events.iter().map(|event| format!("{:?} {} {}", event.kind, event.record.key().name, event.revision)).collect()
}

/// Waits for something that comes about by itself.
pub async fn until(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{what}"));
}
