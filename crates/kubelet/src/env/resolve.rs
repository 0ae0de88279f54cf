//! Builds a container's environment in upstream's order: services, then `envFrom`, then `env` with expansion (upstream: `kubelet_pods.go`
//! makeEnvironmentVariables).
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, FileKeySelector, Pod};
use kelson_client::{EventType, InformerHandle};
use kelson_tasks::FILES;
use tokio::sync::watch;

use super::expand::{Budget, TooLarge, expand};
use super::services::ServiceView;
use super::{fields, file, services};
use crate::effects::EventReporter;
use crate::node::facts::NodeFacts;
use crate::objects::{Data, Kind, ObjectError, Objects};
use crate::pod::{self, Role};

/// Sources of environment variables. Clones share them.
#[derive(Clone)]
pub struct Environment {
    /// ConfigMaps and Secrets.
    pub objects: Objects,
    /// Services of the cluster.
    pub services: InformerHandle<ServiceView>,
    /// Facts about the node that pods can read.
    pub node: watch::Receiver<Arc<NodeFacts>>,
    /// Records events about pods.
    pub events: EventReporter,
}

/// Facts about the pod when its container starts.
pub struct EnvironmentInput<'a> {
    /// Addresses of the pod.
    pub pod_ips: &'a [String],
    /// Returns the host path of a volume's content; `None` if the volume has none.
    pub volume: &'a (dyn Fn(&str) -> Option<PathBuf> + Send + Sync),
}

/// Returns the variables in order, each name once.
///
/// # Errors
/// The message of `CreateContainerConfigError`.
pub async fn environment(
    ctx: &Environment,
    pod: &Pod,
    role: Role,
    c: &Container,
    given: &EnvironmentInput<'_>,
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
                env.set(full, String::from_utf8_lossy(v).into_owned()).map_err(too_large)?;
            }
        }
        if !skipped.is_empty() {
            let what = if kind == Kind::ConfigMap { "ConfigMap" } else { "Secret" };
            let message = format!(
                "Keys [{}] from the EnvFrom {what} {}/{name} were skipped since they are considered invalid environment variable names.",
                skipped.join(", "),
                pod::namespace(pod)
            );
            ctx.events.container(pod, role, &c.name, EventType::Warning, "InvalidEnvironmentVariableNames", message);
        }
    }
    for var in c.env.iter().flatten() {
        if let Some(value) = one(&mut sources, var, c, &env, &linked, given).await? {
            env.set(var.name.clone(), value).map_err(too_large)?;
        }
    }
    // Service variables have the lowest precedence.
    for (k, v) in linked {
        if env.get(&k).is_none() {
            env.set(k, v).map_err(too_large)?;
        }
    }
    Ok(env.list)
}

fn too_large(e: TooLarge) -> String {
    format!("the environment has {e}")
}

async fn of_file(r: &FileKeySelector, given: &EnvironmentInput<'_>) -> Result<Option<String>, String> {
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

/// Variables in insertion order with an index by name, because there may be very many.
#[derive(Default)]
struct Variables {
    list: Vec<(String, String)>,
    places: HashMap<String, usize>,
    budget: Budget,
}

impl Variables {
    fn get(&self, name: &str) -> Option<&str> {
        self.places.get(name).map(|at| self.list[*at].1.as_str())
    }

    fn set(&mut self, name: String, value: String) -> Result<(), TooLarge> {
        // Counts the equals sign and the terminating zero byte.
        self.budget.take(name.len() + value.len() + 2)?;
        match self.places.get(&name) {
            Some(at) => self.list[*at].1 = value,
            None => {
                self.places.insert(name.clone(), self.list.len());
                self.list.push((name, value));
            }
        }
        Ok(())
    }
}

async fn one(
    sources: &mut Sources<'_>,
    var: &EnvVar,
    c: &Container,
    env: &Variables,
    linked: &std::collections::BTreeMap<String, String>,
    given: &EnvironmentInput<'_>,
) -> Result<Option<String>, String> {
    let value = var.value.as_deref().unwrap_or_default();
    if !value.is_empty() {
        let known = |name: &str| env.get(name).or_else(|| linked.get(name).map(String::as_str));
        return expand(value, &mut Budget::default(), known).map(Some).map_err(too_large);
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

    async fn value(
        &mut self,
        from: &EnvVarSource,
        c: &Container,
        given: &EnvironmentInput<'_>,
    ) -> Result<Option<String>, String> {
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
            (None, None) => return Err("the valueFrom of an environment variable has no source".into()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_variables_are_rejected_quickly() {
        let mut env = Variables::default();
        let outcome = (0..1_000_000).try_for_each(|n| env.set(format!("VARIABLE_{n}"), "v".into()));
        assert_eq!(outcome, Err(TooLarge));
        assert!(env.list.len() > 400_000, "{}", env.list.len());
        let mut env = Variables::default();
        for (name, value) in [("A", "1"), ("B", "2"), ("A", "3")] {
            env.set(name.into(), value.into()).expect("few");
        }
        assert_eq!(
            env.list,
            [("A".to_owned(), "3".to_owned()), ("B".to_owned(), "2".to_owned())],
            "each once, in order"
        );
        assert_eq!((env.get("A"), env.get("C")), (Some("3"), None));
    }
}
