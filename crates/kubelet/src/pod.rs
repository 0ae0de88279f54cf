//! Pure functions on a Pod's specification: an iterator over containers of every role, effective policies, QoS class, resource requests.
//! They do not depend on the runtime.
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, EphemeralContainer, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kelson_meta::Quantity;

/// The role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// An init container: runs to completion before the next one starts.
    Init,
    /// An init container with `restartPolicy: Always`: started in order, then kept running.
    Sidecar,
    /// An ordinary container (`spec.containers`).
    App,
    /// An ephemeral container for debugging; never restarted.
    Ephemeral,
}

/// One container of a pod, with its role.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The list of the specification that it comes from.
    pub role: Role,
    /// Its specification. An ephemeral container is converted to an ordinary `Container`.
    pub container: Cow<'a, Container>,
    /// The container whose process namespace an ephemeral container joins.
    pub target: Option<&'a str>,
}

/// Iterates over all containers of a pod: init, ordinary, ephemeral, in this order. Code that applies to all roles uses this iterator.
pub fn members(pod: &Pod) -> impl Iterator<Item = Member<'_>> {
    let spec = pod.spec.as_ref();
    let inits = spec.and_then(|s| s.init_containers.as_ref()).into_iter().flatten().map(|c| Member {
        role: if is_sidecar(c) { Role::Sidecar } else { Role::Init },
        container: Cow::Borrowed(c),
        target: None,
    });
    let apps = spec.into_iter().flat_map(|s| &s.containers).map(|c| Member {
        role: Role::App,
        container: Cow::Borrowed(c),
        target: None,
    });
    let ephemeral = spec.and_then(|s| s.ephemeral_containers.as_ref()).into_iter().flatten().map(|c| Member {
        role: Role::Ephemeral,
        container: Cow::Owned(ordinary(c)),
        target: c.target_container_name.as_deref().filter(|t| !t.is_empty()),
    });
    inits.chain(apps).chain(ephemeral)
}

/// Finds the container with this name, of any role.
pub fn member<'a>(pod: &'a Pod, name: &str) -> Option<Member<'a>> {
    members(pod).find(|m| m.container.name == name)
}

fn is_sidecar(c: &Container) -> bool {
    c.restart_policy.as_deref() == Some("Always")
}

fn ordinary(e: &EphemeralContainer) -> Container {
    let e = e.clone();
    Container {
        args: e.args,
        command: e.command,
        env: e.env,
        env_from: e.env_from,
        image: e.image,
        image_pull_policy: e.image_pull_policy,
        name: e.name,
        security_context: e.security_context,
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path,
        termination_message_policy: e.termination_message_policy,
        tty: e.tty,
        volume_devices: e.volume_devices,
        volume_mounts: e.volume_mounts,
        working_dir: e.working_dir,
        resources: e.resources,
        ..Container::default()
    }
}

/// Returns `metadata.uid`, or an empty string.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}
/// Returns `metadata.name`, or an empty string.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}
/// Returns `metadata.namespace`, or an empty string.
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}
/// Formats a pod as `name_namespace(uid)`, as in upstream's events and messages.
pub fn format_pod(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}
/// Returns whether the pod uses the node's network namespace (`hostNetwork`).
pub fn host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false)
}
/// Returns whether the pod has a user namespace (`hostUsers: false`).
pub fn has_own_users(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.host_users) == Some(false)
}
/// Returns whether `supplementalGroupsPolicy` is `Strict`: groups in the image's `/etc/group` do not apply.
pub fn has_strict_groups(pod: &Pod) -> bool {
    let security = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    security.and_then(|s| s.supplemental_groups_policy.as_deref()) == Some("Strict")
}
/// Name of the RuntimeClass; empty for the default.
pub fn runtime_class(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.runtime_class_name.as_deref()).unwrap_or_default()
}
/// Returns whether any container, of any role, is privileged.
pub fn has_privileged(pod: &Pod) -> bool {
    members(pod).any(|m| privileged(&m.container))
}
/// Returns whether this container is privileged.
pub fn privileged(c: &Container) -> bool {
    c.security_context.as_ref().and_then(|s| s.privileged).unwrap_or(false)
}
/// Effective `runAsUser` of the specification: the container's, else the pod's.
pub fn run_as_user(pod: &Pod, c: &Container) -> Option<i64> {
    let p = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    c.security_context.as_ref().and_then(|s| s.run_as_user).or_else(|| p.and_then(|p| p.run_as_user))
}

/// Restart policy of the pod; `Always` if unset.
pub fn pod_restart_policy(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref()).unwrap_or("Always")
}
/// Annotation with the source of the pod; `file` for a static pod of this node's manifests.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Annotation of a static pod with the hash of its manifest.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
/// Annotation of a mirror pod with the hash of its static pod's manifest.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// Lowest priority of system-critical pods.
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Upper bound of a termination grace period, about 68 years. The API has no bound; sums with larger values would overflow timestamps.
pub const GRACE_SECONDS_MAX: i64 = i32::MAX as i64;

/// Returns the value of an annotation.
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}
/// Returns whether the pod is a static pod of this node.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, CONFIG_SOURCE).is_some_and(|s| s != "api")
}
/// Returns whether the pod is the mirror pod of a static pod.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, CONFIG_MIRROR).is_some()
}
/// Returns whether the pod is critical, so that it is never evicted (upstream: `types.IsCriticalPod`).
pub fn is_critical(pod: &Pod) -> bool {
    is_static(pod) || is_mirror(pod) || priority(pod) >= SYSTEM_CRITICAL_PRIORITY
}
/// Returns `spec.priority`; 0 if unset.
pub fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0)
}
/// Returns whether the pod has a deletion timestamp.
pub fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}
/// Returns whether `status.phase` is `Succeeded` or `Failed`.
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"))
}
/// Termination grace period of the pod in seconds.
pub fn grace_seconds(pod: &Pod) -> i64 {
    let wanted = pod.metadata.deletion_grace_period_seconds.filter(|_| is_deleted(pod));
    let spec = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    wanted.or(spec).unwrap_or(30).clamp(0, GRACE_SECONDS_MAX)
}
/// Termination grace period of the pod.
pub fn grace(pod: &Pod) -> Duration {
    seconds(grace_seconds(pod))
}
/// Converts seconds of the API to a duration; negative values become zero.
pub fn seconds(n: i64) -> Duration {
    Duration::from_secs(u64::try_from(n.min(GRACE_SECONDS_MAX)).unwrap_or(0))
}

/// Returns whether a container that ended with `exit_code` is restarted: by its own restart policy and rules, else by the pod's policy.
pub fn restarts_after(pod: &Pod, role: Role, c: &Container, exit_code: i32) -> bool {
    match role {
        Role::Ephemeral => return false,
        Role::Sidecar => return true,
        Role::Init | Role::App => {}
    }
    if restart_rule(c, exit_code).is_some() {
        return true;
    }
    let policy = c.restart_policy.as_deref().unwrap_or_else(|| pod_restart_policy(pod));
    match (role, policy) {
        // An init container that succeeded is not run again, whatever the policy.
        (Role::Init, "Never") => false,
        (Role::Init, _) => exit_code != 0,
        (_, "Never") => false,
        (_, "OnFailure") => exit_code != 0,
        _ => true,
    }
}

/// Returns whether the exit code of a container restarts all containers of its pod (`RestartAllContainers`, KEP-5532).
pub fn restarts_all_after(role: Role, c: &Container, exit_code: i32) -> bool {
    role != Role::Ephemeral && restart_rule(c, exit_code).is_some_and(|r| r.action == "RestartAllContainers")
}

/// Returns whether any restart rule of the pod can restart all its containers.
pub fn may_restart_all(pod: &Pod) -> bool {
    members(pod).any(|m| m.container.restart_policy_rules.iter().flatten().any(|r| r.action == "RestartAllContainers"))
}

/// Returns the first restart rule that matches the exit code; later rules do not apply.
fn restart_rule(c: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    c.restart_policy_rules.iter().flatten().find(|rule| {
        let Some(codes) = rule.exit_codes.as_ref() else { return false };
        let listed = codes.values.iter().flatten().any(|v| *v == exit_code);
        match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    })
}

/// QoS class of the pod as upstream's `qos.ComputePodQOS` computes it: `Guaranteed`, `Burstable` or `BestEffort`.
pub fn qos_class(pod: &Pod) -> &'static str {
    if let Some(class) = pod.status.as_ref().and_then(|s| s.qos_class.as_deref()) {
        match class {
            "Guaranteed" => return "Guaranteed",
            "Burstable" => return "Burstable",
            "BestEffort" => return "BestEffort",
            _ => {}
        }
    }
    let mut any = false;
    let mut guaranteed = true;
    for m in members(pod).filter(|m| m.role != Role::Ephemeral) {
        let resources = m.container.resources.as_ref();
        let requests = resources.and_then(|r| r.requests.as_ref());
        let limits = resources.and_then(|r| r.limits.as_ref());
        let amount = |map: Option<&BTreeMap<String, ApiQuantity>>, key: &str| {
            map.and_then(|m| m.get(key)).map(quantity).filter(|q| !q.is_zero())
        };
        for key in ["cpu", "memory"] {
            let (request, limit) = (amount(requests, key), amount(limits, key));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request.is_none_or(|r| Some(r) == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Parses an API quantity; zero if it is invalid, which the API server excludes.
pub fn quantity(q: &ApiQuantity) -> Quantity {
    q.0.parse().unwrap_or_default()
}

/// Returns the container's limit of a resource.
pub fn limit(c: &Container, resource: &str) -> Option<Quantity> {
    c.resources.as_ref()?.limits.as_ref()?.get(resource).map(quantity)
}
/// Returns the container's request of a resource, or its limit if only that is set, like the API's defaults.
pub fn request(c: &Container, resource: &str) -> Option<Quantity> {
    let own = c.resources.as_ref()?.requests.as_ref().and_then(|r| r.get(resource)).map(quantity);
    own.or_else(|| limit(c, resource))
}

/// The pod's request of a resource: the sum of ordinary and sidecar containers or the largest init container, whichever is larger, plus the
/// overhead (upstream: `PodRequests`).
pub fn pod_request(pod: &Pod, resource: &str) -> Quantity {
    aggregate(pod, resource, whole(pod, resource, true), |c| request(c, resource))
}
/// The pod's limit of a resource; `None` if any container has no limit, so that the pod is unlimited.
pub fn pod_limit(pod: &Pod, resource: &str) -> Option<Quantity> {
    let is_bounded =
        || members(pod).filter(|m| m.role != Role::Ephemeral).all(|m| limit(&m.container, resource).is_some());
    (whole(pod, resource, false).is_some() || is_bounded()).then(|| pod_limit_sum(pod, resource))
}
/// The sum of the limits that are set; containers without a limit count as zero.
pub fn pod_limit_sum(pod: &Pod, resource: &str) -> Quantity {
    aggregate(pod, resource, whole(pod, resource, false), |c| limit(c, resource))
}

/// The pod-level limit (`spec.resources`, KEP-2837), shared by containers without a limit. Only CPU and memory can have one.
pub fn shared_limit(pod: &Pod, resource: &str) -> Option<Quantity> {
    let supported = matches!(resource, "cpu" | "memory");
    whole(pod, resource, false).filter(|limit| supported && !limit.is_zero())
}

fn whole(pod: &Pod, resource: &str, requests: bool) -> Option<Quantity> {
    let all = pod.spec.as_ref()?.resources.as_ref()?;
    let map = if requests { all.requests.as_ref() } else { all.limits.as_ref() };
    map?.get(resource).map(quantity)
}

fn aggregate(
    pod: &Pod,
    resource: &str,
    whole: Option<Quantity>,
    of: impl Fn(&Container) -> Option<Quantity>,
) -> Quantity {
    let mut sidecars = Quantity::default();
    let mut apps = Quantity::default();
    let mut init_peak = Quantity::default();
    for m in members(pod) {
        let amount = of(&m.container).unwrap_or_default();
        match m.role {
            Role::Sidecar => {
                sidecars = sidecars.plus(amount);
                init_peak = init_peak.max(sidecars);
            }
            Role::Init => init_peak = init_peak.max(sidecars.plus(amount)),
            Role::App => apps = apps.plus(amount),
            Role::Ephemeral => {}
        }
    }
    let total = whole.unwrap_or_else(|| apps.plus(sidecars).max(init_peak));
    let overhead = pod.spec.as_ref().and_then(|s: &PodSpec| s.overhead.as_ref()).and_then(|o| o.get(resource));
    total.plus(overhead.map(quantity).unwrap_or_default())
}

/// Field path of events about a container, such as `spec.containers{name}`.
pub fn field_path(role: Role, name: &str) -> String {
    match role {
        Role::Init | Role::Sidecar => format!("spec.initContainers{{{name}}}"),
        Role::App => format!("spec.containers{{{name}}}"),
        Role::Ephemeral => format!("spec.ephemeralContainers{{{name}}}"),
    }
}

/// Hash of the fields of a container whose change restarts it (name and image, as in upstream), in hex, for the annotation
/// `io.kubernetes.container.hash`. The value equals upstream's, so that containers survive when a kubelet of upstream replaces this one or
/// the reverse: FNV-1a over the JSON's bytes as Go prints the slice.
pub fn container_hash(c: &Container) -> String {
    let named = [("image", c.image.as_deref().unwrap_or_default()), ("name", &c.name)];
    let members = named.map(|(key, value)| format!("{:?}:{}", key, go_json_string(value)));
    let bytes: Vec<String> = format!("{{{}}}", members.join(",")).bytes().map(|b| b.to_string()).collect();
    let text = format!("([]uint8)[{}]", bytes.join(" "));
    let hash = text.bytes().fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    format!("{hash:x}")
}

/// Encodes a string like Go's `encoding/json`, which also escapes `<`, `>` and `&`.
fn go_json_string(text: &str) -> String {
    let mut out = serde_json::Value::from(text).to_string();
    for (plain, escaped) in
        [("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"), ("\u{2028}", "\\u2028"), ("\u{2029}", "\\u2029")]
    {
        if out.contains(plain) {
            out = out.replace(plain, escaped);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(v: serde_json::Value) -> Pod {
        serde_json::from_value(v).expect("pod")
    }

    #[test]
    fn restart_table() {
        for (policy, exit, app, init) in [
            ("Always", 0, true, false),
            ("Always", 1, true, true),
            ("OnFailure", 0, false, false),
            ("OnFailure", 1, true, true),
            ("Never", 0, false, false),
            ("Never", 1, false, false),
        ] {
            let p = pod(json!({"spec":{"restartPolicy":policy,"containers":[{"name":"a"}]}}));
            let c = &p.spec.as_ref().expect("spec").containers[0];
            assert_eq!(restarts_after(&p, Role::App, c, exit), app, "{policy} {exit}");
            assert_eq!(restarts_after(&p, Role::Init, c, exit), init, "init {policy} {exit}");
            assert!(restarts_after(&p, Role::Sidecar, c, exit));
            assert!(!restarts_after(&p, Role::Ephemeral, c, exit));
        }
        let p = pod(json!({"spec":{"restartPolicy":"Never","containers":[{"name":"a","restartPolicy":"Never",
            "restartPolicyRules":[{"action":"Restart","exitCodes":{"operator":"In","values":[42]}}]}]}}));
        let c = &p.spec.as_ref().expect("spec").containers[0];
        assert!(restarts_after(&p, Role::App, c, 42) && !restarts_after(&p, Role::App, c, 1));
    }

    #[test]
    fn qos_table() {
        let of = |r: serde_json::Value| qos_class(&pod(json!({"spec":{"containers":[{"name":"a","resources":r}]}})));
        assert_eq!(of(json!({})), "BestEffort");
        assert_eq!(of(json!({"requests":{"cpu":"1"}})), "Burstable");
        assert_eq!(of(json!({"limits":{"cpu":"1","memory":"1Gi"}})), "Guaranteed");
        assert_eq!(of(json!({"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"500m"}})), "Burstable");
        assert_eq!(
            of(json!({"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1","memory":"1024Mi"}})),
            "Guaranteed"
        );
    }

    #[test]
    fn requests_add_sidecars_to_init_containers() {
        let cpu = |n: &str| json!({"requests":{"cpu":n}});
        let p = pod(json!({"spec":{"initContainers":[
            {"name":"s","restartPolicy":"Always","resources":cpu("1")},
            {"name":"i","resources":cpu("3")}],
            "containers":[{"name":"a","resources":cpu("2")}], "overhead":{"cpu":"100m"}}}));
        assert_eq!(pod_request(&p, "cpu").to_string(), "4100m");
    }

    #[test]
    fn the_hash_follows_image_and_name_only() {
        let hash = |v: serde_json::Value| container_hash(&serde_json::from_value(v).expect("container"));
        let a = hash(json!({"name":"a","image":"x"}));
        assert_eq!(a, hash(json!({"name":"a","image":"x","args":["1"]})));
        assert_ne!(a, hash(json!({"name":"a","image":"y"})));
        assert_ne!(a, hash(json!({"name":"b","image":"x"})));
        // Hashes that upstream's kubelet computes.
        for (name, image, wanted) in [
            ("a", "x", "8828a57d"),
            ("nginx", "docker.io/library/nginx:1.27", "96d3bc94"),
            ("b", "r<e>g&/é", "bc6069e9"),
        ] {
            assert_eq!(hash(json!({"name": name, "image": image})), wanted, "{name} {image}");
        }
    }
}
