//! The IPAddress objects of Services (KEP-1880): created before a Service is stored and deleted after it, through the request path with
//! the server's own identity. A periodic repair creates missing ones and deletes leftovers (upstream `registry/core/service/ipallocator`
//! with its repair loop).
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use http::Method;
use jiff::Timestamp;
use kelson_meta::Status;
use kelson_meta::tree::text;
use kelson_store::{EventKind, Record, Resource};
use kelson_tasks::OnPanic;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::{SelfClient, is_served};
use super::node_ports;
use crate::catalog::record::parse;
use crate::shared::Server;
use crate::shared::allocations::{AddressOwner, AddressRegistry, ips_of};

const GROUP: &str = "networking.k8s.io";
const PATH: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// Value of the label for objects of Services. Other objects were created by users.
const ALLOCATOR: &str = "ipallocator.k8s.io";
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
/// Seconds that an object may exist before its Service, if another server creates both.
const GRACE_S: i64 = 60;
/// Interval of the repair.
const EVERY: Duration = Duration::from_secs(180);
/// Pause after the log could not be followed.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Services that are checked before the task yields.
const AT_ONCE: usize = 64;

/// Registers addresses through the server that it is part of.
pub struct ServiceAddressRegistry(Weak<Server>);

impl ServiceAddressRegistry {
    /// The registry of `server`.
    pub fn of(server: &Arc<Server>) -> Arc<Self> {
        Arc::new(Self(Arc::downgrade(server)))
    }

    fn server(&self) -> Result<Arc<Server>, Status> {
        self.0.upgrade().ok_or_else(|| Status::internal("cannot register addresses: the server is not running"))
    }
}

#[async_trait]
impl AddressRegistry for ServiceAddressRegistry {
    async fn register(&self, ip: IpAddr, owner: &AddressOwner) -> Result<bool, Status> {
        register(&self.server()?, ip, owner).await
    }

    async fn release(&self, ips: &[IpAddr], owner: &AddressOwner) {
        let Ok(server) = self.server() else { return };
        for ip in ips {
            release(&server, *ip, owner).await;
        }
    }

    fn release_later(&self, ips: Vec<IpAddr>, ports: Vec<u16>, owner: AddressOwner) {
        let Ok(server) = self.server() else { return };
        let of_server = Arc::clone(&server);
        server.tasks.spawn("api-address-return", OnPanic::Contain, async move {
            for ip in ips.into_iter().filter(|ip| !has(&of_server, &owner, *ip)) {
                release(&of_server, ip, &owner).await;
            }
            node_ports::give_back_unstored(&of_server, &owner, ports).await;
        });
    }

    async fn ports(&self) -> Result<Vec<u16>, Status> {
        node_ports::in_use(&*self.server()?).await
    }

    async fn take_ports(&self, ports: &[u16]) -> Result<Option<u16>, Status> {
        node_ports::take(&*self.server()?, ports).await
    }

    async fn give_back_ports(&self, ports: &[u16]) {
        let Ok(server) = self.server() else { return };
        node_ports::give_back(&server, ports).await;
    }
}

/// Creates the object of an address. A leftover object of a Service without the address is replaced.
async fn register(server: &Arc<Server>, ip: IpAddr, owner: &AddressOwner) -> Result<bool, Status> {
    if !is_served(server, GROUP, "v1") {
        return Ok(true);
    }
    let own = SelfClient::new(server);
    for _ in 0..2 {
        match own.call(Method::POST, PATH, &object(ip, owner)).await {
            Ok(_) => return Ok(true),
            Err(status) if status.code == 409 => {}
            Err(status) => return Err(status),
        }
        let there = match own.call(Method::GET, &format!("{PATH}/{ip}"), &Value::Null).await {
            Ok(there) => there,
            Err(status) if status.code == 404 => continue,
            Err(status) => return Err(status),
        };
        if owner_in(&there).is_some_and(|there| there == *owner) {
            return Ok(true);
        }
        if !is_leftover(server, &there, ip) {
            return Ok(false);
        }
        delete(&own, &there).await?;
    }
    Ok(false)
}

async fn release(server: &Arc<Server>, ip: IpAddr, owner: &AddressOwner) {
    let record = server.store.get(Resource::new(GROUP, "ipaddresses"), "", &ip.to_string());
    let Some(object) = record.map(|record| parse(&record)) else { return };
    if owner_in(&object).as_ref() != Some(owner) {
        return;
    }
    if let Err(status) = delete(&SelfClient::new(server), &object).await {
        tracing::warn!(%ip, %status, "failed to release the address of a service; the periodic repair will retry");
    }
}

async fn delete(own: &SelfClient, object: &Value) -> Result<(), Status> {
    let metadata = &object["metadata"];
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": metadata["uid"]}});
    match own.call(Method::DELETE, &format!("{PATH}/{}", text(&metadata["name"])), &options).await {
        Err(status) if status.code != 404 && status.code != 409 => Err(status),
        _ => Ok(()),
    }
}

fn object(ip: IpAddr, owner: &AddressOwner) -> Value {
    let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": ip.to_string(), "labels": {MANAGED_BY: ALLOCATOR, FAMILY: family}},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": owner.namespace, "name": owner.name}}})
}

/// The Service of an object; `None` if a user created the object.
fn owner_in(object: &Value) -> Option<AddressOwner> {
    let parent = &object["spec"]["parentRef"];
    let follows = object["metadata"]["labels"][MANAGED_BY] == ALLOCATOR && parent["resource"] == "services";
    follows.then(|| AddressOwner {
        namespace: text(&parent["namespace"]).to_owned(),
        name: text(&parent["name"]).to_owned(),
    })
}

/// Whether the Service is stored and has the address.
fn has(server: &Server, owner: &AddressOwner, ip: IpAddr) -> bool {
    let record = server.store.get(Resource::new("", "services"), &owner.namespace, &owner.name);
    record.is_some_and(|record| ips_of(&parse(&record)).contains(&ip))
}

/// Whether an object is a leftover. If other servers write too, a young object may belong to a Service that is about to be stored.
fn is_leftover(server: &Server, object: &Value, ip: IpAddr) -> bool {
    owner_in(object).is_some_and(|owner| !has(server, &owner, ip))
        && (!server.store.is_mirror() || is_old(server.clock.now(), object))
}

fn is_old(now: Timestamp, object: &Value) -> bool {
    let made = text(&object["metadata"]["creationTimestamp"]).parse::<Timestamp>();
    made.is_ok_and(|made| now.as_second() - made.as_second() > GRACE_S)
}

/// Repairs the objects until the server stops: each address of a Service has one, and no other address has one.
pub async fn follow(server: Arc<Server>) {
    if !is_served(&server, GROUP, "v1") {
        return;
    }
    loop {
        let next = Instant::now() + EVERY;
        let from = server.store.current_revision();
        if let Err(status) = repair(&server).await {
            tracing::warn!(%status, "failed to repair the IP addresses of services; retrying");
        }
        let until_deleted = recreate_deleted(&server, from);
        if tokio::time::timeout_at(next, until_deleted).await.is_ok() {
            // If the log cannot be followed, everything is checked again.
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

/// Creates objects again that are deleted while their Services have the addresses. Ends when the log ends.
async fn recreate_deleted(server: &Arc<Server>, from: u64) {
    let Ok(mut cursor) = server.store.watch(Resource::new(GROUP, "ipaddresses"), from) else { return };
    while let Ok(batch) = cursor.next().await {
        for event in batch.iter().filter(|event| event.kind == EventKind::Deleted) {
            let Some((ip, owner)) = entry(&event.record) else { continue };
            if has(server, &owner, ip)
                && let Err(status) = register(server, ip, &owner).await
            {
                tracing::warn!(%ip, %status, "failed to create the IPAddress of a service again");
            }
        }
    }
}

/// Address and Service of an object that belongs to a Service.
fn entry(record: &Record) -> Option<(IpAddr, AddressOwner)> {
    Some((record.key().name.parse().ok()?, owner_in(&parse(record))?))
}

async fn repair(server: &Arc<Server>) -> Result<(), Status> {
    let own = SelfClient::new(server);
    let objects = Resource::new(GROUP, "ipaddresses");
    for (n, record) in server.store.list(Resource::new("", "services"), None, None, None).iter().enumerate() {
        let service = parse(record);
        let owner = AddressOwner::of(&service);
        for ip in ips_of(&service) {
            let there = server.store.get(objects, "", &ip.to_string());
            let right = there.is_some_and(|there| entry(&there).is_none_or(|(_, of)| of == owner));
            // The Service may have been deleted since the list was made.
            if !right && has(server, &owner, ip) && !register(server, ip, &owner).await? {
                tracing::warn!(%ip, service = owner.name, "the cluster IP of a service is also used by another service");
            }
        }
        if n % AT_ONCE == 0 {
            tokio::task::yield_now().await;
        }
    }
    for (n, record) in server.store.list(objects, None, None, None).iter().enumerate() {
        if let Some((ip, owner)) = entry(record)
            && !has(server, &owner, ip)
            && is_old(server.clock.now(), &parse(record))
        {
            delete(&own, &parse(record)).await?;
        }
        if n % AT_ONCE == 0 {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}
