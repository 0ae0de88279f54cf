//! Leader election: of several equal components the one that holds a Lease works, and the others wait until it is no
//! longer renewed. Objects and times are those of upstream's `client-go/tools/leaderelection`, so that both kinds of
//! component may share a lease.
use std::sync::Arc;
use std::time::Duration;

use kelson_meta::{Clock, ObjectMeta, format_micro};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::Client;
use crate::error::ClientError;
use crate::kind::{Object as _, ResourceType};
use crate::slim_object;

/// The default time that others respect a lease that is no longer renewed.
pub const LEASE: Duration = Duration::from_secs(15);
/// The default time that the holder tries to renew before it gives up.
pub const RENEW: Duration = Duration::from_secs(10);
/// Pause between two tries, unless something else is asked for.
pub const RETRY: Duration = Duration::from_secs(2);

/// The times of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The time that others respect a lease that is no longer renewed (`--leader-elect-lease-duration`).
    pub lease: Duration,
    /// The time that the holder tries to renew before it gives up (`--leader-elect-renew-deadline`).
    pub renew: Duration,
    /// Pause between two tries (`--leader-elect-retry-period`).
    pub retry: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { lease: LEASE, renew: RENEW, retry: RETRY }
    }
}

impl Times {
    /// Whether an election can work by them.
    ///
    /// # Errors
    /// Why not, in upstream's words.
    pub fn check(self) -> Result<(), &'static str> {
        if self.lease <= self.renew {
            return Err("leaseDuration must be greater than renewDeadline");
        }
        // Tries come up to a fifth later than they should.
        if self.renew.as_secs_f64() <= self.retry.as_secs_f64() * 1.2 {
            return Err("renewDeadline must be greater than retryPeriod*JitterFactor");
        }
        if self.lease < Duration::from_secs(1) {
            return Err("leaseDuration must be greater than zero");
        }
        if self.retry.is_zero() {
            return Err("retryPeriod must be greater than zero");
        }
        Ok(())
    }
}

/// The part of a `coordination.k8s.io/v1` Lease that an election reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Lease {
    metadata: ObjectMeta,
    spec: Spec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u64>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<i64>,
}

slim_object!(Lease, ResourceType::namespaced("coordination.k8s.io", "v1", "leases", "Lease"));

/// One candidate of an election.
pub struct Candidate {
    client: Client,
    clock: Arc<dyn Clock>,
    namespace: String,
    name: String,
    identity: String,
    times: Times,
    /// The lease as it was last seen to change, and when, by our own clock: the holder's may be wrong.
    seen: Option<(Spec, Instant)>,
}

impl Candidate {
    /// A candidate for the lease `name`. `identity` is what no other candidate has.
    pub fn new(client: Client, clock: Arc<dyn Clock>, namespace: &str, name: &str, identity: &str) -> Self {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Self { client, clock, namespace, name, identity: identity.to_owned(), times: Times::default(), seen: None }
    }

    /// The same, by other times.
    pub fn by(self, times: Times) -> Self {
        Self { times, ..self }
    }

    /// Waits until the lease is ours.
    pub async fn won(&mut self) {
        let mut reported = false;
        loop {
            match self.try_once().await {
                Ok(true) => return,
                Ok(false) if reported => {}
                Ok(false) => {
                    let holder = self.seen.as_ref().and_then(|(s, _)| s.holder_identity.clone()).unwrap_or_default();
                    tracing::info!(lease = self.name, holder, "waiting for the lease, which another process holds");
                    reported = true;
                }
                Err(e) => {
                    tracing::warn!(lease = self.name, error = %e, "acquiring or renewing the lease failed; retrying")
                }
            }
            tokio::time::sleep(self.times.retry).await;
        }
    }

    /// Renews the lease for as long as that works; then gives why it does not.
    pub async fn lost(&mut self) -> String {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(self.times.retry).await;
            let left = self.times.renew.saturating_sub(renewed.elapsed());
            let why = match tokio::time::timeout(left.max(self.times.retry), self.try_once()).await {
                Ok(Ok(true)) => {
                    renewed = Instant::now();
                    continue;
                }
                Ok(Ok(false)) => return format!("another process holds the lease {}", self.name),
                Ok(Err(e)) => e.to_string(),
                Err(_) => "timed out waiting for a response".to_owned(),
            };
            if renewed.elapsed() >= self.times.renew {
                return format!("renewing the lease {} timed out: {why}", self.name);
            }
        }
    }

    /// Gives the lease back, so that the next one need not wait.
    pub async fn release(&mut self) {
        let Ok(Some(lease)) = self.client.get_opt::<Lease>(&self.namespace, &self.name).await else { return };
        if lease.spec.holder_identity.as_deref() != Some(&self.identity) {
            return;
        }
        let now = format_micro(self.clock.now());
        let spec = json!({"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now, "acquireTime": now,
            "leaseTransitions": lease.spec.lease_transitions.unwrap_or(0)});
        if let Err(e) = self.write(Some(&lease), &spec).await {
            tracing::debug!(lease = self.name, error = %e, "releasing the lease failed");
        }
    }

    /// Acquires or renews the lease unless another candidate holds it; returns whether it is ours now.
    async fn try_once(&mut self) -> Result<bool, ClientError> {
        let lease = self.client.get_opt::<Lease>(&self.namespace, &self.name).await?;
        let now = format_micro(self.clock.now());
        let mut spec = json!({"holderIdentity": self.identity, "leaseDurationSeconds": self.times.lease.as_secs(),
            "renewTime": now, "acquireTime": now, "leaseTransitions": 0});
        if let Some(lease) = &lease {
            if self.seen.as_ref().is_none_or(|(s, _)| *s != lease.spec) {
                self.seen = Some((lease.spec.clone(), Instant::now()));
            }
            let since = self.seen.as_ref().map_or(Duration::MAX, |(_, at)| at.elapsed());
            let holder = lease.spec.holder_identity.as_deref().unwrap_or_default();
            let lasts = Duration::from_secs(lease.spec.lease_duration_seconds.unwrap_or(0));
            let ours = holder == self.identity;
            if !ours && !holder.is_empty() && since < lasts {
                return Ok(false);
            }
            let transitions = lease.spec.lease_transitions.unwrap_or(0);
            spec["leaseTransitions"] = json!(if ours { transitions } else { transitions.saturating_add(1) });
            if let Some(at) = lease.spec.acquire_time.as_deref().filter(|_| ours) {
                spec["acquireTime"] = json!(at);
            }
        }
        match self.write(lease.as_ref(), &spec).await {
            Ok(new) => {
                self.seen = Some((new.spec, Instant::now()));
                Ok(true)
            }
            // Another candidate was faster; the next attempt reads which one.
            Err(e) if e.is_conflict() || e.is_already_exists() => Ok(false),
            Err(e) => Err(e),
        }
    }

    async fn write(&self, lease: Option<&Lease>, spec: &Value) -> Result<Lease, ClientError> {
        let mut body = json!({"apiVersion": Lease::TYPE.api_version(), "kind": Lease::TYPE.kind, "spec": spec,
            "metadata": {"name": self.name, "namespace": self.namespace}});
        let Some(lease) = lease else { return self.client.create(&self.namespace, &body).await };
        body["metadata"]["resourceVersion"] = json!(lease.metadata.resource_version);
        body["metadata"]["uid"] = json!(lease.metadata.uid);
        body["metadata"]["labels"] = json!(lease.metadata.labels);
        body["metadata"]["annotations"] = json!(lease.metadata.annotations);
        self.client.update(&self.namespace, &self.name, "", &body).await
    }
}
