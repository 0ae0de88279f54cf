//! Files rendered from API objects, fields of the pod and tokens, and updated atomically.
use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Pod, ServiceAccountTokenProjection};

use super::atomic::{self, File, Payload, check_path};
use super::mounts::is_mounted;
use super::source::{Ready, Request, SetUp, in_files, make_dir};
use crate::env::fields;
use crate::objects::tokens::DEFAULT_SECONDS;
use crate::objects::{Data, Kind, ObjectError};
use crate::pod;

/// Permission bits of files if the volume sets none.
const MODE_DEFAULT: i32 = 0o644;

/// Location of rendered files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Medium {
    /// The files are in the pod's directory on disk.
    Disk,
    /// In a tmpfs, so that the files are never written to a disk.
    Memory,
}

/// Collects the files of one volume.
pub(super) struct Renderer<'a> {
    request: &'a Request<'a>,
    mode: i32,
    files: Payload,
    /// When to render again even without another change.
    renew_at: Option<Timestamp>,
}

fn bits(mode: i32) -> u32 {
    u32::try_from(mode).unwrap_or(0o644) & 0o7777
}

impl<'a> Renderer<'a> {
    /// Starts without files; `mode` is the volume's default mode.
    pub(super) fn new(request: &'a Request<'a>, mode: Option<i32>) -> Self {
        Self { request, mode: mode.unwrap_or(MODE_DEFAULT), files: Payload::new(), renew_at: None }
    }

    /// Adds the keys of a ConfigMap or Secret: all, or those in `items`.
    pub(super) async fn object(
        &mut self,
        kind: Kind,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
    ) -> Result<(), String> {
        let optional = optional.unwrap_or(false);
        let data = match self.request.volumes.objects.data(self.request.pod, kind, name).await {
            Ok(d) => d,
            Err(ObjectError::NotFound { .. }) if optional => Data::new(),
            Err(e) => return Err(e.to_string()),
        };
        let mode = self.mode;
        let mut put = |path: &str, data: &[u8], mode: i32| {
            self.files.insert(path.to_owned(), File { data: data.to_vec(), mode: bits(mode), owner: None });
        };
        let Some(items) = items.filter(|i| !i.is_empty()) else {
            data.iter().for_each(|(k, v)| put(k, v, mode));
            return Ok(());
        };
        for item in items {
            check_path(&item.path)?;
            match data.get(&item.key) {
                Some(v) => put(&item.path, v, item.mode.unwrap_or(mode)),
                None if optional => {}
                None => {
                    return Err(match kind {
                        Kind::ConfigMap => format!("configmap references non-existent config key: {}", item.key),
                        Kind::Secret => format!("references non-existent secret key: {}", item.key),
                    });
                }
            }
        }
        Ok(())
    }

    /// Adds fields of the pod and resources of its containers.
    pub(super) fn downward<'i>(
        &mut self,
        items: impl Iterator<Item = &'i DownwardAPIVolumeFile>,
    ) -> Result<(), String> {
        let (pod, node) = (self.request.pod, self.request.volumes.node.borrow().clone());
        for item in items {
            check_path(&item.path)?;
            let text = if let Some(f) = &item.field_ref {
                fields::field(pod, &f.field_path, &node, &[])?
            } else if let Some(r) = &item.resource_field_ref {
                let name = r.container_name.as_deref().unwrap_or_default();
                let m = pod::member(pod, name).ok_or_else(|| format!("container {name} not found"))?;
                fields::resource(pod, &m.container, r, &node)?
            } else {
                continue;
            };
            let mode = bits(item.mode.unwrap_or(self.mode));
            self.files.insert(item.path.clone(), File { data: text.into_bytes(), mode, owner: None });
        }
        Ok(())
    }

    /// Adds a token of the pod's service account.
    pub(super) async fn token(&mut self, t: &ServiceAccountTokenProjection) -> Result<(), String> {
        check_path(&t.path)?;
        let pod = self.request.pod;
        let seconds = t.expiration_seconds.unwrap_or(DEFAULT_SECONDS);
        let tokens = &self.request.volumes.tokens;
        let token = tokens.get(pod, t.audience.as_deref().unwrap_or_default(), seconds).await?;
        self.renew_at = Some(self.renew_at.map_or(token.renew_at, |at| at.min(token.renew_at)));
        let (mode, owner) = token_access(pod, bits(self.mode));
        self.files.insert(t.path.clone(), File { data: token.secret().as_bytes().to_vec(), mode, owner });
        Ok(())
    }

    /// Writes the files to the volume's directory.
    pub(super) async fn write(self, plugin: &str, medium: Medium) -> Result<SetUp, String> {
        let (dir, group) = (self.request.dir(plugin), self.request.fs_group());
        let mounts = Arc::clone(&self.request.volumes.mounts);
        let stamp = self.request.volumes.clock.now().as_nanosecond().to_string();
        let mut files = self.files;
        if group.is_some() {
            files.values_mut().for_each(|f| f.mode |= 0o440);
        }
        let path = dir.clone();
        in_files(move || {
            let work = || -> io::Result<()> {
                make_dir(&dir, 0o777)?;
                if medium == Medium::Memory && !is_mounted(&*mounts, &dir) {
                    mounts.tmpfs(&dir, None, 0o777)?;
                }
                atomic::write(&dir, &files, group, &stamp).map(drop)
            };
            work().map_err(|e| e.to_string())
        })
        .await?;
        Ok(SetUp { ready: Ready::Path { path, read_only: true }, renew_at: self.renew_at })
    }
}

/// Mode and owner of a token file. Only the pod's processes may read it: if all containers run as one user, that user owns it; if the pod
/// has an `fsGroup`, the group may read it. Otherwise the file has the volume's mode (upstream: `projected.go`, `FsUserFrom`).
fn token_access(pod: &Pod, mode: u32) -> (u32, Option<u32>) {
    let s = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let has_group = s.and_then(|s| s.fs_group).is_some();
    let mut users = pod::members(pod).map(|m| pod::run_as_user(pod, &m.container));
    let first = users.next().flatten();
    let user = first.filter(|u| users.all(|o| o == Some(*u))).and_then(|u| u32::try_from(u).ok());
    (if has_group || user.is_some() { 0o600 } else { mode }, user)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn token_files_are_readable_by_the_pod_only() {
        for (group, users, expected) in [
            (None, &[None][..], (0o644, None)),
            (None, &[Some(5)], (0o600, Some(5))),
            (None, &[Some(5), Some(6)], (0o644, None)),
            (None, &[Some(5), None], (0o644, None)),
            (Some(7), &[Some(5)], (0o600, Some(5))),
            (Some(7), &[Some(5), Some(6)], (0o600, None)),
            (Some(7), &[None], (0o600, None)),
        ] {
            let containers: Vec<_> =
                users.iter().map(|u: &Option<i64>| json!({"name": "c", "securityContext": {"runAsUser": u}})).collect();
            let pod = json!({"spec": {"securityContext": {"fsGroup": group}, "containers": containers}});
            let pod: Pod = serde_json::from_value(pod).expect("pod");
            assert_eq!(token_access(&pod, 0o644), expected, "{group:?} {users:?}");
        }
    }
}
