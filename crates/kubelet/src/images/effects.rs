//! Effects of an image pull: calls to the runtime and events about the container.
use std::collections::BTreeMap;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Container, Pod};
use kelson_client::EventType;
use kelson_credentials::{Candidate, Present, PullEffects};
use kelson_cri::{CriError, Runtime, proto as cri};
use parking_lot::Mutex;

use crate::effects::EventReporter;
use crate::metrics::Metrics;
use crate::objects::Objects;
use crate::pod::Role;

/// Dependencies for pulling images.
#[derive(Clone, Copy)]
pub struct ImageEffects<'a> {
    /// Client of the container runtime (CRI).
    pub runtime: &'a dyn Runtime,
    /// Reads the pods' secrets.
    pub objects: &'a Objects,
    /// Records events about pods.
    pub events: &'a EventReporter,
    /// Counts pulls by image size.
    pub metrics: &'a Metrics,
}

/// An image that a pod needs.
#[derive(Clone, Copy, Debug)]
pub struct ImageRequest<'a> {
    /// Name of the image in the pod's spec.
    pub image: &'a str,
    /// Pull policy in the pod's spec.
    pub policy: Option<&'a str>,
    /// The container of the image; `None` for an image volume.
    pub container: Option<(Role, &'a str)>,
}

impl<'a> ImageRequest<'a> {
    /// Returns the image of a container.
    pub fn of(role: Role, c: &'a Container) -> Self {
        let (image, policy) = (c.image.as_deref().unwrap_or_default(), c.image_pull_policy.as_deref());
        Self { image, policy, container: Some((role, &c.name)) }
    }
}

/// Effects of pulling one image for a pod.
pub(super) struct PullCalls<'a> {
    effects: &'a ImageEffects<'a>,
    pod: &'a Pod,
    wanted: ImageRequest<'a>,
    sandbox: &'a cri::PodSandboxConfig,
    /// Transfers that existed before this pull, possibly of an interrupted one.
    before: Mutex<Option<BTreeMap<String, u64>>>,
}

impl<'a> PullCalls<'a> {
    pub fn new(
        effects: &'a ImageEffects<'a>,
        pod: &'a Pod,
        wanted: ImageRequest<'a>,
        sandbox: &'a cri::PodSandboxConfig,
    ) -> Self {
        Self { effects, pod, wanted, sandbox, before: Mutex::default() }
    }

    fn spec(&self, image: &str) -> cri::ImageSpec {
        let annotations = self.pod.metadata.annotations.clone().unwrap_or_default();
        cri::ImageSpec {
            image: image.to_owned(),
            annotations,
            user_specified_image: self.wanted.image.to_owned(),
            ..Default::default()
        }
    }
}

#[async_trait]
impl PullEffects for PullCalls<'_> {
    async fn status(&self, image: &str) -> Result<Option<Present>, String> {
        let found = self.effects.runtime.image_status(self.spec(image)).await.map_err(words)?;
        Ok(found.map(present))
    }

    async fn pull(&self, image: &str, auth: Option<&Candidate>) -> Result<String, String> {
        let before = self.effects.runtime.transfers().await.ok().flatten();
        *self.before.lock() = before;
        let auth = auth.map(|c| cri::AuthConfig {
            username: c.auth.username.clone(),
            password: c.auth.password.reveal().to_owned(),
            server_address: String::new(),
            identity_token: c.auth.identity_token.reveal().to_owned(),
            registry_token: c.auth.registry_token.reveal().to_owned(),
            ..Default::default()
        });
        let began = tokio::time::Instant::now();
        let pulled = self.effects.runtime.pull_image(self.spec(image), auth, Some(self.sandbox.clone()));
        let pulled = pulled.await.map_err(words)?;
        let took = began.elapsed();
        // The runtime reports the size only after the pull.
        if let Ok(Some(there)) = self.status(&pulled).await {
            self.effects.metrics.lives().pulled(there.size, took);
        }
        Ok(pulled)
    }

    async fn progress(&self, _: &str) -> Option<u64> {
        let now = self.effects.runtime.transfers().await.ok().flatten()?;
        let before = self.before.lock();
        let before = before.as_ref()?;
        // Transfers do not name their image, so any progress on the node counts. If nothing is transferred, the runtime may be unpacking.
        let moving: Vec<u64> = now.iter().filter(|(k, v)| before.get(*k) != Some(v)).map(|(_, v)| *v).collect();
        (!moving.is_empty()).then(|| moving.iter().sum())
    }

    fn event(&self, warning: bool, reason: &'static str, message: String) {
        let kind = if warning { EventType::Warning } else { EventType::Normal };
        match self.wanted.container {
            Some((role, name)) => self.effects.events.container(self.pod, role, name, kind, reason, message),
            None => self.effects.events.pod(self.pod, kind, reason, message),
        }
    }
}

/// Formats the runtime's error. Like upstream, the code `Unknown` is omitted, and words such as `RegistryUnavailable` must come first.
fn words(e: CriError) -> String {
    if e.code == tonic::Code::Unknown { e.message } else { e.to_string() }
}

fn present(i: cri::Image) -> Present {
    Present { reference: i.id, size: i.size, uid: i.uid.map(|u| u.value), user: i.username }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_errors_are_formatted_like_upstream() {
        let e = |code| CriError { call: "PullImage", code, message: "RegistryUnavailable: refused".into() };
        assert_eq!(words(e(tonic::Code::Unknown)), "RegistryUnavailable: refused");
        assert_eq!(words(e(tonic::Code::NotFound)), "rpc error: code = NotFound desc = RegistryUnavailable: refused");
    }
}
