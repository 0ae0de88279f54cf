//! DenyServiceExternalIPs: rejects new external addresses of services (CVE-2020-8554).
use kelson_meta::Status;

use crate::{Attributes, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::list;

/// The plugin; see the module.
pub struct DenyServiceExternalIps;

impl Plugin for DenyServiceExternalIps {
    fn name(&self) -> &'static str {
        "DenyServiceExternalIPs"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !a.is_main("", "services") {
            return Ok(());
        }
        let old = list(a.stored(), &["spec", "externalIPs"]);
        if list(a.new_object(), &["spec", "externalIPs"]).iter().all(|ip| old.contains(ip)) {
            return Ok(());
        }
        Err(a.forbidden("Use of external IPs is denied by admission control"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, object};
    use serde_json::json;

    #[tokio::test]
    async fn only_fewer() {
        let service = |ips: &[&str]| json!({"metadata": {"name": "s"}, "spec": {"externalIPs": ips}});
        let update = |old: &[&str], new: &[&str]| Ask::update("/services", service(old), service(new));
        assert!(object(DenyServiceExternalIps, Ask::create("/services", service(&[]))).await.is_ok());
        assert!(object(DenyServiceExternalIps, Ask::create("/services", service(&["1.2.3.4"]))).await.is_err());
        assert!(object(DenyServiceExternalIps, update(&["1.2.3.4", "1.1.1.1"], &["1.1.1.1"])).await.is_ok());
        assert!(object(DenyServiceExternalIps, update(&["1.2.3.4"], &["1.2.3.4", "1.1.1.1"])).await.is_err());
    }
}
