//! Volumes with `image`: the runtime mounts them (KEP-4639).
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Volume;

use super::source::{Ready, Request, SetUp, Source};

pub(super) struct Image;

#[async_trait]
impl Source for Image {
    fn is(&self, v: &Volume) -> bool {
        v.image.is_some()
    }

    async fn set_up(&self, request: &Request<'_>) -> Result<SetUp, String> {
        let source = request.volume.image.clone().unwrap_or_default();
        Ok(Ready::Image { reference: source.reference.unwrap_or_default(), policy: source.pull_policy }.into())
    }
}
