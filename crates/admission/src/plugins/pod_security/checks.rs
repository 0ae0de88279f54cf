//! The checks of the Pod Security Standards: each reads a pod's metadata and spec and returns upstream's message
//! (`pod-security-admission/policy`). `rules` defines which checks apply in which version.
use std::collections::BTreeSet;

use kelson_meta::tree::path::{at, list, strings, text};
use serde_json::Value;

use crate::containers::containers;

/// The pod that a check reads.
#[derive(Clone, Copy)]
pub(super) struct Pod<'a> {
    pub metadata: &'a Value,
    pub spec: &'a Value,
}

impl Pod<'_> {
    pub fn is_windows(&self) -> bool {
        text(self.spec, &["os", "name"]) == "windows"
    }
    /// Reports whether the pod has a user namespace, which makes some checks unnecessary, as upstream. That is safe
    /// because the kubelet either creates a user namespace for such a pod or rejects it; it never runs the pod in the
    /// node's user namespace.
    pub fn has_own_users(&self) -> bool {
        at(self.spec, &["hostUsers"]) == false
    }
}

/// A violation of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The reason, the same for all pods that violate the check.
    pub reason: String,
    /// The fields or containers in violation.
    pub detail: String,
}

/// The result of a check.
type CheckResult = Option<Violation>;

fn fault(reason: &str, detail: String) -> Violation {
    Violation { reason: reason.to_owned(), detail }
}

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// Allowed sysctls, each with the first minor version that allows it.
const SYSCTLS: [(&str, u32); 12] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
];
/// Allowed SELinux types, each with the first minor version that allows it.
const SELINUX_TYPES: [(&str, u32); 5] =
    [("", 0), ("container_t", 0), ("container_init_t", 0), ("container_kvm_t", 0), ("container_engine_t", 31)];
const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

fn plural(n: usize, one: &'static str, many: &'static str) -> &'static str {
    if n == 1 { one } else { many }
}

fn quote<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> String {
    items.into_iter().map(|i| format!("{:?}", i.as_ref())).collect::<Vec<_>>().join(", ")
}

/// Formats names as `container "a"` or `containers "a", "b"`.
fn named(names: &[&str]) -> String {
    format!("{} {}", plural(names.len(), "container", "containers"), quote(names))
}

/// Returns the names of the containers for which `bad` is true.
fn which<'a>(spec: &'a Value, mut bad: impl FnMut(&'a Value) -> bool) -> Vec<&'a str> {
    containers(spec).filter(|(_, _, c)| bad(c)).map(|(_, _, c)| text(c, &["name"])).collect()
}

fn security<'a>(of: &'a Value, path: &[&str]) -> &'a Value {
    at(at(of, &["securityContext"]), path)
}

/// Formats `pod`, the containers, or both.
fn setters(pod: bool, bad: &[&str]) -> Vec<String> {
    let mut out = Vec::new();
    if pod {
        out.push("pod".to_owned());
    }
    if !bad.is_empty() {
        out.push(named(bad));
    }
    out
}

/// Checks a field that may be set by the pod and by each container.
fn explicit(spec: &Value, mut bad: impl FnMut(&Value) -> bool) -> Vec<String> {
    let pod = bad(spec);
    let list = which(spec, bad);
    setters(pod, &list)
}

pub(super) fn app_armor(pod: Pod<'_>, _: u32) -> CheckResult {
    let Pod { metadata, spec } = pod;
    let mut values = BTreeSet::new();
    let mut who = explicit(spec, |of| {
        let kind = text(security(of, &["appArmorProfile"]), &["type"]);
        let bad = !matches!(kind, "" | "RuntimeDefault" | "Localhost");
        if bad {
            values.insert(kind.to_owned());
        }
        bad
    });
    let mut values: Vec<String> = values.into_iter().collect();
    let annotations: Vec<String> = strings(metadata, &["annotations"])
        .filter(|(k, _)| k.starts_with("container.apparmor.security.beta.kubernetes.io/"))
        .filter(|(_, v)| !(v.is_empty() || *v == "runtime/default" || v.starts_with("localhost/")))
        .map(|(k, v)| format!("{k}={v:?}"))
        .collect();
    if !annotations.is_empty() {
        who.push(plural(annotations.len(), "annotation", "annotations").to_owned());
        values.extend(annotations);
    }
    let reason = plural(values.len(), "forbidden AppArmor profile", "forbidden AppArmor profiles");
    let detail = format!("{} must not set AppArmor profile type to {}", who.join(" and "), quote(&values));
    (!who.is_empty()).then(|| fault(reason, detail))
}

pub(super) fn capabilities_baseline(pod: Pod<'_>, _: u32) -> CheckResult {
    let spec = pod.spec;
    let mut added = BTreeSet::new();
    let bad = which(spec, |c| {
        let mut any = false;
        for cap in list(c, &["securityContext", "capabilities", "add"]).iter().filter_map(Value::as_str) {
            if !CAPABILITIES.contains(&cap) {
                added.insert(cap);
                any = true;
            }
        }
        any
    });
    let detail = format!("{} must not include {} in securityContext.capabilities.add", named(&bad), quote(&added));
    (!bad.is_empty()).then(|| fault("non-default capabilities", detail))
}

pub(super) fn capabilities_restricted(pod: Pod<'_>, minor: u32) -> CheckResult {
    let spec = pod.spec;
    if minor >= 25 && pod.is_windows() {
        return None;
    }
    let keeps = which(spec, |c| !list(c, &["securityContext", "capabilities", "drop"]).iter().any(|d| d == "ALL"));
    let mut added = BTreeSet::new();
    let adds = which(spec, |c| {
        let mut any = false;
        for cap in list(c, &["securityContext", "capabilities", "add"]).iter().filter_map(Value::as_str) {
            if cap != "NET_BIND_SERVICE" {
                added.insert(cap);
                any = true;
            }
        }
        any
    });
    let mut details = Vec::new();
    if !keeps.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", named(&keeps)));
    }
    if !adds.is_empty() {
        let added = quote(&added);
        details.push(format!("{} must not include {added} in securityContext.capabilities.add", named(&adds)));
    }
    (!details.is_empty()).then(|| fault("unrestricted capabilities", details.join("; ")))
}

pub(super) fn host_namespaces(pod: Pod<'_>, _: u32) -> CheckResult {
    let spec = pod.spec;
    let set: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|f| at(spec, &[f]) == true)
        .map(|f| format!("{f}=true"))
        .collect();
    (!set.is_empty()).then(|| fault("host namespaces", set.join(", ")))
}

pub(super) fn host_path(pod: Pod<'_>, _: u32) -> CheckResult {
    let spec = pod.spec;
    let volumes: Vec<&str> = list(spec, &["volumes"])
        .iter()
        .filter(|v| !at(v, &["hostPath"]).is_null())
        .map(|v| text(v, &["name"]))
        .collect();
    let detail = format!("{} {}", plural(volumes.len(), "volume", "volumes"), quote(&volumes));
    (!volumes.is_empty()).then(|| fault("hostPath volumes", detail))
}

pub(super) fn host_ports(pod: Pod<'_>, _: u32) -> CheckResult {
    let spec = pod.spec;
    let mut ports = BTreeSet::new();
    let bad = which(spec, |c| {
        let used: Vec<i64> =
            list(c, &["ports"]).iter().filter_map(|p| at(p, &["hostPort"]).as_i64()).filter(|p| *p != 0).collect();
        ports.extend(used.iter().map(i64::to_string));
        !used.is_empty()
    });
    let (uses, what) = (plural(bad.len(), "uses", "use"), plural(ports.len(), "hostPort", "hostPorts"));
    let ports: Vec<String> = ports.into_iter().collect();
    (!bad.is_empty()).then(|| fault("hostPort", format!("{} {uses} {what} {}", named(&bad), ports.join(", "))))
}

pub(super) fn host_probes(pod: Pod<'_>, _: u32) -> CheckResult {
    let spec = pod.spec;
    let mut hosts = BTreeSet::new();
    let bad = which(spec, |c| {
        let handlers = [
            at(c, &["livenessProbe"]),
            at(c, &["readinessProbe"]),
            at(c, &["startupProbe"]),
            at(c, &["lifecycle", "postStart"]),
            at(c, &["lifecycle", "preStop"]),
        ];
        let mut any = false;
        for handler in handlers {
            for action in ["httpGet", "tcpSocket"] {
                let host = text(handler, &[action, "host"]);
                if !host.is_empty() {
                    hosts.insert(host);
                    any = true;
                }
            }
        }
        any
    });
    let uses = plural(bad.len(), "uses", "use");
    let what = plural(hosts.len(), "probe or lifecycle host", "probe or lifecycle hosts");
    let hosts = quote(&hosts);
    (!bad.is_empty()).then(|| fault("probe or lifecycle host", format!("{} {uses} {what} {hosts}", named(&bad))))
}

pub(super) fn privileged(pod: Pod<'_>, _: u32) -> CheckResult {
    let spec = pod.spec;
    let bad = which(spec, |c| security(c, &["privileged"]) == true);
    let detail = format!("{} must not set securityContext.privileged=true", named(&bad));
    (!bad.is_empty()).then(|| fault("privileged", detail))
}

pub(super) fn proc_mount(pod: Pod<'_>, _: u32) -> CheckResult {
    let spec = pod.spec;
    let mut values = BTreeSet::new();
    let bad = which(spec, |c| {
        let mount = text(c, &["securityContext", "procMount"]);
        let wrong = !matches!(mount, "" | "Default");
        if wrong {
            values.insert(mount);
        }
        wrong
    });
    let detail = format!("{} must not set securityContext.procMount to {}", named(&bad), quote(&values));
    (!bad.is_empty()).then(|| fault("procMount", detail))
}

/// As [`proc_mount`], but for pods with a user namespace.
pub(super) fn proc_mount_baseline(pod: Pod<'_>, minor: u32) -> CheckResult {
    if minor >= 35 && pod.has_own_users() { None } else { proc_mount(pod, minor) }
}

pub(super) fn selinux(pod: Pod<'_>, minor: u32) -> CheckResult {
    let spec = pod.spec;
    let (mut types, mut user, mut role) = (BTreeSet::new(), false, false);
    let who = explicit(spec, |of| {
        let options = security(of, &["seLinuxOptions"]);
        let kind = text(options, &["type"]);
        let mut bad = !SELINUX_TYPES.iter().any(|(allowed, since)| *allowed == kind && *since <= minor);
        if bad {
            types.insert(kind.to_owned());
        }
        for (field, set) in [("user", &mut user), ("role", &mut role)] {
            if !text(options, &[field]).is_empty() {
                *set = true;
                bad = true;
            }
        }
        bad
    });
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(format!("{} {}", plural(types.len(), "type", "types"), quote(&types)));
    }
    for (set, words) in [(user, "user may not be set"), (role, "role may not be set")] {
        if set {
            data.push(words.to_owned());
        }
    }
    let detail = format!("{} set forbidden securityContext.seLinuxOptions: {}", who.join(" and "), data.join("; "));
    (!who.is_empty()).then(|| fault("seLinuxOptions", detail))
}

pub(super) fn sysctls(pod: Pod<'_>, minor: u32) -> CheckResult {
    let spec = pod.spec;
    let bad: Vec<&str> = list(spec, &["securityContext", "sysctls"])
        .iter()
        .map(|s| text(s, &["name"]))
        .filter(|name| !SYSCTLS.iter().any(|(allowed, since)| allowed == name && *since <= minor))
        .collect();
    (!bad.is_empty()).then(|| fault("forbidden sysctls", bad.join(", ")))
}

pub(super) fn host_process(pod: Pod<'_>, _: u32) -> CheckResult {
    let spec = pod.spec;
    let who = explicit(spec, |of| security(of, &["windowsOptions", "hostProcess"]) == true);
    let detail = format!("{} must not set securityContext.windowsOptions.hostProcess=true", who.join(" and "));
    (!who.is_empty()).then(|| fault("hostProcess", detail))
}

pub(super) fn escalation(pod: Pod<'_>, minor: u32) -> CheckResult {
    let spec = pod.spec;
    if minor >= 25 && pod.is_windows() {
        return None;
    }
    let bad = which(spec, |c| security(c, &["allowPrivilegeEscalation"]) != false);
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", named(&bad));
    (!bad.is_empty()).then(|| fault("allowPrivilegeEscalation != false", detail))
}

pub(super) fn restricted_volumes(pod: Pod<'_>, _: u32) -> CheckResult {
    let spec = pod.spec;
    let (mut bad, mut kinds) = (Vec::new(), BTreeSet::new());
    for volume in list(spec, &["volumes"]) {
        let kind = volume.as_object().into_iter().flatten().find(|(k, v)| *k != "name" && !v.is_null());
        let kind = kind.map_or("emptyDir", |(k, _)| k.as_str());
        if !VOLUMES.contains(&kind) {
            bad.push(text(volume, &["name"]));
            kinds.insert(kind);
        }
    }
    let (volume, uses) = (plural(bad.len(), "volume", "volumes"), plural(bad.len(), "uses", "use"));
    let what = plural(kinds.len(), "restricted volume type", "restricted volume types");
    let detail = format!("{volume} {} {uses} {what} {}", quote(&bad), quote(&kinds));
    (!bad.is_empty()).then(|| fault("restricted volume types", detail))
}

pub(super) fn non_root(pod: Pod<'_>, minor: u32) -> CheckResult {
    let spec = pod.spec;
    if minor >= 35 && pod.has_own_users() {
        return None;
    }
    const REASON: &str = "runAsNonRoot != true";
    let who = explicit(spec, |of| security(of, &["runAsNonRoot"]) == false);
    if !who.is_empty() {
        let detail = format!("{} must not set securityContext.runAsNonRoot=false", who.join(" and "));
        return Some(fault(REASON, detail));
    }
    if security(spec, &["runAsNonRoot"]) == true {
        return None;
    }
    let bad = which(spec, |c| security(c, &["runAsNonRoot"]).is_null());
    let detail = format!("pod or {} must set securityContext.runAsNonRoot=true", named(&bad));
    (!bad.is_empty()).then(|| fault(REASON, detail))
}

pub(super) fn root_user(pod: Pod<'_>, minor: u32) -> CheckResult {
    let spec = pod.spec;
    if minor >= 35 && pod.has_own_users() {
        return None;
    }
    let who = explicit(spec, |of| security(of, &["runAsUser"]) == 0);
    (!who.is_empty()).then(|| fault("runAsUser=0", format!("{} must not set runAsUser=0", who.join(" and "))))
}

fn seccomp(spec: &Value, required: bool) -> CheckResult {
    const REASON: &str = "seccompProfile";
    let valid =
        |of: &Value| matches!(text(of, &["securityContext", "seccompProfile", "type"]), "RuntimeDefault" | "Localhost");
    let set = |of: &Value| !security(of, &["seccompProfile"]).is_null();
    let mut values = BTreeSet::new();
    let who = explicit(spec, |of| {
        let bad = set(of) && !valid(of);
        if bad {
            values.insert(text(of, &["securityContext", "seccompProfile", "type"]).to_owned());
        }
        bad
    });
    if !who.is_empty() {
        let values = quote(&values);
        let detail = format!("{} must not set securityContext.seccompProfile.type to {values}", who.join(" and "));
        return Some(fault(REASON, detail));
    }
    if !required || valid(spec) {
        return None;
    }
    let bad = which(spec, |c| !set(c));
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
        named(&bad)
    );
    (!bad.is_empty()).then(|| fault(REASON, detail))
}

/// Reads the profiles from annotations, as before version 1.19.
fn seccomp_annotations(pod: Pod<'_>) -> CheckResult {
    const OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
    const OF_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
    let valid = |v: &str| matches!(v, "runtime/default" | "docker/default") || v.starts_with("localhost/");
    let of_containers = containers(pod.spec).map(|(_, _, c)| format!("{OF_CONTAINER}{}", text(c, &["name"])));
    let bad: BTreeSet<String> = std::iter::once(OF_POD.to_owned())
        .chain(of_containers)
        .filter_map(|key| {
            let value = at(pod.metadata, &["annotations", &key]).as_str()?;
            (!valid(value)).then(|| format!("{key}={value:?}"))
        })
        .collect();
    let listed = bad.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let detail = format!("forbidden {} {listed}", plural(bad.len(), "annotation", "annotations"));
    (!bad.is_empty()).then(|| fault("seccompProfile", detail))
}

pub(super) fn seccomp_baseline(pod: Pod<'_>, minor: u32) -> CheckResult {
    if minor < 19 { seccomp_annotations(pod) } else { seccomp(pod.spec, false) }
}

pub(super) fn seccomp_restricted(pod: Pod<'_>, minor: u32) -> CheckResult {
    if minor >= 25 && pod.is_windows() { None } else { seccomp(pod.spec, true) }
}
