//! Environment variables for the cluster's services (`REDIS_MASTER_SERVICE_HOST` and Docker-link style), if `enableServiceLinks` is set
//! (upstream: `pkg/kubelet/envvars`).
use std::collections::BTreeMap;

use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use serde::Deserialize;

/// The fields of a Service that environment variables need.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceView {
    /// Name and namespace of the service.
    pub metadata: ObjectMeta,
    /// Cluster IP and ports.
    pub spec: ServiceSpec,
}
slim_object!(ServiceView, ResourceType::namespaced("", "v1", "services", "Service"));

/// Part of `v1.ServiceSpec`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceSpec {
    /// Cluster IP; `None` for a headless service.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: String,
    /// Ports; each has one set of variables.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<ServicePort>,
}

/// Part of `v1.ServicePort`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServicePort {
    /// Name of the port; part of the variables' names.
    pub name: String,
    /// Number of the port at the cluster IP.
    pub port: i32,
    /// `TCP`, `UDP` or `SCTP`; an empty string means TCP.
    pub protocol: String,
}

/// Returns the variables for a pod in `namespace`: those of `default/kubernetes` always, and those of the services in its namespace if
/// `links`.
pub fn variables<'a>(
    namespace: &str,
    links: bool,
    services: impl Iterator<Item = &'a ServiceView>,
) -> BTreeMap<String, String> {
    let mut chosen: BTreeMap<&str, &ServiceView> = BTreeMap::new();
    for s in services {
        if s.spec.cluster_ip.is_empty() || s.spec.cluster_ip == "None" {
            continue;
        }
        let m = &s.metadata;
        let master = m.namespace == "default" && m.name == "kubernetes";
        if (m.namespace == namespace && links) || (master && !chosen.contains_key("kubernetes")) {
            chosen.insert(&m.name, s);
        }
    }
    let mut out = BTreeMap::new();
    for (name, s) in chosen {
        one(name, &s.spec, &mut out);
    }
    out
}

fn variable_name(s: &str) -> String {
    s.to_ascii_uppercase().replace('-', "_")
}

fn one(name: &str, spec: &ServiceSpec, out: &mut BTreeMap<String, String>) {
    let prefix = variable_name(name);
    let ip = &spec.cluster_ip;
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.clone() };
    out.insert(format!("{prefix}_SERVICE_HOST"), ip.clone());
    for (i, p) in spec.ports.iter().enumerate() {
        let protocol = if p.protocol.is_empty() { "TCP" } else { &p.protocol };
        let lower = protocol.to_ascii_lowercase();
        if i == 0 {
            out.insert(format!("{prefix}_SERVICE_PORT"), p.port.to_string());
            out.insert(format!("{prefix}_PORT"), format!("{lower}://{host}:{}", p.port));
        }
        if !p.name.is_empty() {
            out.insert(format!("{prefix}_SERVICE_PORT_{}", variable_name(&p.name)), p.port.to_string());
        }
        let link = format!("{prefix}_PORT_{}_{}", p.port, protocol.to_ascii_uppercase());
        out.insert(link.clone(), format!("{lower}://{host}:{}", p.port));
        out.insert(format!("{link}_PROTO"), lower);
        out.insert(format!("{link}_PORT"), p.port.to_string());
        out.insert(format!("{link}_ADDR"), ip.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn links_and_the_master() {
        let services: Vec<ServiceView> = serde_json::from_value(json!([
            {"metadata":{"name":"kubernetes","namespace":"default"},
             "spec":{"clusterIP":"10.0.0.1","ports":[{"name":"https","port":443,"protocol":"TCP"}]}},
            {"metadata":{"name":"my-db","namespace":"n"},"spec":{"clusterIP":"10.0.0.2","ports":[{"port":5432}]}},
            {"metadata":{"name":"headless","namespace":"n"},"spec":{"clusterIP":"None"}}
        ]))
        .expect("services");
        let v = variables("n", true, services.iter());
        assert_eq!(v["KUBERNETES_SERVICE_HOST"], "10.0.0.1");
        assert_eq!(v["KUBERNETES_SERVICE_PORT_HTTPS"], "443");
        assert_eq!(v["MY_DB_PORT_5432_TCP"], "tcp://10.0.0.2:5432");
        assert_eq!(v.len(), 8 + 7);
        let v = variables("n", false, services.iter());
        assert!(v.contains_key("KUBERNETES_PORT") && !v.contains_key("MY_DB_SERVICE_HOST"));
    }
}
