//! The node ports in use, recorded by servers with a shared storage, so that none allocates a port of another. The record changes with
//! each Service and is compared periodically with the stored Services (upstream `registry/core/service/portallocator/controller`). A
//! server with its own storage needs no record.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kelson_meta::Status;
use kelson_store::{PortChange, Resource, StoreError};

use crate::catalog::record::parse;
use crate::shared::Server;
use crate::shared::allocations::{AddressOwner, ports_of};

/// Interval of comparisons.
const EVERY: Duration = Duration::from_secs(180);
/// Comparisons in which a port may have no Service before it is released, because its Service may be about to be stored.
const SEEN_UNUSED_MAX: u8 = 3;

fn fault(error: StoreError) -> Status {
    Status::internal(format!("the node ports in use: {error}"))
}

fn change(server: &Server) -> PortChange {
    PortChange { range: server.config.node_ports, ..PortChange::default() }
}

/// The recorded ports.
///
/// # Errors
/// The storage cannot be read.
pub async fn in_use(server: &Server) -> Result<Vec<u16>, Status> {
    Ok(server.store.ports_in_use().await.map_err(fault)?.unwrap_or_default())
}

/// Records ports as in use, unless one of them is in use already; that one is returned.
///
/// # Errors
/// The storage cannot be read or written.
pub async fn take(server: &Server, ports: &[u16]) -> Result<Option<u16>, Status> {
    let change = PortChange { take: ports.to_vec(), only_free: true, ..change(server) };
    server.store.change_ports(change).await.map_err(fault)
}

/// Records ports as free.
pub async fn give_back(server: &Server, ports: &[u16]) {
    let change = PortChange { give_back: ports.to_vec(), ..change(server) };
    if let Err(error) = server.store.change_ports(change).await {
        tracing::warn!(?ports, %error, "failed to release node ports; the periodic repair will retry");
    }
}

/// Releases ports of a Service that was not stored, or was stored without them.
pub async fn give_back_unstored(server: &Server, owner: &AddressOwner, mut ports: Vec<u16>) {
    let record = server.store.get(Resource::new("", "services"), &owner.namespace, &owner.name);
    let stored = record.map(|record| ports_of(&parse(&record))).unwrap_or_default();
    ports.retain(|port| !stored.contains(port));
    if !ports.is_empty() {
        give_back(server, &ports).await;
    }
}

/// Compares the record with the Services until the server stops.
pub async fn follow(server: Arc<Server>) {
    let mut unused = BTreeMap::new();
    loop {
        if let Err(status) = compare(&server, &mut unused).await {
            tracing::warn!(%status, "failed to compare node ports with services; retrying");
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Records missing ports of Services, and releases ports that had no Service for long. `unused` counts the comparisons without one.
async fn compare(server: &Server, unused: &mut BTreeMap<u16, u8>) -> Result<(), Status> {
    // In this order, so that a Service that is stored in between is not missed.
    let noted: BTreeSet<u16> = in_use(server).await?.into_iter().collect();
    server.store.catch_up().await.map_err(fault)?;
    let services = server.store.list(Resource::new("", "services"), None, None, None);
    let (low, high) = server.config.node_ports;
    let has: BTreeSet<u16> = services.iter().flat_map(|record| ports_of(&parse(record))).collect();
    let leaked = count(unused, &noted, &has);
    let missing = has.difference(&noted).filter(|port| (low..=high).contains(port));
    let change = PortChange { take: missing.copied().collect(), give_back: leaked, ..change(server) };
    if !change.take.is_empty() {
        tracing::info!(ports = ?change.take, "recorded node ports of services that were missing");
    }
    if !change.give_back.is_empty() {
        tracing::warn!(ports = ?change.give_back, "released node ports that no service has used for long");
    }
    // Also without changes: an upstream server allocates no port until there is a record.
    server.store.change_ports(change).await.map_err(fault)?;
    Ok(())
}

/// Counts another comparison for ports without a Service, and returns those that reached the limit.
fn count(unused: &mut BTreeMap<u16, u8>, noted: &BTreeSet<u16>, has: &BTreeSet<u16>) -> Vec<u16> {
    unused.retain(|port, _| noted.contains(port) && !has.contains(port));
    for port in noted.difference(has) {
        *unused.entry(*port).or_default() += 1;
    }
    unused.iter().filter(|(_, times)| **times > SEEN_UNUSED_MAX).map(|(port, _)| *port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_released_after_several_comparisons_without_service() {
        let (noted, none) = (BTreeSet::from([1, 2]), BTreeSet::new());
        let mut unused = BTreeMap::new();
        for _ in 0..3 {
            assert!(count(&mut unused, &noted, &none).is_empty());
        }
        // One of them has a Service now, so its count starts again when that is deleted.
        assert_eq!(count(&mut unused, &noted, &BTreeSet::from([2])), [1]);
        assert!(count(&mut unused, &BTreeSet::from([2]), &none).is_empty());
        assert_eq!(unused, BTreeMap::from([(2, 1)]));
    }
}
