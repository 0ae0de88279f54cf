//! Volumes with `secret`: the keys of a Secret as files in memory (upstream: `pkg/volume/secret`).
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Volume;

use super::render::{Medium, Renderer};
use super::source::{Request, SetUp, Source};
use crate::objects::Kind;

pub(super) struct Secret;

#[async_trait]
impl Source for Secret {
    fn is(&self, v: &Volume) -> bool {
        v.secret.is_some()
    }

    fn follows_api(&self) -> bool {
        true
    }

    async fn set_up(&self, request: &Request<'_>) -> Result<SetUp, String> {
        let source = request.volume.secret.clone().unwrap_or_default();
        let mut files = Renderer::new(request, source.default_mode);
        let name = source.secret_name.unwrap_or_default();
        files.object(Kind::Secret, &name, source.items.as_deref(), source.optional).await?;
        files.write("kubernetes.io~secret", Medium::Memory).await
    }
}
