//! Identities of API servers: each server renews a Lease in `kube-system` (feature gate `APIServerIdentity`), and expired Leases are
//! deleted. Upstream `component-helpers/apimachinery/lease` and `controlplane/controller/apiserverleasegc`.
//!
//! A server without a configured host name has no Lease. That applies to in-memory clusters: a process may have a thousand of them, no
//! client asks for their identities, and without a Lease they write nothing when idle.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use kelson_meta::format_micro;
use kelson_meta::url::encode;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::bootstrap::client::SelfClient;
use crate::config::{Config, PEER_GATE};
use crate::shared::Server;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
/// Namespace of the Leases.
pub const NAMESPACE: &str = "kube-system";
/// Label of the Leases of servers' identities.
pub const COMPONENT_LABEL: &str = "apiserver.kubernetes.io/identity";
/// Value of that label for API servers.
pub const COMPONENT: &str = "kube-apiserver";
/// Annotation with the address at which other API servers reach this one.
pub const ADDRESS: &str = "kubernetes.io/peer-advertise-address";
const HOST_LABEL: &str = "kubernetes.io/hostname";
/// Seconds after the last renewal during which a server counts as alive.
const LEASE_SECONDS: i64 = 3600;
const RENEW_EVERY: Duration = Duration::from_secs(10);
const LOOK_FOR_EXPIRED_EVERY: Duration = Duration::from_secs(3600);

/// The Lease of this server.
struct OwnLease {
    own: SelfClient,
    server: Arc<Server>,
    host: String,
    name: String,
    /// Identifies the process; the name identifies the machine.
    holder: String,
    /// The Lease as it was last stored.
    latest: Option<Value>,
}

/// The host name for this server's Lease; `None` if it has none.
fn host(config: &Config) -> Option<&str> {
    config.identity_host.as_deref().filter(|_| config.feature_gates.enabled("APIServerIdentity"))
}

/// The name of this server's Lease; `None` if it has none.
pub fn id(config: &Config) -> Option<String> {
    host(config).map(name_of)
}

/// The address for requests of other API servers, for a server that listens on this port.
pub fn address(config: &Config, port: u16) -> SocketAddr {
    config.peer_address.unwrap_or_else(|| SocketAddr::new(config.advertise_address, port))
}

/// The name of the Lease of a host's API server.
fn name_of(host: &str) -> String {
    let mut named = Sha256::new();
    for part in [host, COMPONENT] {
        // A host name has at most 64 characters.
        named.update(u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes());
        named.update(part);
    }
    format!("apiserver-{}", base32(&named.finalize()[..16]))
}

/// RFC 4648 in lower case, without padding.
fn base32(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bit = |i: usize| bytes.get(i / 8).map_or(0, |byte| usize::from(byte >> (7 - i % 8) & 1));
    let letter = |i: usize| char::from(LETTERS[(0..5).fold(0, |value, of| value * 2 + bit(i * 5 + of))]);
    (0..(bytes.len() * 8).div_ceil(5)).map(letter).collect()
}

/// Renews the Lease until the server stops. A Lease of a former process on this host is deleted first, so that it is not taken for this
/// one's.
pub async fn renew(server: Arc<Server>) {
    let Some(host) = host(&server.config).map(str::to_owned) else { return };
    let name = name_of(&host);
    let holder = format!("{name}_{}", uuid::Uuid::new_v4());
    let own = SelfClient::new(&server);
    let mut identity = OwnLease { own, server, host, name, holder, latest: None };
    identity.withdraw().await;
    loop {
        if let Err(error) = identity.step().await {
            tracing::warn!(%error, lease = identity.name, "failed to renew the identity lease; retrying");
        }
        tokio::time::sleep(RENEW_EVERY).await;
    }
}

/// Deletes this server's Lease when it stops.
pub async fn leave(server: &Arc<Server>) {
    let Some(host) = host(&server.config) else { return };
    let path = format!("{LEASES}/{}", name_of(host));
    if let Err(error) = SelfClient::new(server).call(Method::DELETE, &path, &Value::Null).await {
        tracing::debug!(%error, "failed to delete the identity lease; it will expire");
    }
}

impl OwnLease {
    fn path(&self) -> String {
        format!("{LEASES}/{}", self.name)
    }

    async fn withdraw(&self) {
        match self.own.call(Method::DELETE, &self.path(), &Value::Null).await {
            Err(error) if error.code != 404 => {
                tracing::warn!(%error, lease = self.name, "failed to delete the identity lease of a former process");
            }
            _ => {}
        }
    }

    /// Renews the Lease from the last stored state; after a conflict, from the current one.
    async fn step(&mut self) -> Result<(), kelson_meta::Status> {
        if let Some(latest) = self.latest.take()
            && let Ok(stored) = self.put(latest).await
        {
            self.latest = Some(stored);
            return Ok(());
        }
        let stored = match self.own.call(Method::GET, &self.path(), &Value::Null).await {
            Ok(stored) => self.put(stored).await?,
            // The server is stopping and has deleted it.
            Err(status) if status.code == 404 && self.server.health.is_stopping() => return Ok(()),
            Err(status) if status.code == 404 => {
                let mut lease = json!({
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self.name, "namespace": NAMESPACE},
                    "spec": {"holderIdentity": self.holder, "leaseDurationSeconds": LEASE_SECONDS},
                });
                self.describe(&mut lease);
                self.own.call(Method::POST, LEASES, &lease).await?
            }
            Err(status) => return Err(status),
        };
        self.latest = Some(stored);
        Ok(())
    }

    async fn put(&self, mut lease: Value) -> Result<Value, kelson_meta::Status> {
        self.describe(&mut lease);
        self.own.call(Method::PUT, &self.path(), &lease).await
    }

    fn describe(&self, lease: &mut Value) {
        lease["metadata"]["labels"][COMPONENT_LABEL] = COMPONENT.into();
        lease["metadata"]["labels"][HOST_LABEL] = self.host.as_str().into();
        let config = &self.server.config;
        if config.feature_gates.enabled(PEER_GATE) {
            lease["metadata"]["annotations"][ADDRESS] = address(config, self.server.port()).to_string().into();
        }
        lease["spec"]["renewTime"] = format_micro(self.server.clock.now()).into();
    }
}

/// Deletes expired Leases of API servers until the server stops.
pub async fn collect(server: Arc<Server>) {
    if host(&server.config).is_none() {
        return;
    }
    let own = SelfClient::new(&server);
    loop {
        if let Err(error) = remove_expired(&server, &own).await {
            tracing::warn!(%error, "failed to delete expired identity leases; retrying");
        }
        tokio::time::sleep(LOOK_FOR_EXPIRED_EVERY).await;
    }
}

async fn remove_expired(server: &Server, own: &SelfClient) -> Result<(), kelson_meta::Status> {
    let selector = format!("{COMPONENT_LABEL}={COMPONENT}");
    let selector = encode(&selector);
    let list = own.call(Method::GET, &format!("{LEASES}?labelSelector={selector}"), &Value::Null).await?;
    for lease in list["items"].as_array().into_iter().flatten().filter(|lease| is_expired(lease, server.clock.now())) {
        let m = &lease["metadata"];
        let path = format!("{LEASES}/{}", m["name"].as_str().unwrap_or_default());
        // Not if it was renewed since.
        let only_this = json!({"preconditions": {"uid": m["uid"], "resourceVersion": m["resourceVersion"]}});
        match own.call(Method::DELETE, &path, &only_this).await {
            Err(error) if !matches!(error.code, 404 | 409) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a Lease has expired. One without a duration or renewal time counts as expired.
fn is_expired(lease: &Value, now: jiff::Timestamp) -> bool {
    let spec = &lease["spec"];
    let renewed = spec["renewTime"].as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok());
    let (Some(renewed), Some(seconds)) = (renewed, spec["leaseDurationSeconds"].as_i64()) else { return true };
    renewed.as_second().saturating_add(seconds) < now.as_second()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_the_same_lease_name_as_upstream() {
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
        assert_eq!(base32(b"f"), "my");
        // Observed on an upstream server on a host of this name.
        assert_eq!(name_of("vm"), "apiserver-wlv32tlttr4jl3gtroqexyxapa");
    }

    #[test]
    fn a_lease_without_duration_or_renewal_has_expired() {
        let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap_or_default();
        let check = |spec: Value, wanted: bool| {
            let lease = json!({"spec": spec});
            assert_eq!(is_expired(&lease, at("2026-01-01T01:00:00Z")), wanted, "{lease}");
        };
        let spec = |renewed: &str| json!({"leaseDurationSeconds": 3600, "renewTime": renewed});
        check(spec("2026-01-01T00:00:00.000000Z"), false);
        check(spec("2025-12-31T23:59:58.999999Z"), true);
        check(json!({"leaseDurationSeconds": 3600}), true);
        check(json!({"renewTime": "2026-01-01T00:59:59.000000Z"}), true);
    }
}
