//! The owners of a pod's claims by the set's retention policy. Pure. A claim owned by the set is deleted with the set,
//! and one owned by a surplus pod is deleted with that pod. Upstream `stateful_set_utils.go`, KEP-1847.
use kelson_client::Object;
use kelson_meta::OwnerReference;

use crate::shared::ownership::controller_ref;
use crate::views::{ClaimView, PodView, StatefulSetView};

/// The change of a claim's owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owners {
    /// The owners are correct or managed by another controller.
    Keep,
    /// Set these owners. `conflict`: another controller owns the claim, so the policy cannot be applied.
    Set {
        owners: Vec<OwnerReference>,
        /// Whether to record an event about the conflict.
        conflict: bool,
    },
}

fn names<O: Object>(owner: &OwnerReference, object: &O) -> bool {
    owner.api_version == O::TYPE.api_version() && owner.kind == O::TYPE.kind && owner.name == object.name()
}

/// Returns whether the set should own the claim, and whether a surplus pod should.
fn wanted(set: &StatefulSetView, in_range: bool) -> (bool, bool) {
    let policy = set.spec.persistent_volume_claim_retention_policy.as_ref();
    let deletes = |f: fn(&crate::views::ClaimRetention) -> &String| policy.is_some_and(|p| f(p) == "Delete");
    let (when_deleted, when_scaled) = (deletes(|p| &p.when_deleted), deletes(|p| &p.when_scaled));
    let by_pod = when_scaled && !in_range;
    (when_deleted && !by_pod, by_pod)
}

/// Whether the policy retains all claims.
fn retains(set: &StatefulSetView) -> bool {
    let policy = set.spec.persistent_volume_claim_retention_policy.as_ref();
    policy.is_none_or(|p| p.when_deleted != "Delete" && p.when_scaled != "Delete")
}

/// Returns the change for one claim of one pod.
pub fn owners(claim: &ClaimView, set: &StatefulSetView, pod: &PodView, in_range: bool) -> Owners {
    let refs = &claim.metadata.owner_references;
    let is_ours = |r: &OwnerReference| r.uid == set.uid() || r.uid == pod.uid();
    // The claim belongs to an earlier set or pod of this name and is deleted by the garbage collector.
    if refs.iter().any(|r| (names(r, set) || names(r, pod)) && !is_ours(r)) {
        return Owners::Keep;
    }
    let others: Vec<OwnerReference> = refs.iter().filter(|r| !names(r, set) && !names(r, pod)).cloned().collect();
    if !retains(set) && others.iter().any(|r| r.controller == Some(true)) {
        let held = refs.iter().any(is_ours);
        return if held { Owners::Set { owners: others, conflict: true } } else { Owners::Keep };
    }
    let (by_set, by_pod) = wanted(set, in_range);
    let has = |uid: &str| refs.iter().any(|r| r.uid == uid);
    let half = refs.iter().any(|r| is_ours(r) && r.controller != Some(true));
    if !half && has(set.uid()) == by_set && has(pod.uid()) == by_pod {
        return Owners::Keep;
    }
    let mut owners = others;
    owners.extend(by_set.then(|| controller_ref(set)));
    owners.extend(by_pod.then(|| controller_ref(pod)));
    Owners::Set { owners, conflict: false }
}

/// Whether a claim is being deleted with an earlier pod of this name, so that no new pod may use it.
pub fn is_stale(claim: &ClaimView, set: &StatefulSetView, pod_name: &str) -> bool {
    let policy = set.spec.persistent_volume_claim_retention_policy.as_ref();
    policy.is_some_and(|p| p.when_scaled == "Delete")
        && claim
            .metadata
            .owner_references
            .iter()
            .any(|r| r.api_version == "v1" && r.kind == "Pod" && r.name == pod_name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn who_owns_a_claim() {
        let reference = |kind: &str, name: &str, uid: &str, controller: bool| {
            let version = if kind == "Pod" { "v1" } else { "apps/v1" };
            json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": controller})
        };
        let by_set = || reference("StatefulSet", "s", "set", true);
        let by_pod = || reference("Pod", "s-0", "pod", true);
        let other = |controller| reference("Thing", "t", "thing", controller);
        // whenDeleted, whenScaled, in range, owners before, owners after (absent: kept), conflict.
        let rows: Vec<(&str, &str, bool, Value, Option<&str>, bool)> = vec![
            ("Retain", "Retain", true, json!([]), None, false),
            ("Retain", "Retain", true, json!([by_set()]), Some(""), false),
            ("Delete", "Retain", true, json!([]), Some("set"), false),
            ("Delete", "Retain", false, json!([]), Some("set"), false),
            ("Delete", "Retain", true, json!([by_set()]), None, false),
            ("Retain", "Delete", true, json!([]), None, false),
            ("Retain", "Delete", false, json!([]), Some("pod"), false),
            ("Retain", "Delete", true, json!([by_pod()]), Some(""), false),
            ("Delete", "Delete", true, json!([]), Some("set"), false),
            ("Delete", "Delete", false, json!([by_set()]), Some("pod"), false),
            ("Delete", "Delete", false, json!([other(false)]), Some("thing pod"), false),
            ("Delete", "Delete", true, json!([other(true)]), None, false),
            ("Delete", "Delete", true, json!([other(true), by_set()]), Some("thing"), true),
            ("Delete", "Retain", true, json!([reference("StatefulSet", "s", "set", false)]), Some("set"), false),
            ("Delete", "Retain", true, json!([reference("StatefulSet", "s", "earlier", true)]), None, false),
        ];
        for (deleted, scaled, in_range, before, after, conflict) in rows {
            let set = json!({"metadata": {"name": "s", "uid": "set"},
                "spec": {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": deleted, "whenScaled": scaled}}});
            let set: StatefulSetView = serde_json::from_str(&set.to_string()).unwrap();
            let pod: PodView = serde_json::from_value(json!({"metadata": {"name": "s-0", "uid": "pod"}})).unwrap();
            let claim: ClaimView =
                serde_json::from_value(json!({"metadata": {"name": "c", "ownerReferences": before}})).unwrap();
            let got = match owners(&claim, &set, &pod, in_range) {
                Owners::Keep => (None, false),
                Owners::Set { owners, conflict } => {
                    (Some(owners.iter().map(|o| o.uid.as_str()).collect::<Vec<_>>().join(" ")), conflict)
                }
            };
            assert_eq!(got, (after.map(str::to_owned), conflict), "{deleted} {scaled} {in_range} {before}");
        }
    }
}
