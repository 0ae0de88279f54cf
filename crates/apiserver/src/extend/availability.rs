//! Availability of aggregated API servers, written to the `Available` condition of their APIServices, by which requests are routed. The
//! resource lists that the servers return are kept for discovery. Upstream: `kube-aggregator/pkg/controllers/status/remote`.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future;
use kelson_auth::{UserInfo, user};
use serde_json::Value;
use tokio::time::Instant;

use crate::aggregate::forward::Unreachable;
use crate::aggregate::registry::{GROUP, PLURAL};
use crate::aggregate::remote::Remote;
use crate::aggregate::service::Availability;
use crate::catalog::record::parse;
use crate::shared::Server;
use crate::write::commit::{Committer, WriteError};
use crate::write::retry::RETRIES_MAX;

/// Interval of checks of services and endpoints, which are local and cheap.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval of requests to a server that answers.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// Timeout of a server's response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest list of resources that is read, in bytes.
const LIST_BYTES_MAX: usize = 4 << 20;

/// Runs until the server stops.
pub async fn run(server: Arc<Server>) {
    let mut changed = server.aggregation.subscribe();
    let asker = UserInfo::new("system:kube-aggregator", [user::MASTERS]);
    let mut asked: HashMap<String, Instant> = HashMap::new();
    loop {
        let remotes = server.aggregation.remotes();
        asked.retain(|name, _| remotes.iter().any(|r| r.name() == name));
        let looks = remotes.iter().map(|remote| {
            let last = asked.get(remote.name()).copied();
            look(&server, remote, &asker, last)
        });
        for (remote, at) in remotes.iter().zip(future::join_all(looks).await) {
            match at {
                Some(at) => drop(asked.insert(remote.name().to_owned(), at)),
                None => drop(asked.remove(remote.name())),
            }
        }
        if remotes.is_empty() {
            if changed.changed().await.is_err() {
                return;
            }
        } else {
            let _ = tokio::time::timeout(LOOK_EVERY, changed.changed()).await;
        }
    }
}

/// Checks one server. Returns when it last answered, `None` if it is unavailable.
async fn look(server: &Server, remote: &Remote, asker: &UserInfo, last: Option<Instant>) -> Option<Instant> {
    let found = match by_objects(server, remote) {
        Err(fault) => Err(fault),
        Ok(()) if last.is_some_and(|at| at.elapsed() < ASK_EVERY) => return last,
        Ok(()) => ask(server, remote, asker).await,
    };
    let good = found.is_ok();
    let condition = found.err().unwrap_or_else(|| Availability::new("True", "Passed", "all checks passed"));
    write(server, remote, &condition).await;
    good.then(Instant::now)
}

/// Checks the service and its endpoints.
fn by_objects(server: &Server, remote: &Remote) -> Result<(), Availability> {
    let to = remote.service();
    let (namespace, name) = (to.namespace.as_str(), to.name.as_str());
    let fault = |reason: &str, message: String| Err(Availability::new("False", reason, message));
    let Some(service) = server.objects.tree("", "services", namespace, name) else {
        return fault("ServiceNotFound", format!("service/{name} in {namespace:?} is not present"));
    };
    if service["spec"]["type"].as_str().unwrap_or("ClusterIP") != "ClusterIP" {
        return Ok(());
    }
    let ports = service["spec"]["ports"].as_array().map_or(&[][..], Vec::as_slice);
    let Some(port) = ports.iter().find(|p| p["port"].as_u64() == Some(to.port().into())) else {
        let why = format!("service/{name} in {namespace:?} is not listening on port {}", to.port());
        return fault("ServicePortError", why);
    };
    let port_name = port["name"].as_str().unwrap_or("");
    let mut slices = server.objects.trees("discovery.k8s.io", "endpointslices", namespace);
    slices.retain(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == name);
    if slices.is_empty() {
        let why = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return fault("EndpointsNotFound", why);
    }
    if !slices.iter().any(|slice| has_ready_endpoint(slice, port_name)) {
        let why = format!(
            "endpointslices for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
        );
        return fault("MissingEndpoints", why);
    }
    Ok(())
}

fn has_ready_endpoint(slice: &Value, port_name: &str) -> bool {
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let ready = |e: &Value| {
        e["conditions"]["ready"].as_bool().unwrap_or(true) && e["addresses"].as_array().is_some_and(|a| !a.is_empty())
    };
    list(&slice["ports"]).iter().any(|p| p["name"].as_str().unwrap_or("") == port_name)
        && list(&slice["endpoints"]).iter().any(ready)
}

/// Asks a server for its list of resources, which every server must serve.
async fn ask(server: &Server, remote: &Remote, asker: &UserInfo) -> Result<(), Availability> {
    let spec = remote.spec();
    let path = match spec.group.as_str() {
        "" => format!("/api/{}", spec.version),
        group => format!("/apis/{group}/{}", spec.version),
    };
    let url = match remote.resolve() {
        Ok(address) => format!("https://{address}{path}"),
        Err(why) => return Err(failed(why)),
    };
    let answered = tokio::time::timeout(ANSWER_TIMEOUT, remote.fetch(&path, asker, LIST_BYTES_MAX)).await;
    let late = |_| Err(Unreachable::Connection("context deadline exceeded".to_owned()));
    let answered = answered.unwrap_or_else(late);
    match answered {
        Ok((code, body)) if code.is_success() => {
            if let Ok(list) = serde_json::from_slice::<Value>(&body)
                && remote.set_resources(list)
            {
                server.aggregation.touch();
            }
            Ok(())
        }
        Ok((code, _)) => {
            let why = format!("bad status from {url}: {}", code.as_u16());
            Err(failed(format!("failing or missing response from {url}: {why}")))
        }
        Err(why) => Err(failed(format!("failing or missing response from {url}: Get {url:?}: {why}"))),
    }
}

fn failed(why: String) -> Availability {
    Availability::new("False", "FailedDiscoveryCheck", why)
}

/// Writes the condition, unless it is unchanged.
async fn write(server: &Server, remote: &Remote, condition: &Availability) {
    let Some(served) = server.catalog.any(GROUP, PLURAL) else { return };
    for _ in 0..=RETRIES_MAX {
        let Some(record) = server.store.get(served.store, "", remote.name()) else { return };
        let mut object = parse(&record);
        if !condition.clone().write_to(&mut object, server.clock.now()) {
            return;
        }
        match Committer::new(server).update(&served, &record, object).await {
            Err(WriteError::Conflict) => {}
            Err(WriteError::Status(status)) => {
                tracing::warn!(service = remote.name(), %status, "failed to update the condition of an APIService");
                return;
            }
            _ => return,
        }
    }
}
