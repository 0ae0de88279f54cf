//! The legacy Endpoints object of each service with a selector: what `kubectl get endpoints` shows. Upstream
//! `pkg/controller/endpoint`.
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use http::Method;
use kelson_client::{Change, Client, ClientError, DeleteOptions, Object as _, WorkQueue};
use kelson_meta::{LabelMap, LabelSelector, ObjectKey, ObjectMeta};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;

use crate::endpointslice::{HEADLESS, addresses, find_port, hostname, is_headless};
use crate::shared::context::{Context, SyncError, WORKERS};
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
    #[cfg(test)]
    tests::COMPUTED.set(tests::COMPUTED.get() + 1);
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
        let subset = match by_ports.get_mut(&ports) {
            Some(subset) => subset,
            None => {
                let new = Subset { ports: ports.clone(), ..Subset::default() };
                by_ports.entry(ports).or_insert(new)
            }
        };
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
    written: Arc<WrittenEndpoints>,
}

/// A hash of what was written last for each service. The event of the controller's write then needs no second look at all pods.
#[derive(Default)]
struct WrittenEndpoints {
    hasher: RandomState,
    hashes: Mutex<HashMap<ObjectKey, u64>>,
}

impl WrittenEndpoints {
    fn hash(&self, labels: &BTreeMap<String, String>, subsets: &[Subset], cut: bool) -> u64 {
        self.hasher.hash_one((labels, subsets, cut))
    }

    fn insert(&self, key: &ObjectKey, labels: &BTreeMap<String, String>, subsets: &[Subset], cut: bool) {
        let hash = self.hash(labels, subsets, cut);
        self.hashes.lock().insert(key.clone(), hash);
    }

    /// Whether this is what was written last.
    fn is_own(&self, endpoints: &EndpointsView) -> bool {
        let Some(hash) = self.hashes.lock().get(&endpoints.key()).copied() else { return false };
        let cut = endpoints.metadata.annotations.contains_key(OVER_CAPACITY);
        hash == self.hash(&endpoints.metadata.labels, &endpoints.subsets, cut)
    }
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
        written: Arc::default(),
    });
    let (q, gone) = (queue.clone(), Arc::clone(&me.gone));
    me.services.on_change(move |change| {
        let key = change.object().key();
        if matches!(change, Change::Deleted(_)) {
            gone.lock().insert(key.clone());
        }
        q.add(key);
    });
    let (q, written) = (queue.clone(), Arc::clone(&me.written));
    me.endpoints.on_change(move |change| {
        if matches!(change, Change::Deleted(_)) || !written.is_own(change.object()) {
            q.add(change.object().key());
        }
    });
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
            self.written.hashes.lock().remove(key);
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
        self.written.insert(key, &labels, &subsets, cut);
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
    use std::cell::Cell;

    use kelson_simulation::Api;

    use super::*;
    use crate::Config;
    use crate::testing::run;

    thread_local! {
        /// The number of times that the subsets of a service were computed in this thread.
        pub static COMPUTED: Cell<usize> = const { Cell::new(0) };
    }

    #[tokio::test(start_paused = true)]
    async fn a_readiness_change_is_computed_once() {
        let api = Api::start().await;
        let _running = run(&api, &["endpoints-controller"], Config::default()).await;
        api.namespace("a").await;
        let spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80}]});
        api.create("v1/services", json!({"metadata": {"name": "web", "namespace": "a"}, "spec": spec})).await;
        let status = |ip: &str, ready: &str| json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [{"type": "Ready", "status": ready}]});
        for (name, ip) in [("p", "10.0.0.1"), ("q", "10.0.0.2")] {
            let pod = json!({"metadata": {"name": name, "namespace": "a", "labels": {"app": "web"}},
                "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
            api.create("v1/pods", pod).await;
            api.change("v1/pods", "a", name, |v| v["status"] = status(ip, "True")).await;
        }
        api.settle().await;
        COMPUTED.set(0);
        api.change("v1/pods", "a", "p", |v| v["status"] = status("10.0.0.1", "False")).await;
        api.settle().await;
        let seen = api.get("v1/endpoints", "a", "web").await.unwrap();
        assert_eq!(seen["subsets"][0]["notReadyAddresses"][0]["ip"], "10.0.0.1");
        assert_eq!(COMPUTED.get(), 1, "the event of the controller's own write is no reason to compute again");
        // What another client writes is replaced.
        api.change("v1/endpoints", "a", "web", |v| v["subsets"] = json!([])).await;
        api.settle().await;
        let seen = api.get("v1/endpoints", "a", "web").await.unwrap();
        assert_eq!(seen["subsets"][0]["addresses"][0]["ip"], "10.0.0.2");
    }

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
