//! Downward API: fields of a pod and resources of its containers as strings (upstream: `pkg/fieldpath`, `pkg/api/v1/resource`).
use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};
use kelson_meta::Quantity;

use crate::node::facts::NodeFacts;
use crate::pod;

/// Returns the value at `path`, for example `metadata.labels['x']`.
pub fn field(pod: &Pod, path: &str, node: &NodeFacts, pod_ips: &[String]) -> Result<String, String> {
    let m = &pod.metadata;
    let spec = pod.spec.as_ref();
    if let Some((base, key)) = subscript(path) {
        let map = match base {
            "metadata.annotations" => m.annotations.as_ref(),
            "metadata.labels" => m.labels.as_ref(),
            _ => return Err(format!("fieldPath {path:?} does not support subscript")),
        };
        return Ok(map.and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => pod::name(pod).to_owned(),
        "metadata.namespace" => pod::namespace(pod).to_owned(),
        "metadata.uid" => pod::uid(pod).to_owned(),
        "metadata.labels" => format_map(m.labels.as_ref()),
        "metadata.annotations" => format_map(m.annotations.as_ref()),
        "spec.nodeName" => node.name.clone(),
        "spec.serviceAccountName" => spec.and_then(|s| s.service_account_name.clone()).unwrap_or_default(),
        "status.hostIP" => node.host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => node.host_ips.join(","),
        "status.podIP" => pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => pod_ips.join(","),
        other => return Err(format!("unsupported fieldPath: {other}")),
    })
}

fn subscript(path: &str) -> Option<(&str, &str)> {
    let (base, rest) = path.split_once("['")?;
    Some((base, rest.strip_suffix("']")?))
}

/// Formats a map as sorted lines `key="value"`, with values quoted as in Go.
pub fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let mut out = String::new();
    for (k, v) in map.into_iter().flatten() {
        if !out.is_empty() {
            out.push('\n');
        }
        // Writing to a `String` cannot fail.
        let _ = write!(out, "{k}={}", quote(v));
    }
    out
}

/// Quotes a string as a Go string literal.
fn quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns the value of a `resourceFieldRef` in units of its divisor, rounded up. Without a container limit, the pod's limit is used, or
/// else the node's allocatable amount; huge pages have no such default.
pub fn resource(
    pod: &Pod,
    c: &Container,
    selector: &ResourceFieldSelector,
    node: &NodeFacts,
) -> Result<String, String> {
    let divisor = selector.divisor.as_ref().map(pod::quantity).filter(|d| !d.is_zero());
    let (kind, name) = selector
        .resource
        .split_once('.')
        .filter(|(k, _)| matches!(*k, "limits" | "requests"))
        .ok_or_else(|| format!("unsupported container resource : {}", selector.resource))?;
    let plain = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    if !plain {
        return Err(format!("unsupported container resource : {}", selector.resource));
    }
    let value = match kind {
        "limits" if name.starts_with("hugepages-") => pod::limit(c, name),
        "limits" => {
            let own = pod::limit(c, name).filter(|q| !q.is_zero());
            let of_node = || node.allocatable.get(name).copied();
            own.or_else(|| pod::shared_limit(pod, name)).or_else(of_node)
        }
        _ => pod::request(c, name),
    };
    let value = value.unwrap_or_default();
    let divisor = divisor.unwrap_or_else(|| Quantity::from_i64(1));
    let (n, d) = (value.nanos(), divisor.nanos());
    Ok(((n + d - 1) / d).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields() {
        let pod: Pod = serde_json::from_value(json!({"metadata":{"name":"p","namespace":"n","uid":"u",
            "labels":{"b":"2","a":"1"},"annotations":{"k":"x\ny"}},"spec":{"containers":[]}}))
        .expect("pod");
        let node = NodeFacts { name: "node".into(), host_ips: vec!["1.1.1.1".into()], ..Default::default() };
        let get = |p: &str| field(&pod, p, &node, &["10.0.0.1".into(), "fd::1".into()]);
        assert_eq!(get("metadata.labels").as_deref(), Ok("a=\"1\"\nb=\"2\""));
        assert_eq!(get("metadata.annotations").as_deref(), Ok("k=\"x\\ny\""));
        assert_eq!(get("metadata.labels['a']").as_deref(), Ok("1"));
        assert_eq!(get("metadata.labels['zz']").as_deref(), Ok(""));
        assert_eq!(get("status.podIPs").as_deref(), Ok("10.0.0.1,fd::1"));
        assert_eq!(get("status.hostIP").as_deref(), Ok("1.1.1.1"));
        assert!(get("spec.x").is_err());
    }

    #[test]
    fn resources() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": {
            "resources": {"limits": {"cpu": "3", "ephemeral-storage": "5", "hugepages-2Mi": "4Mi"}},
            "containers": [
                {"name":"a","resources":{"limits":{"cpu":"1500m","memory":"64Mi"},"requests":{"cpu":"250m"}}},
                {"name":"silent"}]}}))
        .expect("pod");
        let containers = &pod.spec.as_ref().expect("spec").containers;
        let node = NodeFacts {
            allocatable: [("cpu", 8), ("memory", 9), ("ephemeral-storage", 7), ("hugepages-2Mi", 11)]
                .map(|(name, n)| (name.to_owned(), Quantity::from_i64(n)))
                .into(),
            ..Default::default()
        };
        let of = |c: usize, r: &str, d: &str| {
            let s: ResourceFieldSelector = serde_json::from_value(json!({"resource":r,"divisor":d})).expect("selector");
            resource(&pod, &containers[c], &s, &node)
        };
        let get = |r: &str, d: &str| of(0, r, d);
        assert_eq!(of(1, "limits.cpu", "0").as_deref(), Ok("3"), "what the pod may as a whole");
        assert_eq!(of(1, "limits.memory", "0").as_deref(), Ok("9"), "what the node has for pods");
        assert_eq!(of(1, "limits.ephemeral-storage", "0").as_deref(), Ok("7"), "no pod is bounded so as a whole");
        assert_eq!(of(1, "limits.hugepages-2Mi", "0").as_deref(), Ok("0"), "huge pages are never overcommitted");
        assert_eq!(of(1, "requests.cpu", "0").as_deref(), Ok("0"));
        assert_eq!(get("limits.cpu", "1").as_deref(), Ok("2"));
        assert_eq!(get("limits.cpu", "1m").as_deref(), Ok("1500"));
        assert_eq!(get("requests.cpu", "0").as_deref(), Ok("1"));
        assert_eq!(get("limits.memory", "1Mi").as_deref(), Ok("64"));
        assert_eq!(get("limits.ephemeral-storage", "0").as_deref(), Ok("7"));
        assert!(get("limits.gpu", "1").is_err());
    }
}
