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
use crate::ethernet::Mac;
use crate::speaker::{Rival, RivalKind};

/// Names the node that announces the addresses of a service. Written by the load balancer's controller.
pub const ANNOUNCED_BY: &str = "servicelb.kelson.dev/announced-by";
/// Marks the services to which the controller gave addresses.
const MANAGED: &str = "servicelb.kelson.dev/managed";
/// The interval at which an address is claimed back that another machine uses as well (RFC 5227, `DEFEND_INTERVAL`), and at
/// which a node asks again whether it should announce an address that it gave up.
const DEFEND: Duration = Duration::from_secs(10);
/// The timeout for asking the API which node announces an address.
const ASK_MAX: Duration = Duration::from_secs(3);
/// A machine that asks again for an address after this time is likely to be the node that must announce it now: other machines use
/// another address after one answer.
const PROBE_INSISTS: Duration = Duration::from_millis(900);
/// From this conflict on, a machine with an address that this node must announce is reported. The pauses before it are longer than
/// the node that announced the address before takes to stop, also without the API.
const CONFLICTS_REPORTED: u32 = 4;

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
    /// The machine that asked last whether an address is free, and when.
    probed: BTreeMap<IpAddr, (Mac, Instant)>,
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
        Self::keep_in(&tasks, node, client, clock, (announcer, rivals));
        Ok(())
    }

    /// Starts it with an announcer and the receiver of what that reports.
    fn keep_in(
        tasks: &Tasks,
        node: &str,
        client: Client,
        clock: Arc<dyn Clock>,
        (announcer, rivals): (Announcer, mpsc::Receiver<Rival>),
    ) {
        let changed = Arc::new(Notify::new());
        let wake = Arc::clone(&changed);
        let config = InformerConfig { fields: "spec.type=LoadBalancer".to_owned(), ..InformerConfig::default() };
        let services = Informer::<ServiceView>::new(client.clone(), config).on_change(move |_| wake.notify_one());
        let me = Self {
            node: node.to_owned(),
            events: EventRecorder::start_in(tasks, client.clone(), clock, "kelson-announcer", node),
            client,
            services: services.start_in(tasks),
            changed,
            announcer,
            yielded: BTreeSet::new(),
            defended: BTreeMap::new(),
            probed: BTreeMap::new(),
        };
        tasks.spawn("service-announcer", OnPanic::EndProcess, me.keep(rivals));
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
        self.probed.retain(|ip, _| wanted.contains(ip));
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

    async fn on_rival(&mut self, rival: Rival) {
        let Some(key) = self.wanted().remove(&rival.ip).filter(|_| !self.yielded.contains(&rival.ip)) else { return };
        match rival.kind {
            RivalKind::User => self.defend(rival, &key).await,
            RivalKind::Prober => self.on_probe(rival, &key).await,
            RivalKind::Owner { conflicts } if conflicts >= CONFLICTS_REPORTED => self.report_owner(rival, &key),
            RivalKind::Owner { .. } => {}
        }
    }

    /// Another machine uses an address. Where the API says that this node announces it, it is claimed back. A node that
    /// cannot ask may be cut off from the cluster, which then announces the address elsewhere.
    async fn defend(&mut self, Rival { ip, mac, .. }: Rival, key: &ObjectKey) {
        if self.defended.get(&ip).is_some_and(|at| at.elapsed() < DEFEND) {
            return;
        }
        if self.is_confirmed(ip, key).await {
            self.defended.insert(ip, Instant::now());
            self.announcer.repeat(ip);
            tracing::warn!(%ip, %mac, service = %key, "another machine uses the address of a service; announcing it again");
            let text = format!("Address {ip} is also in use by the machine with the hardware address {mac}");
            self.report(key, text);
        } else {
            self.give_up(ip, mac, key);
        }
    }

    /// Another machine asks whether an address is free. If it insists, and the API does not confirm that this node announces the
    /// address, the other machine may be the node that must announce it now.
    async fn on_probe(&mut self, Rival { ip, mac, .. }: Rival, key: &ObjectKey) {
        let before = self.probed.insert(ip, (mac, Instant::now()));
        let insists = before.is_some_and(|(by, at)| by == mac && at.elapsed() >= PROBE_INSISTS);
        if insists && !self.is_confirmed(ip, key).await {
            self.give_up(ip, mac, key);
        }
    }

    fn give_up(&mut self, ip: IpAddr, mac: Mac, key: &ObjectKey) {
        self.yielded.insert(ip);
        tracing::info!(%ip, %mac, service = %key, "another machine announces the address; this node does not any more");
        self.update();
    }

    /// Another machine had an address before this node announced it.
    fn report_owner(&self, Rival { ip, mac, .. }: Rival, key: &ObjectKey) {
        tracing::warn!(%ip, %mac, service = %key, "another machine has the address of a service; not announcing it until it is removed there");
        let text = format!(
            "Address {ip} is not announced, because the machine with the hardware address {mac} has it; \
             remove it there, or exclude it from --load-balancer-pool"
        );
        self.report(key, text);
    }

    /// Writes an event of a service about a conflict.
    fn report(&self, key: &ObjectKey, text: String) {
        if let Some(service) = self.services.get(key) {
            self.events.event(&ObjectRef::of(&*service), EventType::Warning, "AddressConflict", text);
        }
    }

    /// Whether the API says now that this node announces the address for the service.
    async fn is_confirmed(&self, ip: IpAddr, key: &ObjectKey) -> bool {
        let asked = timeout(ASK_MAX, self.client.get::<ServiceView>(&key.namespace, &key.name)).await;
        asked.is_ok_and(|answer| answer.is_ok_and(|service| service.addresses(&self.node).any(|own| own == ip)))
    }
}

#[cfg(test)]
mod tests;
