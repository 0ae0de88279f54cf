//! The real API server in memory on the paused clock, with short functions for tests. Resources are named as `v1/pods`
//! or `apps/v1/deployments`; requests of the test itself act as `system:masters`.
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use kelson_apiserver::{ApiServer, Config, Running, RuntimeConfig};
use kelson_auth::{UserInfo, user};
use kelson_client::{Client, ClientError};
use kelson_meta::gates::FeatureGates;
use kelson_store::{Store, StoreOptions};
use kelson_tasks::Tasks;
use kelson_transport::{BoxFuture, Request, Response, Transport, TransportError};
use parking_lot::RwLock;
use serde_json::{Value, json};

use crate::disk::Disk;
use crate::{Failure, Faults, Trace, WallClock};

/// The number of conflicts after which a change by the test fails.
const CHANGE_TRIES: usize = 20;
/// The time for which [`Api::until`] waits, by the paused clock.
const PATIENCE: Duration = Duration::from_secs(120);
/// The interval of checks in [`Api::until`].
const LOOK: Duration = Duration::from_millis(100);

/// An API server and its store; cheap to clone.
#[derive(Clone)]
pub struct Api {
    server: Arc<RwLock<Option<Running>>>,
    config: Config,
    admin: Client,
    disk: Disk,
    /// The store; replaced after a power failure.
    store: Arc<RwLock<Store>>,
    /// The server's wall clock, which follows the paused one.
    pub clock: WallClock,
    /// Faults of components' requests. The test's own requests never fail.
    pub faults: Faults,
}

impl Api {
    /// Starts a server with upstream's defaults, at 2026-01-01T00:00:00Z.
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// Starts a server with changed settings.
    pub async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::faulty(change, Faults::new(0, Trace::new())).await
    }

    /// Starts a server with changed settings, and these faults of components' requests.
    pub async fn faulty(change: impl FnOnce(&mut Config), faults: Faults) -> Self {
        let clock = WallClock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time"));
        let disk = Disk::default();
        let store = open(&disk, clock);
        let mut config = Config::new(store.clone());
        config.clock = Arc::new(clock);
        change(&mut config);
        let server = Arc::new(RwLock::new(None));
        let admin = Way { server: Arc::clone(&server), user: UserInfo::new("admin", [user::MASTERS]) };
        let admin = Client::new(Arc::new(admin), "test");
        let me = Self { server, config, admin, disk, store: Arc::new(RwLock::new(store)), clock, faults };
        me.start_again().await;
        me
    }

    /// Stops the server: its watches end, requests are rejected, and its store remains. See
    /// [`start_again`](Self::start_again).
    pub async fn stop(&self) {
        let server = self.server.write().take();
        if let Some(server) = server {
            server.shutdown().await;
        }
    }

    /// Starts the server again with its store.
    pub async fn start_again(&self) {
        let store = self.store.read().clone();
        let config = Config { tasks: Tasks::root("apiserver"), store, ..self.config.clone() };
        let server = ApiServer::start(config).await.expect("starts");
        server.ready().await;
        *self.server.write() = Some(server);
    }

    /// Simulates a power failure of the server's machine: the server and all unsynced data are lost. See
    /// [`start_again`](Self::start_again).
    pub async fn cut_power(&self) {
        self.disk.cut_power();
        self.stop().await;
        *self.store.write() = open(&self.disk, self.clock);
    }

    /// Makes the server's disk full, or gives it room again.
    pub fn disk_full(&self, full: bool) {
        self.disk.set_full(full);
    }

    /// Returns the number of writes that a full disk rejected.
    pub fn refused_by_disk(&self) -> u64 {
        self.disk.refused()
    }

    /// Makes the server's next write fail, whether it `reaches` the disk or not; the server accepts no more writes
    /// until a power failure.
    pub fn tear_write(&self, reaches: bool) {
        self.disk.tear(reaches);
    }

    /// Makes the `n`th next request with this method, whose path and query contain `part`, fail; see
    /// [`Faults::fail_nth`].
    pub fn fail_nth(&self, n: usize, method: &str, part: &str, failure: Failure) {
        self.faults.fail_nth(n, method, part, failure);
    }

    /// Returns the writes of components so far, `METHOD PATH`, except events and leases.
    pub fn writes(&self) -> Vec<String> {
        self.faults.writes()
    }

    /// Returns the test's own client.
    pub fn client(&self) -> Client {
        self.admin.clone()
    }

    /// Returns a transport to the server as this user: a service account's and a node's groups follow from the name.
    /// Requests fail as [`faults`](Self::faults) say.
    pub fn transport(&self, name: &str) -> Arc<dyn Transport> {
        let user = match name.strip_prefix("system:serviceaccount:").and_then(|a| a.split_once(':')) {
            Some((namespace, account)) => UserInfo::service_account(namespace, account, ""),
            None if name.starts_with("system:node:") => UserInfo::new(name, ["system:nodes"]),
            None => UserInfo::new(name, Vec::<String>::new()),
        };
        self.transport_of(user)
    }

    fn transport_of(&self, user: UserInfo) -> Arc<dyn Transport> {
        let name = user.name.rsplit(':').next().unwrap_or_default().to_owned();
        let way = Way { server: Arc::clone(&self.server), user };
        self.faults.wrap(&name, Arc::new(way))
    }

    /// Returns the same server, with the test's own requests as this user.
    pub fn acting_as(&self, name: &str) -> Self {
        Self { admin: self.client_as(name), ..self.clone() }
    }

    /// Returns the same server, with the test's own requests as a user with these groups.
    pub fn acting_as_user(&self, user: UserInfo) -> Self {
        Self { admin: Client::new(self.transport_of(user), "test"), ..self.clone() }
    }

    /// Returns a client as this user; see [`transport`](Self::transport).
    pub fn client_as(&self, name: &str) -> Client {
        Client::new(self.transport(name), "test")
    }

    /// Runs everything that is due: tasks run until only timers beyond this are left.
    pub async fn settle(&self) {
        tokio::time::sleep(Duration::from_secs(2)).await;
    }

    /// Waits up to two minutes of the paused clock until `check` returns something; panics with `what` otherwise.
    pub async fn until<T>(&self, what: &str, check: impl AsyncFn(&Self) -> Option<T>) -> T {
        self.until_within(PATIENCE, what, check).await
    }

    /// As [`until`](Self::until), with another time limit.
    pub async fn until_within<T>(&self, limit: Duration, what: &str, check: impl AsyncFn(&Self) -> Option<T>) -> T {
        let begun = tokio::time::Instant::now();
        loop {
            if let Some(found) = check(self).await {
                return found;
            }
            assert!(begun.elapsed() < limit, "not within {limit:?}: {what}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Creates a namespace with its default service account, so that pods can be created in it.
    pub async fn namespace(&self, name: &str) {
        self.create("v1/namespaces", json!({"metadata": {"name": name}})).await;
        if self.get("v1/serviceaccounts", name, "default").await.is_none() {
            let account = json!({"metadata": {"name": "default", "namespace": name}});
            // A running controller may have been faster.
            match self.try_create("v1/serviceaccounts", account).await {
                Err(e) if !e.is_already_exists() => panic!("the service account of {name}: {e}"),
                _ => {}
            }
        }
    }

    async fn send(&self, method: Method, path: &str, kind: &str, body: &Value) -> Result<Value, ClientError> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let answer = self.admin.call(method, path, kind, body).await?;
        Ok(serde_json::from_slice(&answer).expect("JSON"))
    }

    /// Sends a POST to a path that is not a resource.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        let sent = self.send(Method::POST, path, "application/json", body).await;
        sent.unwrap_or_else(|e| panic!("{path}: {e}\n{body:#}"))
    }

    /// Creates an object, with its status if it has one.
    ///
    /// # Errors
    /// The server rejects it.
    pub async fn try_create(&self, resource: &str, mut body: Value) -> Result<Value, ClientError> {
        let namespace = body["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let status = body.as_object_mut().and_then(|o| o.remove("status")).unwrap_or_default();
        let path = path(resource, &namespace, "");
        let made = self.send(Method::POST, &path, "application/json", &body).await?;
        if status.is_null() {
            return Ok(made);
        }
        let name = made["metadata"]["name"].as_str().unwrap_or_default();
        self.send(Method::PATCH, &format!("{path}/{name}/status"), MERGE, &json!({"status": status})).await
    }

    /// As [`try_create`](Self::try_create), for an object that must be accepted.
    pub async fn create(&self, resource: &str, body: Value) -> Value {
        self.try_create(resource, body.clone()).await.unwrap_or_else(|e| panic!("{resource}: {e}\n{body:#}"))
    }

    /// Returns one object, if it exists.
    pub async fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        match self.send(Method::GET, &path(resource, namespace, name), "", &Value::Null).await {
            Ok(object) => Some(object),
            Err(e) if e.is_not_found() => None,
            Err(e) => panic!("{resource} {namespace}/{name}: {e}"),
        }
    }

    /// Returns all objects of a resource, by namespace and name.
    pub async fn list(&self, resource: &str) -> Vec<Value> {
        let list = self.send(Method::GET, &path(resource, "", ""), "", &Value::Null).await;
        let mut list = list.unwrap_or_else(|e| panic!("{resource}: {e}"));
        match list["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        }
    }

    /// Changes an object: `status` through its subresource, the rest through the object itself.
    pub async fn change(&self, resource: &str, namespace: &str, name: &str, change: impl Fn(&mut Value)) {
        for _ in 0..CHANGE_TRIES {
            let old = self.get(resource, namespace, name).await.unwrap_or_else(|| panic!("no {resource} {name}"));
            let mut new = old.clone();
            change(&mut new);
            let at = path(resource, namespace, name);
            let (changed_status, mut rest) = (new["status"] != old["status"], new.clone());
            rest["status"] = old["status"].clone();
            let mut sent = Ok(old.clone());
            if rest != old {
                sent = self.send(Method::PUT, &at, "application/json", &rest).await;
            }
            if let (true, Ok(stored)) = (changed_status, &sent) {
                new["metadata"] = stored["metadata"].clone();
                sent = self.send(Method::PUT, &format!("{at}/status"), "application/json", &new).await;
            }
            match sent {
                Ok(_) => return,
                Err(e) if e.is_conflict() => {}
                Err(e) => panic!("{resource} {name}: {e}"),
            }
        }
        panic!("{resource} {name}: conflicts without end");
    }

    /// Merges a patch into an object or, unless it is empty, its subresource.
    pub async fn patch(&self, resource: &str, namespace: &str, name: &str, subresource: &str, patch: Value) -> Value {
        let mut at = path(resource, namespace, name);
        if !subresource.is_empty() {
            at.push_str(&format!("/{subresource}"));
        }
        self.send(Method::PATCH, &at, MERGE, &patch).await.unwrap_or_else(|e| panic!("{at}: {e}"))
    }

    /// Deletes an object with these options; returns whether it existed.
    pub async fn delete(&self, resource: &str, namespace: &str, name: &str, options: Value) -> bool {
        match self.send(Method::DELETE, &path(resource, namespace, name), "application/json", &options).await {
            Ok(_) => true,
            Err(e) if e.is_not_found() => false,
            Err(e) => panic!("{resource} {name}: {e}"),
        }
    }

    /// Deletes an object immediately.
    pub async fn remove(&self, resource: &str, namespace: &str, name: &str) -> bool {
        self.delete(resource, namespace, name, json!({"gracePeriodSeconds": 0})).await
    }

    /// Returns all events so far, as `REASON MESSAGE`.
    pub async fn events(&self) -> Vec<String> {
        let text = |e: &Value, key: &str| e[key].as_str().unwrap_or_default().to_owned();
        let all = self.list("v1/events").await;
        all.iter().map(|e| format!("{} {}", text(e, "reason"), text(e, "message"))).collect()
    }
}

/// Returns a change of settings with these `--feature-gates` and this `--runtime-config`.
pub fn features(gates: &str, served: &str) -> impl Fn(&mut Config) {
    let gates = Arc::new(FeatureGates::parse([gates]).expect("gates"));
    let served = Arc::new(RuntimeConfig::parse(&[served]).expect("versions"));
    move |config| {
        config.feature_gates = Arc::clone(&gates);
        config.runtime_config = Arc::clone(&served);
    }
}

fn open(disk: &Disk, clock: WallClock) -> Store {
    let options = StoreOptions { clock: Arc::new(clock), ..StoreOptions::default() };
    Store::open(disk.engine(), options).expect("what the disk holds is whole")
}

/// The transport of one user's requests to the server that currently runs.
struct Way {
    server: Arc<RwLock<Option<Running>>>,
    user: UserInfo,
}

impl Transport for Way {
    fn send(&self, request: Request) -> BoxFuture<Result<Response, TransportError>> {
        match &*self.server.read() {
            Some(server) => server.in_process(self.user.clone()).send(request),
            None => Box::pin(async { Err(TransportError("simulated: the server is down".into())) }),
        }
    }
}

const MERGE: &str = "application/merge-patch+json";

fn path(resource: &str, namespace: &str, name: &str) -> String {
    let (version, plural) = resource.rsplit_once('/').expect("version/plural");
    let root = if version.contains('/') { "apis" } else { "api" };
    let mut path = format!("/{root}/{version}");
    if !namespace.is_empty() {
        path.push_str(&format!("/namespaces/{namespace}"));
    }
    path.push_str(&format!("/{plural}"));
    if !name.is_empty() {
        path.push_str(&format!("/{name}"));
    }
    path
}
