//! Validates security contexts of pods and of containers.
use std::collections::BTreeSet;

use serde_json::Value;

use super::context::Pod;
use super::{paths, windows};
use crate::path::{Errors, Path};
use crate::rules;
use crate::tree::{flag, holds, int, items, present, text};

const SYSCTL_MAX: usize = 253;
const SYSCTL_WHY: &str = "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
const PROFILE_PATH_MAX: usize = 4095;
/// Pod-level fields that Windows does not support.
const NOT_ON_WINDOWS: &[&str] = &[
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];
const CONTAINER_NOT_ON_WINDOWS: &[&str] = &[
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

fn id(v: &Value, p: &Path<'_>, e: &mut Errors) {
    if let Some(n) = int(v)
        && !(0..=i64::from(i32::MAX)).contains(&n)
    {
        e.invalid(p, n, "must be between 0 and 2147483647, inclusive");
    }
}

/// Validates `spec.securityContext` and the host namespace fields.
pub fn pod(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let s = &spec["securityContext"];
    for f in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(&s[f], &p.child(f), e);
    }
    let groups = p.child("supplementalGroups");
    for (i, g) in items(&s["supplementalGroups"]).iter().enumerate() {
        id(g, &groups.index(i), e);
    }
    if flag(&spec["shareProcessNamespace"]) && flag(&spec["hostPID"]) {
        e.invalid(&p.child("shareProcessNamespace"), true, "ShareProcessNamespace and HostPID cannot both be enabled");
    }
    sysctls(spec, &p.child("sysctls"), e);
    rules::optional_one_of(
        &s["fsGroupChangePolicy"],
        &p.child("fsGroupChangePolicy"),
        &["Always", "OnRootMismatch"],
        e,
    );
    seccomp(&s["seccompProfile"], &p.child("seccompProfile"), e);
    app_armor(&s["appArmorProfile"], &p.child("appArmorProfile"), e);
    rules::optional_one_of(
        &s["supplementalGroupsPolicy"],
        &p.child("supplementalGroupsPolicy"),
        &["Merge", "Strict"],
        e,
    );
    rules::optional_one_of(
        &s["seLinuxChangePolicy"],
        &p.child("seLinuxChangePolicy"),
        &["MountOption", "Recursive"],
        e,
    );
    windows::options(&s["windowsOptions"], &p.child("windowsOptions"), e);
}

/// Validates how a volume gets the pod's SELinux label. The choice is behind a gate that is off (`SELinuxMount`,
/// KEP-1710).
pub fn change_policy(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let p = p.child("securityContext");
    if spec["securityContext"]["seLinuxChangePolicy"] == "MountOption" {
        e.not_supported(&p.child("seLinuxChangePolicy"), "MountOption", &["Recursive"]);
    }
}

fn sysctls(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (i, s) in items(&spec["securityContext"]["sysctls"]).iter().enumerate() {
        let at = p.index(i);
        let name = text(&s["name"]);
        if name.is_empty() {
            e.required(&at.child("name"), "");
        } else if !sysctl_name(name) {
            e.invalid(&at.child("name"), name, SYSCTL_WHY);
        } else if !seen.insert(name) {
            e.duplicate(&at.child("name"), name);
        }
        let dotted = name.replace('/', ".");
        if flag(&spec["hostNetwork"]) && dotted.starts_with("net.") {
            e.invalid(&at.child("name"), name, "may not be specified when 'hostNetwork' is true");
        } else if flag(&spec["hostIPC"])
            && (dotted.starts_with("kernel.shm")
                || dotted.starts_with("kernel.msg")
                || dotted.starts_with("fs.mqueue.")
                || dotted == "kernel.sem")
        {
            e.invalid(&at.child("name"), name, "may not be specified when 'hostIPC' is true");
        }
    }
}

fn sysctl_name(name: &str) -> bool {
    let alnum = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= SYSCTL_MAX
        && name.split(['.', '/']).all(|s| {
            let b = s.as_bytes();
            matches!((b.first(), b.last()), (Some(f), Some(l)) if alnum(*f) && alnum(*l))
                && b.iter().all(|c| alnum(*c) || matches!(c, b'-' | b'_'))
        })
}

fn seccomp(s: &Value, p: &Path<'_>, e: &mut Errors) {
    if !present(s) {
        return;
    }
    let kind = text(&s["type"]);
    match kind {
        "Localhost" | "RuntimeDefault" | "Unconfined" => {}
        "" => e.required(&p.child("type"), "type is required when seccompProfile is set"),
        _ => e.not_supported(&p.child("type"), kind, &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
    let at = p.child("localhostProfile");
    match (kind == "Localhost", s["localhostProfile"].as_str()) {
        (true, None) => e.required(&at, "must be set when seccomp type is Localhost"),
        (true, Some(profile)) => paths::descending(profile, &at, e),
        (false, Some(_)) => e.invalid(&at, s, "can only be set when seccomp type is Localhost"),
        (false, None) => {}
    }
}

fn app_armor(a: &Value, p: &Path<'_>, e: &mut Errors) {
    if !present(a) {
        return;
    }
    let (kind, profile) = (text(&a["type"]), a["localhostProfile"].as_str());
    let at = p.child("localhostProfile");
    match kind {
        "Localhost" => match profile.map(|s| (s, s.trim())) {
            None | Some((_, "")) => e.required(&at, "must be set when AppArmor type is Localhost"),
            Some((given, trimmed)) => {
                if given != trimmed {
                    e.invalid(&at, given, "must not be padded with whitespace");
                }
                if given.len() > PROFILE_PATH_MAX {
                    e.too_long(&at, PROFILE_PATH_MAX);
                }
            }
        },
        "RuntimeDefault" | "Unconfined" => {
            if let Some(given) = profile {
                e.invalid(&at, given, "can only be set when AppArmor type is Localhost");
            }
        }
        "" => e.required(&p.child("type"), "type is required when appArmorProfile is set"),
        _ => e.not_supported(&p.child("type"), kind, &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}

/// Validates `securityContext` of a container.
pub fn container(s: &Value, pod: &Pod<'_>, p: &Path<'_>, e: &mut Errors) {
    if !present(s) {
        return;
    }
    id(&s["runAsUser"], &p.child("runAsUser"), e);
    id(&s["runAsGroup"], &p.child("runAsGroup"), e);
    if let Some(m) = s["procMount"].as_str() {
        rules::optional_one_of(&s["procMount"], &p.child("procMount"), &["Default", "Unmasked"], e);
        if pod.host_users && m == "Unmasked" {
            e.invalid(&p.child("procMount"), m, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    seccomp(&s["seccompProfile"], &p.child("seccompProfile"), e);
    if s["allowPrivilegeEscalation"] == false {
        if flag(&s["privileged"]) {
            e.invalid(p, s, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true");
        }
        if holds(&s["capabilities"]["add"], "CAP_SYS_ADMIN") {
            e.invalid(p, s, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN");
        }
    }
    app_armor(&s["appArmorProfile"], &p.child("appArmorProfile"), e);
    windows::options(&s["windowsOptions"], &p.child("windowsOptions"), e);
}

/// Rejects fields that the pod's operating system does not support.
pub fn os(spec: &Value, os: &str, p: &Path<'_>, e: &mut Errors) {
    let context = p.child("securityContext");
    let s = &spec["securityContext"];
    if os == "windows" {
        for f in NOT_ON_WINDOWS.iter().filter(|f| present(&s[**f])) {
            e.forbidden(&context.child(f), "cannot be set for a windows pod");
        }
        for f in ["hostUsers", "hostPID", "hostIPC", "shareProcessNamespace"] {
            if flag(&spec[f]) || (present(&spec[f]) && matches!(f, "hostUsers" | "shareProcessNamespace")) {
                e.forbidden(&p.child(f), "cannot be set for a windows pod");
            }
        }
    } else if os == "linux" && present(&s["windowsOptions"]) {
        e.forbidden(&context.child("windowsOptions"), "windows options cannot be set for a linux pod");
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let at = p.child(list);
        for (i, c) in items(&spec[list]).iter().enumerate() {
            let at = at.index(i);
            let at = at.child("securityContext");
            let s = &c["securityContext"];
            if os == "windows" {
                for f in CONTAINER_NOT_ON_WINDOWS.iter().filter(|f| present(&s[**f])) {
                    e.forbidden(&at.child(f), "cannot be set for a windows pod");
                }
            } else if os == "linux" && present(&s["windowsOptions"]) {
                e.forbidden(&at.child("windowsOptions"), "windows options cannot be set for a linux pod");
            }
        }
    }
}
