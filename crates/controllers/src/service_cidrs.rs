//! Service address ranges: each is ready once it has its finalizer, and a deleted one is kept until every allocated
//! address is in another range. Upstream `pkg/controller/servicecidrs`. The API server allocates addresses from the
//! ranges.
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use kelson_client::{Client, PatchKind, WorkQueue, WriteOptions};
use kelson_meta::{Clock, ObjectKey, format_seconds};
use serde_json::{Value, json};

use crate::shared::context::{Context, SyncError, enqueue_self};
use crate::shared::informers::SharedInformer;
use crate::views::condition::{self, Condition};
use crate::views::{IpAddressView, ServiceCidrView};

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// The time for which a deleted range is kept, so that every API server has observed the deletion and allocates no
/// address from it.
const DELETE_AFTER: Duration = Duration::from_secs(10);
const READY: &str = "Kubernetes Service CIDR is ready";
const IN_USE: &str =
    "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";

struct ServiceCidrController {
    client: Client,
    clock: Arc<dyn Clock>,
    cidrs: SharedInformer<ServiceCidrView>,
    addresses: SharedInformer<IpAddressView>,
    queue: WorkQueue<ObjectKey>,
}

/// Whether an allocated address is in no other range.
fn is_needed(gone: &ServiceCidrView, all: &[Arc<ServiceCidrView>], addresses: &[IpAddr]) -> bool {
    let others = || all.iter().filter(|c| c.metadata.name != gone.metadata.name).flat_map(|c| c.ranges());
    let alone: Vec<IpNet> = gone.ranges().filter(|r| !others().any(|o| o.contains(r))).collect();
    let orphan = |a: &IpAddr| alone.iter().any(|r| r.contains(a)) && !others().any(|o| o.contains(a));
    addresses.iter().any(orphan)
}

/// Starts the controller.
pub fn start(ctx: &Arc<Context>) {
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let me = Arc::new(ServiceCidrController {
        client: ctx.client(),
        clock: Arc::clone(&ctx.clock),
        cidrs: ctx.informers.service_cidrs.reader(),
        addresses: ctx.informers.ip_addresses.reader(),
        queue: queue.clone(),
    });
    me.cidrs.on_change(enqueue_self(&queue));
    // A new range or a released address may allow the deletion of another range.
    let going = |cidrs: &SharedInformer<ServiceCidrView>, queue: &WorkQueue<ObjectKey>| {
        let all = cidrs.list();
        all.iter().filter(|c| c.metadata.is_deleting()).for_each(|c| queue.add(ObjectKey::new("", &c.metadata.name)));
    };
    let (q, cidrs) = (queue.clone(), me.cidrs.clone());
    me.cidrs.on_change(move |_| going(&cidrs, &q));
    let (q, cidrs) = (queue.clone(), me.cidrs.clone());
    me.addresses.on_change(move |_| going(&cidrs, &q));
    ctx.run_queue_of(me.cidrs.clone(), &queue, 1, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

impl ServiceCidrController {
    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(cidr) = self.cidrs.get(key) else { return Ok(()) };
        let held = cidr.metadata.finalizers.iter().any(|f| f == FINALIZER);
        let Some(since) = &cidr.metadata.deletion_timestamp else {
            if !held {
                self.write(&cidr, "", &json!({"metadata": {"finalizers": [FINALIZER]}})).await?;
            }
            return self.say(&cidr, "True", "", READY).await;
        };
        let addresses: Vec<IpAddr> = self.addresses.list().iter().filter_map(|a| a.of_a_service()).collect();
        if is_needed(&cidr, &self.cidrs.list(), &addresses) {
            return self.say(&cidr, "False", "Terminating", IN_USE).await;
        }
        let since = since.parse::<jiff::Timestamp>().unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let passed = self.clock.now().duration_since(since).unsigned_abs();
        if passed < DELETE_AFTER {
            self.queue.add_after(key.clone(), DELETE_AFTER - passed);
            return Ok(());
        }
        if held {
            self.write(&cidr, "", &json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}})).await?;
        }
        Ok(())
    }

    async fn say(&self, cidr: &ServiceCidrView, status: &str, reason: &str, message: &str) -> Result<(), SyncError> {
        let has = condition::find(&cidr.status.conditions, "Ready");
        if has.is_some_and(|c| c.status == status && c.reason == reason && c.message == message) {
            return Ok(());
        }
        let condition = Condition::new("Ready", status, reason, message, &format_seconds(self.clock.now()));
        let mut condition = json!(condition);
        condition["reason"] = json!(reason);
        self.write(cidr, "status", &json!({"status": {"conditions": [condition]}})).await
    }

    async fn write(&self, cidr: &ServiceCidrView, subresource: &str, patch: &Value) -> Result<(), SyncError> {
        let (name, o) = (&cidr.metadata.name, WriteOptions::default());
        match self.client.patch::<ServiceCidrView>("", name, subresource, PatchKind::Strategic, patch, &o).await {
            Err(e) if !e.is_not_found() => Err(e.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::testing::run;
    use kelson_simulation::Api;

    fn cidr(name: &str, ranges: &[&str]) -> Arc<ServiceCidrView> {
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"cidrs": ranges}})).unwrap())
    }

    #[test]
    fn which_ranges_are_needed() {
        let rows: &[(&[&str], &[&[&str]], &[&str], bool)] = &[
            (&["10.0.0.0/24"], &[], &[], false),
            (&["10.0.0.0/24"], &[], &["10.0.0.9"], true),
            (&["10.0.0.0/24"], &[], &["10.1.0.9"], false),
            (&["10.0.0.0/24"], &[&["10.0.0.0/16"]], &["10.0.0.9"], false),
            (&["10.0.0.0/24"], &[&["10.0.0.0/24"]], &["10.0.0.9"], false),
            (&["10.0.0.0/16"], &[&["10.0.0.0/24"]], &["10.0.0.9"], false),
            (&["10.0.0.0/16"], &[&["10.0.0.0/24"]], &["10.0.1.9"], true),
            (&["10.0.0.0/24", "fd00::/112"], &[&["10.0.0.0/16"]], &["10.0.0.9", "fd00::9"], true),
        ];
        for (ranges, others, addresses, want) in rows {
            let gone = cidr("gone", ranges);
            let mut all = vec![Arc::clone(&gone)];
            all.extend(others.iter().enumerate().map(|(i, r)| cidr(&format!("other{i}"), r)));
            let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
            assert_eq!(is_needed(&gone, &all, &addresses), *want, "{ranges:?} {others:?} {addresses:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_range_goes_when_no_address_needs_it() {
        let api = Api::start().await;
        let (cidrs, addresses) = ("networking.k8s.io/v1/servicecidrs", "networking.k8s.io/v1/ipaddresses");
        let _running = run(&api, &["service-cidr-controller"], Config::default()).await;
        api.create(cidrs, json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.99.0.0/24"]}})).await;
        let labels = json!({"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io", "ipaddress.kubernetes.io/ip-family": "IPv4"});
        let parent = json!({"resource": "services", "namespace": "default", "name": "s"});
        api.create(
            addresses,
            json!({"metadata": {"name": "10.99.0.7", "labels": labels}, "spec": {"parentRef": parent}}),
        )
        .await;
        api.settle().await;
        let ready = async || {
            api.settle().await;
            let c = api.get(cidrs, "", "more").await?["status"]["conditions"][0].clone();
            Some((c["status"].as_str()?.to_owned(), c["reason"].as_str()?.to_owned()))
        };
        assert_eq!(api.get(cidrs, "", "more").await.unwrap()["metadata"]["finalizers"], json!([FINALIZER]));
        assert_eq!(ready().await, Some(("True".to_owned(), String::new())));
        api.delete(cidrs, "", "more", json!({})).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(ready().await, Some(("False".to_owned(), "Terminating".to_owned())));
        api.remove(addresses, "", "10.99.0.7").await;
        api.settle().await;
        assert!(api.get(cidrs, "", "more").await.is_none(), "its time was over already");
    }

    #[tokio::test(start_paused = true)]
    async fn services_have_addresses_of_every_ready_range() {
        let api = Api::start().await;
        let (cidrs, addresses) = ("networking.k8s.io/v1/servicecidrs", "networking.k8s.io/v1/ipaddresses");
        api.namespace("n").await;
        let service = |name: &str, ip: &str| {
            let spec = json!({"ports": [{"port": 80}], "clusterIP": ip});
            json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec})
        };
        let try_one = async |name: &str, ip: &str| {
            let made = api.try_create("v1/services", service(name, ip)).await;
            made.map(drop).map_err(|e| e.to_string())
        };
        api.create(cidrs, json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.99.0.0/24"]}})).await;
        assert!(try_one("early", "10.99.0.9").await.unwrap_err().contains("is not in the valid range"));
        let _running = run(&api, &["service-cidr-controller"], Config::default()).await;
        api.settle().await;
        assert_eq!(try_one("s", "10.99.0.9").await, Ok(()));
        assert!(try_one("t", "10.99.0.9").await.unwrap_err().contains("already allocated"));
        let parent = json!({"resource": "things", "name": "mine"});
        api.create(addresses, json!({"metadata": {"name": "10.99.0.8"}, "spec": {"parentRef": parent}})).await;
        assert!(try_one("u", "10.99.0.8").await.unwrap_err().contains("already allocated"), "somebody keeps it");
        api.delete(cidrs, "", "more", json!({})).await;
        assert!(try_one("v", "10.99.0.7").await.unwrap_err().contains("is not in the valid range"), "it is going");
    }
}
