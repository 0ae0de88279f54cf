//! Combines container states, phase and conditions to a pod's status. Pure.
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::container::{self, StateInput};
use super::{conditions, ended, phase, resources};
use crate::pod::{self, Role};
use crate::runtime::snapshot::RuntimePod;

/// Further input for a status.
#[derive(Debug)]
pub struct StatusInput<'a> {
    /// Addresses of the node.
    pub host_ips: &'a [String],
    /// When this kubelet first saw the pod.
    pub start_time: Timestamp,
    /// Transition time of new conditions.
    pub now: Timestamp,
    /// Whether all containers have been stopped and will not start again.
    pub over: bool,
    /// Reason and message of the kubelet's decision to end the pod (`Evicted`, `DeadlineExceeded`).
    pub verdict: Option<(&'a str, &'a str)>,
    /// Why the pod does not have the resources that its spec requests.
    pub resize_pending: Option<(&'static str, &'a str)>,
    /// Whether the pod's cgroup does not have the granted resources yet.
    pub cgroup_stale: bool,
    /// Set while granted resources are not applied completely. The value is the error, or empty.
    pub resizing: Option<&'a str>,
}

/// Combines the kubelet's own last status (`own`) with the fields that other components wrote (`observed`, the status in an event). The
/// kubelet's own fields must not be read back from the API: an event may predate the newest write, and two values would then alternate
/// without end.
pub fn own_over(observed: &PodStatus, own: &PodStatus) -> PodStatus {
    let mut out = own.clone();
    let theirs = |c: &PodCondition| !conditions::OWNED.contains(&c.type_.as_str()) || c.type_ == "DisruptionTarget";
    let others: Vec<PodCondition> = observed.conditions.iter().flatten().filter(|c| theirs(c)).cloned().collect();
    let list = out.conditions.get_or_insert_default();
    // `DisruptionTarget` may be the kubelet's own condition that the API does not have yet.
    list.retain(|c| !theirs(c) || (c.type_ == "DisruptionTarget" && others.iter().all(|o| o.type_ != c.type_)));
    list.extend(others);
    out.resource_claim_statuses.clone_from(&observed.resource_claim_statuses);
    out.extended_resource_claim_status.clone_from(&observed.extended_resource_claim_status);
    if matches!(observed.phase.as_deref(), Some("Failed" | "Succeeded")) {
        (out.phase, out.reason, out.message) =
            (observed.phase.clone(), observed.reason.clone(), observed.message.clone());
    }
    out
}

/// Computes the complete status.
pub fn status(pod: &Pod, runtime: &RuntimePod, by: &StateInput<'_>, about: &StatusInput<'_>) -> PodStatus {
    let old = pod.status.clone().unwrap_or_default();
    let of = |roles: &[Role]| -> Vec<ContainerStatus> {
        let members = pod::members(pod).filter(|m| roles.contains(&m.role));
        members.map(|m| container::status(pod, &m, runtime, by)).collect()
    };
    let (mut inits, mut apps, ephemeral) = (of(&[Role::Init, Role::Sidecar]), of(&[Role::App]), of(&[Role::Ephemeral]));
    let phase = match old.phase.as_deref() {
        // A final phase never changes.
        Some("Failed") => "Failed",
        Some("Succeeded") => "Succeeded",
        _ if about.verdict.is_some() && about.over => "Failed",
        _ => phase::phase(pod, &inits, &apps, about.over),
    };
    let (sandbox, host_network) = (runtime.ready_sandbox(), pod::host_network(pod));
    let ready_sandbox = sandbox.is_some_and(|s| host_network || !s.ips.is_empty());
    let mut ips: Vec<String> = match sandbox {
        Some(_) if host_network => about.host_ips.to_vec(),
        Some(s) => s.ips.clone(),
        None => Vec::new(),
    };
    if ips.is_empty() {
        // Like upstream, an ended pod keeps its address.
        let last = runtime.sandboxes.first().filter(|s| !s.ips.is_empty()).map(|s| s.ips.clone());
        ips = last.unwrap_or_else(|| old.pod_ips.iter().flatten().map(|p| p.ip.clone()).collect());
    }
    let generation = pod.metadata.generation;
    let of_resources = resources::of_pod(pod, &old, about.cgroup_stale);
    let mut own = conditions::conditions(pod, &inits, &apps, phase, ready_sandbox);
    own.extend(conditions::restarting_all(pod, phase, by.restarting_all));
    own.extend(conditions::resize(about.resize_pending, about.resizing));
    let before = old.conditions.unwrap_or_default();
    conditions::keep_times(&mut own, &before, about.now, generation);
    // After phase and conditions, because the state of a container that never ran must not change them.
    if about.over {
        ended::end(pod, &mut inits, &mut apps);
    }
    // Conditions of other components are kept.
    own.extend(
        before.into_iter().filter(|c| !conditions::OWNED.contains(&c.type_.as_str()) || c.type_ == "DisruptionTarget"),
    );
    if let Some(disrupted) = about.verdict.and_then(|(reason, message)| conditions::disrupted(reason, message))
        && own.iter().all(|c| c.type_ != "DisruptionTarget")
    {
        let mut evicted = [disrupted];
        conditions::keep_times(&mut evicted, &[], about.now, generation);
        own.extend(evicted);
    }
    let start = || Time(Timestamp::from_second(about.start_time.as_second()).unwrap_or(about.start_time));
    let start = old.start_time.unwrap_or_else(start);
    let given = |s: &str| Some(s.to_owned()).filter(|s| !s.is_empty());
    let final_before = pod::is_terminal(pod);
    PodStatus {
        phase: Some(phase.to_owned()),
        reason: about.verdict.and_then(|v| given(v.0)).or(old.reason.filter(|_| final_before)),
        message: about.verdict.and_then(|v| given(v.1)).or(old.message.filter(|_| final_before)),
        conditions: Some(own),
        host_ip: about.host_ips.first().cloned(),
        host_ips: Some(about.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: Some(ips.into_iter().map(|ip| PodIP { ip }).collect::<Vec<_>>()).filter(|l| !l.is_empty()),
        start_time: Some(start),
        qos_class: Some(pod::qos_class(pod).to_owned()),
        observed_generation: generation,
        init_container_statuses: Some(inits).filter(|l| !l.is_empty()),
        container_statuses: Some(apps),
        ephemeral_container_statuses: Some(ephemeral).filter(|l| !l.is_empty()),
        ..of_resources
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_old_event_does_not_revert_the_status() {
        let status = |v: Value| -> PodStatus { serde_json::from_value(v).expect("a status") };
        let at = |kind: &str, time: &str| json!({"type": kind, "status": "True", "lastTransitionTime": time});
        let (early, late) = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:09Z");
        let own = status(json!({"phase": "Running", "startTime": late,
            "conditions": [at("Ready", late), at("DisruptionTarget", late), at("gate", early)]}));
        let old = status(json!({"phase": "Pending", "conditions": [at("Ready", early), at("gate", late)]}));
        let after = own_over(&old, &own);
        assert_eq!(
            json!(after),
            json!(status(json!({"phase": "Running", "startTime": late,
            "conditions": [at("Ready", late), at("DisruptionTarget", late), at("gate", late)]})))
        );
        let failed = status(json!({"phase": "Failed", "reason": "R", "conditions": [at("DisruptionTarget", early)]}));
        let after = own_over(&failed, &own);
        assert_eq!((after.phase.as_deref(), after.reason.as_deref()), (Some("Failed"), Some("R")));
        assert_eq!(json!(after.conditions), json!([at("Ready", late), at("DisruptionTarget", early)]));
        let made = status(json!({"resourceClaimStatuses": [{"name": "own", "resourceClaimName": "p-own-x"}]}));
        assert_eq!(own_over(&made, &own).resource_claim_statuses, made.resource_claim_statuses, "which claims it has");
    }
}
