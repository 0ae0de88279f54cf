//! Converts manifests to static pods of this node, and reads a directory of manifests. Only the reading has effects. The manager runs
//! static pods, and `mirror` shows them in the API (upstream: `pkg/kubelet/config/file.go`, `common.go`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Toleration};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::inbox::{ManagerInbox, ManifestSource};
use crate::logs::notify::Watch;
use crate::pod;
use kelson_tasks::FILES;

/// Maximum size of a manifest in bytes.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of manifests per source.
pub(super) const MANIFESTS_MAX: usize = 512;
/// Delay after a change before a file is read, so that its writer has likely finished.
const SETTLE: Duration = Duration::from_millis(50);

/// Parses a manifest.
///
/// # Errors
/// What is invalid, for the operator.
pub fn parse(text: &[u8], source: &Path, node: &str) -> Result<Pod, String> {
    let (value, _) = kelson_codec::yaml::to_value(text).map_err(|e| e.to_string())?;
    of(value, Origin::File(source), node)
}

/// The source of a manifest.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin<'a> {
    File(&'a Path),
    Url(&'a str),
}

/// Converts a decoded manifest; see [`parse`].
pub(super) fn of(mut value: Value, origin: Origin<'_>, node: &str) -> Result<Pod, String> {
    if value["kind"] != "Pod" || value["apiVersion"] != "v1" {
        return Err(format!("expected a v1 Pod, got {} {}", value["apiVersion"], value["kind"]));
    }
    let name = value["metadata"]["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        return Err("invalid pod: name is needed for the pod".into());
    }
    let strategy = kelson_resources::strategy("", "pods").ok_or("pods are not a known resource")?;
    let uid = match value["metadata"]["uid"].as_str() {
        Some(uid) if !uid.is_empty() => uid.to_owned(),
        _ => digest(&value, origin, node),
    };
    value["metadata"]["name"] = format!("{name}-{}", node.to_lowercase()).into();
    if value["metadata"]["namespace"].as_str().unwrap_or_default().is_empty() {
        value["metadata"]["namespace"] = "default".into();
    }
    value["spec"]["nodeName"] = node.into();
    strategy.default("v1", &mut value).map_err(|refused| refused.message)?;
    let faults = strategy.judge_create(&value);
    if !faults.is_empty() {
        return Err(faults.to_string());
    }
    let mut pod: Pod = kelson_meta::from_tree(&value).map_err(|e| e.to_string())?;
    allowed(&pod)?;
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(pod::CONFIG_HASH.into(), uid.clone());
    let source = if matches!(origin, Origin::File(_)) { "file" } else { "http" };
    annotations.insert(pod::CONFIG_SOURCE.into(), source.into());
    pod.metadata.uid = Some(uid);
    if matches!(origin, Origin::File(_)) {
        stays(&mut pod);
    }
    pod.status = None;
    Ok(pod)
}

/// Adds a toleration for all `NoExecute` taints: nothing would recreate an evicted static pod.
fn stays(pod: &mut Pod) {
    let always = Toleration { operator: Some("Exists".into()), effect: Some("NoExecute".into()), ..Default::default() };
    let tolerations = pod.spec.get_or_insert_default().tolerations.get_or_insert_default();
    if !tolerations.contains(&always) {
        tolerations.push(always);
    }
}

/// Hash of a manifest's content and location, so that it changes with either.
fn digest(value: &Value, origin: Origin<'_>, node: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(value.to_string());
    hash.update(match origin {
        Origin::File(path) => format!("host:{node}file:{}", path.display()),
        Origin::Url(url) => format!("url:{url}"),
    });
    hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect()
}

/// Rejects references to API objects: static pods run without the API.
fn allowed(pod: &Pod) -> Result<(), String> {
    let Some(s) = &pod.spec else { return Ok(()) };
    if s.resource_claims.as_ref().is_some_and(|c| !c.is_empty()) {
        return Err("static pods may not use ResourceClaims".into());
    }
    if s.service_account_name.as_deref().is_some_and(|n| !n.is_empty()) {
        return Err("static pods may not reference serviceaccounts".into());
    }
    for v in s.volumes.iter().flatten() {
        let what = match () {
            () if v.secret.is_some() => "secrets",
            () if v.config_map.is_some() => "configmaps",
            () if v.persistent_volume_claim.is_some() => "persistentvolumeclaims",
            () if v.projected.is_some() => "projected volumes",
            () => continue,
        };
        return Err(format!("static pods may not reference {what}: volume {:?}", v.name));
    }
    for m in pod::members(pod) {
        let from = m.container.env_from.iter().flatten().next().is_some();
        let keys = m.container.env.iter().flatten().filter_map(|e| e.value_from.as_ref());
        if from || keys.into_iter().any(|f| f.config_map_key_ref.is_some() || f.secret_key_ref.is_some()) {
            return Err(format!(
                "static pods may not reference configmaps or secrets: container {:?}",
                m.container.name
            ));
        }
    }
    Ok(())
}

/// Reads all manifests of a directory, by path. Hidden files and directories are skipped; the result of an invalid manifest is the error.
pub fn read(dir: &Path, node: &str) -> BTreeMap<PathBuf, Result<Pod, String>> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    let hidden = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
    paths.retain(|p| !hidden(p) && p.is_file());
    paths.sort();
    paths.truncate(MANIFESTS_MAX);
    let one = |p: &Path| {
        use std::io::Read as _;
        let mut text = Vec::new();
        let file = std::fs::File::open(p).map_err(|e| e.to_string())?;
        file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut text).map_err(|e| e.to_string())?;
        if text.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(format!("larger than {MANIFEST_BYTES_MAX} bytes"));
        }
        parse(&text, p, node)
    };
    paths.into_iter().map(|p| (p.clone(), one(&p))).collect()
}

async fn is_dir(dir: &Path) -> bool {
    let dir = dir.to_owned();
    FILES.run(move || dir.is_dir()).await.unwrap_or(false)
}

/// Watches the directory and sends all its pods to the manager at the start and after each change. Also reads it every `period`, in case no
/// change is notified (`fileCheckFrequency`).
pub async fn run(dir: PathBuf, period: Duration, node: String, to: ManagerInbox) {
    let mut reported: BTreeMap<PathBuf, Result<Pod, String>> = BTreeMap::new();
    let mut first = true;
    loop {
        // The watch starts before the directory is read, so that no change is missed.
        let watch = Watch::new(&dir).ok();
        loop {
            let (at, name) = (dir.clone(), node.clone());
            let Ok(found) = FILES.run(move || read(&at, &name)).await else { break };
            if std::mem::take(&mut first) || found != reported {
                for (path, fault) in found.iter().filter_map(|(p, r)| Some((p, r.as_ref().err()?))) {
                    if reported.get(path) != found.get(path) {
                        tracing::error!(manifest = %path.display(), error = fault, "cannot use a static pod manifest");
                    }
                }
                let pods = found.values().filter_map(|r| r.as_ref().ok().cloned().map(Arc::new)).collect();
                to.statics(ManifestSource::Files, pods);
                reported = found;
            }
            let Some(watch) = &watch else { break };
            match tokio::time::timeout(period, watch.changed()).await {
                Ok(Ok(())) => tokio::time::sleep(SETTLE).await,
                Ok(Err(_)) => break,
                // The watch does not report that its directory was removed.
                Err(_) if !is_dir(&dir).await => break,
                Err(_) => {}
            }
        }
        tokio::time::sleep(period).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: x}]}\n";

    #[test]
    fn a_manifest_becomes_a_pod_of_this_node() {
        let pod = parse(POD.as_bytes(), Path::new("/m/web.yaml"), "node1").expect("pod");
        assert_eq!((pod::name(&pod), pod::namespace(&pod)), ("web-node1", "default"));
        let s = pod.spec.as_ref().expect("spec");
        assert_eq!(s.node_name.as_deref(), Some("node1"));
        assert_eq!(s.restart_policy.as_deref(), Some("Always"), "defaulted as the API does");
        assert!(s.tolerations.iter().flatten().any(|t| t.effect.as_deref() == Some("NoExecute")));
        assert!(pod::is_static(&pod) && pod::is_critical(&pod) && !pod::is_mirror(&pod));
        assert_eq!(pod::annotation(&pod, pod::CONFIG_HASH), Some(pod::uid(&pod)));
        let same = parse(POD.as_bytes(), Path::new("/m/web.yaml"), "node1").expect("pod");
        let other = parse(POD.replace("image: x", "image: other").as_bytes(), Path::new("/m/web.yaml"), "node1");
        assert_eq!(pod::uid(&pod), pod::uid(&same));
        assert_ne!(pod::uid(&pod), pod::uid(&other.expect("pod")));
    }

    #[test]
    fn invalid_manifests_are_rejected() {
        let fault = |text: &str| parse(text.as_bytes(), Path::new("/m"), "n").expect_err(text);
        assert!(fault("kind: Service\napiVersion: v1").contains("expected a v1 Pod"));
        assert!(fault("kind: Pod\napiVersion: v1\nspec: {}").contains("name is needed"));
        let with = |more: &str| POD.replace("spec: {", &format!("spec: {{{more}, "));
        assert!(fault(&with("volumes: [{name: v, secret: {secretName: s}}]")).contains("may not reference secrets"));
        assert!(fault(&with("serviceAccountName: s")).contains("serviceaccounts"));
        assert!(
            fault(&POD.replace("image: x", "image: x, envFrom: [{configMapRef: {name: c}}]")).contains("configmaps")
        );
        assert!(fault(&POD.replace("name: a", "name: 'A b'")).contains("spec.containers[0].name"));
        assert!(!fault("{").is_empty());
    }

    #[tokio::test]
    async fn the_directory_is_followed() {
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::write(dir.path().join(".hidden"), POD).expect("write");
        let heard = ManagerInbox::default();
        let _task = kelson_tasks::scoped(
            "manifests",
            run(dir.path().to_owned(), Duration::from_secs(20), "n".into(), heard.clone()),
        );
        let next = async || {
            let next = tokio::time::timeout(Duration::from_secs(10), heard.next()).await.expect("in time");
            next.statics[&ManifestSource::Files].iter().map(|p| pod::name(p).to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(next().await, Vec::<String>::new());
        std::fs::write(dir.path().join("w.yaml"), POD).expect("write");
        assert_eq!(next().await, ["web-n"]);
        std::fs::remove_file(dir.path().join("w.yaml")).expect("remove");
        assert_eq!(next().await, Vec::<String>::new());
    }
}
