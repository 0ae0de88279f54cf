//! Volumes with `downwardAPI`: fields of the pod as files (upstream: `pkg/volume/downwardapi`).
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Volume;

use super::render::{Medium, Renderer};
use super::source::{Request, SetUp, Source};

pub(super) struct DownwardApi;

#[async_trait]
impl Source for DownwardApi {
    fn is(&self, v: &Volume) -> bool {
        v.downward_api.is_some()
    }

    fn follows_api(&self) -> bool {
        true
    }

    async fn set_up(&self, request: &Request<'_>) -> Result<SetUp, String> {
        let source = request.volume.downward_api.clone().unwrap_or_default();
        let mut files = Renderer::new(request, source.default_mode);
        files.downward(source.items.iter().flatten())?;
        files.write("kubernetes.io~downward-api", Medium::Disk).await
    }
}
