//! An API small enough to read, for this crate's tests: objects in a map, watches, optimistic locking, merge patches,
//! finalizers. It validates and defaults nothing.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use kelson_client::{Client, Request, Response, Transport, TransportError, full_body};
use kelson_meta::{Clock, GroupResource, Status, TokioClock, format_seconds};
use kelson_simulation::Api;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::{Config, Controllers, Running};

/// Runs the named controllers on the real API server in memory, each under its own account, and waits until they know what
/// is there.
pub(crate) async fn run(api: &Api, names: &[&str], config: Config) -> Running {
    let config = Config { controllers: names.iter().map(|s| (*s).to_owned()).collect(), ..config };
    let factory = api.clone();
    let tasks = kelson_tasks::Tasks::root("controllers");
    let running = Controllers::start(config, Box::new(move |user| factory.client_as(user)), Arc::new(api.clock), tasks);
    running.synced().await;
    running
}

/// Resource (`apps/v1/deployments`), namespace, name.
pub(crate) type Key = (String, String, String);

#[derive(Default)]
struct State {
    objects: BTreeMap<Key, Value>,
    watchers: Vec<(String, String, UnboundedSender<Bytes>)>,
    revision: u64,
    uids: u64,
    log: Vec<String>,
}

/// The API; cheap to clone.
#[derive(Clone)]
pub(crate) struct FakeApi {
    state: Arc<Mutex<State>>,
    pub(crate) clock: TokioClock,
    /// Resources that discovery shows.
    discovery: Arc<Vec<(&'static str, &'static str, bool)>>,
}

struct Path {
    resource: String,
    namespace: String,
    name: String,
    subresource: String,
}

fn parse(path: &str) -> Option<Path> {
    let mut parts = path.trim_start_matches('/').split('/');
    let gv = match parts.next()? {
        "api" => parts.next()?.to_owned(),
        _ => format!("{}/{}", parts.next()?, parts.next()?),
    };
    let rest: Vec<&str> = parts.collect();
    let (namespace, rest) = match rest.as_slice() {
        ["namespaces", ns, more @ ..] if !more.is_empty() && !matches!(more[0], "status" | "finalize") => (*ns, more),
        all => ("", all),
    };
    let at = |i: usize| rest.get(i).copied().unwrap_or("").to_owned();
    Some(Path { resource: format!("{gv}/{}", at(0)), namespace: namespace.to_owned(), name: at(1), subresource: at(2) })
}

fn answer(code: StatusCode, v: &Value) -> Response {
    let mut r = Response::new(full_body(v.to_string()));
    *r.status_mut() = code;
    r
}
fn fail(s: &Status) -> Response {
    answer(s.http(), &serde_json::to_value(s).unwrap())
}

/// RFC 7386, and lists of owners by UID as the strategic patch has them.
fn merge(target: &mut Value, patch: &Value, strategic: bool) {
    let Some(p) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (k, v) in p {
        if v.is_null() {
            target.as_object_mut().unwrap().remove(k);
        } else if strategic && k == "ownerReferences" {
            let owners = target.as_object_mut().unwrap().entry(k.clone()).or_insert(json!([])).as_array_mut().unwrap();
            for o in v.as_array().unwrap() {
                owners.retain(|have| have["uid"] != o["uid"]);
                if o["$patch"] != "delete" {
                    owners.push(o.clone());
                }
            }
        } else {
            merge(&mut target[k], v, strategic);
        }
    }
}

impl State {
    fn tell(&mut self, kind: &str, key: &Key, v: &Value) {
        let frame = Bytes::from(format!("{}\n", json!({"type": kind, "object": v})));
        self.watchers
            .retain(|(r, ns, w)| *r != key.0 || !(ns.is_empty() || *ns == key.1) || w.send(frame.clone()).is_ok());
    }
    fn put(&mut self, kind: &str, key: Key, mut v: Value) -> Value {
        self.revision += 1;
        v["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let finalizers = v["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        let content = v["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        if !v["metadata"]["deletionTimestamp"].is_null() && !finalizers && !content && key.0 != "v1/pods" {
            self.objects.remove(&key);
            self.tell("DELETED", &key, &v);
        } else {
            self.tell(kind, &key, &v);
            self.objects.insert(key, v.clone());
        }
        v
    }
}

impl FakeApi {
    pub(crate) fn new() -> Self {
        let clock = TokioClock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        let discovery = vec![
            ("v1/pods", "Pod", true),
            ("v1/configmaps", "ConfigMap", true),
            ("v1/namespaces", "Namespace", false),
            ("v1/nodes", "Node", false),
            ("apps/v1/deployments", "Deployment", true),
            ("apps/v1/replicasets", "ReplicaSet", true),
        ];
        Self { state: Arc::default(), clock, discovery: Arc::new(discovery) }
    }
    pub(crate) fn client(&self) -> Client {
        Client::new(Arc::new(self.clone()), "test")
    }
    /// Runs the named controllers on this API.
    pub(crate) fn run(&self, names: &[&str], config: Config) -> Running {
        let api = self.clone();
        let config = Config { controllers: names.iter().map(|s| (*s).to_owned()).collect(), ..config };
        Controllers::start(
            config,
            Box::new(move |_| api.client()),
            Arc::new(self.clock),
            kelson_tasks::Tasks::root("controllers"),
        )
    }
    /// Lets everything that is due happen: tasks run until only timers beyond this are left.
    pub(crate) async fn settle(&self) {
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    pub(crate) fn get(&self, resource: &str, ns: &str, name: &str) -> Option<Value> {
        self.state.lock().objects.get(&(resource.into(), ns.into(), name.into())).cloned()
    }
    pub(crate) fn list(&self, resource: &str) -> Vec<Value> {
        self.state.lock().objects.iter().filter(|(k, _)| k.0 == resource).map(|(_, v)| v.clone()).collect()
    }
    pub(crate) fn create(&self, resource: &str, body: Value) -> Value {
        let ns = body["metadata"]["namespace"].as_str().unwrap_or("").to_owned();
        self.insert(resource, &ns, body).expect("created")
    }
    /// Changes an object as its owner would.
    pub(crate) fn change(&self, resource: &str, ns: &str, name: &str, f: impl FnOnce(&mut Value)) {
        let mut s = self.state.lock();
        let key = (resource.to_owned(), ns.to_owned(), name.to_owned());
        let old = s.objects[&key].clone();
        let mut v = old.clone();
        f(&mut v);
        if v["spec"] != old["spec"] {
            v["metadata"]["generation"] = json!(v["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        }
        s.put("MODIFIED", key, v);
    }
    pub(crate) fn remove(&self, resource: &str, ns: &str, name: &str) {
        self.delete(&(resource.to_owned(), ns.to_owned(), name.to_owned()), &json!({"gracePeriodSeconds": 0}));
    }
    /// Writes so far, `METHOD path`.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.state.lock().log.clone()
    }
    pub(crate) fn events(&self) -> Vec<String> {
        let say = |e: &Value| format!("{} {}", e["reason"].as_str().unwrap(), e["message"].as_str().unwrap());
        self.list("v1/events").iter().map(say).collect()
    }

    fn insert(&self, resource: &str, ns: &str, mut v: Value) -> Result<Value, Status> {
        let mut s = self.state.lock();
        s.uids += 1;
        let uid = format!("00000000-0000-4000-8000-{:012}", s.uids);
        let m = &mut v["metadata"];
        if m["name"].is_null() {
            m["name"] = json!(format!("{}{:05}", m["generateName"].as_str().unwrap(), s.uids));
        }
        let name = m["name"].as_str().unwrap().to_owned();
        if m["uid"].is_null() {
            m["uid"] = json!(uid);
        }
        if m["creationTimestamp"].is_null() {
            m["creationTimestamp"] = json!(format_seconds(self.clock.now()));
        }
        m["generation"] = json!(1);
        if !ns.is_empty() {
            m["namespace"] = json!(ns);
        }
        let key = (resource.to_owned(), ns.to_owned(), name.clone());
        if s.objects.contains_key(&key) {
            return Err(Status::already_exists(&GroupResource::new("", resource), &name));
        }
        Ok(s.put("ADDED", key, v))
    }

    fn delete(&self, key: &Key, options: &Value) -> Response {
        let mut s = self.state.lock();
        let Some(v) = s.objects.get(key).cloned() else {
            return fail(&Status::not_found(&GroupResource::new("", &key.0), &key.2));
        };
        let want = &options["preconditions"]["uid"];
        if !want.is_null() && *want != v["metadata"]["uid"] {
            return fail(&Status::conflict(&GroupResource::new("", &key.0), &key.2, "uid"));
        }
        let mut v = v;
        let grace = options["gracePeriodSeconds"].as_i64();
        if v["metadata"]["deletionTimestamp"].is_null() {
            v["metadata"]["deletionTimestamp"] = json!(format_seconds(self.clock.now()));
        }
        match options["propagationPolicy"].as_str() {
            Some("Foreground") => add_finalizer(&mut v, "foregroundDeletion"),
            Some("Orphan") => add_finalizer(&mut v, "orphan"),
            _ => {}
        }
        if key.0 == "v1/pods" && grace == Some(0) && v["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
            s.objects.remove(key);
            s.tell("DELETED", key, &v);
        } else {
            s.put("MODIFIED", key.clone(), v);
        }
        answer(StatusCode::OK, &json!({"kind": "Status", "status": "Success"}))
    }

    fn watch(&self, p: &Path) -> Response {
        let (send, receive) = unbounded_channel();
        let mut s = self.state.lock();
        for (k, v) in &s.objects {
            if k.0 == p.resource && (p.namespace.is_empty() || k.1 == p.namespace) {
                let _ = send.send(Bytes::from(format!("{}\n", json!({"type": "ADDED", "object": v}))));
            }
        }
        let end = json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": s.revision.to_string(),
            "annotations": {"k8s.io/initial-events-end": "true"}}}});
        let _ = send.send(Bytes::from(format!("{end}\n")));
        s.watchers.push((p.resource.clone(), p.namespace.clone(), send));
        let next = |mut r: UnboundedReceiver<Bytes>| async move {
            let b = r.recv().await?;
            Some((Ok::<_, TransportError>(http_body::Frame::data(b)), r))
        };
        Response::new(StreamBody::new(futures::stream::unfold(receive, next)).boxed_unsync())
    }

    fn update(&self, p: &Path, change: impl FnOnce(&mut Value) -> Result<(), Status>) -> Response {
        let key = (p.resource.clone(), p.namespace.clone(), p.name.clone());
        let mut s = self.state.lock();
        let Some(old) = s.objects.get(&key).cloned() else {
            return fail(&Status::not_found(&GroupResource::new("", &p.resource), &p.name));
        };
        let mut v = old.clone();
        if let Err(e) = change(&mut v) {
            return fail(&e);
        }
        if !p.subresource.is_empty() && p.subresource != "finalize" {
            v["spec"] = old["spec"].clone();
        }
        if v["spec"] != old["spec"] {
            v["metadata"]["generation"] = json!(old["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        }
        if v == old {
            return answer(StatusCode::OK, &v);
        }
        let v = s.put("MODIFIED", key, v);
        answer(StatusCode::OK, &v)
    }

    fn discover(&self, path: &str) -> Option<Response> {
        let list = |gv: &str| {
            let resources: Vec<Value> = self
                .discovery
                .iter()
                .filter_map(|(r, kind, namespaced)| {
                    let (have, name) = r.rsplit_once('/')?;
                    (have == gv).then(|| {
                        let verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
                        json!({"name": name, "kind": kind, "namespaced": namespaced, "verbs": verbs})
                    })
                })
                .collect();
            json!({"kind": "APIResourceList", "groupVersion": gv, "resources": resources})
        };
        let v = match path {
            "/api" => json!({"kind": "APIVersions", "versions": ["v1"]}),
            "/apis" => json!({"kind": "APIGroupList", "groups": [{"name": "apps",
                "versions": [{"groupVersion": "apps/v1", "version": "v1"}],
                "preferredVersion": {"groupVersion": "apps/v1", "version": "v1"}}]}),
            "/api/v1" => list("v1"),
            "/apis/apps/v1" => list("apps/v1"),
            _ => return None,
        };
        Some(answer(StatusCode::OK, &v))
    }

    fn handle(&self, r: &Request) -> Response {
        let path = r.uri().path();
        let query = r.uri().query().unwrap_or("");
        if let Some(found) = self.discover(path) {
            return found;
        }
        let Some(p) = parse(path) else { return fail(&Status::unavailable("path")) };
        let body: Value = serde_json::from_slice(r.body()).unwrap_or(Value::Null);
        if r.method() != Method::GET && p.resource != "v1/events" {
            self.state.lock().log.push(format!("{} {path}", r.method()));
        }
        let key = (p.resource.clone(), p.namespace.clone(), p.name.clone());
        match *r.method() {
            Method::GET if query.contains("watch=true") => self.watch(&p),
            Method::GET if p.name.is_empty() => {
                let s = self.state.lock();
                let mine = |k: &Key| k.0 == p.resource && (p.namespace.is_empty() || k.1 == p.namespace);
                let items: Vec<&Value> = s.objects.iter().filter(|(k, _)| mine(k)).map(|(_, v)| v).collect();
                let list = json!({"metadata": {"resourceVersion": s.revision.to_string()}, "items": items});
                answer(StatusCode::OK, &list)
            }
            Method::GET => match self.state.lock().objects.get(&key) {
                Some(v) => answer(StatusCode::OK, v),
                None => fail(&Status::not_found(&GroupResource::new("", &p.resource), &p.name)),
            },
            Method::POST if p.resource.ends_with("subjectaccessreviews") => {
                answer(StatusCode::CREATED, &json!({"status": {"allowed": true}}))
            }
            Method::POST => match self.insert(&p.resource, &p.namespace, body) {
                Ok(v) => answer(StatusCode::CREATED, &v),
                Err(e) => fail(&e),
            },
            Method::PUT => self.update(&p, |v| {
                let seen = &body["metadata"]["resourceVersion"];
                if !seen.is_null() && *seen != v["metadata"]["resourceVersion"] {
                    return Err(Status::conflict(&GroupResource::new("", &p.resource), &p.name, Status::MODIFIED));
                }
                *v = body.clone();
                Ok(())
            }),
            Method::PATCH => self.update(&p, |v| {
                let kind = r.headers().get(http::header::CONTENT_TYPE).map_or("", |h| h.to_str().unwrap());
                merge(v, &body, kind.contains("strategic"));
                Ok(())
            }),
            Method::DELETE if p.name.is_empty() => {
                let mine = |k: &Key| k.0 == p.resource && k.1 == p.namespace;
                let keys: Vec<Key> = self.state.lock().objects.keys().filter(|k| mine(k)).cloned().collect();
                for k in keys {
                    self.delete(&k, &body);
                }
                answer(StatusCode::OK, &json!({"kind": "Status", "status": "Success"}))
            }
            _ => self.delete(&key, &body),
        }
    }
}

fn add_finalizer(v: &mut Value, name: &str) {
    let m = &mut v["metadata"];
    if !m["finalizers"].is_array() {
        m["finalizers"] = json!([]);
    }
    let list = m["finalizers"].as_array_mut().unwrap();
    if !list.contains(&json!(name)) {
        list.push(json!(name));
    }
}

impl Transport for FakeApi {
    fn send(
        &self,
        request: Request,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Response, TransportError>> + Send + 'static>> {
        let response = self.handle(&request);
        Box::pin(async move { Ok(response) })
    }
}
