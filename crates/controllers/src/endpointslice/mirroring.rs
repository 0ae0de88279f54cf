//! Mirrors manually maintained Endpoints of services without a selector into slices. Upstream
//! `pkg/controller/endpointslicemirroring`.
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use kelson_client::{Change, Client, DeleteOptions, EventRecorder, EventType, Object, ObjectRef, WorkQueue};
use kelson_meta::ObjectKey;
use serde_json::json;

use super::MANAGED_BY;
use super::core::{Group, plan};
use crate::shared::context::{Context, SyncError, WORKERS, enqueue_self, update_value};
use crate::shared::expectations::Expectations;
use crate::shared::informers::SharedInformer;
use crate::views::{
    Address, Endpoint, EndpointConditions, EndpointSliceView, EndpointsView, Port, SERVICE_NAME_LABEL, ServiceView,
    Subset, SubsetPort,
};

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

/// Annotations that concern only the Endpoints object.
const NOT_MIRRORED: [&str; 2] =
    ["endpoints.kubernetes.io/last-change-trigger-time", "kubectl.kubernetes.io/last-applied-configuration"];
/// The source of this controller's events.
const COMPONENT: &str = "endpoint-slice-mirroring-controller";

/// The mirrored content of Endpoints.
#[derive(Debug, Default)]
struct Mirrored {
    groups: BTreeMap<Group, Vec<Endpoint>>,
    /// The number of invalid addresses.
    invalid: usize,
    /// The number of addresses above the maximum.
    surplus: usize,
}

/// Addresses by IP and target UID, and whether they are ready.
type Readiness<'s> = BTreeMap<(&'s str, &'s str), bool>;

/// Returns the content of slices for these subsets, with at most `most` addresses per subset. The subsets are first
/// normalized: ports with the same addresses in the same state are combined, and an address that is unready in one
/// subset is unready.
fn mirrored(subsets: &[Subset], most: usize) -> Mirrored {
    let mut addresses: BTreeMap<(&str, &str), &Address> = BTreeMap::new();
    let mut by_port: BTreeMap<Option<&SubsetPort>, Readiness<'_>> = BTreeMap::new();
    for s in subsets {
        // Addresses without ports count, too.
        let ports = s.ports.iter().map(Some).chain(s.ports.is_empty().then_some(None));
        let ready = s.addresses.iter().map(|a| (a, true));
        let all: Vec<(&Address, bool)> = ready.chain(s.not_ready_addresses.iter().map(|a| (a, false))).collect();
        for port in ports {
            let readiness = by_port.entry(port).or_default();
            for &(a, ready) in &all {
                let key = (a.ip.as_str(), a.target_ref.as_ref().map_or("", |t| t.uid.as_str()));
                addresses.entry(key).or_insert(a);
                *readiness.entry(key).or_insert(true) &= ready;
            }
        }
    }
    let mut canonical: BTreeMap<Readiness<'_>, Vec<Port>> = BTreeMap::new();
    for (port, readiness) in by_port {
        let port = port.map(|p| Port {
            name: Some(p.name.clone()),
            protocol: Some(p.protocol.clone()),
            port: Some(p.port),
            app_protocol: p.app_protocol.clone(),
        });
        canonical.entry(readiness).or_default().extend(port);
    }
    let mut out = Mirrored::default();
    for (readiness, mut ports) in canonical {
        ports.sort();
        let of_state = |state: bool| readiness.iter().filter(move |(_, ready)| **ready == state);
        let mut taken = 0;
        for (key, ready) in of_state(true).chain(of_state(false)) {
            let Ok(ip) = key.0.parse::<IpAddr>() else {
                out.invalid += 1;
                continue;
            };
            if taken >= most {
                out.surplus += 1;
                continue;
            }
            taken += 1;
            let family = if ip.is_ipv6() { "IPv6" } else { "IPv4" };
            out.groups.entry((family.into(), ports.clone())).or_default().push(endpoint(addresses[key], *ready));
        }
    }
    out
}

fn endpoint(a: &Address, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![a.ip.clone()],
        conditions: EndpointConditions { ready: Some(ready), serving: None, terminating: None },
        hostname: (!a.hostname.is_empty()).then(|| a.hostname.clone()),
        target_ref: a.target_ref.clone(),
        node_name: a.node_name.clone(),
        zone: None,
        hints: None,
    }
}

/// Whether the Endpoints are mirrored.
fn is_mirrored(e: &EndpointsView, service: Option<&ServiceView>) -> bool {
    let skipped = e.metadata.labels.get(SKIP).is_some_and(|v| v == "true");
    let election = e.metadata.annotations.contains_key(LEADER);
    !skipped && !election && service.is_some_and(|s| s.spec.selector.as_ref().is_none_or(BTreeMap::is_empty))
}

struct EndpointSliceMirroringController {
    /// The maximum number of addresses mirrored per subset, and of endpoints per slice.
    most: usize,
    client: Client,
    recorder: EventRecorder,
    services: SharedInformer<ServiceView>,
    endpoints: SharedInformer<EndpointsView>,
    slices: SharedInformer<EndpointSliceView>,
    expectations: Arc<Expectations>,
}

/// Starts the mirroring controller.
pub fn start(ctx: &Arc<Context>) {
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let (i, client) = (&ctx.informers, ctx.client());
    let me = Arc::new(EndpointSliceMirroringController {
        most: ctx.config.slices.mirrored,
        recorder: ctx.recorder(&client, COMPONENT),
        client,
        services: i.services.reader(),
        endpoints: i.endpoints.reader(),
        slices: i.endpoint_slices.reader(),
        expectations: Arc::default(),
    });
    me.services.on_change(enqueue_self(&queue));
    let (q, wait) = (queue.clone(), ctx.config.batch_periods.mirrored);
    me.endpoints.on_change(move |change| q.add_after(change.object().key(), wait));
    let (q, e) = (queue.clone(), Arc::clone(&me.expectations));
    me.slices.on_change(move |change| {
        let slice = change.object();
        let Some(service) = slice.metadata.labels.get(SERVICE_NAME_LABEL).filter(|_| is_ours(slice)) else { return };
        let key = ObjectKey::new(&slice.metadata.namespace, service);
        if matches!(change, Change::Added(_)) {
            e.creation_observed(&key);
        }
        q.add(key);
    });
    ctx.run_queue_of(me.endpoints.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

fn is_ours(s: &EndpointSliceView) -> bool {
    s.metadata.labels.get(MANAGED_BY).is_some_and(|m| m == MANAGER)
}

impl EndpointSliceMirroringController {
    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        if !self.expectations.satisfied(key) {
            return Ok(());
        }
        let mut existing = self.slices.in_namespace(&key.namespace);
        existing.retain(|s| is_ours(s) && s.metadata.labels.get(SERVICE_NAME_LABEL) == Some(&key.name));
        let source = self.endpoints.get(key);
        let service = self.services.get(key);
        let Some(source) = source.filter(|e| is_mirrored(e, service.as_deref())) else {
            for s in &existing {
                self.delete(&s.metadata.namespace, &s.metadata.name).await?;
            }
            self.expectations.forget(key);
            return Ok(());
        };
        let mut labels = BTreeMap::clone(&source.metadata.labels);
        labels.insert(SERVICE_NAME_LABEL.into(), key.name.clone());
        labels.insert(MANAGED_BY.into(), MANAGER.into());
        let mut annotations = source.metadata.annotations.clone();
        annotations.retain(|name, _| !NOT_MIRRORED.contains(&name.as_str()));
        let mirrored = mirrored(&source.subsets, self.most);
        self.announce(&source, &mirrored);
        let outdated = |s: &EndpointSliceView| s.metadata.labels != labels || s.metadata.annotations != annotations;
        // Without addresses there are no slices, so no family needs an empty one.
        let plan = plan(&[], mirrored.groups, &existing, outdated, self.most);
        if !plan.create.is_empty() {
            self.expectations.expect_creations(key, plan.create.len());
        }
        let mut left = plan.create.len();
        for ((family, ports), endpoints) in &plan.create {
            let body = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"generateName": format!("{}-", key.name), "namespace": key.namespace, "labels": labels, "annotations": annotations,
                    "ownerReferences": [crate::shared::ownership::controller_ref(&*source)]},
                "addressType": family, "endpoints": endpoints, "ports": ports});
            if let Err(e) = self.client.create::<EndpointSliceView>(&key.namespace, &body).await {
                for _ in 0..left {
                    self.expectations.creation_observed(key);
                }
                return if e.is_namespace_terminating() { Ok(()) } else { Err(e.into()) };
            }
            left -= 1;
        }
        for (name, endpoints) in &plan.update {
            let seen = existing.iter().find(|s| s.name() == name).map_or("", |s| s.resource_version());
            update_value::<EndpointSliceView>(&self.client, &key.namespace, name, "", seen, |v| {
                v["metadata"]["labels"] = json!(labels);
                v["metadata"]["annotations"] = json!(annotations);
                v["endpoints"] = json!(endpoints);
            })
            .await?;
        }
        for name in &plan.delete {
            self.delete(&key.namespace, name).await?;
        }
        Ok(())
    }

    /// Records events for addresses that are not mirrored.
    fn announce(&self, source: &EndpointsView, mirrored: &Mirrored) {
        let warn = |reason: &str, message: String| {
            self.recorder.event(&ObjectRef::of(source), EventType::Warning, reason, message);
        };
        if mirrored.invalid > 0 {
            let message = format!("Skipped {} invalid IP addresses when mirroring to EndpointSlices", mirrored.invalid);
            warn("InvalidIPAddress", message);
        }
        if mirrored.surplus > 0 {
            let message = format!(
                "A max of {} addresses can be mirrored to EndpointSlices per Endpoints subset. {} addresses were skipped",
                self.most,
                mirrored.invalid + mirrored.surplus
            );
            warn("TooManyAddressesToMirror", message);
        }
    }

    async fn delete(&self, namespace: &str, name: &str) -> Result<(), SyncError> {
        match self.client.delete::<EndpointSliceView>(namespace, name, &DeleteOptions::default()).await {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use kelson_simulation::Api;
    use serde_json::{Value, json};

    use super::mirrored;
    use crate::Config;
    use crate::testing::run;

    /// Returns the mirrored subsets as `PORTS: ADDRESSES`. An address that is not ready has a `!`.
    fn shown(subsets: Value, most: usize) -> (Vec<String>, usize, usize) {
        let found = mirrored(&serde_json::from_value::<Vec<_>>(subsets).unwrap(), most);
        let group = |((_, ports), endpoints): (&super::Group, &Vec<super::Endpoint>)| {
            let ports: Vec<String> = ports.iter().map(|p| p.port.unwrap().to_string()).collect();
            let address = |e: &super::Endpoint| {
                format!("{}{}", e.addresses[0], if e.conditions.ready == Some(true) { "" } else { "!" })
            };
            format!("{}: {}", ports.join(" "), endpoints.iter().map(address).collect::<Vec<_>>().join(" "))
        };
        (found.groups.iter().map(group).collect(), found.invalid, found.surplus)
    }

    #[test]
    fn subsets_are_brought_into_their_canonical_form() {
        let port = |n: u16| json!([{"name": format!("p{n}"), "port": n, "protocol": "TCP"}]);
        let subset = |ready: &[&str], not_ready: &[&str], ports: Value| {
            let addresses = |all: &[&str]| all.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>();
            json!({"addresses": addresses(ready), "notReadyAddresses": addresses(not_ready), "ports": ports})
        };
        let (a, b) = ("192.0.2.1", "192.0.2.2");
        for (subsets, want) in [
            (json!([subset(&[a], &[], port(1)), subset(&[a], &[], port(2))]), vec!["1 2: 192.0.2.1"]),
            (
                json!([subset(&[a, b], &[], port(1)), subset(&[a], &[], port(2))]),
                vec!["1: 192.0.2.1 192.0.2.2", "2: 192.0.2.1"],
            ),
            (json!([subset(&[a], &[], port(1)), subset(&[], &[a], port(1))]), vec!["1: 192.0.2.1!"]),
            (json!([subset(&[a], &[], port(1)), subset(&[], &[a], port(2))]), vec!["1: 192.0.2.1", "2: 192.0.2.1!"]),
            (json!([subset(&[b], &[a], port(1))]), vec!["1: 192.0.2.2 192.0.2.1!"]),
            (json!([subset(&[a], &[], json!([]))]), vec![": 192.0.2.1"]),
        ] {
            assert_eq!(shown(subsets.clone(), 10).0, want, "{subsets}");
        }
        let many: Vec<String> = (0..12).map(|n| format!("192.0.2.{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).chain(["nonsense"]).collect();
        let (groups, invalid, surplus) = shown(json!([subset(&many, &[], port(1))]), 10);
        assert_eq!((groups[0].split(' ').count() - 1, invalid, surplus), (10, 1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn annotations_are_mirrored_and_omitted_addresses_are_reported() {
        let api = Api::start().await;
        let _running = run(&api, &["endpointslice-mirroring-controller"], Config::default()).await;
        api.namespace("n").await;
        let service = json!({"metadata": {"name": "s", "namespace": "n"}, "spec": {"ports": [{"port": 80}]}});
        api.create("v1/services", service).await;
        let annotations = json!({"example.com/a": "b", "endpoints.kubernetes.io/last-change-trigger-time": "t",
            "kubectl.kubernetes.io/last-applied-configuration": "{}"});
        let addresses: Vec<Value> = (0..1010).map(|n| json!({"ip": format!("10.1.{}.{}", n / 250, n % 250)})).collect();
        api.create(
            "v1/endpoints",
            json!({"metadata": {"name": "s", "namespace": "n", "annotations": annotations},
            "subsets": [{"addresses": addresses, "ports": [{"port": 8080, "protocol": "TCP"}]}]}),
        )
        .await;
        api.settle().await;
        let slices = api.list("discovery.k8s.io/v1/endpointslices").await;
        assert_eq!(slices.len(), 1);
        assert_eq!(slices[0]["endpoints"].as_array().unwrap().len(), 1000);
        assert_eq!(slices[0]["metadata"]["annotations"], json!({"example.com/a": "b"}));
        let reported = "TooManyAddressesToMirror A max of 1000 addresses can be mirrored to EndpointSlices per Endpoints \
                    subset. 10 addresses were skipped";
        assert!(api.events().await.iter().any(|e| e == reported), "{:?}", api.events().await);
        let other = |e: &mut Value| e["metadata"]["annotations"]["example.com/a"] = json!("c");
        api.change("v1/endpoints", "n", "s", other).await;
        api.settle().await;
        let slices = api.list("discovery.k8s.io/v1/endpointslices").await;
        assert_eq!(slices[0]["metadata"]["annotations"], json!({"example.com/a": "c"}));
    }

    #[tokio::test(start_paused = true)]
    async fn by_hand_only() {
        let api = Api::start().await;
        let _running = run(&api, &["endpointslice-mirroring-controller"], Config::default()).await;
        api.namespace("n").await;
        let slices = async |api: &Api| api.list("discovery.k8s.io/v1/endpointslices").await;
        for (name, spec, labels) in [
            ("hand", json!({"ports": [{"port": 80}]}), json!({})),
            ("selected", json!({"selector": {"a": "b"}, "ports": [{"port": 80}]}), json!({})),
            ("skipped", json!({"ports": [{"port": 80}]}), json!({"endpointslice.kubernetes.io/skip-mirror": "true"})),
        ] {
            api.create("v1/services", json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec})).await;
            api.create("v1/endpoints", json!({"metadata": {"name": name, "namespace": "n", "labels": labels},
                "subsets": [{"addresses": [{"ip": "192.0.2.1"}, {"ip": "fd00::1"}], "notReadyAddresses": [{"ip": "192.0.2.2"}],
                    "ports": [{"port": 8080, "protocol": "TCP"}]}]})).await;
        }
        api.settle().await;
        let all = slices(&api).await;
        assert_eq!(all.len(), 2, "one per family of the one kept by hand");
        assert!(all.iter().all(|s| s["metadata"]["labels"]["kubernetes.io/service-name"] == "hand"));
        let four = all.iter().find(|s| s["addressType"] == "IPv4").unwrap();
        assert_eq!(four["endpoints"][1], json!({"addresses": ["192.0.2.2"], "conditions": {"ready": false}}));
        api.change("v1/endpoints", "n", "hand", |v| v["subsets"][0]["addresses"] = json!([{"ip": "192.0.2.9"}])).await;
        api.settle().await;
        assert_eq!(slices(&api).await.len(), 1);
        api.remove("v1/services", "n", "hand").await;
        api.settle().await;
        assert!(slices(&api).await.is_empty());
    }
}
