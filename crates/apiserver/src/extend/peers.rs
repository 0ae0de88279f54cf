//! Follows the identity Leases of other API servers on the same storage, and reads from each server what it serves (feature gate
//! `UnknownVersionInteroperabilityProxy`). A server is read again when its process changes, and at a long interval.
//!
//! Group versions of definitions and of APIServices are the same for all servers, so only this server's own view of them counts: those
//! that it knows are left out of what peers serve. Otherwise a deleted definition would be listed until its peers are read again.
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future;
use kelson_meta::tree::text;
use kelson_store::{Record, Resource, WatchScope};
use tokio::time::Instant;

use crate::catalog::record::parse;
use crate::catalog::{Behaviour, Served};
use crate::extend::identity_lease::{ADDRESS, COMPONENT, COMPONENT_LABEL, NAMESPACE};
use crate::peers::metrics::SyncFault;
use crate::peers::server::{PeerServer, PeerServers};
use crate::shared::Server;
use crate::shared::start_steps::StartStep;

/// Number of peers that are followed.
const PEERS_MAX: usize = 16;
/// Interval after which what a peer serves is read again.
const REFRESH_EVERY: Duration = Duration::from_secs(600);
/// Pause after the first failed attempt to read it, doubled after each further one.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Interval at which definitions and APIServices are left out of what peers serve.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Pause after the log could not be followed.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// All names of identity Leases begin with it.
const NAME_PREFIX: &str = "apiserver-";

/// When a peer is read next.
struct Schedule {
    holder: String,
    at: Instant,
    pause: Duration,
}

/// Runs until the server stops.
pub async fn follow(server: Arc<Server>) {
    let Some(peers) = server.peers.clone() else { return };
    let leases = Resource::new("coordination.k8s.io", "leases");
    let mut schedules = HashMap::new();
    loop {
        let (found, revision) = {
            let view = server.store.list(leases, Some(NAMESPACE), None, None);
            let found: Vec<_> = view.iter().filter_map(|record| peer(&peers, record)).take(PEERS_MAX).collect();
            (found, view.revision())
        };
        let next = round(&server, &peers, found, &mut schedules).await;
        server.health.steps.finish(&[StartStep::PeerProxy]);
        tokio::select! {
            () = lease_written(&server, leases, revision) => {}
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

/// Resolves when an identity Lease was written or deleted after a revision.
async fn lease_written(server: &Server, leases: Resource, after: u64) {
    let scope = WatchScope::Namespace(NAMESPACE.into());
    if let Ok(mut cursor) = server.store.watch_scope(leases, scope, after) {
        while let Ok(batch) = cursor.next().await {
            if batch.iter().any(|event| event.record.key().name.starts_with(NAME_PREFIX)) {
                return;
            }
        }
    }
    tokio::time::sleep(AGAIN_AFTER).await;
}

/// The peer of an identity Lease; `None` for other Leases, for this server's, and for servers that do not forward requests to each
/// other.
fn peer(peers: &PeerServers, record: &Record) -> Option<PeerServer> {
    let id = &*record.key().name;
    if !id.starts_with(NAME_PREFIX) || id == peers.own_id() {
        return None;
    }
    let lease = parse(record);
    if lease["metadata"]["labels"][COMPONENT_LABEL] != COMPONENT {
        return None;
    }
    // A server of a release without this feature has none.
    let address = lease["metadata"]["annotations"][ADDRESS].as_str()?;
    let Ok(address) = address.parse::<SocketAddr>() else {
        tracing::debug!(lease = id, address, "the identity lease of an API server has no usable address; ignoring it");
        peers.metrics().count_sync_error(SyncFault::Address);
        return None;
    };
    Some(PeerServer {
        id: id.to_owned(),
        holder: text(&lease["spec"]["holderIdentity"]).to_owned(),
        address,
        listing: None,
    })
}

/// Reads the peers whose time has come, and publishes all peers if anything changed. Returns when to look again.
async fn round(
    server: &Server,
    peers: &PeerServers,
    mut found: Vec<PeerServer>,
    schedules: &mut HashMap<String, Schedule>,
) -> Instant {
    let now = Instant::now();
    let before = peers.all();
    schedules.retain(|id, _| found.iter().any(|peer| peer.id == *id));
    let reads = found.iter_mut().map(|peer| {
        let was = before.iter().find(|was| was.id == peer.id);
        peer.listing = was.and_then(|was| was.listing.clone());
        let moved = was.is_some_and(|was| was.address != peer.address);
        let due = schedules.get(&peer.id).is_none_or(|s| moved || s.holder != peer.holder || s.at <= now);
        let is_excluded = |group: &str, version: &str| is_custom(server, group, version);
        async move {
            if due {
                let read = peers.fetch(peer.address, is_excluded).await;
                return Some((peer, read));
            }
            // Each renewal of a Lease comes here, and seldom is there anything to leave out.
            if let Some(listing) = peer.listing.as_ref().filter(|listing| listing.has_excluded(is_excluded)) {
                peer.listing = Some(Arc::new(listing.without(is_excluded)));
            }
            None
        }
    });
    let reads = future::join_all(reads).await;
    for (peer, read) in reads.into_iter().flatten() {
        let failed = schedules.get(&peer.id).filter(|s| s.holder == peer.holder && s.pause < REFRESH_EVERY);
        let pause = match &read {
            Ok(_) => REFRESH_EVERY,
            Err(_) => failed.map_or(RETRY_FIRST, |s| (s.pause * 2).min(RETRY_MAX)),
        };
        match read {
            Ok(listing) => peer.listing = Some(Arc::new(listing)),
            Err(why) => {
                let (lease, address) = (&peer.id, peer.address);
                tracing::info!(lease, %address, %why, "cannot read what another API server serves; retrying");
                peers.metrics().count_sync_error(SyncFault::Fetch);
            }
        }
        let schedule = Schedule { holder: peer.holder.clone(), at: Instant::now() + pause, pause };
        schedules.insert(peer.id.clone(), schedule);
    }
    if *before != found[..] {
        peers.replace(found);
    }
    schedules.values().map(|s| s.at).min().map_or(now + LOOK_EVERY, |at| at.min(now + LOOK_EVERY))
}

/// Whether a group version comes from definitions or APIServices.
fn is_custom(server: &Server, group: &str, version: &str) -> bool {
    let is_dynamic = |served: &Arc<Served>| matches!(served.strategy, Behaviour::Dynamic(_));
    server.aggregation.find(group, version).is_some()
        || server.catalog.of(group, version).is_some_and(|all| all.iter().any(is_dynamic))
}
