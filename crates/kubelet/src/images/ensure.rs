//! From what a pod wants to the image: the pull policy, the pod's secrets, and the request to the pulls of this node.
use k8s_openapi::api::core::v1::Pod;
use kelson_client::EventType;
use kelson_credentials::{EnsureRequest, PodIdentity, PullPolicy, PullSecret};
use kelson_cri::proto as cri;

use super::api;
use super::effects::{ImageEffects, PullCalls, Wanted};
use super::error::{StartError, StartReason};
use super::{Images, Present};
use crate::pod;

impl Images {
    /// Sees to it that an image is on the node and that the pod may use it.
    pub async fn ensure(
        &self,
        effects: &ImageEffects<'_>,
        pod: &Pod,
        wanted: Wanted<'_>,
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

/// The pod's pull secrets, as far as they can be read; a missing one is reported by an event and is no reason not to try.
/// Those of the service account are in the pod since its admission.
async fn pull_secrets(effects: &ImageEffects<'_>, pod: &Pod) -> Vec<PullSecret> {
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    let named = pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten());
    for reference in named.filter(|r| !r.name.is_empty()) {
        match effects.objects.secret(pod, &reference.name).await {
            Ok(secret) => found.push(api::pull_secret(&secret)),
            Err(e) => {
                tracing::info!(pod = %pod::format_pod(pod), secret = %reference.name, error = %e, "image pull secret not usable");
                failed.push(reference.name.as_str());
            }
        }
    }
    if !failed.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            failed.join(", ")
        );
        effects.tell.pod(pod, EventType::Warning, "FailedToRetrieveImagePullSecret", message);
    }
    found
}
