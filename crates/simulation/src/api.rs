//! The real API server in memory on the paused clock, and short ways for a test to use it. Resources are named as
//! `v1/pods` or `apps/v1/deployments`; requests of the test itself act as `system:masters`.
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

/// Conflicts that a change by the test gets over.
const CHANGE_TRIES: usize = 20;
/// How long, by the paused clock, [`Api::until`] waits for what must come.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks of [`Api::until`].
const LOOK: Duration = Duration::from_millis(100);

/// An API server and its store; cheap to clone.
#[derive(Clone)]
pub struct Api {
    server: Arc<RwLock<Option<Running>>>,
    config: Config,
    admin: Client,
    disk: Disk,
    /// What it keeps; another one after the power was cut.
    store: Arc<RwLock<Store>>,
    /// The server's wall clock, which follows the paused one.
    pub clock: WallClock,
    /// What becomes of the requests of components. The test's own never fail.
    pub faults: Faults,
}

impl Api {
    /// With upstream's defaults, from 2026-01-01T00:00:00Z on.
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// With some settings changed.
    pub async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::faulty(change, Faults::new(0, Trace::new())).await
    }

    /// With some settings changed, and these faults of components' requests.
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

    /// Ends the server: its watches end, requests are refused, and what it keeps stays. See
    /// [`start_again`](Self::start_again).
    pub async fn stop(&self) {
        let server = self.server.write().take();
        if let Some(server) = server {
            server.shutdown().await;
        }
    }

    /// Starts the server on what it keeps.
    pub async fn start_again(&self) {
        let store = self.store.read().clone();
        let config = Config { tasks: Tasks::root("apiserver"), store, ..self.config.clone() };
        let server = ApiServer::start(config).await.expect("starts");
        server.ready().await;
        *self.server.write() = Some(server);
    }

    /// The power of the server's machine is cut: the server and what was not synced are gone. See
    /// [`start_again`](Self::start_again).
    pub async fn cut_power(&self) {
        self.disk.cut_power();
        self.stop().await;
        *self.store.write() = open(&self.disk, self.clock);
    }

    /// The server's disk is full from now on, or has room again.
    pub fn disk_full(&self, full: bool) {
        self.disk.set_full(full);
    }

    /// Writes that a full disk refused.
    pub fn refused_by_disk(&self) -> u64 {
        self.disk.refused()
    }

    /// The server's next write is not confirmed by the disk, whether it `reaches` it or not, and the server takes no more of
    /// them until its power is cut.
    pub fn tear_write(&self, reaches: bool) {
        self.disk.tear(reaches);
    }

    /// The next request but `n - 1` with this method, whose path and query contain `part`, fails like this; see
    /// [`Faults::fail_nth`].
    pub fn fail_nth(&self, n: usize, method: &str, part: &str, failure: Failure) {
        self.faults.fail_nth(n, method, part, failure);
    }

    /// What components wrote so far, `METHOD PATH`, but for events and leases.
    pub fn writes(&self) -> Vec<String> {
        self.faults.writes()
    }

    /// The test's own client.
    pub fn client(&self) -> Client {
        self.admin.clone()
    }

    /// The way to the server as this user: a service account's and a node's groups follow from the name. Requests fail as
    /// [`faults`](Self::faults) says.
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

    /// The same server, with the test's own requests as this user's.
    pub fn acting_as(&self, name: &str) -> Self {
        Self { admin: self.client_as(name), ..self.clone() }
    }

    /// The same, as a user with these groups.
    pub fn acting_as_user(&self, user: UserInfo) -> Self {
        Self { admin: Client::new(self.transport_of(user), "test"), ..self.clone() }
    }

    /// A client as this user; see [`transport`](Self::transport).
    pub fn client_as(&self, name: &str) -> Client {
        Client::new(self.transport(name), "test")
    }

    /// Lets everything that is due happen: tasks run until only timers beyond this are left.
    pub async fn settle(&self) {
        tokio::time::sleep(Duration::from_secs(2)).await;
    }

    /// Waits, two minutes of the paused clock, until `check` gives something; panics with `what` if it never does.
    pub async fn until<T>(&self, what: &str, check: impl AsyncFn(&Self) -> Option<T>) -> T {
        self.until_within(PATIENCE, what, check).await
    }

    /// As [`until`](Self::until), with another patience.
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

    /// Makes a namespace in which pods can be made: with its default service account.
    pub async fn namespace(&self, name: &str) {
        self.create("v1/namespaces", json!({"metadata": {"name": name}})).await;
        if self.get("v1/serviceaccounts", name, "default").await.is_none() {
            let account = json!({"metadata": {"name": "default", "namespace": name}});
            // A controller that runs may have been faster.
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

    /// Posts to a path, for what is no object of its own.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        let sent = self.send(Method::POST, path, "application/json", body).await;
        sent.unwrap_or_else(|e| panic!("{path}: {e}\n{body:#}"))
    }

    /// Creates an object, with its status where it has one.
    ///
    /// # Errors
    /// What the server refuses.
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

    /// As [`try_create`](Self::try_create), of what must be accepted.
    pub async fn create(&self, resource: &str, body: Value) -> Value {
        self.try_create(resource, body.clone()).await.unwrap_or_else(|e| panic!("{resource}: {e}\n{body:#}"))
    }

    /// One object, if it is there.
    pub async fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        match self.send(Method::GET, &path(resource, namespace, name), "", &Value::Null).await {
            Ok(object) => Some(object),
            Err(e) if e.is_not_found() => None,
            Err(e) => panic!("{resource} {namespace}/{name}: {e}"),
        }
    }

    /// All objects of a resource, by namespace and name.
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

    /// Deletes an object with these options; whether it was there.
    pub async fn delete(&self, resource: &str, namespace: &str, name: &str, options: Value) -> bool {
        match self.send(Method::DELETE, &path(resource, namespace, name), "application/json", &options).await {
            Ok(_) => true,
            Err(e) if e.is_not_found() => false,
            Err(e) => panic!("{resource} {name}: {e}"),
        }
    }

    /// Deletes an object at once.
    pub async fn remove(&self, resource: &str, namespace: &str, name: &str) -> bool {
        self.delete(resource, namespace, name, json!({"gracePeriodSeconds": 0})).await
    }

    /// All events so far, `REASON MESSAGE`.
    pub async fn events(&self) -> Vec<String> {
        let text = |e: &Value, key: &str| e[key].as_str().unwrap_or_default().to_owned();
        let all = self.list("v1/events").await;
        all.iter().map(|e| format!("{} {}", text(e, "reason"), text(e, "message"))).collect()
    }
}

/// Settings with these `--feature-gates` and this `--runtime-config`.
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

/// The way of one user's requests to the server that runs at the time.
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
