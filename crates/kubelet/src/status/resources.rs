//! Resources of a pod as a whole, granted and applied (KEP-5419; upstream: `convertToAPIPodLevelResourcesStatus`), in addition to those of
//! each container. Pure.
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kelson_meta::Quantity;

use crate::cgroups::resources::SHARES_MIN;
use crate::pod::{self, Role};

type ApiAmounts = BTreeMap<String, ApiQuantity>;

/// Returns the requests or limits of a container.
fn own(c: &Container, requests: bool) -> Option<&ApiAmounts> {
    let r = c.resources.as_ref()?;
    if requests { r.requests.as_ref() } else { r.limits.as_ref() }
}

/// Returns the resources for which any part of the pod has a request or limit.
fn named(pod: &Pod, requests: bool) -> BTreeSet<String> {
    let members = pod::members(pod).filter(|m| m.role != Role::Ephemeral);
    let mut names: BTreeSet<String> = members
        .flat_map(|m| own(&m.container, requests).into_iter().flatten().map(|(r, _)| r.clone()).collect::<Vec<_>>())
        .collect();
    let spec = pod.spec.as_ref();
    let whole = spec
        .and_then(|s| s.resources.as_ref())
        .and_then(|r| if requests { r.requests.as_ref() } else { r.limits.as_ref() });
    names.extend(whole.into_iter().flatten().map(|(r, _)| r.clone()));
    if requests {
        names.extend(spec.and_then(|s| s.overhead.as_ref()).into_iter().flatten().map(|(r, _)| r.clone()));
    }
    names
}

fn some(amounts: ApiAmounts) -> Option<ApiAmounts> {
    Some(amounts).filter(|all| !all.is_empty())
}

fn text(amount: Quantity) -> ApiQuantity {
    ApiQuantity(amount.to_string())
}

/// Computes both fields of the status.
pub fn of_pod(pod: &Pod, old: &PodStatus, is_stale: bool) -> PodStatus {
    let (allocated_resources, resources) = (granted(pod), Some(held(pod, old, is_stale)));
    PodStatus { allocated_resources, resources, ..PodStatus::default() }
}

/// Granted amount of each resource.
fn granted(pod: &Pod) -> Option<ApiAmounts> {
    some(named(pod, true).into_iter().map(|r| (r.clone(), text(pod::pod_request(pod, &r)))).collect())
}

/// Sum of the containers' limits, for resources that are limited.
fn limits(pod: &Pod) -> Option<ApiAmounts> {
    some(named(pod, false).into_iter().map(|r| (r.clone(), text(pod::pod_limit_sum(pod, &r)))).collect())
}

/// Resources that the pod currently has: before it runs, all that was granted; then those of its cgroup. `is_stale`: the cgroup does not
/// have the granted resources yet.
fn held(pod: &Pod, old: &PodStatus, is_stale: bool) -> ResourceRequirements {
    if let Some(before) = old.resources.as_ref().filter(|_| is_stale) {
        return before.clone();
    }
    let spec = pod.spec.as_ref().and_then(|s| s.resources.clone()).unwrap_or_default();
    if old.phase.as_deref() != Some("Running") {
        return ResourceRequirements { requests: granted(pod), limits: limits(pod), ..spec };
    }
    let (mut requests, mut limits) = (spec.requests.unwrap_or_default(), spec.limits.unwrap_or_default());
    let cpu = pod::pod_request(pod, "cpu");
    if cpu.milli_value() > SHARES_MIN {
        requests.insert("cpu".into(), text(cpu));
    }
    if named(pod, true).contains("memory") {
        requests.insert("memory".into(), text(pod::pod_request(pod, "memory")));
    }
    for resource in ["cpu", "memory"] {
        if let Some(bound) = pod::pod_limit(pod, resource).filter(|l| !l.is_zero()) {
            limits.insert(resource.to_owned(), text(bound));
        }
    }
    ResourceRequirements { claims: spec.claims, requests: some(requests), limits: some(limits) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(spec: Value, phase: &str, granted_is: Value, held_is: Value) {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).expect("a pod");
        let old = PodStatus { phase: Some(phase.into()), ..PodStatus::default() };
        assert_eq!(json!(granted(&pod)), granted_is, "granted");
        assert_eq!(json!(held(&pod, &old, false)), held_is, "{phase}");
    }

    #[test]
    fn pod_level_resources_in_the_status() {
        let of = |requests: Value, limits: Value| json!({"requests": requests, "limits": limits});
        let two = json!({"containers": [
            {"name": "a", "resources": of(json!({"cpu": "100m", "memory": "64Mi", "ephemeral-storage": "1Gi"}), json!({"memory": "64Mi"}))},
            {"name": "b", "resources": of(json!({"cpu": "0.2"}), json!({"cpu": "1"}))}]});
        let all = json!({"cpu": "300m", "memory": "64Mi", "ephemeral-storage": "1Gi"});
        check(two.clone(), "Pending", all.clone(), json!({"requests": all, "limits": {"cpu": "1", "memory": "64Mi"}}));
        check(two, "Running", all, json!({"requests": {"cpu": "300m", "memory": "64Mi"}}));
        check(json!({"containers": [{"name": "a"}]}), "Running", Value::Null, json!({}));
        let whole = json!({"containers": [{"name": "a", "resources": of(json!({"cpu": "100m"}), json!({}))}],
            "resources": of(json!({"cpu": "500m", "memory": "100Mi"}), json!({"cpu": "1", "memory": "200Mi"}))});
        let asked = json!({"cpu": "500m", "memory": "100Mi"});
        let has = json!({"requests": asked, "limits": {"cpu": "1", "memory": "200Mi"}});
        check(whole.clone(), "Pending", asked.clone(), has.clone());
        check(whole.clone(), "Running", asked, has);
        // While the cgroup is not updated, the old values stay.
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": whole})).expect("a pod");
        let before: ResourceRequirements = serde_json::from_value(json!({"limits": {"cpu": "2"}})).expect("resources");
        let old = PodStatus { phase: Some("Running".into()), resources: Some(before.clone()), ..PodStatus::default() };
        assert_eq!(held(&pod, &old, true), before);
    }
}
