//! The admission chain, built from the configuration over the store, the authorizer and the catalog.
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kelson_admission::{Chain, Dependencies, KindMapper, Metrics, NamespaceMaker, QuotaCharges, Versions};
use kelson_auth::Objects;
use kelson_codec::{Budget, Limits};
use kelson_meta::{Gvk, Gvr, Status};
use kelson_schema::ListType;
use kelson_schema::shape::Shape;
use kelson_webhook::{Backend, OwnServer, ServiceResolver};
use rand::Rng as _;
use serde_json::Value;

use crate::catalog::{Catalog, ObjectSchema, Served};
use crate::config::{Config, StartError};
use crate::shared::identity::Auth;

/// The catalog, as the admission crate reads it.
pub struct Kinds(pub Arc<Catalog>);

impl KindMapper for Kinds {
    fn resources(&self, api_version: &str, kind: &str) -> Vec<(Gvr, bool)> {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let all = self.0.of(group, version).unwrap_or_default();
        all.iter().filter(|s| s.gvk.kind == kind).map(|s| (s.gvr.clone(), s.namespaced)).collect()
    }
}

impl Kinds {
    /// The resource of a request and the resource in whose version its object is wanted; `None` if the object's kind exists only for a
    /// subresource.
    fn pair(&self, of: &Gvr, wanted: &Gvr, kind: &Gvk) -> Option<(Arc<Served>, Arc<Served>)> {
        let find = |gvr: &Gvr| self.0.find(&gvr.group, &gvr.version, &gvr.resource);
        let wanted = find(wanted).filter(|served| served.gvk == *kind)?;
        Some((find(of)?, wanted))
    }
}

#[async_trait]
impl Versions for Kinds {
    fn equivalents(&self, resource: &Gvr, subresource: &str) -> Vec<(Gvr, Gvk)> {
        let Some(served) = self.0.find(&resource.group, &resource.version, &resource.resource) else {
            return Vec::new();
        };
        let others = self.0.resources_in_store(served.store).into_iter().filter(|other| other.gvr != *resource);
        let kind = |other: &Served| match subresource {
            "" => Some(other.gvk.clone()),
            name => other.sub(name).map(|sub| sub.gvk.clone()),
        };
        others.filter_map(|other| Some((other.gvr.clone(), kind(&other)?))).collect()
    }

    async fn show(&self, of: &Gvr, resource: &Gvr, kind: &Gvk, object: &Value) -> Result<Option<Value>, Status> {
        let Some((own, wanted)) = self.pair(of, resource, kind) else { return Ok(None) };
        if own.gvr == wanted.gvr {
            return if own.works_as_served() {
                Ok(None)
            } else {
                own.working_to_served(object.clone()).await.map(Some)
            };
        }
        let stored = own.working_to_stored(object.clone()).await?;
        wanted.one_to_served(stored).await.map(Some)
    }

    async fn serve(&self, resource: &Gvr, stored: Value) -> Result<Value, Status> {
        match self.0.find(&resource.group, &resource.version, &resource.resource) {
            Some(served) => served.one_to_served(stored).await,
            None => Ok(stored),
        }
    }

    fn merge(&self, resource: &Gvr, kind: &Gvk, object: &Value, fields: &Value) -> Result<Value, String> {
        let served = self.0.find(&resource.group, &resource.version, &resource.resource);
        let schema = match served.filter(|served| served.gvk == *kind) {
            Some(served) => served.schema.clone(),
            None => ObjectSchema::builtin(&kind.group, &kind.version, &kind.kind),
        };
        let shape = schema.shape();
        let mut atomic = Vec::new();
        find_atomic(&shape, fields, &mut String::new(), &mut atomic);
        if !atomic.is_empty() {
            let why = format!("may not mutate atomic arrays, maps or structs: {}", atomic.join(", "));
            return Err(format!("invalid ApplyConfiguration: {why}"));
        }
        kelson_patch::apply::merge(&shape, object, fields, &mut Budget::new(Limits::DOCUMENT))
            .map_err(|why| format!("failed to merge patch: {why}"))
    }

    async fn read_new(&self, resource: &Gvr, object: Value) -> Result<Value, String> {
        let served = self.0.find(&resource.group, &resource.version, &resource.resource);
        let served = served.ok_or_else(|| format!("{}/{} is not served", resource.group, resource.resource))?;
        let decoded = served.schema.normalize(object, true).map_err(|e| e.to_string())?;
        if !decoded.strict.is_empty() {
            return Err(format!("strict decoding error: {}", decoded.strict.0.join(", ")));
        }
        let mut object = decoded.value;
        served.strategy.default(&served.gvk.version, &mut object).map_err(|s| s.message)?;
        let object = served.served_to_working(object).await.map_err(|s| s.message)?;
        let faults = served.strategy.judge_create(&object);
        if faults.is_empty() { Ok(object) } else { Err(faults.to_string()) }
    }

    async fn take(&self, of: &Gvr, resource: &Gvr, kind: &Gvk, object: Value) -> Result<Value, Status> {
        let pair = self.pair(of, resource, kind);
        let schema = match &pair {
            Some((_, wanted)) => wanted.schema.clone(),
            None => ObjectSchema::builtin(&kind.group, &kind.version, &kind.kind),
        };
        let mut object = schema.normalize(object, false).map_err(|e| Status::bad_request(e.to_string()))?.value;
        let Some((own, wanted)) = pair else { return Ok(object) };
        wanted.strategy.default(&wanted.gvk.version, &mut object)?;
        let working = wanted.served_to_working(object).await?;
        if own.gvr == wanted.gvr {
            return Ok(working);
        }
        own.stored_to_working(wanted.working_to_stored(working).await?).await
    }
}

/// Collects the paths of lists and maps in `value` that can only be replaced as a whole.
fn find_atomic(shape: &Shape, value: &Value, path: &mut String, found: &mut Vec<String>) {
    let whole = match value {
        Value::Object(_) => shape.is_atomic(),
        Value::Array(_) => shape.list_type() == ListType::Atomic,
        _ => return,
    };
    if whole {
        found.push(path.clone());
    }
    let length = path.len();
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let Some(child) = shape.child(key) else { continue };
                path.push('.');
                path.push_str(key);
                find_atomic(&child, value, path, found);
                path.truncate(length);
            }
        }
        Value::Array(items) => {
            let element = shape.element();
            for (i, item) in items.iter().enumerate() {
                path.push_str(&format!("[{i}]"));
                find_atomic(&element, item, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

/// Resolves services of webhooks to a ready endpoint, because the server's machine need not be part of the service network (upstream
/// `k8s.io/apiserver/pkg/util/proxy`).
pub struct EndpointResolver(pub Arc<dyn Objects>);

impl ServiceResolver for EndpointResolver {
    fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<Backend, String> {
        let service = self.0.tree("", "services", namespace, name);
        let service = service.ok_or_else(|| format!("service {name:?} not found"))?;
        let spec = &service["spec"];
        let kind = spec["type"].as_str().unwrap_or("ClusterIP");
        if kind == "ExternalName" {
            return Ok(Backend::Name(spec["externalName"].as_str().unwrap_or("").to_owned(), port));
        }
        if !matches!(kind, "ClusterIP" | "LoadBalancer" | "NodePort") {
            return Err(format!("unsupported service type {kind:?}"));
        }
        let found = items(&spec["ports"]).iter().find(|p| p["port"].as_u64() == Some(port.into()));
        let found = found.ok_or_else(|| format!("no service port {port} found for service {name:?}"))?;
        let port_name = found["name"].as_str().unwrap_or("");
        let mut slices = self.0.trees("discovery.k8s.io", "endpointslices", namespace);
        slices.retain(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == name);
        let family = spec["ipFamilies"][0].as_str().unwrap_or("IPv4");
        // The service's first family is preferred if it has endpoints; `false` sorts first.
        slices.sort_by_key(|slice| slice["addressType"] != family);
        let of = |slice: &Value| endpoints(slice, port_name);
        let mut by_family = slices.chunk_by(|a, b| a["addressType"] == b["addressType"]);
        let candidates = by_family.find_map(|group| {
            let all: Vec<SocketAddr> = group.iter().flat_map(|slice| of(slice)).collect();
            (!all.is_empty()).then_some(all)
        });
        let none = || format!("no endpoints available for service {name:?}");
        let candidates = candidates.ok_or_else(none)?;
        Ok(candidates[rand::rng().random_range(0..candidates.len())].into())
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The addresses of a slice's ready endpoints at a named port.
fn endpoints(slice: &Value, port_name: &str) -> Vec<SocketAddr> {
    let named = items(&slice["ports"]).iter().find(|p| p["name"].as_str().unwrap_or("") == port_name);
    let port = named.and_then(|p| u16::try_from(p["port"].as_u64()?).ok());
    let ready = |e: &&Value| e["conditions"]["ready"].as_bool().unwrap_or(true);
    let addresses = items(&slice["endpoints"]).iter().filter(ready).filter_map(|e| e["addresses"][0].as_str());
    addresses.filter_map(|a| Some(SocketAddr::new(a.parse::<IpAddr>().ok()?, port?))).collect()
}

/// The parts of its server that admission uses.
pub struct AdmissionLinks {
    /// Charges of quotas.
    pub charges: Arc<dyn QuotaCharges>,
    /// Creates namespaces with the server's own rights, for NamespaceAutoProvision.
    pub namespaces: Arc<dyn NamespaceMaker>,
    /// The server itself, for webhooks that point to it.
    pub own: Arc<dyn OwnServer>,
}

/// Builds the admission chain.
///
/// # Errors
/// [`StartError::Config`].
pub fn chain(
    config: &Config,
    objects: &Arc<dyn Objects>,
    auth: &Auth,
    catalog: &Arc<Catalog>,
    metrics: Metrics,
    links: AdmissionLinks,
) -> Result<Chain, StartError> {
    let kinds = Arc::new(Kinds(Arc::clone(catalog)));
    let dependencies = Dependencies {
        objects: Arc::clone(objects),
        authorizer: Arc::clone(&auth.authorizer) as _,
        kinds: Arc::clone(&kinds) as Arc<dyn KindMapper>,
        versions: kinds,
        services: Arc::new(EndpointResolver(Arc::clone(objects))),
        quotas: links.charges,
        namespaces: links.namespaces,
        own: links.own,
        gates: Arc::clone(&config.feature_gates),
        metrics: Arc::new(metrics),
    };
    kelson_admission::build(&config.admission, &dependencies).map_err(|e| StartError::Config(e.to_string()))
}

/// The interval at which files that configure admission are read again (as upstream).
const RELOAD_EVERY: Duration = Duration::from_secs(60);

/// Reloads the plugins' files periodically.
pub async fn follow_files(chain: Chain) {
    loop {
        tokio::time::sleep(RELOAD_EVERY).await;
        chain.reload().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use serde_json::json;

    /// One service and its slices.
    struct World(Value, Vec<Value>);
    impl Objects for World {
        fn get(&self, _: &str, _: &str, namespace: &str, name: &str) -> Option<Bytes> {
            ((namespace, name) == ("n", "s")).then(|| self.0.to_string().into())
        }
        fn list(&self, _: &str, _: &str, _: &str) -> Vec<Bytes> {
            self.1.iter().map(|s| s.to_string().into()).collect()
        }
    }

    #[test]
    fn endpoints_of_services() {
        let service = |change: &dyn Fn(&mut Value)| {
            let mut spec = json!({"ports": [{"name": "web", "port": 443}], "ipFamilies": ["IPv4"]});
            change(&mut spec);
            json!({"spec": spec})
        };
        let slice = |family: &str, service: &str, endpoints: Value| {
            json!({"metadata": {"labels": {"kubernetes.io/service-name": service}}, "addressType": family,
                "ports": [{"name": "other", "port": 1}, {"name": "web", "port": 8443}], "endpoints": endpoints})
        };
        let at = |ip: &str, ready: Value| json!({"addresses": [ip], "conditions": {"ready": ready}});
        let resolve = |service: Value, slices: Vec<Value>, name: &str, port: u16| {
            let found = EndpointResolver(Arc::new(World(service, slices))).resolve("n", name, port);
            found.map(|a| a.to_string())
        };
        let plain = || service(&|_| {});
        let v4 = || slice("IPv4", "s", json!([at("10.0.0.1", json!(false)), at("10.0.0.2", json!(null))]));
        let v6 = || slice("IPv6", "s", json!([at("fd00::1", json!(true))]));
        assert_eq!(resolve(plain(), vec![v6(), v4()], "s", 443).unwrap(), "10.0.0.2:8443");
        assert_eq!(resolve(plain(), vec![v6()], "s", 443).unwrap(), "[fd00::1]:8443");
        let foreign = slice("IPv4", "t", json!([at("10.0.0.9", json!(true))]));
        let none = "no endpoints available for service \"s\"";
        assert_eq!(resolve(plain(), vec![foreign], "s", 443).unwrap_err(), none);
        assert_eq!(resolve(plain(), vec![], "x", 443).unwrap_err(), "service \"x\" not found");
        assert_eq!(resolve(plain(), vec![v4()], "s", 80).unwrap_err(), "no service port 80 found for service \"s\"");
        let external = service(&|s| {
            s["type"] = json!("ExternalName");
            s["externalName"] = json!("api.example.com");
        });
        assert_eq!(resolve(external, vec![v4()], "s", 443).unwrap(), "api.example.com:443");
        let odd = service(&|s| s["type"] = json!("Odd"));
        assert_eq!(resolve(odd, vec![v4()], "s", 443).unwrap_err(), "unsupported service type \"Odd\"");
    }
}
