//! The API servers that a cluster lists: the EndpointSlice of `default/kubernetes`.
use std::net::{IpAddr, SocketAddr};

use kelson_client::servers::SERVERS_MAX;
use kelson_client::{ResourceType, slim_object};
use kelson_meta::ObjectMeta;
use serde::Deserialize;

/// The namespace and the name of the EndpointSlice of the API servers.
pub const NAMESPACE: &str = "default";
pub const NAME: &str = "kubernetes";

/// The part of an EndpointSlice that says where servers are.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServerSlice {
    metadata: ObjectMeta,
    endpoints: Vec<ServerEndpoint>,
    ports: Vec<ServerPort>,
}

slim_object!(ServerSlice, ResourceType::namespaced("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"));

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ServerEndpoint {
    addresses: Vec<String>,
    conditions: ServerConditions,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ServerConditions {
    ready: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ServerPort {
    port: Option<u16>,
}

impl ServerSlice {
    /// Returns the URLs of all servers.
    pub fn urls(&self) -> Vec<String> {
        self.urls_of(self.endpoints.iter()).collect()
    }

    /// Returns the URLs of the servers that are ready, at most as many as a node remembers.
    pub fn ready_urls(&self) -> Vec<String> {
        let ready = self.endpoints.iter().filter(|endpoint| endpoint.conditions.ready != Some(false));
        self.urls_of(ready).take(SERVERS_MAX).collect()
    }

    fn urls_of<'a>(&'a self, endpoints: impl Iterator<Item = &'a ServerEndpoint>) -> impl Iterator<Item = String> {
        let port = self.ports.iter().find_map(|port| port.port);
        let addresses =
            endpoints.flat_map(|endpoint| &endpoint.addresses).filter_map(|text| text.parse::<IpAddr>().ok());
        addresses.filter_map(move |ip| port.map(|port| format!("https://{}", SocketAddr::new(ip, port))))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_slice_of_the_kubernetes_service_lists_the_servers() {
        let slice = |value: serde_json::Value| serde_json::from_value::<ServerSlice>(value).unwrap().ready_urls();
        let endpoints = json!([
            {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
            {"addresses": ["10.0.0.2"]},
            {"addresses": ["fd00::3"], "conditions": {"ready": null}},
            {"addresses": ["10.0.0.4"], "conditions": {"ready": false}},
            {"addresses": ["a.example.org"]}]);
        let ports = json!([{"name": "https", "port": 6443, "protocol": "TCP"}]);
        let found = slice(json!({"addressType": "IPv4", "endpoints": endpoints, "ports": ports}));
        assert_eq!(found, ["https://10.0.0.1:6443", "https://10.0.0.2:6443", "https://[fd00::3]:6443"]);
        assert!(slice(json!({"endpoints": endpoints, "ports": []})).is_empty());
    }
}
