//! The `kubernetes` service and its endpoints, which list the running API servers. They are created at start and checked periodically,
//! so that deleted or changed ones are restored. Servers with a shared storage know each other by leases there.
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use kelson_meta::Status;
use kelson_meta::tree::{items, remove};
use kelson_store::Resource;
use serde_json::{Value, json};

use super::client::{SelfClient, is_served};
use crate::catalog::record::parse;
use crate::config::{EndpointReconciler, StartError};
use crate::shared::Server;

const NAME: &str = "kubernetes";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const SLICE_GROUP: &str = "discovery.k8s.io";
/// Prevents a controller from mirroring the endpoints, because the slice is written here.
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Interval of checks.
const EVERY: Duration = Duration::from_secs(10);
/// The time for which a server counts as running after its last check.
const LIFE: Duration = Duration::from_secs(15);
/// The time for which a stopping server waits for its address to be removed.
const LEAVE_MAX: Duration = Duration::from_secs(1);

const NO_SERVERS: &str =
    "no API server IP addresses were listed in storage, refusing to erase all endpoints for the kubernetes Service";

/// Creates the service and its endpoints. With a shared storage, this server is listed only when it is ready; until then it is removed.
///
/// # Errors
/// [`StartError::Bootstrap`].
pub async fn begin(server: &Arc<Server>, own: &SelfClient) -> Result<(), StartError> {
    let fault = |why: String| StartError::Bootstrap(format!("the kubernetes service: {why}"));
    let port = server.port();
    service(server, own, port).await.map_err(fault)?;
    let writer = EndpointWriter { server, own, port };
    if !server.store.is_mirror() {
        return writer.round(Ports::Ours).await.map_err(fault);
    }
    if let Err(why) = writer.withdraw_stale().await {
        tracing::warn!(
            why,
            "the endpoints of the kubernetes service may list this server although it is not ready yet"
        );
    }
    Ok(())
}

/// Maintains the service and its endpoints until the server stops.
pub async fn follow(server: Arc<Server>) {
    let own = SelfClient::new(&server);
    let writer = EndpointWriter { server: &server, own: &own, port: server.port() };
    // They were written right before at start, unless this server was not ready yet.
    let mut wait = if server.store.is_mirror() { Duration::ZERO } else { EVERY };
    loop {
        tokio::time::sleep(wait).await;
        wait = EVERY;
        if server.health.is_stopping() {
            return;
        }
        if server.store.get(Resource::new("", "services"), "default", NAME).is_none()
            && let Err(why) = service(&server, &own, writer.port).await
        {
            tracing::warn!(why, "failed to create the kubernetes service again; retrying");
        }
        if let Err(why) = writer.round(Ports::Any).await {
            tracing::warn!(why, "unable to sync the endpoints of the kubernetes service");
        }
    }
}

/// Removes this server from the endpoints if others remain.
pub async fn leave(server: &Arc<Server>) {
    let leases = server.config.endpoints == EndpointReconciler::Lease && server.store.is_mirror();
    if !leases || server.config.advertise_address.is_loopback() {
        return;
    }
    let own = SelfClient::new(server);
    let writer = EndpointWriter { server, own: &own, port: server.port() };
    let left = async {
        writer.withdraw().await?;
        writer.write(writer.named().await?.unwrap_or_default(), Ports::Ours).await
    };
    match tokio::time::timeout(LEAVE_MAX, left).await {
        Ok(Ok(())) => {}
        Ok(Err(why)) => {
            tracing::warn!(why, "unable to remove this server from the endpoints of the kubernetes service")
        }
        Err(_) => tracing::warn!("removing this server from the endpoints of the kubernetes service took too long"),
    }
}

/// The ports that the endpoints may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ports {
    /// Any port, such as that of other servers.
    Any,
    /// Only this server's port.
    Ours,
}

async fn service(server: &Server, own: &SelfClient, port: u16) -> Result<(), String> {
    let Some(first) = server.services.first_address() else { return Ok(()) };
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": NAME,
            "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "clusterIP": first.to_string(),
            "ipFamilyPolicy": "SingleStack",
            "sessionAffinity": "None",
            "type": "ClusterIP",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
        },
    });
    own.ensure(SERVICES, NAME, service).await.map_err(|e| e.to_string())
}

/// Writes the endpoints of the `kubernetes` service.
struct EndpointWriter<'a> {
    server: &'a Arc<Server>,
    own: &'a SelfClient,
    port: u16,
}

impl EndpointWriter<'_> {
    async fn round(&self, ports: Ports) -> Result<(), String> {
        let config = &self.server.config;
        let ip = config.advertise_address;
        if ip.is_loopback() {
            // Endpoints must not be loopback addresses, because pods could not use them.
            tracing::debug!(%ip, "not writing endpoints of the kubernetes service: the advertised address is a loopback address");
            return Ok(());
        }
        let addresses = match config.endpoints {
            EndpointReconciler::Elsewhere => return Ok(()),
            EndpointReconciler::Lease => self.living(ip).await?,
            EndpointReconciler::Count(servers) => self.counted(ip, servers).await?,
        };
        self.write(addresses, ports).await
    }

    async fn living(&self, ip: IpAddr) -> Result<Vec<IpAddr>, String> {
        self.server.store.announce(ip, LIFE).await.map_err(|e| e.to_string())?;
        let Some(living) = self.named().await? else { return Ok(vec![ip]) };
        if living.is_empty() {
            // The server's own lease was just written.
            return Err(NO_SERVERS.to_owned());
        }
        Ok(living)
    }

    /// The servers with a lease; `None` without a shared storage.
    async fn named(&self) -> Result<Option<Vec<IpAddr>>, String> {
        self.server.store.living().await.map_err(|e| e.to_string())
    }

    /// Removes this server if a former process ended without doing so, because it is not ready yet. The last server stays listed.
    async fn withdraw_stale(&self) -> Result<(), String> {
        if self.server.config.endpoints != EndpointReconciler::Lease || !self.withdraw().await? {
            return Ok(());
        }
        tracing::info!(
            "a former process of this server did not remove itself from the kubernetes service; removing it"
        );
        match self.named().await?.unwrap_or_default() {
            living if living.is_empty() => Err(NO_SERVERS.to_owned()),
            living => self.write(living, Ports::Ours).await,
        }
    }

    async fn withdraw(&self) -> Result<bool, String> {
        self.server.store.withdraw(self.server.config.advertise_address).await.map_err(|e| e.to_string())
    }

    /// The listed servers and this one, at most `servers`; those after this one in the order are kept first.
    async fn counted(&self, ip: IpAddr, servers: usize) -> Result<Vec<IpAddr>, String> {
        let stored = self.stored("", "endpoints").await?;
        let mut all = match stored.as_ref().map(|e| items(&e["subsets"])) {
            Some([subset]) => addresses(subset),
            _ => Vec::new(),
        };
        if !all.contains(&ip) {
            all.push(ip);
        }
        sort(&mut all);
        let at = all.iter().position(|a| *a == ip).unwrap_or(0);
        all.rotate_left(at);
        all.truncate(servers.max(1));
        Ok(all)
    }

    async fn write(&self, mut addresses: Vec<IpAddr>, ports: Ports) -> Result<(), String> {
        sort(&mut addresses);
        let subsets = self.endpoints(&addresses, ports).await.map_err(|status| status.to_string())?;
        if is_served(self.server, SLICE_GROUP, "v1") {
            self.slice(&addresses, &subsets).await.map_err(|status| status.to_string())?;
        }
        Ok(())
    }

    /// The current object, including writes of other servers.
    async fn stored(&self, group: &'static str, plural: &str) -> Result<Option<Value>, String> {
        self.server.store.catch_up().await.map_err(|e| e.to_string())?;
        let record = self.server.store.get(Resource::new(group, plural), "default", NAME);
        Ok(record.map(|record| parse(&record)))
    }

    /// Writes the endpoints and returns their subsets.
    async fn endpoints(&self, all: &[IpAddr], ports: Ports) -> Result<Value, Status> {
        let stored = self.stored("", "endpoints").await.map_err(Status::internal)?;
        let is_there = stored.is_some();
        let mut object = stored.unwrap_or_else(
            || json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": NAME, "namespace": "default"}}),
        );
        let before = object.clone();
        object["metadata"]["labels"][SKIP_MIRROR] = "true".into();
        let own_ports = json!([{"name": "https", "port": self.port, "protocol": "TCP"}]);
        let named = match items(&object["subsets"]) {
            [subset] if ports == Ports::Any || subset["ports"] == own_ports => {
                let mut named = addresses(subset);
                sort(&mut named);
                named == all && subset["notReadyAddresses"].is_null()
            }
            subsets => subsets.is_empty() && all.is_empty(),
        };
        if !named {
            let ports = match items(&object["subsets"]) {
                [subset] if ports == Ports::Any && !items(&subset["ports"]).is_empty() => subset["ports"].clone(),
                _ => own_ports,
            };
            let list: Vec<Value> = all.iter().map(|ip| json!({"ip": ip.to_string()})).collect();
            match list.is_empty() {
                true => remove(&mut object, "subsets"),
                false => object["subsets"] = json!([{"addresses": list, "ports": ports}]),
            }
        }
        let subsets = object["subsets"].clone();
        if object != before {
            let to =
                if is_there { (Method::PUT, format!("{ENDPOINTS}/{NAME}")) } else { (Method::POST, ENDPOINTS.into()) };
            self.send(to, &object).await?;
        }
        Ok(subsets)
    }

    /// Writes the slice. The address family of a slice is immutable, so a slice of another family is replaced.
    async fn slice(&self, all: &[IpAddr], subsets: &Value) -> Result<(), Status> {
        let is_v6 = !all.is_empty() && all.iter().all(IpAddr::is_ipv6);
        let family = if is_v6 { "IPv6" } else { "IPv4" };
        let of_family = all.iter().filter(|ip| ip.is_ipv6() == is_v6);
        let endpoints: Vec<Value> =
            of_family.map(|ip| json!({"addresses": [ip.to_string()], "conditions": {"ready": true}})).collect();
        let wanted = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": NAME,
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": NAME},
            },
            "addressType": family,
            "ports": items(&subsets[0]["ports"]),
            "endpoints": endpoints,
        });
        let path = format!("{SLICES}/{NAME}");
        match self.stored(SLICE_GROUP, "endpointslices").await.map_err(Status::internal)? {
            None => self.send((Method::POST, SLICES.to_owned()), &wanted).await,
            Some(stored) if stored["addressType"] != wanted["addressType"] => {
                self.own.call(Method::DELETE, &path, &Value::Null).await?;
                self.send((Method::POST, SLICES.to_owned()), &wanted).await
            }
            Some(mut stored) => {
                let same = |part: &str| items(&stored[part]) == items(&wanted[part]);
                if same("endpoints") && same("ports") && stored["metadata"]["labels"] == wanted["metadata"]["labels"] {
                    return Ok(());
                }
                stored["metadata"]["labels"] = wanted["metadata"]["labels"].clone();
                for part in ["endpoints", "ports"] {
                    stored[part] = wanted[part].clone();
                }
                self.send((Method::PUT, path), &stored).await
            }
        }
    }

    /// Sends an object. If another server created it meanwhile, that is fine.
    async fn send(&self, (method, path): (Method, String), object: &Value) -> Result<(), Status> {
        let create = method == Method::POST;
        match self.own.call(method, &path, object).await {
            Err(status) if create && status.code == 409 => Ok(()),
            done => done.map(drop),
        }
    }
}

/// The valid addresses of a subset.
fn addresses(subset: &Value) -> Vec<IpAddr> {
    items(&subset["addresses"]).iter().filter_map(|a| a["ip"].as_str()?.parse().ok()).collect()
}

/// Sorts as endpoints are written: by the string.
fn sort(addresses: &mut Vec<IpAddr>) {
    addresses.sort_by_cached_key(ToString::to_string);
    addresses.dedup();
}
