//! A pod's whole status, put together from containers, phase and conditions. Pure.
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::container::{self, Circumstances};
use super::{conditions, ended, phase, resources};
use crate::pod::{self, Role};
use crate::runtime::snapshot::RuntimePod;

/// What else a status needs.
#[derive(Debug)]
pub struct About<'a> {
    /// Addresses of the node.
    pub host_ips: &'a [String],
    /// When this kubelet first saw the pod.
    pub start_time: Timestamp,
    /// The time of new conditions.
    pub now: Timestamp,
    /// All containers have been stopped for good.
    pub over: bool,
    /// A reason and message that end the pod (`Evicted`, `DeadlineExceeded`).
    pub verdict: Option<(&'a str, &'a str)>,
    /// Why the pod does not have the resources that its spec wants.
    pub resize_pending: Option<(&'static str, &'a str)>,
    /// Whether its cgroup does not follow what it was granted yet.
    pub cgroup_stale: bool,
    /// Its containers are not held to what it was granted yet; the text says what failed, or nothing.
    pub resizing: Option<&'a str>,
}

/// What the kubelet last said of a pod, with what others have said of it meanwhile. The kubelet's own part must not come
/// back to it from the API: an event is from before its newest write, and two values would chase each other for ever.
pub fn own_over(told: &PodStatus, own: &PodStatus) -> PodStatus {
    let mut out = own.clone();
    let theirs = |c: &PodCondition| !conditions::OWNED.contains(&c.type_.as_str()) || c.type_ == "DisruptionTarget";
    let others: Vec<PodCondition> = told.conditions.iter().flatten().filter(|c| theirs(c)).cloned().collect();
    let list = out.conditions.get_or_insert_default();
    // A disruption that the API does not know yet is the kubelet's own.
    list.retain(|c| !theirs(c) || (c.type_ == "DisruptionTarget" && others.iter().all(|o| o.type_ != c.type_)));
    list.extend(others);
    out.resource_claim_statuses.clone_from(&told.resource_claim_statuses);
    out.extended_resource_claim_status.clone_from(&told.extended_resource_claim_status);
    if matches!(told.phase.as_deref(), Some("Failed" | "Succeeded")) {
        (out.phase, out.reason, out.message) = (told.phase.clone(), told.reason.clone(), told.message.clone());
    }
    out
}

/// The whole status, as it is to be in the API.
pub fn status(pod: &Pod, runtime: &RuntimePod, by: &Circumstances<'_>, about: &About<'_>) -> PodStatus {
    let old = pod.status.clone().unwrap_or_default();
    let of = |roles: &[Role]| -> Vec<ContainerStatus> {
        let members = pod::members(pod).filter(|m| roles.contains(&m.role));
        members.map(|m| container::status(pod, &m, runtime, by)).collect()
    };
    let (mut inits, mut apps, ephemeral) = (of(&[Role::Init, Role::Sidecar]), of(&[Role::App]), of(&[Role::Ephemeral]));
    let phase = match old.phase.as_deref() {
        // A final phase stays.
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
        // The address of a pod that ended stays readable, as upstream keeps it.
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
    // After phase and conditions: a container that never ran does not make the pod another one.
    if about.over {
        ended::end(pod, &mut inits, &mut apps);
    }
    // What others say of the pod stays.
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
    fn an_old_event_takes_nothing_back() {
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
