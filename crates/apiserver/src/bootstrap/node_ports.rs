//! The node ports that servers which share a storage note as in use, so that none gives away what another has given: changed with each
//! Service, and compared from time to time with what the stored Services have (upstream
//! `registry/core/service/portallocator/controller`). A server that is alone notes nothing: the stored Services say all.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kelson_meta::Status;
use kelson_store::{PortChange, Resource, StoreError};

use crate::catalog::record::parse;
use crate::shared::Server;
use crate::shared::allocations::{AddressOwner, ports_of};

/// Between two comparisons.
const EVERY: Duration = Duration::from_secs(180);
/// Comparisons in which a port has no Service before it counts as free: its Service may be about to be stored.
const SEEN_UNUSED_MAX: u8 = 3;

fn fault(error: StoreError) -> Status {
    Status::internal(format!("the node ports in use: {error}"))
}

fn change(server: &Server) -> PortChange {
    PortChange { range: server.config.node_ports, ..PortChange::default() }
}

/// Those that are noted.
///
/// # Errors
/// The storage cannot be asked.
pub async fn in_use(server: &Server) -> Result<Vec<u16>, Status> {
    Ok(server.store.ports_in_use().await.map_err(fault)?.unwrap_or_default())
}

/// Notes ports as in use unless one of them is: then it is answered.
///
/// # Errors
/// The storage cannot be asked.
pub async fn take(server: &Server, ports: &[u16]) -> Result<Option<u16>, Status> {
    let change = PortChange { take: ports.to_vec(), only_free: true, ..change(server) };
    server.store.change_ports(change).await.map_err(fault)
}

/// Notes ports as free.
pub async fn give_back(server: &Server, ports: &[u16]) {
    let change = PortChange { give_back: ports.to_vec(), ..change(server) };
    if let Err(error) = server.store.change_ports(change).await {
        tracing::warn!(?ports, %error, "node ports could not be given back; they are when they are next compared");
    }
}

/// The same for those that were taken for a Service which was not stored after all, or without them.
pub async fn give_back_unstored(server: &Server, owner: &AddressOwner, mut ports: Vec<u16>) {
    let record = server.store.get(Resource::new("", "services"), &owner.namespace, &owner.name);
    let stored = record.map(|record| ports_of(&parse(&record))).unwrap_or_default();
    ports.retain(|port| !stored.contains(port));
    if !ports.is_empty() {
        give_back(server, &ports).await;
    }
}

/// Compares until the server ends, which shares its storage.
pub async fn follow(server: Arc<Server>) {
    let mut unused = BTreeMap::new();
    loop {
        if let Err(status) = compare(&server, &mut unused).await {
            tracing::warn!(%status, "node ports could not be compared with the services that have them");
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Notes what Services have and is not noted, and gives back what had no Service for long; `unused` says how often.
async fn compare(server: &Server, unused: &mut BTreeMap<u16, u8>) -> Result<(), Status> {
    // In this order, so that a Service which was stored between the two is not missed.
    let noted: BTreeSet<u16> = in_use(server).await?.into_iter().collect();
    server.store.catch_up().await.map_err(fault)?;
    let services = server.store.list(Resource::new("", "services"), None, None, None);
    let (low, high) = server.config.node_ports;
    let has: BTreeSet<u16> = services.iter().flat_map(|record| ports_of(&parse(record))).collect();
    let leaked = count(unused, &noted, &has);
    let missing = has.difference(&noted).filter(|port| (low..=high).contains(port));
    let change = PortChange { take: missing.copied().collect(), give_back: leaked, ..change(server) };
    if !change.take.is_empty() {
        tracing::info!(ports = ?change.take, "node ports of services were not noted as in use");
    }
    if !change.give_back.is_empty() {
        tracing::warn!(ports = ?change.give_back, "node ports were in use by no service for long; they are free again");
    }
    // Also without a change: a server of the reference hands out no port before there is anything noted.
    server.store.change_ports(change).await.map_err(fault)?;
    Ok(())
}

/// Counts once more the ports that no Service has, and answers those that had none often enough.
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
    fn a_port_is_free_once_it_had_no_service_several_times_in_a_row() {
        let (noted, none) = (BTreeSet::from([1, 2]), BTreeSet::new());
        let mut unused = BTreeMap::new();
        for _ in 0..3 {
            assert!(count(&mut unused, &noted, &none).is_empty());
        }
        // One of them has a Service now: it is counted anew when that is gone.
        assert_eq!(count(&mut unused, &noted, &BTreeSet::from([2])), [1]);
        assert!(count(&mut unused, &BTreeSet::from([2]), &none).is_empty());
        assert_eq!(unused, BTreeMap::from([(2, 1)]));
    }
}
