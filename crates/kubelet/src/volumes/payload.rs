//! What is written into configMap, secret, downwardAPI and projected volumes (upstream: `pkg/volume/{configmap,secret,
//! downwardapi,projected}`).
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Pod, Volume};

use super::atomic::{File, Payload, check_path};
use crate::effects::Context;
use crate::env::fields;
use crate::objects::tokens::DEFAULT_SECONDS;
use crate::objects::{Data, Kind};
use crate::pod;

/// A rendered volume.
#[derive(Debug, Default)]
pub struct Rendered {
    /// The files.
    pub files: Payload,
    /// When to render again though nothing changed.
    pub renew_at: Option<Timestamp>,
}

/// Whether a volume is rendered from the API.
pub fn is_rendered(v: &Volume) -> bool {
    v.config_map.is_some() || v.secret.is_some() || v.downward_api.is_some() || v.projected.is_some()
}

/// Whether its files must never reach a disk.
pub fn in_memory(v: &Volume) -> bool {
    v.secret.is_some() || v.projected.is_some()
}

/// Renders the volume; `None` when it is of another kind.
pub async fn render(ctx: &Context, pod: &Pod, v: &Volume) -> Result<Option<Rendered>, String> {
    let r = Renderer { ctx, pod };
    let mut out = Rendered::default();
    if let Some(s) = &v.config_map {
        let mode = s.default_mode.unwrap_or(0o644);
        r.object(&mut out, Kind::ConfigMap, &s.name, s.items.as_deref(), s.optional, mode).await?;
    } else if let Some(s) = &v.secret {
        let mode = s.default_mode.unwrap_or(0o644);
        let name = s.secret_name.as_deref().unwrap_or_default();
        r.object(&mut out, Kind::Secret, name, s.items.as_deref(), s.optional, mode).await?;
    } else if let Some(s) = &v.downward_api {
        r.downward(&mut out, s.items.iter().flatten(), s.default_mode.unwrap_or(0o644))?;
    } else if let Some(s) = &v.projected {
        let mode = s.default_mode.unwrap_or(0o644);
        for p in s.sources.iter().flatten() {
            if let Some(c) = &p.config_map {
                r.object(&mut out, Kind::ConfigMap, &c.name, c.items.as_deref(), c.optional, mode).await?;
            } else if let Some(c) = &p.secret {
                r.object(&mut out, Kind::Secret, &c.name, c.items.as_deref(), c.optional, mode).await?;
            } else if let Some(d) = &p.downward_api {
                r.downward(&mut out, d.items.iter().flatten(), mode)?;
            } else if let Some(t) = &p.service_account_token {
                r.token(&mut out, t, mode).await?;
            } else if p.cluster_trust_bundle.is_some() {
                return Err("clusterTrustBundle projections are not supported by this kubelet".into());
            } else if p.pod_certificate.is_some() {
                return Err("podCertificate projections are not supported by this kubelet".into());
            }
        }
    } else {
        return Ok(None);
    }
    Ok(Some(out))
}

struct Renderer<'a> {
    ctx: &'a Context,
    pod: &'a Pod,
}

fn bits(mode: i32) -> u32 {
    u32::try_from(mode).unwrap_or(0o644) & 0o7777
}

impl Renderer<'_> {
    async fn object(
        &self,
        out: &mut Rendered,
        kind: Kind,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
        mode: i32,
    ) -> Result<(), String> {
        let optional = optional.unwrap_or(false);
        let data = match self.ctx.objects.data(self.pod, kind, name).await {
            Ok(d) => d,
            Err(e) if optional && e.ends_with("not found") => Data::new(),
            Err(e) => return Err(e),
        };
        let mut put = |path: &str, data: &[u8], mode: i32| {
            out.files.insert(path.to_owned(), File { data: data.to_vec(), mode: bits(mode), owner: None });
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
                    let what = if kind == Kind::ConfigMap { "configmap" } else { "secret" };
                    return Err(match kind {
                        Kind::ConfigMap => format!("{what} references non-existent config key: {}", item.key),
                        Kind::Secret => format!("references non-existent {what} key: {}", item.key),
                    });
                }
            }
        }
        Ok(())
    }

    fn downward<'a>(
        &self,
        out: &mut Rendered,
        items: impl Iterator<Item = &'a DownwardAPIVolumeFile>,
        mode: i32,
    ) -> Result<(), String> {
        let node = self.ctx.node.borrow().clone();
        for item in items {
            check_path(&item.path)?;
            let text = if let Some(f) = &item.field_ref {
                fields::field(self.pod, &f.field_path, &node, &[])?
            } else if let Some(r) = &item.resource_field_ref {
                let name = r.container_name.as_deref().unwrap_or_default();
                let m = pod::member(self.pod, name).ok_or_else(|| format!("container {name} not found"))?;
                fields::resource(&m.container, r, &node)?
            } else {
                continue;
            };
            let mode = bits(item.mode.unwrap_or(mode));
            out.files.insert(item.path.clone(), File { data: text.into_bytes(), mode, owner: None });
        }
        Ok(())
    }

    async fn token(
        &self,
        out: &mut Rendered,
        t: &k8s_openapi::api::core::v1::ServiceAccountTokenProjection,
        mode: i32,
    ) -> Result<(), String> {
        check_path(&t.path)?;
        let seconds = t.expiration_seconds.unwrap_or(DEFAULT_SECONDS);
        let token = self.ctx.tokens.get(self.pod, t.audience.as_deref().unwrap_or_default(), seconds).await?;
        out.renew_at = Some(out.renew_at.map_or(token.renew_at, |at| at.min(token.renew_at)));
        let (mode, owner) = token_access(self.pod, bits(mode));
        out.files.insert(t.path.clone(), File { data: token.secret().as_bytes().to_vec(), mode, owner });
        Ok(())
    }
}

/// A token is for the pod's processes alone: 0640 with the pod's group, or 0600 owned by the one user they all run as.
fn token_access(pod: &Pod, mode: u32) -> (u32, Option<u32>) {
    let s = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    if s.and_then(|s| s.fs_group).is_some() {
        return (0o600, None);
    }
    let mut users = pod::members(pod).map(|m| crate::runtime::security::run_as_user(pod, &m.container));
    let first = users.next().flatten();
    match first {
        Some(u) if users.all(|o| o == Some(u)) => (0o600, u32::try_from(u).ok()),
        _ => (mode, None),
    }
}
