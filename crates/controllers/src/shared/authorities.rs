//! Whom the controllers hand out and sign with: authorities, which may be replaced while the controllers run.
use std::sync::Arc;

use kelson_pki::Authority;
use tokio::sync::watch;

/// Authorities of one time.
#[derive(Clone, Debug, Default)]
pub struct Authorities {
    /// What `kube-root-ca.crt` and legacy tokens carry: the bundle that verifies the API server, PEM.
    pub root_ca: String,
    /// Signs approved certificate requests but those for kubelets' serving certificates; `None`: they stay unsigned.
    pub signer: Option<Arc<Authority>>,
    /// Signs kubelets' serving certificates; `None`: they stay unsigned. It must not be what verifies the API server.
    pub kubelet_serving_signer: Option<Arc<Authority>>,
}

impl Authorities {
    /// For a [`Config`](crate::Config) whose authorities are never replaced.
    pub fn fixed(self) -> watch::Receiver<Self> {
        watch::channel(self).1
    }
}
