//! Makes the `kube-dns` service in kube-system point at this process, so that the proxy sends pods' questions here.
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kelson_client::{Client, ClientError, Object, PatchKind, WriteOptions};
use serde_json::{Value, json};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";
/// The pause between attempts while the API rejects it.
const RETRY: Duration = Duration::from_secs(2);

/// The objects to publish.
#[derive(Clone, Debug)]
pub struct Published {
    /// The IP of the service, usually the tenth address of the service range.
    pub service_ip: IpAddr,
    /// The address of a server, as nodes and pods reach it.
    pub endpoint: SocketAddr,
    /// The name of the server's node, which is also the name of the slice.
    pub node_name: String,
}

/// Creates or corrects the service and this server's endpoint slice. It retries until the API has accepted both.
pub async fn publish(client: &Client, what: &Published) {
    loop {
        match once(client, what).await {
            Ok(()) => return,
            Err(e) => tracing::warn!(error = %e, "publishing cluster DNS failed; retrying"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn once(client: &Client, what: &Published) -> Result<(), ClientError> {
    ensure::<Service>(client, NAME, &service(what)).await?;
    let slice = slice(what);
    let name = slice["metadata"]["name"].as_str().unwrap_or(NAME).to_owned();
    ensure::<EndpointSlice>(client, &name, &slice).await
}

/// Updates the object if it exists, and creates it otherwise. The order matters: creating an existing service would be
/// rejected because of its address instead of its name.
async fn ensure<T: Object>(client: &Client, name: &str, object: &Value) -> Result<(), ClientError> {
    let options = WriteOptions::manager("kelson-dns");
    match client.patch::<T>(NAMESPACE, name, "", PatchKind::Merge, object, &options).await {
        Err(e) if e.is_not_found() => client.create::<T>(NAMESPACE, object).await.map(|_| ()),
        other => other,
    }
}

fn service(what: &Published) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {
            "k8s-app": NAME, "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"}},
        "spec": {
            "clusterIP": what.service_ip, "clusterIPs": [what.service_ip],
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": what.endpoint.port()},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": what.endpoint.port()},
            ],
        },
    })
}

fn slice(what: &Published) -> Value {
    let port = what.endpoint.port();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("{NAME}-{}", what.node_name), "namespace": NAMESPACE, "labels": {
            "kubernetes.io/service-name": NAME, "endpointslice.kubernetes.io/managed-by": "kelson-dns"}},
        "addressType": if what.endpoint.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [what.endpoint.ip()], "nodeName": what.node_name,
            "conditions": {"ready": true, "serving": true, "terminating": false}}],
        "ports": [
            {"name": "dns", "port": port, "protocol": "UDP"},
            {"name": "dns-tcp", "port": port, "protocol": "TCP"},
        ],
    })
}
