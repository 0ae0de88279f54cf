//! Announces the addresses of services that are announced from this node: the load balancer's controller gives each service
//! its addresses (`status.loadBalancer`) and names the node in an annotation.
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{
    Client, EventRecorder, EventType, Informer, InformerConfig, InformerHandle, ObjectRef, ResourceType, slim_object,
};
use kelson_meta::{Clock, ObjectKey, ObjectMeta, null_default};
use kelson_tasks::{OnPanic, Tasks};
use serde::Deserialize;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::announcer::Announcer;
use crate::error::AnnounceError;
use crate::speaker::Rival;

/// Names the node that announces the addresses of a service. Written by the load balancer's controller.
pub const ANNOUNCED_BY: &str = "servicelb.kelson.dev/announced-by";
/// Marks the services to which the controller gave addresses.
const MANAGED: &str = "servicelb.kelson.dev/managed";
/// The interval at which an address is claimed back that another machine uses as well (RFC 5227, `DEFEND_INTERVAL`), and at
/// which a node asks again whether it should announce an address that it gave up.
const DEFEND: Duration = Duration::from_secs(10);
/// The timeout for asking the API which node announces an address.
const ASK_MAX: Duration = Duration::from_secs(3);

/// The fields of a Service that are read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceView {
    metadata: ObjectMeta,
    #[serde(deserialize_with = "null_default")]
    spec: Spec,
    #[serde(deserialize_with = "null_default")]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    r#type: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(deserialize_with = "null_default")]
    load_balancer: Balancer,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Balancer {
    #[serde(deserialize_with = "null_default")]
    ingress: Vec<Ingress>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Ingress {
    ip: String,
}

slim_object!(ServiceView, ResourceType::namespaced("", "v1", "services", "Service"));

impl ServiceView {
    /// The addresses that `node` announces for it.
    fn addresses<'a>(&'a self, node: &str) -> impl Iterator<Item = IpAddr> + use<'a> {
        let annotations = &self.metadata.annotations;
        let is_ours = self.spec.r#type == "LoadBalancer"
            && annotations.contains_key(MANAGED)
            && annotations.get(ANNOUNCED_BY).is_some_and(|named| **named == *node);
        let ingress = is_ours.then_some(&self.status.load_balancer.ingress);
        ingress.into_iter().flatten().filter_map(|ingress| ingress.ip.parse().ok())
    }
}

/// Announces the addresses of services from one node until its group of tasks ends.
pub struct ServiceAnnouncer {
    node: String,
    client: Client,
    events: EventRecorder,
    services: InformerHandle<ServiceView>,
    changed: Arc<Notify>,
    announcer: Announcer,
    /// Addresses that another machine uses and that are not announced until the API confirms that they should be.
    yielded: BTreeSet<IpAddr>,
    /// When an address was last claimed back.
    defended: BTreeMap<IpAddr, Instant>,
}

impl ServiceAnnouncer {
    /// Starts it for the node `node` with the address `address`. `client` must be allowed to read services.
    ///
    /// # Errors
    /// The system has no free socket.
    pub fn start(
        node: &str,
        address: IpAddr,
        client: Client,
        clock: Arc<dyn Clock>,
        tasks: &Tasks,
    ) -> Result<(), AnnounceError> {
        let tasks = tasks.child("service-announcer");
        let (announcer, rivals) = Announcer::start(Some(address), &tasks)?;
        let changed = Arc::new(Notify::new());
        let wake = Arc::clone(&changed);
        let config = InformerConfig { fields: "spec.type=LoadBalancer".to_owned(), ..InformerConfig::default() };
        let services = Informer::<ServiceView>::new(client.clone(), config).on_change(move |_| wake.notify_one());
        let me = Self {
            node: node.to_owned(),
            events: EventRecorder::start_in(&tasks, client.clone(), clock, "kelson-announcer", node),
            client,
            services: services.start_in(&tasks),
            changed,
            announcer,
            yielded: BTreeSet::new(),
            defended: BTreeMap::new(),
        };
        tasks.spawn("service-announcer", OnPanic::EndProcess, me.keep(rivals));
        Ok(())
    }

    async fn keep(mut self, mut rivals: mpsc::Receiver<Rival>) {
        let mut again = interval(DEFEND);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.changed.notified() => self.update(),
                _ = again.tick(), if !self.yielded.is_empty() => self.confirm().await,
                rival = rivals.recv() => match rival {
                    Some(rival) => self.on_rival(rival).await,
                    None => return,
                },
            }
        }
    }

    /// The addresses that the cache says are ours.
    fn wanted(&self) -> BTreeMap<IpAddr, ObjectKey> {
        let services = self.services.list();
        let all = services.iter().flat_map(|s| s.addresses(&self.node).map(|ip| (ip, s.metadata.key())));
        all.collect()
    }

    fn update(&mut self) {
        let mut wanted: BTreeSet<IpAddr> = self.wanted().into_keys().collect();
        self.yielded.retain(|ip| wanted.contains(ip));
        self.defended.retain(|ip, _| wanted.contains(ip));
        wanted.retain(|ip| !self.yielded.contains(ip));
        self.announcer.set(&wanted);
    }

    /// Asks again about the addresses that were given up.
    async fn confirm(&mut self) {
        if self.yielded.is_empty() {
            return;
        }
        let wanted = self.wanted();
        for ip in self.yielded.clone() {
            if let Some(key) = wanted.get(&ip)
                && self.is_confirmed(ip, key).await
            {
                self.yielded.remove(&ip);
            }
        }
        self.update();
    }

    /// Another machine uses an address. Where the API says that this node announces it, it is claimed back. A node that
    /// cannot ask may be cut off from the cluster, which then announces the address elsewhere.
    async fn on_rival(&mut self, rival: Rival) {
        let Rival { ip, mac } = rival;
        let recently = |at: &Instant| at.elapsed() < DEFEND;
        if self.yielded.contains(&ip) || self.defended.get(&ip).is_some_and(recently) {
            return;
        }
        let Some(key) = self.wanted().remove(&ip) else { return };
        if self.is_confirmed(ip, &key).await {
            self.defended.insert(ip, Instant::now());
            self.announcer.repeat(ip);
            tracing::warn!(%ip, %mac, service = %key, "another machine uses the address of a service; announcing it again");
            if let Some(service) = self.services.get(&key) {
                let text = format!("Address {ip} is also in use by the machine with the hardware address {mac}");
                self.events.event(&ObjectRef::of(&*service), EventType::Warning, "AddressConflict", text);
            }
        } else {
            self.yielded.insert(ip);
            tracing::info!(%ip, %mac, service = %key, "another machine announces the address; this node does not any more");
            self.update();
        }
    }

    /// Whether the API says now that this node announces the address for the service.
    async fn is_confirmed(&self, ip: IpAddr, key: &ObjectKey) -> bool {
        let asked = timeout(ASK_MAX, self.client.get::<ServiceView>(&key.namespace, &key.name)).await;
        asked.is_ok_and(|answer| answer.is_ok_and(|service| service.addresses(&self.node).any(|own| own == ip)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_addresses_for_this_node_are_announced() {
        let service = |kind: &str, managed: bool, node: &str| -> ServiceView {
            let mut annotations = json!({ANNOUNCED_BY: node});
            if managed {
                annotations[MANAGED] = "true".into();
            }
            let ingress = json!([{"ip": "192.0.2.10"}, {"hostname": "x"}, {"ip": "2001:db8::10"}]);
            let object = json!({"metadata": {"name": "web", "annotations": annotations},
                "spec": {"type": kind}, "status": {"loadBalancer": {"ingress": ingress}}});
            serde_json::from_value(object).unwrap()
        };
        let count = |service: ServiceView| service.addresses("a").count();
        assert_eq!(count(service("LoadBalancer", true, "a")), 2);
        assert_eq!(count(service("LoadBalancer", true, "b")), 0);
        assert_eq!(count(service("LoadBalancer", false, "a")), 0, "another load balancer's");
        assert_eq!(count(service("ClusterIP", true, "a")), 0);
    }
}
