//! Volumes with `projected`: several sources in one directory in memory, which is never written to a disk (upstream:
//! `pkg/volume/projected`).
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Volume;

use super::render::{Medium, Renderer};
use super::source::{Request, SetUp, Source};
use crate::objects::Kind;

pub(super) struct Projected;

#[async_trait]
impl Source for Projected {
    fn is(&self, v: &Volume) -> bool {
        v.projected.is_some()
    }

    fn follows_api(&self) -> bool {
        true
    }

    async fn set_up(&self, request: &Request<'_>) -> Result<SetUp, String> {
        let source = request.volume.projected.clone().unwrap_or_default();
        let mut files = Renderer::new(request, source.default_mode);
        for p in source.sources.iter().flatten() {
            if let Some(c) = &p.config_map {
                files.object(Kind::ConfigMap, &c.name, c.items.as_deref(), c.optional).await?;
            } else if let Some(s) = &p.secret {
                files.object(Kind::Secret, &s.name, s.items.as_deref(), s.optional).await?;
            } else if let Some(d) = &p.downward_api {
                files.downward(d.items.iter().flatten())?;
            } else if let Some(t) = &p.service_account_token {
                files.token(t).await?;
            } else if p.cluster_trust_bundle.is_some() {
                return Err("clusterTrustBundle projections are not supported by this kubelet".into());
            } else if p.pod_certificate.is_some() {
                return Err("podCertificate projections are not supported by this kubelet".into());
            }
        }
        files.write("kubernetes.io~projected", Medium::Memory).await
    }
}
