//! The `kubernetes` service and its endpoints, which name the API servers that live: made at start and looked at from time to time, so
//! that what others spoil or delete comes back. Servers that share a storage know of each other by leases there.
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
/// Keeps the endpoints from being copied to a slice by a controller: the slice is made here.
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Between two looks.
const EVERY: Duration = Duration::from_secs(10);
/// How long a server counts as living after its last look.
const LIFE: Duration = Duration::from_secs(15);
/// How long the end of a server waits for its address to be taken out.
const LEAVE_MAX: Duration = Duration::from_secs(1);

const NOBODY: &str =
    "no API server IP addresses were listed in storage, refusing to erase all endpoints for the kubernetes Service";

/// Makes the service and its endpoints. Where other servers may be named there, this one is when it is ready, and until then no more.
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
    if let Err(why) = writer.forget().await {
        tracing::warn!(why, "the endpoints of the kubernetes service may name this server, which is not ready yet");
    }
    Ok(())
}

/// Looks after service and endpoints until the server ends.
pub async fn follow(server: Arc<Server>) {
    let own = SelfClient::new(&server);
    let writer = EndpointWriter { server: &server, own: &own, port: server.port() };
    // What is told at the start was made right before, unless it waited for the server to be ready.
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
            tracing::warn!(why, "the kubernetes service cannot be made again");
        }
        if let Err(why) = writer.round(Ports::Any).await {
            tracing::warn!(why, "unable to sync the endpoints of the kubernetes service");
        }
    }
}

/// Takes this server out of the endpoints, where others remain to be named.
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

/// Which ports are made right.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ports {
    /// Those of other servers may stand.
    Any,
    /// There is this server's.
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

/// Makes the endpoints of one server's cluster right.
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
            // No endpoint may be a loopback address: pods could not use it.
            tracing::debug!(%ip, "no endpoints for the kubernetes service: the advertised address is a loopback one");
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
            // The own lease was written just now.
            return Err(NOBODY.to_owned());
        }
        Ok(living)
    }

    /// Those that have a lease, where there are leases.
    async fn named(&self) -> Result<Option<Vec<IpAddr>>, String> {
        self.server.store.living().await.map_err(|e| e.to_string())
    }

    /// Takes this server out if it ended without doing so: it is not ready yet. The last one stays, as somebody must be named.
    async fn forget(&self) -> Result<(), String> {
        if self.server.config.endpoints != EndpointReconciler::Lease || !self.withdraw().await? {
            return Ok(());
        }
        tracing::info!("this server did not take itself out of the kubernetes service when it last ended");
        match self.named().await?.unwrap_or_default() {
            living if living.is_empty() => Err(NOBODY.to_owned()),
            living => self.write(living, Ports::Ours).await,
        }
    }

    async fn withdraw(&self) -> Result<bool, String> {
        self.server.store.withdraw(self.server.config.advertise_address).await.map_err(|e| e.to_string())
    }

    /// Those that are named, and this one; of more than there are servers, those behind this one go.
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

    /// What the store holds now, by all who write to it.
    async fn stored(&self, group: &'static str, plural: &str) -> Result<Option<Value>, String> {
        self.server.store.catch_up().await.map_err(|e| e.to_string())?;
        let record = self.server.store.get(Resource::new(group, plural), "default", NAME);
        Ok(record.map(|record| parse(&record)))
    }

    /// The subsets that the endpoints have from now on.
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

    /// The slice of the same servers. One of another family cannot be changed: it is made anew.
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

    /// What another server made meanwhile is as good.
    async fn send(&self, (method, path): (Method, String), object: &Value) -> Result<(), Status> {
        let create = method == Method::POST;
        match self.own.call(method, &path, object).await {
            Err(status) if create && status.code == 409 => Ok(()),
            done => done.map(drop),
        }
    }
}

/// The addresses of a subset that can be read.
fn addresses(subset: &Value) -> Vec<IpAddr> {
    items(&subset["addresses"]).iter().filter_map(|a| a["ip"].as_str()?.parse().ok()).collect()
}

/// In the order in which endpoints are written, which is that of the text.
fn sort(addresses: &mut Vec<IpAddr>) {
    addresses.sort_by_cached_key(ToString::to_string);
    addresses.dedup();
}
