//! Volumes with `configMap`: the keys of a ConfigMap as files (upstream: `pkg/volume/configmap`).
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Volume;

use super::render::{Medium, Renderer};
use super::source::{Request, SetUp, Source};
use crate::objects::Kind;

pub(super) struct ConfigMap;

#[async_trait]
impl Source for ConfigMap {
    fn is(&self, v: &Volume) -> bool {
        v.config_map.is_some()
    }

    fn follows_api(&self) -> bool {
        true
    }

    async fn set_up(&self, request: &Request<'_>) -> Result<SetUp, String> {
        let source = request.volume.config_map.clone().unwrap_or_default();
        let mut files = Renderer::new(request, source.default_mode);
        files.object(Kind::ConfigMap, &source.name, source.items.as_deref(), source.optional).await?;
        files.write("kubernetes.io~configmap", Medium::Disk).await
    }
}
