//! The readiness of devices that a driver prepares before a pod is bound (KEP-5007).
use crate::claim::{Granted, ResourceClaimView};

/// The readiness of the devices of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// All devices are ready.
    Ready,
    /// A driver is still preparing a device.
    Waits,
    /// A device cannot be prepared. The value is upstream's message.
    Failed(String),
}

/// Returns the readiness of the devices of an allocated claim.
pub fn readiness(claim: &ResourceClaimView) -> Readiness {
    let Some(allocation) = &claim.status.allocation else { return Readiness::Waits };
    for granted in allocation.devices.results.iter().filter(|g| !g.binding_conditions.is_empty()) {
        match of(claim, granted) {
            Readiness::Ready => {}
            other => return other,
        }
    }
    Readiness::Ready
}

fn of(claim: &ResourceClaimView, granted: &Granted) -> Readiness {
    let id = granted.id();
    let same = |s: &&crate::claim::DeviceStatus| (&s.driver, &s.pool, &s.device) == (&id.driver, &id.pool, &id.device);
    let Some(status) = claim.status.devices.iter().find(same) else { return Readiness::Waits };
    let is_true = |kind: &String| status.conditions.iter().find(|c| c.r#type == *kind && c.status == "True");
    if let Some(failed) = granted.binding_failure_conditions.iter().find_map(is_true) {
        let (name, reason, message) = (&claim.metadata.name, &failed.reason, &failed.message);
        return Readiness::Failed(format!("device binding failed: claim={name}, reason={reason}, message={message:?}"));
    }
    if granted.binding_conditions.iter().all(|c| is_true(c).is_some()) { Readiness::Ready } else { Readiness::Waits }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_drivers_say_of_their_devices() {
        let granted = |conditions: &[&str]| json!({"driver": "d", "pool": "p", "device": "x", "bindingConditions": conditions, "bindingFailureConditions": ["Broken"]});
        let says = |kind: &str, status: &str| json!([{"driver": "d", "pool": "p", "device": "x", "conditions": [{"type": kind, "status": status, "reason": "R", "message": "m"}]}]);
        let failed = "device binding failed: claim=c, reason=R, message=\"m\"";
        for (result, devices, want) in [
            (granted(&[]), json!([]), Readiness::Ready),
            (granted(&["Attached"]), json!([]), Readiness::Waits),
            (granted(&["Attached"]), says("Attached", "False"), Readiness::Waits),
            (granted(&["Attached"]), says("Attached", "True"), Readiness::Ready),
            (granted(&["Attached", "Warm"]), says("Attached", "True"), Readiness::Waits),
            (granted(&["Attached"]), says("Broken", "True"), Readiness::Failed(failed.into())),
        ] {
            let status: Value = json!({"allocation": {"devices": {"results": [result]}}, "devices": devices});
            let claim = json!({"metadata": {"name": "c"}, "status": status});
            assert_eq!(readiness(&serde_json::from_value(claim).unwrap()), want, "{status}");
        }
        assert_eq!(readiness(&ResourceClaimView::default()), Readiness::Waits);
    }
}
