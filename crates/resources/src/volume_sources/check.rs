//! Validates each volume source.
use kelson_meta::{is_dns1123_label, is_dns1123_subdomain};
use serde_json::Value;

use crate::path::{Errors, Path};
use crate::rules;
use crate::tree::{empty, flag, int0, len, present, text};

/// The maximum length of the volume's name and its portal together, with an initiator name.
const PORTAL_MAX: usize = 64;
const PORTAL_WHY: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
const HOST_PATH_TYPES: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
const TENANT_MAX: usize = 64;

/// The owner of a volume source.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Owner<'a> {
    /// A pod; its secrets are in its own namespace.
    Pod,
    /// A PersistentVolume with this name; its secrets have a namespace.
    Volume(&'a str),
}

/// Validates a source that pods and PersistentVolumes share; returns false if there are no rules for it.
pub fn shared(kind: &str, s: &Value, owner: Owner<'_>, p: &Path<'_>, e: &mut Errors) -> bool {
    let fields: &[&str] = match kind {
        "gcePersistentDisk" => &["pdName"],
        "awsElasticBlockStore" => &["volumeID"],
        "nfs" => &["server", "path"],
        "glusterfs" => &["endpoints", "path"],
        "rbd" => &["monitors", "image"],
        "cinder" => &["volumeID"],
        "cephfs" => &["monitors"],
        "quobyte" => &["volume"],
        "flexVolume" => &["driver"],
        "azureFile" => &["secretName", "shareName"],
        "vsphereVolume" => &["volumePath"],
        "photonPersistentDisk" => &["pdID"],
        "portworxVolume" => &["volumeID"],
        "azureDisk" => &["diskName", "diskURI"],
        "scaleIO" => &["gateway", "system", "volumeName"],
        "iscsi" => &["targetPortal", "iqn"],
        "hostPath" | "fc" | "flocker" | "storageos" => &[],
        _ => return false,
    };
    for f in fields {
        rules::required(&s[*f], &p.child(f), e);
    }
    match kind {
        "hostPath" => host_path(s, p, e),
        "gcePersistentDisk" | "awsElasticBlockStore" => partition(s, p, e),
        "nfs" if !text(&s["path"]).starts_with('/') => {
            e.invalid(&p.child("path"), text(&s["path"]), "must be an absolute path");
        }
        "glusterfs" => endpoints_namespace(s, owner, p, e),
        "cinder" => secret_reference(s, owner, p, e),
        "quobyte" => quobyte(s, p, e),
        "flexVolume" => flex_options(s, p, e),
        "azureFile" if owner != Owner::Pod && s["secretNamespace"].as_str() == Some("") => {
            e.required(&p.child("secretNamespace"), "");
        }
        "azureDisk" => azure_disk(s, p, e),
        "iscsi" => iscsi(s, owner, p, e),
        "fc" => fibre_channel(s, p, e),
        "flocker" => flocker(s, p, e),
        "storageos" => storage_os(s, owner, p, e),
        _ => {}
    }
    true
}

/// Validates a CSI driver name: a subdomain of at most 63 characters, in any case.
pub fn driver_name(name: &str, p: &Path<'_>, e: &mut Errors) {
    const MAX: usize = 63;
    if name.is_empty() {
        return e.required(p, "");
    }
    if name.len() > MAX {
        e.too_long(p, MAX);
    }
    e.invalid_each(p, name, is_dns1123_subdomain(&name.to_lowercase()));
}

/// Validates the `csi` source of a PersistentVolume, with its secret references.
pub fn persistent_csi(s: &Value, p: &Path<'_>, e: &mut Errors) {
    driver_name(text(&s["driver"]), &p.child("driver"), e);
    rules::required(&s["volumeHandle"], &p.child("volumeHandle"), e);
    for f in ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"]
    {
        if !present(&s[f]) {
            continue;
        }
        let at = p.child(f);
        let (name, namespace) = (text(&s[f]["name"]), text(&s[f]["namespace"]));
        if rules::required(&s[f]["name"], &at.child("name"), e) {
            e.invalid_each(&at.child("name"), name, is_dns1123_subdomain(name));
        }
        if rules::required(&s[f]["namespace"], &at.child("namespace"), e) {
            e.invalid_each(&at.child("namespace"), namespace, is_dns1123_label(namespace));
        }
    }
}

/// Validates the `csi` source of a pod's volume.
pub fn pod_csi(s: &Value, p: &Path<'_>, e: &mut Errors) {
    driver_name(text(&s["driver"]), &p.child("driver"), e);
    if present(&s["nodePublishSecretRef"]) {
        let name = text(&s["nodePublishSecretRef"]["name"]);
        if name.is_empty() {
            let reference = p.child("nodePublishSecretRef");
            e.required(&reference.child("name"), "");
        } else {
            // Upstream's path of errors of the name lacks the reference.
            e.invalid_each(&p.child("name"), name, is_dns1123_subdomain(name));
        }
    }
}

/// Validates the `local` source of a PersistentVolume.
pub fn local(s: &Value, p: &Path<'_>, e: &mut Errors) {
    if rules::required(&s["path"], &p.child("path"), e) {
        rules::no_backsteps(text(&s["path"]), &p.child("path"), e);
    }
}

/// Validates the name of a pod's volume with its portal, if there is an initiator name.
pub fn portal_of_pod(volume: &Value, p: &Path<'_>, e: &mut Errors) {
    let (name, s) = (text(&volume["name"]), &volume["iscsi"]);
    if present(&s["initiatorName"]) && portal_too_long(name, s) {
        e.invalid(&p.child("name"), name, PORTAL_WHY);
    }
}

fn portal_too_long(name: &str, s: &Value) -> bool {
    name.len() + ":".len() + text(&s["targetPortal"]).len() > PORTAL_MAX
}

fn host_path(s: &Value, p: &Path<'_>, e: &mut Errors) {
    if rules::required(&s["path"], &p.child("path"), e) {
        rules::no_backsteps(text(&s["path"]), &p.child("path"), e);
        rules::optional_one_of(&s["type"], &p.child("type"), HOST_PATH_TYPES, e);
    }
}

fn partition(s: &Value, p: &Path<'_>, e: &mut Errors) {
    let n = int0(&s["partition"]);
    if !(0..=255).contains(&n) {
        e.invalid(&p.child("partition"), n, "must be between 0 and 255, inclusive");
    }
}

fn endpoints_namespace(s: &Value, owner: Owner<'_>, p: &Path<'_>, e: &mut Errors) {
    if owner == Owner::Pod {
        return;
    }
    let at = p.child("endpointsNamespace");
    match s["endpointsNamespace"].as_str() {
        None => {}
        Some("") => e.invalid(&at, "", "must be the name of a namespace where it is set"),
        Some(name) => e.invalid_each(&at, name, is_dns1123_label(name)),
    }
}

/// Validates `secretRef`: its name, and its namespace if the owner has none.
fn secret_reference(s: &Value, owner: Owner<'_>, p: &Path<'_>, e: &mut Errors) {
    let reference = &s["secretRef"];
    if !present(reference) {
        return;
    }
    let at = p.child("secretRef");
    rules::required(&reference["name"], &at.child("name"), e);
    if owner != Owner::Pod {
        rules::required(&reference["namespace"], &at.child("namespace"), e);
    }
}

fn quobyte(s: &Value, p: &Path<'_>, e: &mut Errors) {
    const WHY: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = text(&s["registry"]);
    if registry.is_empty() {
        e.required(&p.child("registry"), WHY);
    } else if text(&s["tenant"]).len() > TENANT_MAX {
        e.required(&p.child("tenant"), "must be a UUID and may not exceed a length of 64 characters");
    } else {
        for _ in registry.split(',').filter(|pair| !is_host_port(pair)) {
            e.invalid(&p.child("registry"), registry, WHY);
        }
    }
}

/// Reports whether a string is an address and a port for Go's `net.SplitHostPort`; either may be empty.
fn is_host_port(pair: &str) -> bool {
    let Some((host, port)) = pair.rsplit_once(':') else { return false };
    let host_is_sound = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.strip_suffix(']').is_some_and(|inside| !inside.contains(['[', ']'])),
        None => !host.contains([':', '[', ']']),
    };
    host_is_sound && !port.contains(['[', ']'])
}

fn flex_options(s: &Value, p: &Path<'_>, e: &mut Errors) {
    let options = p.child("options");
    for key in s["options"].as_object().into_iter().flat_map(|o| o.keys()) {
        let domain = key.split_once('/').map_or(key.as_str(), |(domain, _)| domain);
        let domain = format!(".{}", domain.to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            e.invalid(&options.key(key), key, "kubernetes.io and k8s.io namespaces are reserved");
        }
    }
}

fn azure_disk(s: &Value, p: &Path<'_>, e: &mut Errors) {
    const MANAGED: &str =
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
    const BLOB: &str = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
    rules::optional_one_of(&s["cachingMode"], &p.child("cachingMode"), &["None", "ReadOnly", "ReadWrite"], e);
    rules::optional_one_of(&s["kind"], &p.child("kind"), &["Dedicated", "Managed", "Shared"], e);
    let Some(kind) = s["kind"].as_str() else { return };
    let (start, supported) = if kind == "Managed" { ("/subscriptions/", MANAGED) } else { ("https://", BLOB) };
    let uri = text(&s["diskURI"]);
    if !uri.starts_with(start) {
        e.not_supported(&p.child("diskURI"), uri, &[supported]);
    }
}

fn iscsi(s: &Value, owner: Owner<'_>, p: &Path<'_>, e: &mut Errors) {
    if let Owner::Volume(name) = owner
        && present(&s["initiatorName"])
        && portal_too_long(name, s)
    {
        e.invalid(&p.child("targetportal"), text(&s["targetPortal"]), PORTAL_WHY);
    }
    let iqn = text(&s["iqn"]);
    if !iqn.is_empty() && !is_iscsi_name(iqn) {
        e.invalid(&p.child("iqn"), iqn, "must be a valid name that starts with iqn, eui or naa");
    }
    let lun = int0(&s["lun"]);
    if !(0..=255).contains(&lun) {
        e.invalid(&p.child("lun"), lun, "must be between 0 and 255, inclusive");
    }
    if (flag(&s["chapAuthDiscovery"]) || flag(&s["chapAuthSession"])) && !present(&s["secretRef"]) {
        e.required(&p.child("secretRef"), "");
    }
    if owner != Owner::Pod && present(&s["secretRef"]) {
        let at = p.child("secretRef");
        rules::required(&s["secretRef"]["name"], &at.child("name"), e);
    }
    if let Some(initiator) = s["initiatorName"].as_str()
        && !is_iscsi_name(initiator)
    {
        e.invalid(&p.child("initiatorname"), initiator, "must be a valid name that starts with iqn, eui or naa");
    }
}

/// Reports whether a name has one of the three forms of RFC 3720: `iqn.2001-04.com.example:disk`, `eui.` and 16, `naa.`
/// and 32 letters or digits.
fn is_iscsi_name(name: &str) -> bool {
    let alphanumeric = |text: &str, count: usize| {
        let mut chars = text.chars();
        let separator = chars.next();
        separator.is_some_and(|c| c != '\n')
            && chars.clone().count() == count
            && chars.all(|c| c.is_ascii_alphanumeric())
    };
    match (name.strip_prefix("eui"), name.strip_prefix("naa")) {
        (Some(rest), _) => alphanumeric(rest, 16),
        (_, Some(rest)) => alphanumeric(rest, 32),
        // Upstream's pattern is only anchored at the end.
        _ => {
            name.starts_with("iqn")
                && name.match_indices("iqn.").any(|(i, start)| is_qualified(&name[i + start.len()..]))
        }
    }
}

/// Reports whether this is `YYYY-MM.`, a naming authority, a colon and a string without separators.
fn is_qualified(text: &str) -> bool {
    let Some((date, rest)) = text.split_once('.') else { return false };
    let digits = |part: &str, count| part.len() == count && part.bytes().all(|c| c.is_ascii_digit());
    let dated = date.split_once('-').is_some_and(|(year, month)| digits(year, 4) && digits(month, 2));
    let Some((authority, unique)) = rest.split_once(':') else { return false };
    let apart = |c: char| matches!(c, ',' | ';' | '*' | '&' | '$' | '|' | ' ' | '\t' | '\n' | '\u{c}' | '\r');
    dated
        && !authority.is_empty()
        && authority.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.'))
        && !unique.is_empty()
        && !unique.contains(apart)
}

fn fibre_channel(s: &Value, p: &Path<'_>, e: &mut Errors) {
    let (targets, wwids) = (len(&s["targetWWNs"]), len(&s["wwids"]));
    let at = p.child("targetWWNs");
    if targets == 0 && wwids == 0 {
        e.required(&at, "must specify either targetWWNs or wwids, but not both");
    }
    if targets != 0 && wwids != 0 {
        e.invalid(&at, &s["targetWWNs"], "targetWWNs and wwids can not be specified simultaneously");
    }
    if targets != 0 {
        match s["lun"].as_i64() {
            None => e.required(&p.child("lun"), "lun is required if targetWWNs is specified"),
            Some(lun) if !(0..=255).contains(&lun) => {
                e.invalid(&p.child("lun"), lun, "must be between 0 and 255, inclusive");
            }
            Some(_) => {}
        }
    }
}

fn flocker(s: &Value, p: &Path<'_>, e: &mut Errors) {
    match (empty(&s["datasetName"]), empty(&s["datasetUUID"])) {
        (true, true) => e.required(p, "one of datasetName and datasetUUID is required"),
        (false, false) => {
            e.invalid(p, "resource", "datasetName and datasetUUID can not be specified simultaneously");
        }
        _ => {}
    }
    let name = text(&s["datasetName"]);
    if name.contains('/') {
        e.invalid(&p.child("datasetName"), name, "must not contain '/'");
    }
}

fn storage_os(s: &Value, owner: Owner<'_>, p: &Path<'_>, e: &mut Errors) {
    let (name, namespace) = (text(&s["volumeName"]), text(&s["volumeNamespace"]));
    if rules::required(&s["volumeName"], &p.child("volumeName"), e) {
        e.invalid_each(&p.child("volumeName"), name, is_dns1123_label(name));
    }
    if !namespace.is_empty() {
        e.invalid_each(&p.child("volumeNamespace"), namespace, is_dns1123_label(namespace));
    }
    secret_reference(s, owner, p, e);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(kind: &str, source: Value, owner: Owner<'_>) -> String {
        let mut e = Errors::new();
        assert!(shared(kind, &source, owner, &Path::new(kind), &mut e), "{kind} is not shared");
        let causes: Vec<String> = e.finish().0.iter().map(|f| format!("{} {}", f.path, f.kind.words())).collect();
        causes.join(", ")
    }

    #[test]
    fn sources_are_validated_alike_in_pods_and_volumes() {
        let volume = Owner::Volume("v");
        for (kind, source, in_pods, in_volumes) in [
            ("hostPath", json!({"path": "../x"}), "hostPath.path Invalid value", "hostPath.path Invalid value"),
            (
                "hostPath",
                json!({"path": "/", "type": "*"}),
                "hostPath.type Unsupported value",
                "hostPath.type Unsupported value",
            ),
            ("nfs", json!({"server": "s", "path": "a"}), "nfs.path Invalid value", "nfs.path Invalid value"),
            (
                "cinder",
                json!({"volumeID": "v", "secretRef": {"name": "s"}}),
                "",
                "cinder.secretRef.namespace Required value",
            ),
            ("fc", json!({}), "fc.targetWWNs Required value", "fc.targetWWNs Required value"),
            ("fc", json!({"targetWWNs": ["a"], "lun": 256}), "fc.lun Invalid value", "fc.lun Invalid value"),
            (
                "flocker",
                json!({"datasetName": "a/b"}),
                "flocker.datasetName Invalid value",
                "flocker.datasetName Invalid value",
            ),
            (
                "glusterfs",
                json!({"endpoints": "e", "path": "p", "endpointsNamespace": ""}),
                "",
                "glusterfs.endpointsNamespace Invalid value",
            ),
            (
                "awsElasticBlockStore",
                json!({"volumeID": "v", "partition": -1}),
                "awsElasticBlockStore.partition Invalid value",
                "awsElasticBlockStore.partition Invalid value",
            ),
            (
                "azureDisk",
                json!({"diskName": "d", "diskURI": "u", "kind": "Managed"}),
                "azureDisk.diskURI Unsupported value",
                "azureDisk.diskURI Unsupported value",
            ),
            (
                "storageos",
                json!({"volumeName": "A"}),
                "storageos.volumeName Invalid value",
                "storageos.volumeName Invalid value",
            ),
            (
                "flexVolume",
                json!({"driver": "d", "options": {"X.k8s.io/a": ""}}),
                "flexVolume.options[X.k8s.io/a] Invalid value",
                "flexVolume.options[X.k8s.io/a] Invalid value",
            ),
            (
                "quobyte",
                json!({"volume": "v", "registry": "a:1,b"}),
                "quobyte.registry Invalid value",
                "quobyte.registry Invalid value",
            ),
        ] {
            assert_eq!(faults(kind, source.clone(), Owner::Pod), in_pods, "{source}");
            assert_eq!(faults(kind, source.clone(), volume), in_volumes, "{source}");
        }
    }

    #[test]
    fn names_of_initiators_have_three_forms() {
        for good in
            ["iqn.2001-04.com.example:storage.disk1", "eui.02004567A425678D", "naa.52004567BA64678D52004567BA64678D"]
        {
            assert!(is_iscsi_name(good), "{good}");
        }
        for bad in ["", "*", "iqn", "iqn.2001-4.com:x", "iqn.2001-04.com", "iqn.2001-04.com:a b", "eui.1", "naa.1"] {
            assert!(!is_iscsi_name(bad), "{bad}");
        }
        for (pair, want) in [("a:1", true), (":", true), ("[::1]:2", true), ("::1:2", false), ("a", false)] {
            assert_eq!(is_host_port(pair), want, "{pair}");
        }
    }
}
