//! The quality of service class of a pod.
use serde_json::Value;

use crate::tree::{entries, items, present};

/// Returns the class from CPU and memory of all containers (upstream `pkg/apis/core/helper/qos`).
pub(super) fn qos_class(spec: &Value) -> &'static str {
    let counts = |k: &str| matches!(k, "cpu" | "memory");
    let nonzero = |v: &Value| {
        let q = match v {
            Value::String(s) => s.parse::<kelson_meta::Quantity>().ok(),
            Value::Number(n) => n.to_string().parse().ok(),
            _ => None,
        };
        q.is_some_and(|q| q.signum() > 0)
    };
    let class = |all: &mut dyn Iterator<Item = &Value>| {
        let (mut any, mut guaranteed) = (false, true);
        for c in all {
            let (requests, limits) = (&c["resources"]["requests"], &c["resources"]["limits"]);
            let mut limited = 0;
            for list in [requests, limits] {
                any |= entries(list).any(|(k, v)| counts(k) && nonzero(v));
            }
            for k in ["cpu", "memory"] {
                let (r, l) = (&requests[k], &limits[k]);
                limited += usize::from(nonzero(l) && (!present(r) || r == l));
            }
            guaranteed &= limited == 2;
        }
        (any, guaranteed)
    };
    let (any, guaranteed) = if present(&spec["resources"]) {
        class(&mut std::iter::once(spec))
    } else {
        class(&mut items(&spec["containers"]).iter().chain(items(&spec["initContainers"])))
    };
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
