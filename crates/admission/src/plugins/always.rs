//! Plugins without state: AlwaysAdmit, AlwaysDeny, LimitPodHardAntiAffinityTopology.
use kelson_meta::Status;

use crate::{Attributes, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::{list, text};

/// Admits everything. Deprecated; it has no effect.
pub struct AlwaysAdmit;

impl Plugin for AlwaysAdmit {
    fn name(&self) -> &'static str {
        "AlwaysAdmit"
    }
    fn handles(&self, _: Operation) -> bool {
        true
    }
}

/// Rejects everything. For tests of clients.
pub struct AlwaysDeny;

const DENY: &str = "admission control is denying all modifications";

impl Plugin for AlwaysDeny {
    fn name(&self) -> &'static str {
        "AlwaysDeny"
    }
    fn handles(&self, _: Operation) -> bool {
        true
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        Err(a.forbidden(DENY))
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        Err(a.forbidden(DENY))
    }
}

/// Rejects pods whose required anti-affinity has a topology other than the node: such a pod could block whole zones.
pub struct LimitPodHardAntiAffinityTopology;

impl Plugin for LimitPodHardAntiAffinityTopology {
    fn name(&self) -> &'static str {
        "LimitPodHardAntiAffinityTopology"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is_main("", "pods") {
            return Ok(());
        }
        let path = ["spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
        for term in list(a.new_object(), &path) {
            if text(term, &["topologyKey"]) != "kubernetes.io/hostname" {
                return Err(a.forbidden(&format!(
                    "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {} but only key \
                     kubernetes.io/hostname is allowed",
                    text(term, &["topologyKey"])
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, object};
    use serde_json::json;

    #[tokio::test]
    async fn decisions() {
        let pod = |key: &str| {
            Ask::pod(json!({"metadata": {"name": "p"}, "spec": {"affinity": {"podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": key}]}}}}))
        };
        assert!(object(AlwaysAdmit, pod("x")).await.is_ok());
        assert_eq!(object(AlwaysDeny, pod("x")).await.unwrap_err(), format!("pods \"p\" is forbidden: {DENY}"));
        assert!(object(LimitPodHardAntiAffinityTopology, pod("kubernetes.io/hostname")).await.is_ok());
        assert!(object(LimitPodHardAntiAffinityTopology, pod("zone")).await.is_err());
    }
}
