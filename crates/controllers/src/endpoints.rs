//! The legacy Endpoints object of each service with a selector: what `kubectl get endpoints` shows. Upstream
//! `pkg/controller/endpoint`.
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use http::Method;
use kelson_client::{Change, Client, ClientError, DeleteOptions, Object as _, WorkQueue};
use kelson_meta::{LabelMap, LabelSelector, ObjectKey, ObjectMeta};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;

use crate::endpointslice::{HEADLESS, addresses, find_port, hostname, is_headless};
use crate::shared::context::{Context, SyncError, WORKERS, enqueue_self};
use crate::shared::informers::SharedInformer;
use crate::views::{Address, EndpointsView, PodView, ServicePortView, ServiceView, Subset, SubsetPort, TargetRef};

/// Value of [`MANAGED_BY`] on what this controller writes.
const MANAGER: &str = "endpoint-controller";
/// The maximum number of addresses in one object. An annotation marks a truncated object.
const ADDRESSES_MAX: usize = 1000;
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";

/// Returns the sorted subsets of a service, one per set of ports, and whether addresses were truncated.
pub fn subsets(s: &ServiceView, pods: &[Arc<PodView>]) -> (Vec<Subset>, bool) {
    let family = s.spec.ip_families.first().map_or("IPv4", String::as_str);
    let mut by_ports: BTreeMap<Vec<SubsetPort>, Subset> = BTreeMap::new();
    let mut pods: Vec<&Arc<PodView>> = pods.iter().collect();
    pods.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let mut count = 0;
    for pod in pods {
        let Some(ip) = addresses(pod, family).into_iter().next() else { continue };
        if pod.is_terminal() || (pod.metadata.is_deleting() && !s.spec.publish_not_ready_addresses) {
            continue;
        }
        let mut ports: Vec<SubsetPort> = s.spec.ports.iter().filter_map(|p| port_of(pod, p)).collect();
        if ports.is_empty() && !s.spec.ports.is_empty() {
            continue;
        }
        count += 1;
        if count > ADDRESSES_MAX {
            continue;
        }
        ports.sort();
        let address = Address {
            ip,
            hostname: hostname(s, pod).unwrap_or_default(),
            node_name: (!pod.spec.node_name.is_empty()).then(|| pod.spec.node_name.clone()),
            target_ref: Some(TargetRef::pod(pod)),
        };
        let subset = by_ports.entry(ports.clone()).or_insert_with(|| Subset { ports, ..Subset::default() });
        if s.spec.publish_not_ready_addresses || pod.is_ready() {
            subset.addresses.push(address);
        } else {
            subset.not_ready_addresses.push(address);
        }
    }
    let mut all: Vec<Subset> = by_ports.into_values().collect();
    for s in &mut all {
        s.addresses.sort_by(|a, b| a.ip.cmp(&b.ip));
        s.not_ready_addresses.sort_by(|a, b| a.ip.cmp(&b.ip));
    }
    (all, count > ADDRESSES_MAX)
}

fn port_of(pod: &PodView, p: &ServicePortView) -> Option<SubsetPort> {
    Some(SubsetPort {
        name: p.name.clone(),
        port: find_port(pod, p)?,
        protocol: if p.protocol.is_empty() { "TCP".into() } else { p.protocol.clone() },
        app_protocol: p.app_protocol.clone(),
    })
}

struct EndpointsController {
    client: Client,
    services: SharedInformer<ServiceView>,
    pods: SharedInformer<PodView>,
    endpoints: SharedInformer<EndpointsView>,
    /// Services whose deletion was observed. Their endpoints are deleted regardless of who created them. Other
    /// endpoints without a service are kept, as their service may be created later.
    gone: Arc<Mutex<HashSet<ObjectKey>>>,
}

/// Starts the endpoints controller.
pub fn start(ctx: &Arc<Context>) {
    let queue = WorkQueue::default();
    let i = &ctx.informers;
    let me = Arc::new(EndpointsController {
        client: ctx.client(),
        services: i.services.reader(),
        pods: i.pods.reader(),
        endpoints: i.endpoints.reader(),
        gone: Arc::default(),
    });
    let (q, gone) = (queue.clone(), Arc::clone(&me.gone));
    me.services.on_change(move |change| {
        let key = change.object().key();
        if matches!(change, Change::Deleted(_)) {
            gone.lock().insert(key.clone());
        }
        q.add(key);
    });
    me.endpoints.on_change(enqueue_self(&queue));
    crate::endpointslice::enqueue_services_of_pods(ctx, &queue, ctx.config.batch_periods.endpoints);
    ctx.run_queue_of(me.services.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

impl EndpointsController {
    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let current = self.endpoints.get(key);
        let Some(service) = self.services.get(key) else {
            let went = self.gone.lock().contains(key);
            if current.is_some_and(|e| went || e.metadata.labels.contains_key(MANAGED_BY)) {
                match self.client.delete::<EndpointsView>(&key.namespace, &key.name, &DeleteOptions::default()).await {
                    Err(e) if !e.is_not_found() => return Err(e.into()),
                    _ => {}
                }
            }
            self.gone.lock().remove(key);
            return Ok(());
        };
        self.gone.lock().remove(key);
        if service.spec.r#type == "ExternalName" || service.metadata.is_deleting() {
            return Ok(());
        }
        let Some(selector) = service.spec.selector.as_ref() else { return Ok(()) };
        let selector = LabelSelector::from_map(selector);
        let mut pods = self.pods.in_namespace(&key.namespace);
        pods.retain(|p| selector.matches(&p.metadata.labels));
        let (subsets, cut) = subsets(&service, &pods);
        let mut labels = BTreeMap::clone(&service.metadata.labels);
        labels.insert(MANAGED_BY.into(), MANAGER.into());
        if is_headless(&service) {
            labels.insert(HEADLESS.into(), String::new());
        } else {
            labels.remove(HEADLESS);
        }
        let result = match current {
            Some(e) => {
                let noted = e.metadata.annotations.contains_key(OVER_CAPACITY);
                if e.subsets == subsets && e.metadata.labels == labels && noted == cut {
                    return Ok(());
                }
                self.replace(&e.metadata, labels, &subsets, cut).await
            }
            None => {
                let mut body = json!({"apiVersion": "v1", "kind": "Endpoints",
                    "metadata": {"name": key.name, "namespace": key.namespace, "labels": labels}});
                kelson_meta::tree::put_unless(&mut body, "subsets", json!(subsets), subsets.is_empty());
                if cut {
                    body["metadata"]["annotations"] = json!({OVER_CAPACITY: "truncated"});
                }
                self.client.create::<EndpointsView>(&key.namespace, &body).await.map(|_| ())
            }
        };
        match result {
            Err(e) if e.is_namespace_terminating() => Ok(()),
            Err(e) => Err(e.into()),
            Ok(()) => Ok(()),
        }
    }

    /// Replaces an observed object without reading it first, since all fields except metadata belong to this
    /// controller. The object of a large service has 200 KB, most of which is unchanged.
    async fn replace(
        &self,
        seen: &ObjectMeta,
        labels: BTreeMap<String, String>,
        subsets: &[Subset],
        cut: bool,
    ) -> Result<(), ClientError> {
        let mut metadata = ObjectMeta { labels: LabelMap::from(labels), ..seen.clone() };
        if cut {
            metadata.annotations.insert(OVER_CAPACITY.into(), "truncated".into());
        } else {
            metadata.annotations.remove(OVER_CAPACITY);
        }
        let body = EndpointsDocument { api_version: "v1", kind: "Endpoints", metadata: &metadata, subsets };
        let body = serde_json::to_vec(&body).map_err(|e| ClientError::Request(e.to_string()))?;
        let path = format!("{}/{}", EndpointsView::TYPE.path(&seen.namespace), seen.name);
        self.client.call(Method::PUT, &path, "application/json", body.into()).await.map(|_| ())
    }
}

/// An Endpoints object for a write.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EndpointsDocument<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: &'a ObjectMeta,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    subsets: &'a [Subset],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, ip: &str, ready: &str) -> Arc<PodView> {
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name, "uid": name, "namespace": "n"},
                "spec": {"nodeName": "n1"},
                "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": ready}]}}))
            .unwrap(),
        )
    }

    #[test]
    fn subsets_are_canonical() {
        let s: ServiceView = serde_json::from_value(
            json!({"metadata": {"name": "web"}, "spec": {"ports": [{"name": "h", "port": 80, "targetPort": 8080}]}}),
        )
        .unwrap();
        let pods = [pod("b", "10.0.0.2", "True"), pod("a", "10.0.0.9", "True"), pod("c", "10.0.0.1", "False")];
        let (got, cut) = subsets(&s, &pods);
        assert_eq!((got.len(), cut), (1, false));
        let ips: Vec<_> = got[0].addresses.iter().map(|a| a.ip.as_str()).collect();
        assert_eq!(ips, ["10.0.0.2", "10.0.0.9"]);
        assert_eq!(got[0].not_ready_addresses[0].ip, "10.0.0.1");
        assert_eq!(
            got[0].ports,
            [SubsetPort { name: "h".into(), port: 8080, protocol: "TCP".into(), app_protocol: None }]
        );
        let many: Vec<_> =
            (0..1001).map(|i| pod(&format!("p{i:04}"), &format!("10.1.{}.{}", i / 250, i % 250), "True")).collect();
        let (got, cut) = subsets(&s, &many);
        assert_eq!((got[0].addresses.len(), cut), (ADDRESSES_MAX, true));
    }
}
