//! Which checks of the Pod Security Standards apply at which level in which version (`pod-security-admission/policy`):
//! a namespace with an older version keeps the checks of that version.
use serde_json::Value;

use super::checks::{self, Pod, Violation};
use super::level::{Demand, Level, Version};

/// The version that last changed a check; newer versions have the same checks.
const NEWEST: u32 = 35;

/// A check with its level and its first minor version.
struct SecurityCheck {
    id: &'static str,
    since: u32,
    check: fn(Pod<'_>, u32) -> Option<Violation>,
    /// The baseline check that this one replaces.
    instead_of: &'static str,
}

const fn rule(id: &'static str, since: u32, check: fn(Pod<'_>, u32) -> Option<Violation>) -> SecurityCheck {
    SecurityCheck { id, since, check, instead_of: "" }
}

/// The baseline checks in the order of their names, as messages list them.
const BASELINE: [SecurityCheck; 12] = [
    rule("appArmorProfile", 0, checks::app_armor),
    rule("capabilities_baseline", 0, checks::capabilities_baseline),
    rule("hostNamespaces", 0, checks::host_namespaces),
    rule("hostPathVolumes", 0, checks::host_path),
    rule("hostPorts", 0, checks::host_ports),
    rule("hostProbesAndHostLifecycle", 34, checks::host_probes),
    rule("privileged", 0, checks::privileged),
    rule("procMount", 0, checks::proc_mount_baseline),
    rule("seLinuxOptions", 0, checks::selinux),
    rule("seccompProfile_baseline", 0, checks::seccomp_baseline),
    rule("sysctls", 0, checks::sysctls),
    rule("windowsHostProcess", 0, checks::host_process),
];

/// The restricted checks, evaluated after those of the baseline level that they do not replace.
const RESTRICTED: [SecurityCheck; 7] = [
    rule("allowPrivilegeEscalation", 8, checks::escalation),
    SecurityCheck {
        instead_of: "capabilities_baseline",
        ..rule("capabilities_restricted", 22, checks::capabilities_restricted)
    },
    SecurityCheck { instead_of: "procMount", ..rule("procMount_restricted", 35, checks::proc_mount) },
    SecurityCheck { instead_of: "hostPathVolumes", ..rule("restrictedVolumes", 0, checks::restricted_volumes) },
    rule("runAsNonRoot", 0, checks::non_root),
    rule("runAsUser", 23, checks::root_user),
    SecurityCheck {
        instead_of: "seccompProfile_baseline",
        ..rule("seccompProfile_restricted", 19, checks::seccomp_restricted)
    },
];

/// Returns all violations of a policy, in the order of the checks.
pub fn faults(demand: Demand, metadata: &Value, spec: &Value) -> Vec<Violation> {
    let pod = Pod { metadata, spec };
    let minor = match demand.version {
        Version::Minor(minor) => minor.min(NEWEST),
        Version::Latest => NEWEST,
    };
    let restricted = match demand.level {
        Level::Privileged => return Vec::new(),
        Level::Baseline => &[][..],
        Level::Restricted => &RESTRICTED[..],
    };
    let restricted = || restricted.iter().filter(|r| r.since <= minor);
    let replaced = |id: &str| restricted().any(|r| r.instead_of == id);
    let baseline = BASELINE.iter().filter(|r| r.since <= minor && !replaced(r.id));
    baseline.chain(restricted()).filter_map(|r| (r.check)(pod, minor)).collect()
}

/// Returns the message for clients: `reason (detail), reason (detail)`; `None` when there is no violation.
pub fn violated(demand: Demand, metadata: &Value, spec: &Value) -> Option<String> {
    let faults = faults(demand, metadata, spec);
    let words: Vec<String> = faults.iter().map(|f| format!("{} ({})", f.reason, f.detail)).collect();
    (!faults.is_empty()).then(|| format!("PodSecurity \"{demand}\": {}", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(level: Level, spec: Value) -> Vec<String> {
        of_version(level, Version::Latest, json!({}), spec)
    }

    fn of_version(level: Level, version: Version, metadata: Value, spec: Value) -> Vec<String> {
        let found = faults(Demand { level, version }, &metadata, &spec);
        found.into_iter().map(|f| format!("{} ({})", f.reason, f.detail)).collect()
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

    /// Returns the reasons at a level, version by version: each line has the first minor version with this result.
    fn history(level: Level, metadata: Value, spec: Value) -> Vec<(u32, Vec<String>)> {
        let mut history: Vec<(u32, Vec<String>)> = Vec::new();
        for minor in 0..=NEWEST + 1 {
            let found = faults(Demand { level, version: Version::Minor(minor) }, &metadata, &spec);
            let reasons: Vec<String> = found.into_iter().map(|f| f.reason).collect();
            if history.last().is_none_or(|(_, last)| *last != reasons) {
                history.push((minor, reasons));
            }
        }
        history
    }

    #[test]
    fn versions() {
        use Level::{Baseline, Restricted};
        let container = |fields: Value| json!({"containers": [{"name": "c", "securityContext": fields}]});
        let hardened = |fields: Value| {
            let mut context = json!({"allowPrivilegeEscalation": false, "runAsNonRoot": true,
                "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}});
            for (key, value) in fields.as_object().unwrap() {
                context[key] = value.clone();
            }
            container(context)
        };
        let windows = |mut spec: Value| {
            spec["os"] = json!({"name": "windows"});
            spec
        };
        let own_users = |mut spec: Value| {
            spec["hostUsers"] = json!(false);
            spec
        };
        let sysctl = |name: &str| json!({"securityContext": {"sysctls": [{"name": name}]}});
        let escalation = "allowPrivilegeEscalation != false";
        let none: &[&str] = &[];
        for (what, level, spec, want) in [
            (
                "reserved ports",
                Baseline,
                sysctl("net.ipv4.ip_local_reserved_ports"),
                vec![(0, &["forbidden sysctls"][..]), (27, none)],
            ),
            ("keepalive", Baseline, sysctl("net.ipv4.tcp_fin_timeout"), vec![(0, &["forbidden sysctls"]), (29, none)]),
            ("buffers", Baseline, sysctl("net.ipv4.tcp_wmem"), vec![(0, &["forbidden sysctls"]), (32, none)]),
            (
                "engine type",
                Baseline,
                container(json!({"seLinuxOptions": {"type": "container_engine_t"}})),
                vec![(0, &["seLinuxOptions"]), (31, none)],
            ),
            (
                "probe host",
                Baseline,
                json!({"containers": [{"name": "c", "livenessProbe": {"tcpSocket": {"host": "h"}}}]}),
                vec![(0, none), (34, &["probe or lifecycle host"])],
            ),
            (
                "seccomp field",
                Baseline,
                container(json!({"seccompProfile": {"type": "Unconfined"}})),
                vec![(0, none), (19, &["seccompProfile"])],
            ),
            (
                "proc mount, own users",
                Baseline,
                own_users(container(json!({"procMount": "Unmasked"}))),
                vec![(0, &["procMount"]), (35, none)],
            ),
            (
                "proc mount, own users, restricted",
                Restricted,
                own_users(hardened(json!({"procMount": "Unmasked"}))),
                vec![(0, &["procMount"])],
            ),
            ("hardened", Restricted, hardened(json!({})), vec![(0, none)]),
            ("uid 0", Restricted, hardened(json!({"runAsUser": 0})), vec![(0, none), (23, &["runAsUser=0"])]),
            (
                "uid 0, own users",
                Restricted,
                own_users(hardened(json!({"runAsUser": 0}))),
                vec![(0, none), (23, &["runAsUser=0"]), (35, none)],
            ),
            (
                "escalation",
                Restricted,
                hardened(json!({"allowPrivilegeEscalation": true})),
                vec![(0, none), (8, &[escalation])],
            ),
            (
                "escalation on windows",
                Restricted,
                windows(hardened(json!({"allowPrivilegeEscalation": true}))),
                vec![(0, none), (8, &[escalation]), (25, none)],
            ),
            (
                "capabilities",
                Restricted,
                hardened(json!({"capabilities": {}})),
                vec![(0, none), (22, &["unrestricted capabilities"])],
            ),
            (
                "no seccomp",
                Restricted,
                hardened(json!({"seccompProfile": null})),
                vec![(0, none), (19, &["seccompProfile"])],
            ),
            (
                "no seccomp on windows",
                Restricted,
                windows(hardened(json!({"seccompProfile": null}))),
                vec![(0, none), (19, &["seccompProfile"]), (25, none)],
            ),
        ] {
            let want: Vec<(u32, Vec<String>)> =
                want.into_iter().map(|(v, r)| (v, r.iter().map(|r| (*r).to_owned()).collect())).collect();
            assert_eq!(history(level, json!({}), spec), want, "{what}");
        }
        let annotated = json!({"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined",
            "container.seccomp.security.alpha.kubernetes.io/c": "runtime/default"}});
        assert_eq!(
            of_version(Baseline, Version::Minor(18), annotated, container(json!({}))),
            ["seccompProfile (forbidden annotation seccomp.security.alpha.kubernetes.io/pod=\"unconfined\")"]
        );
    }
}
