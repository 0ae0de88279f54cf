//! Builds CRI security contexts; a container's settings override its pod's (upstream: `pkg/securitycontext`,
//! `kuberuntime/security_context.go`).
use k8s_openapi::api::core::v1::{Container, Pod, PodSecurityContext, SELinuxOptions, SecurityContext};
use kelson_cri::proto as cri;
use kelson_cri::proto::security_profile::ProfileType;

use super::snapshot::RuntimePod;
use super::userns::IdRange;
use crate::pod;

const DEFAULT_MASKED: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const DEFAULT_READONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Settings of the node and the pod's volumes that security contexts depend on.
#[derive(Clone, Copy, Debug)]
pub struct Defaults<'a> {
    /// The pod's user namespace (`hostUsers: false`).
    pub ids: Option<IdRange>,
    /// Supplemental groups from the pod's volumes.
    pub volume_groups: &'a [i64],
    /// `--seccomp-default`.
    pub seccomp_default: bool,
    /// Directory of localhost seccomp profiles.
    pub seccomp_root: &'a std::path::Path,
}

/// Returns the namespaces of the pod's sandbox and ordinary containers.
fn namespaces(pod: &Pod, ids: Option<IdRange>) -> cri::NamespaceOption {
    let s = pod.spec.as_ref();
    let node_or = |host: Option<bool>, other| if host == Some(true) { cri::NamespaceMode::Node } else { other } as i32;
    let shared = s.and_then(|s| s.share_process_namespace).unwrap_or(false);
    let pid = if shared { cri::NamespaceMode::Pod } else { cri::NamespaceMode::Container };
    cri::NamespaceOption {
        network: node_or(s.and_then(|s| s.host_network), cri::NamespaceMode::Pod),
        ipc: node_or(s.and_then(|s| s.host_ipc), cri::NamespaceMode::Pod),
        pid: node_or(s.and_then(|s| s.host_pid), pid),
        userns_options: ids.map(IdRange::namespace),
        ..Default::default()
    }
}

/// Builds the sandbox's security context.
pub fn sandbox(pod: &Pod, d: &Defaults<'_>) -> cri::LinuxSandboxSecurityContext {
    let p = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let int = |v: Option<i64>| v.map(|value| cri::Int64Value { value });
    cri::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod, d.ids)),
        selinux_options: selinux(None, p),
        run_as_user: int(p.and_then(|p| p.run_as_user)),
        run_as_group: int(p.and_then(|p| p.run_as_group)),
        supplemental_groups: groups(p, d),
        supplemental_groups_policy: groups_policy(p) as i32,
        privileged: pod::has_privileged(pod),
        // The pause container runs no code of the pod, so it always has the runtime's default profile.
        seccomp: Some(seccomp_of("RuntimeDefault", None, d)),
        ..Default::default()
    }
}

/// Returns the supplemental groups policy. `Strict` is sent only to runtimes that support it; otherwise admission rejects the pod.
fn groups_policy(p: Option<&PodSecurityContext>) -> cri::SupplementalGroupsPolicy {
    match p.and_then(|p| p.supplemental_groups_policy.as_deref()) {
        Some("Strict") => cri::SupplementalGroupsPolicy::Strict,
        _ => cri::SupplementalGroupsPolicy::Merge,
    }
}

fn groups(p: Option<&PodSecurityContext>, d: &Defaults<'_>) -> Vec<i64> {
    let mut out: Vec<i64> = p.and_then(|p| p.fs_group).into_iter().collect();
    out.extend(p.and_then(|p| p.supplemental_groups.as_ref()).into_iter().flatten());
    out.extend(d.volume_groups);
    out
}

/// Checks `runAsNonRoot`. `image` is the user ID or name in the image.
///
/// # Errors
/// The violation, in upstream's words.
pub fn verify_non_root(pod: &Pod, c: &Container, image: (Option<i64>, &str)) -> Result<(), String> {
    let p = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let own = c.security_context.as_ref();
    let wanted = own.and_then(|s| s.run_as_non_root).or_else(|| p.and_then(|p| p.run_as_non_root)).unwrap_or(false);
    if !wanted {
        return Ok(());
    }
    let (pod_text, name) = (pod::format_pod(pod), &c.name);
    match (pod::run_as_user(pod, c), image) {
        (Some(0), _) => {
            Err(format!("container's runAsUser breaks non-root policy (pod: {pod_text:?}, container: {name})"))
        }
        (Some(_), _) => Ok(()),
        (None, (Some(0), _)) => {
            Err(format!("container has runAsNonRoot and image will run as root (pod: {pod_text:?}, container: {name})"))
        }
        (None, (None, user)) if !user.is_empty() => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: {pod_text:?}, container: {name})"
        )),
        (None, (None, _)) => {
            Err(format!("container has runAsNonRoot and image will run as root (pod: {pod_text:?}, container: {name})"))
        }
        (None, (Some(_), _)) => Ok(()),
    }
}

/// Builds a container's security context. `target` is the container whose process namespace a debug container joins.
pub fn container(
    pod: &Pod,
    c: &Container,
    image: (Option<i64>, &str),
    target: Option<&str>,
    runtime: &RuntimePod,
    d: &Defaults<'_>,
) -> Result<cri::LinuxContainerSecurityContext, String> {
    let p = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let own = c.security_context.as_ref();
    verify_non_root(pod, c, image)?;
    let mut namespace = namespaces(pod, d.ids);
    if let Some(target) = target {
        let running = runtime.latest(target).filter(|i| i.state == super::snapshot::State::Running);
        let running = running.ok_or_else(|| format!("unable to find running target container {target}"))?;
        namespace.pid = cri::NamespaceMode::Target as i32;
        namespace.target_id = running.id.clone();
    }
    let user = pod::run_as_user(pod, c).or(image.0);
    let group = own.and_then(|s| s.run_as_group).or_else(|| p.and_then(|p| p.run_as_group));
    let user_name = if user.is_none() { image.1.to_owned() } else { String::new() };
    let has_user = user.is_some() || !user_name.is_empty();
    let privileged = pod::privileged(c);
    let unmasked = own.and_then(|s| s.proc_mount.as_deref()) == Some("Unmasked");
    let list = |l: &[&str]| if unmasked { Vec::new() } else { l.iter().map(|s| (*s).to_owned()).collect() };
    let caps = own.and_then(|s| s.capabilities.as_ref());
    Ok(cri::LinuxContainerSecurityContext {
        capabilities: caps.map(|caps| cri::Capability {
            add_capabilities: caps.add.clone().unwrap_or_default(),
            drop_capabilities: caps.drop.clone().unwrap_or_default(),
            ..Default::default()
        }),
        privileged,
        namespace_options: Some(namespace),
        selinux_options: selinux(own, p),
        run_as_user: user.map(|value| cri::Int64Value { value }),
        // CRI rejects a group without a user; the group would be root's.
        run_as_group: group.map(|value| cri::Int64Value { value }).filter(|_| has_user),
        run_as_username: user_name,
        readonly_rootfs: own.and_then(|s| s.read_only_root_filesystem).unwrap_or(false),
        supplemental_groups: groups(p, d),
        supplemental_groups_policy: groups_policy(p) as i32,
        no_new_privs: no_new_privs(own),
        masked_paths: list(DEFAULT_MASKED),
        readonly_paths: list(DEFAULT_READONLY),
        seccomp: seccomp(own, p, privileged, d),
        apparmor: apparmor(pod, c),
        ..Default::default()
    })
}

fn no_new_privs(own: Option<&SecurityContext>) -> bool {
    own.and_then(|s| s.allow_privilege_escalation) == Some(false)
}

fn selinux(own: Option<&SecurityContext>, p: Option<&PodSecurityContext>) -> Option<cri::SeLinuxOption> {
    let o: &SELinuxOptions =
        own.and_then(|s| s.se_linux_options.as_ref()).or_else(|| p.and_then(|p| p.se_linux_options.as_ref()))?;
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    Some(cri::SeLinuxOption { user: text(&o.user), role: text(&o.role), r#type: text(&o.type_), level: text(&o.level) })
}

fn seccomp_of(kind: &str, localhost: Option<&str>, d: &Defaults<'_>) -> cri::SecurityProfile {
    match kind {
        "RuntimeDefault" => {
            cri::SecurityProfile { profile_type: ProfileType::RuntimeDefault as i32, localhost_ref: String::new() }
        }
        "Localhost" => cri::SecurityProfile {
            profile_type: ProfileType::Localhost as i32,
            localhost_ref: d.seccomp_root.join(localhost.unwrap_or_default()).display().to_string(),
        },
        _ => cri::SecurityProfile { profile_type: ProfileType::Unconfined as i32, localhost_ref: String::new() },
    }
}

fn seccomp(
    own: Option<&SecurityContext>,
    p: Option<&PodSecurityContext>,
    privileged: bool,
    d: &Defaults<'_>,
) -> Option<cri::SecurityProfile> {
    let profile = own.and_then(|s| s.seccomp_profile.as_ref()).or_else(|| p.and_then(|p| p.seccomp_profile.as_ref()));
    Some(match profile {
        Some(profile) => seccomp_of(&profile.type_, profile.localhost_profile.as_deref(), d),
        None if d.seccomp_default && !privileged => seccomp_of("RuntimeDefault", None, d),
        None => seccomp_of("Unconfined", None, d),
    })
}

fn apparmor(pod: &Pod, c: &Container) -> Option<cri::SecurityProfile> {
    let p = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let own = c.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
    let profile = own.or_else(|| p.and_then(|p| p.app_armor_profile.as_ref()))?;
    let (kind, reference) = match profile.type_.as_str() {
        "RuntimeDefault" => (ProfileType::RuntimeDefault, String::new()),
        "Localhost" => (ProfileType::Localhost, profile.localhost_profile.clone().unwrap_or_default()),
        _ => (ProfileType::Unconfined, String::new()),
    };
    Some(cri::SecurityProfile { profile_type: kind as i32, localhost_ref: reference })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn context(
        pod_sc: serde_json::Value,
        own: serde_json::Value,
    ) -> Result<cri::LinuxContainerSecurityContext, String> {
        let p: Pod = serde_json::from_value(json!({"metadata":{"name":"p","namespace":"n","uid":"u"},
            "spec":{"securityContext":pod_sc,"containers":[{"name":"a","securityContext":own}]}}))
        .expect("pod");
        let c = &p.spec.as_ref().expect("spec").containers[0];
        let d = Defaults {
            ids: None,
            volume_groups: &[5000],
            seccomp_default: false,
            seccomp_root: std::path::Path::new("/s"),
        };
        container(&p, c, (None, ""), None, &RuntimePod::default(), &d)
    }

    #[test]
    fn own_settings_win_over_the_pods() {
        let c = context(
            json!({"runAsUser":1,"fsGroup":5,"supplementalGroups":[6],"seccompProfile":{"type":"RuntimeDefault"}}),
            json!({"runAsUser":2,"allowPrivilegeEscalation":false,"seccompProfile":{"type":"Localhost","localhostProfile":"x"}}),
        )
        .expect("context");
        assert_eq!(c.run_as_user.expect("user").value, 2);
        assert_eq!(c.supplemental_groups, [5, 6, 5000]);
        assert!(c.no_new_privs);
        assert_eq!(c.seccomp.expect("seccomp").localhost_ref, "/s/x");
    }

    #[test]
    fn host_users_false_maps_ids() {
        let p: Pod = serde_json::from_value(json!({"metadata":{"name":"p","namespace":"n","uid":"u"},
            "spec":{"hostUsers":false,"securityContext":{"supplementalGroupsPolicy":"Strict"},"containers":[{"name":"a"}]}}))
        .expect("pod");
        let c = &p.spec.as_ref().expect("spec").containers[0];
        let ids = IdRange { host: 131_072, length: 65_536 };
        let d = Defaults {
            ids: Some(ids),
            volume_groups: &[],
            seccomp_default: false,
            seccomp_root: std::path::Path::new("/s"),
        };
        let own = container(&p, c, (None, ""), None, &RuntimePod::default(), &d).expect("context");
        let (sandbox, own_namespaces) = (sandbox(&p, &d), own.namespace_options.expect("namespaces"));
        for users in [sandbox.namespace_options.and_then(|n| n.userns_options), own_namespaces.userns_options] {
            let users = users.expect("a user namespace");
            assert_eq!(users.mode, cri::NamespaceMode::Pod as i32);
            assert_eq!((users.uids, users.gids), (vec![ids.mapping()], vec![ids.mapping()]));
        }
        let strict = cri::SupplementalGroupsPolicy::Strict as i32;
        assert_eq!((own.supplemental_groups_policy, sandbox.supplemental_groups_policy), (strict, strict));
    }

    #[test]
    fn non_root() {
        let e = context(json!({"runAsNonRoot":true}), json!({})).expect_err("root");
        assert_eq!(e, "container has runAsNonRoot and image will run as root (pod: \"p_n(u)\", container: a)");
        assert!(context(json!({"runAsNonRoot":true}), json!({"runAsUser":5})).is_ok());
        assert!(
            context(json!({"runAsNonRoot":true,"runAsUser":0}), json!({}))
                .expect_err("root")
                .contains("breaks non-root")
        );
    }
}
