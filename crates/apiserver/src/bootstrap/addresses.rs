//! The IPAddress objects of Services (KEP-1880): made before a Service is stored and deleted after it, along the request path under
//! the server's own identity, and looked through from time to time for what is missing or was left (upstream
//! `registry/core/service/ipallocator` with its repair loop).
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
use crate::shared::allocations::{AddressBook, AddressOwner, ips_of};

const GROUP: &str = "networking.k8s.io";
const PATH: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// Whose objects follow Services; others are somebody's own.
const ALLOCATOR: &str = "ipallocator.k8s.io";
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
/// How long an object may be there before its Service is, where another server makes both.
const GRACE_S: i64 = 60;
/// Between two looks through all of them.
const EVERY: Duration = Duration::from_secs(180);
/// Pause after the log could not be followed.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Services looked at before others have their turn.
const AT_ONCE: usize = 64;

/// Enters addresses by way of the server that it is a part of.
pub struct Book(Weak<Server>);

impl Book {
    /// Of a server.
    pub fn of(server: &Arc<Server>) -> Arc<Self> {
        Arc::new(Self(Arc::downgrade(server)))
    }

    fn server(&self) -> Result<Arc<Server>, Status> {
        self.0.upgrade().ok_or_else(|| Status::internal("the server is not there to be asked"))
    }
}

#[async_trait]
impl AddressBook for Book {
    async fn enter(&self, ip: IpAddr, owner: &AddressOwner) -> Result<bool, Status> {
        enter(&self.server()?, ip, owner).await
    }

    async fn strike(&self, ips: &[IpAddr], owner: &AddressOwner) {
        let Ok(server) = self.server() else { return };
        for ip in ips {
            strike(&server, *ip, owner).await;
        }
    }

    fn strike_later(&self, ips: Vec<IpAddr>, ports: Vec<u16>, owner: AddressOwner) {
        let Ok(server) = self.server() else { return };
        let of_server = Arc::clone(&server);
        server.tasks.spawn("api-address-return", OnPanic::Contain, async move {
            for ip in ips.into_iter().filter(|ip| !has(&of_server, &owner, *ip)) {
                strike(&of_server, ip, &owner).await;
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

/// Makes the object of an address. One that was left by a Service which does not have the address is replaced.
async fn enter(server: &Arc<Server>, ip: IpAddr, owner: &AddressOwner) -> Result<bool, Status> {
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
        if !is_left(server, &there, ip) {
            return Ok(false);
        }
        delete(&own, &there).await?;
    }
    Ok(false)
}

async fn strike(server: &Arc<Server>, ip: IpAddr, owner: &AddressOwner) {
    let record = server.store.get(Resource::new(GROUP, "ipaddresses"), "", &ip.to_string());
    let Some(object) = record.map(|record| parse(&record)) else { return };
    if owner_in(&object).as_ref() != Some(owner) {
        return;
    }
    if let Err(status) = delete(&SelfClient::new(server), &object).await {
        tracing::warn!(%ip, %status, "the address of a service could not be given back; it is tried again");
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

/// The Service that an object follows; none for one that somebody made by hand.
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

/// Whether an object was left behind. Where others write as well, a young one may be of a Service that is about to be stored.
fn is_left(server: &Server, object: &Value, ip: IpAddr) -> bool {
    owner_in(object).is_some_and(|owner| !has(server, &owner, ip))
        && (!server.store.is_mirror() || is_old(server.clock.now(), object))
}

fn is_old(now: Timestamp, object: &Value) -> bool {
    let made = text(&object["metadata"]["creationTimestamp"]).parse::<Timestamp>();
    made.is_ok_and(|made| now.as_second() - made.as_second() > GRACE_S)
}

/// Sees to it that every address of a Service has its object and no other has one, until the server ends.
pub async fn follow(server: Arc<Server>) {
    if !is_served(&server, GROUP, "v1") {
        return;
    }
    loop {
        let next = Instant::now() + EVERY;
        let from = server.store.current_revision();
        if let Err(status) = look_through(&server).await {
            tracing::warn!(%status, "the addresses of services could not be looked through");
        }
        let until_deleted = make_again(&server, from);
        if tokio::time::timeout_at(next, until_deleted).await.is_ok() {
            // What cannot be followed is looked through again.
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

/// Makes objects again that are deleted while their Services have the addresses. Ends when the log does.
async fn make_again(server: &Arc<Server>, from: u64) {
    let Ok(mut cursor) = server.store.watch(Resource::new(GROUP, "ipaddresses"), from) else { return };
    while let Ok(batch) = cursor.next().await {
        for event in batch.iter().filter(|event| event.kind == EventKind::Deleted) {
            let Some((ip, owner)) = entry(&event.record) else { continue };
            if has(server, &owner, ip)
                && let Err(status) = enter(server, ip, &owner).await
            {
                tracing::warn!(%ip, %status, "the object of a service's address could not be made again");
            }
        }
    }
}

/// What an object says that follows a Service.
fn entry(record: &Record) -> Option<(IpAddr, AddressOwner)> {
    Some((record.key().name.parse().ok()?, owner_in(&parse(record))?))
}

async fn look_through(server: &Arc<Server>) -> Result<(), Status> {
    let own = SelfClient::new(server);
    let objects = Resource::new(GROUP, "ipaddresses");
    for (n, record) in server.store.list(Resource::new("", "services"), None, None, None).iter().enumerate() {
        let service = parse(record);
        let owner = AddressOwner::of(&service);
        for ip in ips_of(&service) {
            let there = server.store.get(objects, "", &ip.to_string());
            let right = there.is_some_and(|there| entry(&there).is_none_or(|(_, of)| of == owner));
            // It may be gone since the list was made.
            if !right && has(server, &owner, ip) && !enter(server, ip, &owner).await? {
                tracing::warn!(%ip, service = owner.name, "the address of a service is another's as well");
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
