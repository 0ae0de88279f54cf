//! The mounts of one container: its volumes, the shared hosts file, the termination message file (upstream:
//! `kubelet_pods.go` makeMounts).
use std::os::unix::fs::PermissionsExt as _;

use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};
use kelson_cri::proto as cri;

use super::setup::{PodVolumes, Ready};
use super::subpath;
use crate::effects::Context;
use crate::env::expand::expand_strict;
use crate::pod;
use crate::runtime::hosts;

/// Where a container's termination message lies when its spec does not say.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Makes the mounts; `Err` is the message of `CreateContainerConfigError`.
pub fn mounts(
    ctx: &Context,
    pod: &Pod,
    c: &Container,
    restart_count: i32,
    volumes: &PodVolumes,
    env: &[(String, String)],
    pod_ips: &[String],
) -> Result<Vec<cri::Mount>, String> {
    let mut out = Vec::new();
    let mut own_hosts = false;
    for (index, m) in c.volume_mounts.iter().flatten().enumerate() {
        own_hosts |= m.mount_path == "/etc/hosts";
        out.push(volume_mount(ctx, pod, c, index, m, volumes, env)?);
    }
    let text = |e: std::io::Error| e.to_string();
    if !own_hosts && (pod::host_network(pod) || !pod_ips.is_empty()) {
        let file = ctx.config.pod_dir(pod::uid(pod)).join("etc-hosts");
        let host = if pod::host_network(pod) {
            std::fs::read_to_string("/etc/hosts").unwrap_or_default()
        } else {
            String::new()
        };
        std::fs::write(&file, hosts::content(pod, pod_ips, &ctx.config.cluster_domain, &host)).map_err(text)?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).map_err(text)?;
        out.push(plain(&file.display().to_string(), "/etc/hosts"));
    }
    let path = c.termination_message_path.as_deref().filter(|p| !p.is_empty()).unwrap_or(TERMINATION_LOG);
    let dir = ctx.config.pod_dir(pod::uid(pod)).join("containers").join(&c.name);
    std::fs::create_dir_all(&dir).map_err(text)?;
    // One file per instance, so that the message of the one before is not overwritten.
    let file = dir.join(format!("{restart_count:08x}"));
    std::fs::File::create(&file).map_err(text)?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).map_err(text)?;
    out.push(plain(&file.display().to_string(), path));
    Ok(out)
}

fn plain(host: &str, container: &str) -> cri::Mount {
    cri::Mount { host_path: host.to_owned(), container_path: container.to_owned(), ..Default::default() }
}

fn volume_mount(
    ctx: &Context,
    pod: &Pod,
    c: &Container,
    index: usize,
    m: &VolumeMount,
    volumes: &PodVolumes,
    env: &[(String, String)],
) -> Result<cri::Mount, String> {
    let missing = || format!("cannot find volume {:?} to mount into container {:?}", m.name, c.name);
    let ready = volumes.ready.get(&m.name).ok_or_else(missing)?;
    let container_path = match m.mount_path.starts_with('/') {
        true => m.mount_path.clone(),
        false => format!("/{}", m.mount_path),
    };
    let mut sub = m.sub_path.clone().unwrap_or_default();
    if let Some(expression) = m.sub_path_expr.as_deref().filter(|e| !e.is_empty()) {
        sub = expand_strict(expression, env)?;
    }
    let read_only = m.read_only.unwrap_or(false);
    let (root, always_read_only) = match ready {
        Ready::Image { reference, .. } => {
            return Ok(cri::Mount {
                container_path,
                readonly: true,
                image: Some(cri::ImageSpec { image: reference.clone(), ..Default::default() }),
                image_sub_path: sub,
                ..Default::default()
            });
        }
        Ready::Path { path, read_only } => (path, *read_only),
    };
    let host_path = if sub.is_empty() {
        root.clone()
    } else {
        if sub.starts_with('/') || sub.split('/').any(|p| p == "..") {
            return Err(format!("error SubPath `{sub}` must not be an absolute path or contain '..'"));
        }
        let dir = ctx.config.pod_dir(pod::uid(pod)).join("volume-subpaths");
        let target = dir.join(&m.name).join(&c.name).join(index.to_string());
        subpath::bind(&*ctx.mounts, root, &sub, target, always_read_only).map_err(|e| {
            format!("failed to prepare subPath for volumeMount {:?} of container {:?}: {e}", m.name, c.name)
        })?
    };
    let propagation = match m.mount_propagation.as_deref() {
        Some("Bidirectional") => cri::MountPropagation::PropagationBidirectional,
        Some("HostToContainer") => cri::MountPropagation::PropagationHostToContainer,
        _ => cri::MountPropagation::PropagationPrivate,
    };
    Ok(cri::Mount {
        container_path,
        host_path: host_path.display().to_string(),
        readonly: read_only || always_read_only,
        propagation: propagation as i32,
        recursive_read_only: read_only && m.recursive_read_only.as_deref() == Some("Enabled"),
        ..Default::default()
    })
}
