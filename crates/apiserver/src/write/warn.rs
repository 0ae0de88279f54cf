//! Warnings for the client of a write: those of the kind, and those about this cluster.
use serde_json::Value;

use crate::catalog::Served;
use crate::shared::context::RequestContext;

/// Warning for a NetworkPolicy in a cluster whose nodes do not enforce policies.
const NOT_ENFORCED: &str = "this cluster's nodes do not enforce network policies (--disable network-policy): unless another network \
                            plug-in does, this object has no effect";

/// Adds the warnings about an object that is created (`old` is `None`) or changed.
pub fn add(cx: &RequestContext, served: &Served, object: &Value, old: Option<&Value>) {
    served.strategy.warnings(object, old).into_iter().for_each(|text| cx.warn(text));
    let kind = (served.gvk.group.as_str(), served.gvk.kind.as_str());
    if !cx.server.config.enforces_network_policies && kind == ("networking.k8s.io", "NetworkPolicy") {
        cx.warn(NOT_ENFORCED);
    }
}
