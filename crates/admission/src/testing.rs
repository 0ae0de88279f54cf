//! Test doubles for plugins: stored objects by path, and an authorizer with a list of permissions.
use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use kelson_auth::{Attributes as Request, Authorizer, Decision, Objects, UserInfo};
use kelson_meta::{Gvk, Gvr, Status};
use kelson_webhook::{Backend, OwnCall, OwnServer, ServiceResolver};
use parking_lot::Mutex;
use serde_json::Value;

use crate::old_object::OldObject;
use crate::plugin::Passes;
use crate::{
    Attributes, Chain, Dependencies, KindMapper, Metrics, NamespaceMaker, Notes, Operation, Plugin, QuotaCharges,
    Versions,
};

/// Objects by `resource/namespace/name`.
pub(crate) struct World(pub Mutex<BTreeMap<String, Value>>);

impl Objects for World {
    fn get(&self, _: &str, resource: &str, namespace: &str, name: &str) -> Option<Bytes> {
        self.0.lock().get(&format!("{resource}/{namespace}/{name}")).map(|v| serde_json::to_vec(v).unwrap().into())
    }
    fn list(&self, _: &str, resource: &str, namespace: &str) -> Vec<Bytes> {
        let prefix = format!("{resource}/{namespace}/");
        let all = self.0.lock();
        all.iter().filter(|(k, _)| k.starts_with(&prefix)).map(|(_, v)| serde_json::to_vec(v).unwrap().into()).collect()
    }
}

#[async_trait]
impl QuotaCharges for World {
    async fn charge(&self, namespace: &str, name: &str, seen: &str, used: &Value) -> Result<bool, Status> {
        // Lets other tasks read the same state.
        tokio::task::yield_now().await;
        let mut all = self.0.lock();
        let Some(quota) = all.get_mut(&format!("resourcequotas/{namespace}/{name}")) else { return Ok(false) };
        if quota["metadata"]["resourceVersion"] != seen {
            return Ok(false);
        }
        let next = seen.parse::<u64>().unwrap() + 1;
        quota["metadata"]["resourceVersion"] = next.to_string().into();
        quota["status"]["used"] = used.clone();
        Ok(true)
    }
}

#[async_trait]
impl NamespaceMaker for World {
    async fn make(&self, name: &str) -> Result<(), Status> {
        if name.chars().any(char::is_uppercase) {
            return Err(Status::failure(422, kelson_meta::Reason::Invalid, format!("Namespace {name:?} is invalid")));
        }
        self.0.lock().insert(format!("namespaces//{name}"), serde_json::json!({}));
        Ok(())
    }
}

/// Allows the user `root` everything, and `signer` to approve and sign for example.com.
struct Rules;
impl Authorizer for Rules {
    fn authorize(&self, a: &Request<'_>) -> Decision {
        let ok = a.user.name == "root"
            || (a.user.name == "signer" && a.resource == "signers" && a.name == "example.com/*")
            || (a.user.name == "owner" && a.resource == "deployments" && a.subresource == "finalizers");
        if ok { Decision::Allow(String::new()) } else { Decision::NoOpinion("no".into()) }
    }
}

struct Kinds;
impl KindMapper for Kinds {
    fn resources(&self, api_version: &str, kind: &str) -> Vec<(Gvr, bool)> {
        match (api_version, kind) {
            ("apps/v1", "Deployment") => vec![(Gvr::new("apps", "v1", "deployments"), true)],
            ("v1", "Secret") => vec![(Gvr::new("", "v1", "secrets"), true)],
            _ => vec![],
        }
    }
}

#[async_trait]
impl Versions for Kinds {
    /// Deployments are also served as v1beta1.
    fn equivalents(&self, resource: &Gvr, _: &str) -> Vec<(Gvr, Gvk)> {
        match resource.resource.as_str() {
            "deployments" => {
                vec![(Gvr::new("apps", "v1beta1", "deployments"), Gvk::new("apps", "v1beta1", "Deployment"))]
            }
            _ => Vec::new(),
        }
    }
    async fn show(&self, _: &Gvr, _: &Gvr, kind: &Gvk, object: &Value) -> Result<Option<Value>, Status> {
        if kind.version == "v1" {
            return Ok(None);
        }
        let mut shown = object.clone();
        shown["apiVersion"] = kind.api_version().into();
        Ok(Some(shown))
    }
    async fn serve(&self, _: &Gvr, stored: Value) -> Result<Value, Status> {
        Ok(stored)
    }
    fn merge(&self, _: &Gvr, _: &Gvk, object: &Value, fields: &Value) -> Result<Value, String> {
        let mut merged = object.clone();
        kelson_patch::merge_patch(&mut merged, fields.clone());
        Ok(merged)
    }
    async fn read_new(&self, _: &Gvr, object: Value) -> Result<Value, String> {
        Ok(object)
    }
    async fn take(&self, _: &Gvr, _: &Gvr, kind: &Gvk, mut object: Value) -> Result<Value, Status> {
        if kind.version != "v1" {
            object["apiVersion"] = Gvk::new(&kind.group, "v1", "").api_version().into();
        }
        Ok(object)
    }
}

impl ServiceResolver for Kinds {
    fn resolve(&self, _: &str, name: &str, _: u16) -> Result<Backend, String> {
        Err(format!("service {name:?} not found"))
    }
}

impl OwnServer for Kinds {
    fn post(&self, _: String, _: Bytes, _: usize) -> OwnCall<'_> {
        Box::pin(async { Err("there is no server in this world".to_owned()) })
    }
}

pub(crate) fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new(&kelson_metrics::Registry::new()))
}

pub(crate) fn world(objects: &[(&str, Value)]) -> Arc<World> {
    Arc::new(World(Mutex::new(objects.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect())))
}

pub(crate) fn dependencies_of(world: Arc<World>) -> Dependencies {
    Dependencies {
        objects: Arc::clone(&world) as Arc<dyn Objects>,
        namespaces: Arc::clone(&world) as Arc<dyn NamespaceMaker>,
        quotas: world,
        authorizer: Arc::new(Rules),
        kinds: Arc::new(Kinds),
        versions: Arc::new(Kinds),
        services: Arc::new(Kinds),
        own: Arc::new(Kinds),
        gates: Arc::default(),
        metrics: metrics(),
    }
}

pub(crate) fn dependencies(objects: &[(&str, Value)]) -> Dependencies {
    dependencies_of(world(objects))
}

/// The same dependencies with `--feature-gates`.
pub(crate) fn gated(objects: &[(&str, Value)], gates: &str) -> Dependencies {
    let gates = kelson_meta::gates::FeatureGates::parse([gates]).unwrap();
    Dependencies { gates: Arc::new(gates), ..dependencies(objects) }
}

/// A request: `resource` is `group/plural[/subresource]`.
pub(crate) struct Ask<'a> {
    pub operation: Operation,
    pub resource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub object: Option<Value>,
    pub old: Option<Value>,
    pub user: UserInfo,
}

impl<'a> Ask<'a> {
    pub(crate) fn new(operation: Operation, resource: &'a str, object: Value) -> Self {
        let user = UserInfo::new("jane", ["dev"]);
        Self { operation, resource, namespace: "a", name: "", object: Some(object), old: None, user }
    }
    pub(crate) fn create(resource: &'a str, object: Value) -> Self {
        Self::new(Operation::Create, resource, object)
    }
    pub(crate) fn pod(object: Value) -> Self {
        Self::create("/pods", object)
    }
    pub(crate) fn update(resource: &'a str, old: Value, object: Value) -> Self {
        Self { old: Some(old), name: "x", ..Self::new(Operation::Update, resource, object) }
    }
    pub(crate) fn by(mut self, user: &str, group: &str) -> Self {
        self.user = UserInfo::new(user, [group]);
        self
    }
    pub(crate) fn named(mut self, namespace: &'a str, name: &'a str) -> Self {
        (self.namespace, self.name) = (namespace, name);
        self
    }
}

/// The result of a request: the object as admitted, and the notes.
pub(crate) struct Outcome {
    pub object: Value,
    pub notes: Notes,
}

impl Ask<'_> {
    fn names(&self) -> (Gvk, Gvr, &str) {
        let (group, rest) = self.resource.split_once('/').unwrap();
        let (plural, subresource) = rest.split_once('/').unwrap_or((rest, ""));
        let kind = self.object.as_ref().or(self.old.as_ref()).and_then(|o| o.get("kind")).and_then(Value::as_str);
        (Gvk::new(group, "v1", kind.unwrap_or("")), Gvr::new(group, "v1", plural), subresource)
    }
    fn attributes<'b>(&'b self, names: &'b (Gvk, Gvr, &'b str)) -> Attributes<'b> {
        Attributes {
            operation: self.operation,
            kind: &names.0,
            resource: &names.1,
            subresource: names.2,
            namespace: self.namespace,
            name: self.name,
            object: self.object.clone(),
            managed_fields: None,
            old_object: self.old.as_ref().map(OldObject::Parsed),
            user: &self.user,
            dry_run: false,
            explained: false,
            options: Default::default(),
            rounds: Default::default(),
            deadline: None,
        }
    }
    /// Calls `see` with the request as plugins see it.
    pub(crate) fn with<T>(self, see: impl FnOnce(&Attributes<'_>) -> T) -> T {
        let names = self.names();
        see(&self.attributes(&names))
    }
}

/// Sends a request through both passes of one plugin.
pub(crate) async fn run(plugin: impl Plugin + 'static, ask: Ask<'_>) -> Result<Outcome, Status> {
    let chain = Chain::new(vec![(Arc::new(plugin), Passes::Both)], metrics());
    let names = ask.names();
    let mut attributes = ask.attributes(&names);
    let mut notes = Notes::default();
    chain.admit(&mut attributes, &mut notes).await?;
    chain.validate(&attributes, &mut notes).await?;
    Ok(Outcome { object: attributes.object.unwrap_or_default(), notes })
}

/// Returns the admitted object, or the message of the rejection.
pub(crate) async fn object(plugin: impl Plugin + 'static, ask: Ask<'_>) -> Result<Value, String> {
    run(plugin, ask).await.map(|o| o.object).map_err(|s| s.message)
}
