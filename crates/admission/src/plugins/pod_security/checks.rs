//! The Pod Security Standards of 1.36: each check looks at a pod's metadata and spec and says what is wrong, in upstream's
//! words (`pod-security-admission/policy`). Names of older versions of a check are not kept: the newest rules apply.
use std::collections::BTreeSet;

use serde_json::Value;

use crate::containers::containers;
use kelson_meta::tree::path::{at, list, strings, text};

/// A level of the standards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Everything is allowed.
    Privileged,
    /// Known privilege escalations are prevented.
    Baseline,
    /// What hardened pods need and no more.
    Restricted,
}

impl Level {
    /// From a label's value.
    pub fn parse(s: &str) -> Option<Self> {
        match s {
            "privileged" => Some(Self::Privileged),
            "baseline" => Some(Self::Baseline),
            "restricted" => Some(Self::Restricted),
            _ => None,
        }
    }
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// A broken rule: reason and detail.
type Fault = Option<(String, String)>;

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
const SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];
const SELINUX_TYPES: [&str; 5] = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];
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

/// Everything a pod does against `level`, as `reason (detail)`; empty when it keeps to it.
pub fn faults(level: Level, metadata: &Value, spec: &Value) -> Vec<String> {
    let windows = text(spec, &["os", "name"]) == "windows";
    // As the reference: users of the pod's own make some checks needless. That is sound because the kubelet either gives
    // such a pod a user namespace or refuses it; it never runs with the node's users.
    let own_users = at(spec, &["hostUsers"]) == false;
    let found: Vec<Fault> = match level {
        Level::Privileged => vec![],
        Level::Baseline => {
            let mut all = shared(metadata, spec, own_users);
            // In the order of the checks' identifiers.
            all.insert(1, capabilities_baseline(spec));
            all.insert(3, host_path(spec));
            all.insert(9, seccomp(spec, false));
            all
        }
        Level::Restricted => {
            let mut all = shared(metadata, spec, own_users);
            if !windows {
                all.push(escalation(spec));
                all.push(capabilities_restricted(spec));
            }
            all.push(restricted_volumes(spec));
            if !own_users {
                all.push(non_root(spec));
                all.push(root_user(spec));
            }
            if !windows {
                all.push(seccomp(spec, true));
            }
            all
        }
    };
    found.into_iter().flatten().map(|(reason, detail)| format!("{reason} ({detail})")).collect()
}

/// Baseline checks that no restricted check replaces.
fn shared(metadata: &Value, spec: &Value, own_users: bool) -> Vec<Fault> {
    vec![
        app_armor(metadata, spec),
        host_namespaces(spec),
        host_ports(spec),
        host_probes(spec),
        privileged(spec),
        if own_users { None } else { proc_mount(spec) },
        selinux(spec),
        sysctls(spec),
        host_process(spec),
    ]
}

fn plural(n: usize, one: &'static str, many: &'static str) -> &'static str {
    if n == 1 { one } else { many }
}

fn quote<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> String {
    items.into_iter().map(|i| format!("{:?}", i.as_ref())).collect::<Vec<_>>().join(", ")
}

/// `container "a"` or `containers "a", "b"`.
fn named(names: &[&str]) -> String {
    format!("{} {}", plural(names.len(), "container", "containers"), quote(names))
}

/// Names of the containers for which `bad` holds.
fn which<'a>(spec: &'a Value, mut bad: impl FnMut(&'a Value) -> bool) -> Vec<&'a str> {
    containers(spec).filter(|(_, _, c)| bad(c)).map(|(_, _, c)| text(c, &["name"])).collect()
}

fn security<'a>(of: &'a Value, path: &[&str]) -> &'a Value {
    at(at(of, &["securityContext"]), path)
}

/// `pod`, the containers, or both.
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

/// A rule on one value that pod and containers may set.
fn explicit(spec: &Value, mut bad: impl FnMut(&Value) -> bool) -> Vec<String> {
    let pod = bad(spec);
    let list = which(spec, bad);
    setters(pod, &list)
}

fn app_armor(metadata: &Value, spec: &Value) -> Fault {
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
    (!who.is_empty()).then(|| (reason.to_owned(), detail))
}

fn capabilities_baseline(spec: &Value) -> Fault {
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
    (!bad.is_empty()).then(|| ("non-default capabilities".to_owned(), detail))
}

fn capabilities_restricted(spec: &Value) -> Fault {
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
    (!details.is_empty()).then(|| ("unrestricted capabilities".to_owned(), details.join("; ")))
}

fn host_namespaces(spec: &Value) -> Fault {
    let set: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|f| at(spec, &[f]) == true)
        .map(|f| format!("{f}=true"))
        .collect();
    (!set.is_empty()).then(|| ("host namespaces".to_owned(), set.join(", ")))
}

fn host_path(spec: &Value) -> Fault {
    let volumes: Vec<&str> = list(spec, &["volumes"])
        .iter()
        .filter(|v| !at(v, &["hostPath"]).is_null())
        .map(|v| text(v, &["name"]))
        .collect();
    let detail = format!("{} {}", plural(volumes.len(), "volume", "volumes"), quote(&volumes));
    (!volumes.is_empty()).then(|| ("hostPath volumes".to_owned(), detail))
}

fn host_ports(spec: &Value) -> Fault {
    let mut ports = BTreeSet::new();
    let bad = which(spec, |c| {
        let used: Vec<i64> =
            list(c, &["ports"]).iter().filter_map(|p| at(p, &["hostPort"]).as_i64()).filter(|p| *p != 0).collect();
        ports.extend(used.iter().map(i64::to_string));
        !used.is_empty()
    });
    let (uses, what) = (plural(bad.len(), "uses", "use"), plural(ports.len(), "hostPort", "hostPorts"));
    let ports: Vec<String> = ports.into_iter().collect();
    (!bad.is_empty()).then(|| ("hostPort".to_owned(), format!("{} {uses} {what} {}", named(&bad), ports.join(", "))))
}

fn host_probes(spec: &Value) -> Fault {
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
    (!bad.is_empty()).then(|| ("probe or lifecycle host".to_owned(), format!("{} {uses} {what} {hosts}", named(&bad))))
}

fn privileged(spec: &Value) -> Fault {
    let bad = which(spec, |c| security(c, &["privileged"]) == true);
    let detail = format!("{} must not set securityContext.privileged=true", named(&bad));
    (!bad.is_empty()).then(|| ("privileged".to_owned(), detail))
}

fn proc_mount(spec: &Value) -> Fault {
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
    (!bad.is_empty()).then(|| ("procMount".to_owned(), detail))
}

fn selinux(spec: &Value) -> Fault {
    let (mut types, mut user, mut role) = (BTreeSet::new(), false, false);
    let who = explicit(spec, |of| {
        let options = security(of, &["seLinuxOptions"]);
        let kind = text(options, &["type"]);
        let mut bad = !SELINUX_TYPES.contains(&kind);
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
    (!who.is_empty()).then(|| ("seLinuxOptions".to_owned(), detail))
}

fn sysctls(spec: &Value) -> Fault {
    let bad: Vec<&str> = list(spec, &["securityContext", "sysctls"])
        .iter()
        .map(|s| text(s, &["name"]))
        .filter(|n| !SYSCTLS.contains(n))
        .collect();
    (!bad.is_empty()).then(|| ("forbidden sysctls".to_owned(), bad.join(", ")))
}

fn host_process(spec: &Value) -> Fault {
    let who = explicit(spec, |of| security(of, &["windowsOptions", "hostProcess"]) == true);
    let detail = format!("{} must not set securityContext.windowsOptions.hostProcess=true", who.join(" and "));
    (!who.is_empty()).then(|| ("hostProcess".to_owned(), detail))
}

fn escalation(spec: &Value) -> Fault {
    let bad = which(spec, |c| security(c, &["allowPrivilegeEscalation"]) != false);
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", named(&bad));
    (!bad.is_empty()).then(|| ("allowPrivilegeEscalation != false".to_owned(), detail))
}

fn restricted_volumes(spec: &Value) -> Fault {
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
    (!bad.is_empty()).then(|| ("restricted volume types".to_owned(), detail))
}

fn non_root(spec: &Value) -> Fault {
    const REASON: &str = "runAsNonRoot != true";
    let who = explicit(spec, |of| security(of, &["runAsNonRoot"]) == false);
    if !who.is_empty() {
        let detail = format!("{} must not set securityContext.runAsNonRoot=false", who.join(" and "));
        return Some((REASON.to_owned(), detail));
    }
    if security(spec, &["runAsNonRoot"]) == true {
        return None;
    }
    let bad = which(spec, |c| security(c, &["runAsNonRoot"]).is_null());
    let detail = format!("pod or {} must set securityContext.runAsNonRoot=true", named(&bad));
    (!bad.is_empty()).then(|| (REASON.to_owned(), detail))
}

fn root_user(spec: &Value) -> Fault {
    let who = explicit(spec, |of| security(of, &["runAsUser"]) == 0);
    (!who.is_empty()).then(|| ("runAsUser=0".to_owned(), format!("{} must not set runAsUser=0", who.join(" and "))))
}

fn seccomp(spec: &Value, required: bool) -> Fault {
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
        return Some((REASON.to_owned(), detail));
    }
    if !required || valid(spec) {
        return None;
    }
    let bad = which(spec, |c| !set(c));
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
        named(&bad)
    );
    (!bad.is_empty()).then(|| (REASON.to_owned(), detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(level: Level, spec: Value) -> Vec<String> {
        faults(level, &json!({}), &spec)
    }

    #[test]
    fn a_plain_pod() {
        let plain = json!({"containers": [{"name": "c"}]});
        assert_eq!(check(Level::Privileged, json!({"hostNetwork": true})), [""; 0]);
        assert_eq!(check(Level::Baseline, plain.clone()), [""; 0]);
        assert_eq!(
            check(Level::Restricted, plain),
            [
                "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false)",
                "unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"])",
                "runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true)",
                "seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
            ]
        );
        let hardened = json!({"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
            "volumes": [{"name": "v", "emptyDir": {}}]});
        assert_eq!(check(Level::Restricted, hardened), [""; 0]);
    }

    #[test]
    fn each_check() {
        let one = |c: Value| {
            let mut c = c;
            c["name"] = json!("c");
            json!({"containers": [{"name": "ok"}], "ephemeralContainers": [c]})
        };
        let sc = |v: Value| one(json!({"securityContext": v}));
        for (spec, want) in [
            (json!({"hostPID": true, "hostNetwork": true}), "host namespaces (hostNetwork=true, hostPID=true)"),
            (
                sc(json!({"privileged": true})),
                "privileged (container \"c\" must not set securityContext.privileged=true)",
            ),
            (
                sc(json!({"capabilities": {"add": ["NET_ADMIN", "KILL"]}})),
                "non-default capabilities (container \"c\" must not include \"NET_ADMIN\" in securityContext.capabilities.add)",
            ),
            (
                json!({"volumes": [{"name": "a", "hostPath": {}}, {"name": "b", "hostPath": {}}]}),
                "hostPath volumes (volumes \"a\", \"b\")",
            ),
            (one(json!({"ports": [{"hostPort": 80}, {"hostPort": 0}]})), "hostPort (container \"c\" uses hostPort 80)"),
            (
                one(json!({"livenessProbe": {"httpGet": {"host": "x"}}})),
                "probe or lifecycle host (container \"c\" uses probe or lifecycle host \"x\")",
            ),
            (
                sc(json!({"procMount": "Unmasked"})),
                "procMount (container \"c\" must not set securityContext.procMount to \"Unmasked\")",
            ),
            (
                sc(json!({"seLinuxOptions": {"type": "x", "user": "u"}})),
                "seLinuxOptions (container \"c\" set forbidden securityContext.seLinuxOptions: type \"x\"; user may not be set)",
            ),
            (json!({"securityContext": {"sysctls": [{"name": "a.b"}]}}), "forbidden sysctls (a.b)"),
            (
                json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
                "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
            ),
            (
                json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
                "forbidden AppArmor profile (pod must not set AppArmor profile type to \"Unconfined\")",
            ),
            (
                json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}),
                "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
            ),
        ] {
            assert_eq!(check(Level::Baseline, spec), [want]);
        }
        let restricted = check(
            Level::Restricted,
            json!({"securityContext": {"runAsUser": 0, "runAsNonRoot": false},
            "volumes": [{"name": "h", "hostPath": {}}]}),
        );
        assert_eq!(
            restricted,
            [
                "restricted volume types (volume \"h\" uses restricted volume type \"hostPath\")",
                "runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false)",
                "runAsUser=0 (pod must not set runAsUser=0)",
            ]
        );
        assert_eq!(check(Level::Restricted, json!({"hostUsers": false, "securityContext": {"runAsUser": 0}})), [""; 0]);
    }
}
