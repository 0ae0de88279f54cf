//! Mounts of one container: volumes, the shared hosts file, the termination message file (upstream: `kubelet_pods.go` makeMounts).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};
use kelson_cri::proto as cri;

use super::mounts::Mounts;
use super::source::{Ready, in_files};
use super::{PodVolumes, Volumes, subpath};
use crate::env::expand::expand_strict;
use crate::pod;
use crate::runtime::hosts;
use crate::runtime::userns::IdRange;

/// Default path of the termination message.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// Name of the hosts file in a pod's directory.
pub const HOSTS_FILE: &str = "etc-hosts";
/// Name of the directory with containers' files in a pod's directory.
pub const CONTAINERS_DIR: &str = "containers";

/// Input for a container's mounts.
pub struct ContainerMounts {
    /// The pod of the container.
    pub pod: Arc<Pod>,
    /// Specification of the container.
    pub container: Container,
    /// Number of earlier instances.
    pub restart_count: i32,
    /// Volumes of the pod.
    pub volumes: PodVolumes,
    /// Environment variables of the container, for `subPathExpr`.
    pub env: Vec<(String, String)>,
    /// Addresses of the pod, for the hosts file.
    pub pod_ips: Vec<String>,
    /// The pod's user namespace; the runtime maps every mount to it.
    pub ids: Option<IdRange>,
    /// Whether the runtime supports recursive read-only mounts.
    pub has_recursive_read_only: bool,
}

impl Volumes {
    /// Builds the mounts and creates the files that they need.
    ///
    /// # Errors
    /// The message of `CreateContainerConfigError`.
    pub async fn container_mounts(&self, request: ContainerMounts) -> Result<Vec<cri::Mount>, String> {
        let volumes = self.clone();
        in_files(move || {
            request.make(&volumes.dirs.pod(pod::uid(&request.pod)), &*volumes.mounts, &volumes.cluster_domain)
        })
        .await
    }
}

impl ContainerMounts {
    fn make(&self, pod_dir: &Path, mounts: &dyn Mounts, cluster_domain: &str) -> Result<Vec<cri::Mount>, String> {
        let (pod, c) = (&*self.pod, &self.container);
        let mut out = Vec::new();
        let mut own_hosts = false;
        for (index, m) in c.volume_mounts.iter().flatten().enumerate() {
            own_hosts |= m.mount_path == "/etc/hosts";
            let subpaths = pod_dir.join("volume-subpaths").join(&m.name).join(&c.name).join(index.to_string());
            out.push(self.volume_mount(m, subpaths, mounts)?);
        }
        let text = |e: std::io::Error| e.to_string();
        if !own_hosts && (pod::host_network(pod) || !self.pod_ips.is_empty()) {
            let file = pod_dir.join(HOSTS_FILE);
            let host = if pod::host_network(pod) {
                std::fs::read_to_string("/etc/hosts").unwrap_or_default()
            } else {
                String::new()
            };
            std::fs::write(&file, hosts::content(pod, &self.pod_ips, cluster_domain, &host)).map_err(text)?;
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).map_err(text)?;
            out.push(plain(&file, "/etc/hosts"));
        }
        let path = c.termination_message_path.as_deref().filter(|p| !p.is_empty()).unwrap_or(TERMINATION_LOG);
        let dir = pod_dir.join(CONTAINERS_DIR).join(&c.name);
        std::fs::create_dir_all(&dir).map_err(text)?;
        // One file per instance, so that the previous message is not overwritten.
        let file = dir.join(format!("{:08x}", self.restart_count));
        std::fs::File::create(&file).map_err(text)?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).map_err(text)?;
        out.push(plain(&file, path));
        if let Some(ids) = self.ids {
            for mount in out.iter_mut().filter(|m| m.image.is_none()) {
                (mount.uid_mappings, mount.gid_mappings) = (vec![ids.mapping()], vec![ids.mapping()]);
            }
        }
        Ok(out)
    }

    fn volume_mount(
        &self,
        m: &VolumeMount,
        subpath_target: PathBuf,
        mounts: &dyn Mounts,
    ) -> Result<cri::Mount, String> {
        let c = &self.container;
        let missing = || format!("cannot find volume {:?} to mount into container {:?}", m.name, c.name);
        let ready = self.volumes.ready.get(&m.name).ok_or_else(missing)?;
        let container_path = match m.mount_path.starts_with('/') {
            true => m.mount_path.clone(),
            false => format!("/{}", m.mount_path),
        };
        let mut sub = m.sub_path.clone().unwrap_or_default();
        if let Some(expression) = m.sub_path_expr.as_deref().filter(|e| !e.is_empty()) {
            sub = expand_strict(expression, &self.env)?;
        }
        // Also for image volumes, where the runtime resolves the path: the result of an expression was not validated before.
        if sub.starts_with('/') || sub.split('/').any(|p| p == "..") {
            return Err(format!("error SubPath `{sub}` must not be an absolute path or contain '..'"));
        }
        let read_only = m.read_only.unwrap_or(false);
        let recursive_read_only = self.recursive_read_only(m)?;
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
            Ready::Device { .. } => {
                return Err(format!("volume {} has volumeMode Block, but is specified in volumeMounts", m.name));
            }
        };
        let host_path = if sub.is_empty() {
            root.clone()
        } else {
            subpath::bind(mounts, root, &sub, subpath_target, always_read_only).map_err(|e| {
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
            recursive_read_only,
            ..Default::default()
        })
    }

    /// Decides about `recursiveReadOnly`.
    ///
    /// # Errors
    /// It is required but not possible; the container must not start without it.
    fn recursive_read_only(&self, m: &VolumeMount) -> Result<bool, String> {
        let refused = |why: String| {
            let name = &m.name;
            let asked = "failed to resolve recursive read-only mode: volume";
            Err(format!("{asked} {name:?} requested recursive read-only mode, but it is {why}"))
        };
        let Some(mode) = m.recursive_read_only.as_deref().filter(|mode| *mode != "Disabled") else { return Ok(false) };
        if m.read_only != Some(true) {
            return refused("not read-only".into());
        }
        if let Some(propagation) = m.mount_propagation.as_deref().filter(|p| *p != "None") {
            return refused(format!("not compatible with propagation {propagation:?}"));
        }
        match mode {
            "IfPossible" => Ok(self.has_recursive_read_only),
            _ if self.has_recursive_read_only => Ok(true),
            _ => refused("not supported by the runtime".into()),
        }
    }
}

impl PodVolumes {
    /// Returns the block devices of a container: its volumes with `volumeMode: Block`.
    ///
    /// # Errors
    /// The message of `CreateContainerConfigError`.
    pub fn devices(&self, c: &Container) -> Result<Vec<cri::Device>, String> {
        let device = |d: &k8s_openapi::api::core::v1::VolumeDevice| match self.ready.get(&d.name) {
            Some(Ready::Device { path, read_only }) => Ok(cri::Device {
                container_path: d.device_path.clone(),
                host_path: path.display().to_string(),
                permissions: if *read_only { "r" } else { "mrw" }.to_owned(),
            }),
            Some(_) => Err(format!("volume {} has volumeMode Filesystem, but is specified in volumeDevices", d.name)),
            None => Err(format!("cannot find volume {:?} to pass into container {:?}", d.name, c.name)),
        };
        c.volume_devices.iter().flatten().map(device).collect()
    }
}

fn plain(host: &Path, container: &str) -> cri::Mount {
    cri::Mount { host_path: host.display().to_string(), container_path: container.to_owned(), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::volumes::mounts::KernelMounts;

    fn request(mount: serde_json::Value, ids: Option<IdRange>) -> ContainerMounts {
        let container = json!({"name": "a", "volumeMounts": [mount]});
        let pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [container]}});
        let pod: Pod = serde_json::from_value(pod).expect("pod");
        let image = Ready::Image { reference: "x:1".into(), policy: None };
        let path = Ready::Path { path: "/srv".into(), read_only: false };
        ContainerMounts {
            container: pod.spec.as_ref().expect("spec").containers[0].clone(),
            pod: Arc::new(pod),
            restart_count: 0,
            volumes: PodVolumes { ready: [("image".into(), image), ("path".into(), path)].into(), renew_at: None },
            env: vec![("UP".into(), "..".into())],
            pod_ips: Vec::new(),
            ids,
            has_recursive_read_only: false,
        }
    }

    #[test]
    fn recursive_read_only_is_applied_or_rejected() {
        let made = |mount: serde_json::Value, can: bool| {
            let mut all = json!({"name": "path", "mountPath": "/m"});
            all.as_object_mut().expect("a map").extend(mount.as_object().expect("a map").clone());
            let mut request = request(all, None);
            request.has_recursive_read_only = can;
            let mount = request.container.volume_mounts.clone().expect("mounts").remove(0);
            request.recursive_read_only(&mount)
        };
        let with = |mode: &str| json!({"readOnly": true, "recursiveReadOnly": mode});
        for (mount, can, wanted) in [
            (json!({"readOnly": true}), true, Ok(false)),
            (with("Disabled"), true, Ok(false)),
            (with("IfPossible"), false, Ok(false)),
            (with("IfPossible"), true, Ok(true)),
            (with("Enabled"), true, Ok(true)),
            (with("Enabled"), false, Err("not supported by the runtime")),
            (json!({"recursiveReadOnly": "Enabled"}), true, Err("not read-only")),
            (
                json!({"readOnly": true, "recursiveReadOnly": "Enabled", "mountPropagation": "HostToContainer"}),
                true,
                Err("not compatible with propagation \"HostToContainer\""),
            ),
        ] {
            let found = made(mount.clone(), can);
            match wanted {
                Ok(wanted) => assert_eq!(found, Ok(wanted), "{mount}"),
                Err(why) => assert!(found.is_err_and(|found| found.ends_with(why)), "{mount}"),
            }
        }
    }

    #[test]
    fn a_sub_path_of_an_image_leads_nowhere_else() {
        let dir = tempfile::tempdir().expect("tempdir");
        let made = |expression: &str| {
            let mount = json!({"name": "image", "mountPath": "/m", "subPathExpr": expression});
            request(mount, None).make(dir.path(), &KernelMounts, "c.l")
        };
        assert_eq!(made("bin").expect("inside")[0].image_sub_path, "bin");
        assert!(made("bin/$(UP)/$(UP)").expect_err("outside").contains("must not be an absolute path or contain '..'"));
    }

    #[test]
    fn every_mount_is_mapped_to_the_user_namespace() {
        let dir = tempfile::tempdir().expect("tempdir");
        let mount = json!({"name": "path", "mountPath": "/m"});
        let ids = IdRange { host: 131_072, length: 65_536 };
        let mounts = request(mount, Some(ids)).make(dir.path(), &KernelMounts, "c.l").expect("mounts");
        assert_eq!(mounts.len(), 2, "the volume and the termination message");
        for m in mounts {
            assert_eq!(
                (m.uid_mappings, m.gid_mappings),
                (vec![ids.mapping()], vec![ids.mapping()]),
                "{}",
                m.container_path
            );
        }
    }
}
