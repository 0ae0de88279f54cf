//! A container's full environment, in the order upstream makes it: services first, then `envFrom`, then `env` with
//! expansion (upstream: `kubelet_pods.go` makeEnvironmentVariables).
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, FileKeySelector, Pod};
use kelson_client::{EventType, InformerHandle};
use kelson_tasks::FILES;
use tokio::sync::watch;

use super::expand::expand;
use super::services::ServiceView;
use super::{fields, file, services};
use crate::effects::Tell;
use crate::node::facts::NodeFacts;
use crate::objects::{Data, Kind, ObjectError, Objects};
use crate::pod::{self, Role};

/// What environments are made from; cheap to clone.
#[derive(Clone)]
pub struct Environment {
    /// Config maps and secrets.
    pub objects: Objects,
    /// The cluster's services.
    pub services: InformerHandle<ServiceView>,
    /// What pods may see of their node.
    pub node: watch::Receiver<Arc<NodeFacts>>,
    /// Tells events of pods to the API.
    pub tell: Tell,
}

/// What is known of the pod when its container starts.
pub struct Given<'a> {
    /// The pod's addresses.
    pub pod_ips: &'a [String],
    /// Where the content of a volume lies on the host; `None` where it has no such place.
    pub volume: &'a (dyn Fn(&str) -> Option<PathBuf> + Send + Sync),
}

/// The variables in order, names once. `Err` is the message of `CreateContainerConfigError`.
pub async fn environment(
    ctx: &Environment,
    pod: &Pod,
    role: Role,
    c: &Container,
    given: &Given<'_>,
) -> Result<Vec<(String, String)>, String> {
    let links = pod.spec.as_ref().and_then(|s| s.enable_service_links).unwrap_or(true);
    let views = ctx.services.list();
    let linked = services::variables(pod::namespace(pod), links, views.iter().map(|s| &**s));
    let mut sources = Sources { ctx, pod, cache: HashMap::new() };
    let mut env = Variables::default();
    for e in c.env_from.iter().flatten() {
        let (kind, name, optional) = match (&e.config_map_ref, &e.secret_ref) {
            (Some(r), _) => (Kind::ConfigMap, &r.name, r.optional),
            (None, Some(r)) => (Kind::Secret, &r.name, r.optional),
            (None, None) => continue,
        };
        let Some(data) = sources.data(kind, name, optional.unwrap_or(false)).await? else { continue };
        let mut skipped = Vec::new();
        for (k, v) in data {
            let full = format!("{}{k}", e.prefix.as_deref().unwrap_or_default());
            if full.is_empty() || full.contains('=') || full.bytes().any(|b| b == 0) {
                skipped.push(full);
            } else {
                env.set(full, String::from_utf8_lossy(v).into_owned());
            }
        }
        if !skipped.is_empty() {
            let what = if kind == Kind::ConfigMap { "ConfigMap" } else { "Secret" };
            let message = format!(
                "Keys [{}] from the EnvFrom {what} {}/{name} were skipped since they are considered invalid environment variable names.",
                skipped.join(", "),
                pod::namespace(pod)
            );
            ctx.tell.container(pod, role, &c.name, EventType::Warning, "InvalidEnvironmentVariableNames", message);
        }
    }
    for var in c.env.iter().flatten() {
        if let Some(value) = one(&mut sources, var, c, &env, &linked, given).await? {
            env.set(var.name.clone(), value);
        }
    }
    // Service variables come last in precedence: anything the pod says wins.
    for (k, v) in linked {
        env.fill(k, v);
    }
    Ok(env.0)
}

async fn of_file(r: &FileKeySelector, given: &Given<'_>) -> Result<Option<String>, String> {
    let missing = || format!("cannot find the volume {:?} referenced by FileKeyRef", r.volume_name);
    let root = (given.volume)(&r.volume_name).ok_or_else(missing)?;
    let (path, key) = (r.path.clone(), r.key.clone());
    let found = FILES.run(move || file::value(&root, &path, &key)).await.map_err(|e| e.to_string())?;
    match found.map_err(|e| format!("couldn't parse env file: {e}"))? {
        Some(value) => Ok(Some(value)),
        None if r.optional == Some(true) => Ok(None),
        None => Err(format!("environment variable key {:?} not found in file {:?}", r.key, r.path)),
    }
}

#[derive(Default)]
struct Variables(Vec<(String, String)>);

impl Variables {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }
    fn set(&mut self, name: String, value: String) {
        match self.0.iter_mut().find(|(k, _)| *k == name) {
            Some(slot) => slot.1 = value,
            None => self.0.push((name, value)),
        }
    }
    fn fill(&mut self, name: String, value: String) {
        if self.get(&name).is_none() {
            self.0.push((name, value));
        }
    }
}

async fn one(
    sources: &mut Sources<'_>,
    var: &EnvVar,
    c: &Container,
    env: &Variables,
    linked: &std::collections::BTreeMap<String, String>,
    given: &Given<'_>,
) -> Result<Option<String>, String> {
    let value = var.value.as_deref().unwrap_or_default();
    if !value.is_empty() {
        return Ok(Some(expand(value, |n| env.get(n).or_else(|| linked.get(n).map(String::as_str)))));
    }
    match &var.value_from {
        Some(from) => sources.value(from, c, given).await,
        None => Ok(Some(String::new())),
    }
}

struct Sources<'a> {
    ctx: &'a Environment,
    pod: &'a Pod,
    cache: HashMap<(Kind, String), Data>,
}

impl Sources<'_> {
    async fn data(&mut self, kind: Kind, name: &str, optional: bool) -> Result<Option<&Data>, String> {
        let key = (kind, name.to_owned());
        if !self.cache.contains_key(&key) {
            match self.ctx.objects.data(self.pod, kind, name).await {
                Ok(data) => {
                    self.cache.insert(key.clone(), data);
                }
                Err(ObjectError::NotFound { .. }) if optional => return Ok(None),
                Err(e) => return Err(e.to_string()),
            }
        }
        Ok(self.cache.get(&key))
    }

    async fn value(&mut self, from: &EnvVarSource, c: &Container, given: &Given<'_>) -> Result<Option<String>, String> {
        let (pod, node) = (self.pod, self.ctx.node.borrow().clone());
        if let Some(f) = &from.field_ref {
            return fields::field(pod, &f.field_path, &node, given.pod_ips).map(Some);
        }
        if let Some(r) = &from.resource_field_ref {
            let other = r.container_name.as_deref().filter(|n| !n.is_empty());
            let of = other.and_then(|n| pod::member(pod, n));
            let container = of.as_ref().map_or(c, |m| &m.container);
            return fields::resource(pod, container, r, &node).map(Some);
        }
        if let Some(r) = &from.file_key_ref {
            return of_file(r, given).await;
        }
        let (kind, name, key, optional, word) = match (&from.config_map_key_ref, &from.secret_key_ref) {
            (Some(r), _) => (Kind::ConfigMap, r.name.clone(), r.key.clone(), r.optional, "ConfigMap"),
            (None, Some(r)) => (Kind::Secret, r.name.clone(), r.key.clone(), r.optional, "Secret"),
            (None, None) => return Err("a source of an environment variable names none".into()),
        };
        let optional = optional.unwrap_or(false);
        let Some(data) = self.data(kind, &name, optional).await? else { return Ok(None) };
        match data.get(&key) {
            Some(v) => Ok(Some(String::from_utf8_lossy(v).into_owned())),
            None if optional => Ok(None),
            None => Err(format!("couldn't find key {key} in {word} {}/{name}", pod::namespace(pod))),
        }
    }
}
