//! Claims that request more than their capacity. The driver's resizer and the node expand volumes; this controller only
//! records an event that names the component for which the claim waits. Upstream `pkg/controller/volume/expand`.
use std::sync::Arc;

use kelson_client::{Change, EventType, ObjectRef, WorkQueue};
use kelson_meta::ObjectKey;

use crate::shared::context::{Context, SyncError, WORKERS};
use crate::views::{ClaimView, VolumeView};

/// The source of this controller's events.
const COMPONENT: &str = "volume_expand";

/// Starts the controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let recorder = ctx.recorder(&client, COMPONENT);
    let (claims, volumes) = (ctx.informers.claims.reader(), ctx.informers.volumes.reader());
    let q = queue.clone();
    claims.on_change(move |change| {
        let grown = match change {
            Change::Added(c) => asks_for_more(c),
            Change::Updated { old, new } => new.requested() > old.requested() && asks_for_more(new),
            Change::Deleted(_) => false,
        };
        if grown {
            q.add(change.object().metadata.key());
        }
    });
    ctx.run_queue_of(claims.clone(), &queue, WORKERS, move |key| {
        let reported = claims.get(&key).and_then(|claim| {
            let volume = volumes.get(&ObjectKey::new("", &claim.spec.volume_name))?;
            Some((ObjectRef::of(&*claim), kind_of_event(&claim, &volume)?))
        });
        if let Some((about, kind)) = reported {
            recorder.event(&about, kind, "ExternalExpanding", "waiting for an external controller to expand this PVC");
        }
        async { Ok::<(), SyncError>(()) }
    });
}

/// Whether a bound claim requests more than its capacity.
fn asks_for_more(claim: &ClaimView) -> bool {
    let has = claim.status.capacity.as_ref().and_then(|c| c.storage);
    claim.status.phase == "Bound" && has.is_some_and(|has| claim.requested() > has)
}

/// Returns the type of the event: a CSI driver may have a resizer, and other volumes cannot be expanded. Returns `None`
/// if the volume belongs to another claim.
fn kind_of_event(claim: &ClaimView, volume: &VolumeView) -> Option<EventType> {
    if !asks_for_more(claim) || volume.spec.claim_ref.as_ref().is_none_or(|r| r.uid != claim.metadata.uid) {
        return None;
    }
    Some(if volume.spec.csi.is_some() { EventType::Normal } else { EventType::Warning })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_event() {
        let claim = |asks: &str, has: &str, phase: &str| -> ClaimView {
            serde_json::from_value(
                json!({"metadata": {"uid": "u"}, "spec": {"resources": {"requests": {"storage": asks}}},
                "status": {"phase": phase, "capacity": {"storage": has}}}),
            )
            .unwrap()
        };
        let volume = |csi: bool, uid: &str| -> VolumeView {
            let csi = if csi { json!({"driver": "d", "volumeHandle": "h"}) } else { json!(null) };
            serde_json::from_value(json!({"spec": {"csi": csi, "claimRef": {"uid": uid}}})).unwrap()
        };
        let rows = [
            (claim("2Gi", "1Gi", "Bound"), volume(true, "u"), Some(EventType::Normal)),
            (claim("2Gi", "1Gi", "Bound"), volume(false, "u"), Some(EventType::Warning)),
            (claim("1Gi", "1Gi", "Bound"), volume(true, "u"), None),
            (claim("1Gi", "2Gi", "Bound"), volume(true, "u"), None),
            (claim("2Gi", "1Gi", "Lost"), volume(true, "u"), None),
            (claim("2Gi", "1Gi", "Bound"), volume(true, "other"), None),
        ];
        for (claim, volume, want) in rows {
            assert_eq!(kind_of_event(&claim, &volume), want, "{claim:?} {volume:?}");
        }
    }
}
