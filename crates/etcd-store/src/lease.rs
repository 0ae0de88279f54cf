//! Leases of objects that end by themselves. One is shared by all that are written while it is young, because leases cost
//! etcd more than keys do (upstream's `storage/etcd3/lease_manager.go`).

use std::sync::Arc;
use std::time::Duration;

use kelson_etcd::client::Client;
use kelson_etcd::proto;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::connection::{CallError, Connection};

/// Objects on one lease: etcd deletes them all at once.
const OBJECTS_MAX: u32 = 1000;
/// Share of an object's time that it may live longer, so that the lease can be shared.
const SHARE: u64 = 20;

/// The lease that was made last.
struct Young {
    id: i64,
    ends: Instant,
    objects: u32,
}

/// Gives leases to those who write objects that end by themselves.
pub(crate) struct Leases {
    connection: Arc<Connection>,
    /// `--lease-reuse-duration-seconds`: the time in which objects may share one lease.
    reuse_s: u64,
    last: Mutex<Option<Young>>,
}

impl Leases {
    pub fn new(connection: Arc<Connection>, reuse_s: u64) -> Self {
        Self { connection, reuse_s, last: Mutex::default() }
    }

    /// A lease that ends after `ttl_s` seconds, or a little later.
    pub async fn of(&self, ttl_s: u64) -> Result<i64, CallError> {
        let mut last = self.last.lock().await;
        let now = Instant::now();
        let extra_s = extra_s(ttl_s, self.reuse_s);
        if let Some(young) = last.as_mut().filter(|young| fits(young, now, ttl_s, extra_s)) {
            young.objects += 1;
            return Ok(young.id);
        }
        let ttl_s = ttl_s + extra_s;
        let request = proto::LeaseGrantRequest { ttl: i64::try_from(ttl_s).unwrap_or(i64::MAX), id: 0 };
        let call = |mut client: Client<Channel>| async move { client.lease_grant(request).await };
        // A lease whose creation was not noticed expires without further action.
        let id = self.connection.read("leaseGrant", call).await?.id;
        *last = Some(Young { id, ends: now + Duration::from_secs(ttl_s), objects: 1 });
        Ok(id)
    }
}

/// Returns by how many seconds a lease is made longer than requested.
fn extra_s(ttl_s: u64, reuse_s: u64) -> u64 {
    (ttl_s / SHARE).min(reuse_s)
}

/// Whether a lease ends when an object is to end: not before, and not too long after.
fn fits(young: &Young, now: Instant, ttl_s: u64, extra_s: u64) -> bool {
    let due = now + Duration::from_secs(ttl_s);
    young.objects < OBJECTS_MAX && due < young.ends && young.ends < due + Duration::from_secs(extra_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_shared_while_it_is_young() {
        assert_eq!((extra_s(3600, 60), extra_s(100, 60), extra_s(3600, 0)), (60, 5, 0));
        let now = Instant::now();
        let young = |ends_s: u64, objects| Young { id: 1, ends: now + Duration::from_secs(ends_s), objects };
        assert!(fits(&young(3650, 1), now, 3600, 60));
        assert!(!fits(&young(3600, 1), now, 3600, 60), "it would end early");
        assert!(!fits(&young(3700, 1), now, 3600, 60), "it would end late: it was made for another time");
        assert!(!fits(&young(3650, OBJECTS_MAX), now, 3600, 60), "too many would go at once");
    }
}
