//! Pulls an image for a pod: pull policy, the pod's pull secrets, and the request to the pull manager.
use k8s_openapi::api::core::v1::Pod;
use kelson_client::EventType;
use kelson_credentials::{EnsureRequest, PodIdentity, PullPolicy, PullSecret};
use kelson_cri::proto as cri;

use super::api;
use super::effects::{ImageEffects, ImageRequest, PullCalls};
use super::error::{StartError, StartReason};
use super::{Images, Present};
use crate::pod;

impl Images {
    /// Ensures that an image is on the node and that the pod may use it.
    pub async fn ensure(
        &self,
        effects: &ImageEffects<'_>,
        pod: &Pod,
        wanted: ImageRequest<'_>,
        sandbox: &cri::PodSandboxConfig,
    ) -> Result<Present, StartError> {
        let image = wanted.image;
        let policy = PullPolicy::of(wanted.policy, image);
        let secrets = pull_secrets(effects, pod).await;
        let about = identity(pod);
        let request = EnsureRequest { pod: &about, image, policy, secrets: &secrets };
        let calls = PullCalls::new(effects, pod, wanted, sandbox);
        let ensured = self.manager.ensure(&request, &calls).await;
        ensured.map_err(|e| StartError::new(StartReason::of_image(e.reason), e.message))
    }
}

fn identity(pod: &Pod) -> PodIdentity {
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).unwrap_or_default();
    PodIdentity {
        namespace: pod::namespace(pod).to_owned(),
        name: pod::name(pod).to_owned(),
        uid: pod::uid(pod).to_owned(),
        service_account: account,
    }
}

/// Reads the pod's pull secrets. A missing secret is reported by an event, and the pull is tried without it. Admission has already added
/// the secrets of the service account.
async fn pull_secrets(effects: &ImageEffects<'_>, pod: &Pod) -> Vec<PullSecret> {
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    let named = pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten());
    for reference in named.filter(|r| !r.name.is_empty()) {
        match effects.objects.secret(pod, &reference.name).await {
            Ok(secret) => found.push(api::pull_secret(&secret)),
            Err(e) => {
                let (pod, secret) = (pod::format_pod(pod), &reference.name);
                tracing::info!(%pod, %secret, error = %e, "cannot use an image pull secret; pulling without it");
                failed.push(reference.name.as_str());
            }
        }
    }
    if !failed.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            failed.join(", ")
        );
        effects.events.pod(pod, EventType::Warning, "FailedToRetrieveImagePullSecret", message);
    }
    found
}
