//! Mirrors Endpoints that people keep by hand, for services without a selector, into slices. Upstream
//! `pkg/controller/endpointslicemirroring`.
use std::collections::BTreeMap;
use std::sync::Arc;

use kelson_client::{Change, Client, DeleteOptions, Object, WorkQueue};
use kelson_meta::ObjectKey;
use serde_json::json;

use super::MANAGED_BY;
use super::core::{Group, plan};
use crate::shared::context::{Context, SyncError, WORKERS, enqueue_self, update_value};
use crate::shared::expectations::Expectations;
use crate::shared::informers::SharedInformer;
use crate::views::{
    Address, Endpoint, EndpointConditions, EndpointSliceView, EndpointsView, Port, SERVICE_NAME_LABEL, ServiceView,
    Subset,
};

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

/// The slices' content for these subsets, of each of which no more than `most` addresses are mirrored.
fn mirrored(subsets: &[Subset], most: usize) -> BTreeMap<Group, Vec<Endpoint>> {
    let mut groups: BTreeMap<Group, Vec<Endpoint>> = BTreeMap::new();
    for s in subsets {
        let mut ports: Vec<Port> = s
            .ports
            .iter()
            .map(|p| Port {
                name: Some(p.name.clone()),
                protocol: Some(p.protocol.clone()),
                port: Some(p.port),
                app_protocol: p.app_protocol.clone(),
            })
            .collect();
        ports.sort();
        let ready = s.addresses.iter().map(|a| (a, true));
        let not_ready = s.not_ready_addresses.iter().map(|a| (a, false));
        for (a, ready) in ready.chain(not_ready).take(most) {
            let family = if a.ip.contains(':') { "IPv6" } else { "IPv4" };
            groups.entry((family.into(), ports.clone())).or_default().push(endpoint(a, ready));
        }
    }
    groups
}

fn endpoint(a: &Address, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![a.ip.clone()],
        conditions: EndpointConditions { ready: Some(ready), serving: None, terminating: None },
        hostname: (!a.hostname.is_empty()).then(|| a.hostname.clone()),
        target_ref: a.target_ref.clone(),
        node_name: a.node_name.clone(),
        zone: None,
    }
}

/// Whether Endpoints are to be mirrored at all.
fn is_mirrored(e: &EndpointsView, service: Option<&ServiceView>) -> bool {
    let skipped = e.metadata.labels.get(SKIP).is_some_and(|v| v == "true");
    let election = e.metadata.annotations.contains_key(LEADER);
    !skipped && !election && service.is_some_and(|s| s.spec.selector.as_ref().is_none_or(BTreeMap::is_empty))
}

struct EndpointSliceMirroringController {
    /// Addresses mirrored of one subset at most, and endpoints in one slice.
    most: usize,
    client: Client,
    services: SharedInformer<ServiceView>,
    endpoints: SharedInformer<EndpointsView>,
    slices: SharedInformer<EndpointSliceView>,
    expectations: Arc<Expectations>,
}

/// Starts the mirroring controller.
pub fn start(ctx: &Arc<Context>) {
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let i = &ctx.informers;
    let me = Arc::new(EndpointSliceMirroringController {
        most: ctx.config.slices.mirrored,
        client: ctx.client(),
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
    ctx.run_queue(&queue, WORKERS, move |key| {
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
        // No family needs an empty slice here: what is not there is not mirrored.
        let plan =
            plan(&[], mirrored(&source.subsets, self.most), &existing, |s| s.metadata.labels != labels, self.most);
        if !plan.create.is_empty() {
            self.expectations.expect_creations(key, plan.create.len());
        }
        let mut left = plan.create.len();
        for ((family, ports), endpoints) in &plan.create {
            let body = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"generateName": format!("{}-", key.name), "namespace": key.namespace, "labels": labels,
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
                v["endpoints"] = json!(endpoints);
            })
            .await?;
        }
        for name in &plan.delete {
            self.delete(&key.namespace, name).await?;
        }
        Ok(())
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
    use serde_json::json;

    use crate::Config;
    use crate::testing::run;
    use kelson_simulation::Api;

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
