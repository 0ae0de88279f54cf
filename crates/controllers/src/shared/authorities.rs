//! Whom the controllers hand out and sign with: authorities, which may be replaced while the controllers run.
use std::sync::Arc;

use kelson_pki::{Authority, KUBE_APISERVER_CLIENT, KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING, LEGACY_UNKNOWN};
use tokio::sync::watch;

/// Authorities of one time.
#[derive(Clone, Debug, Default)]
pub struct Authorities {
    /// What `kube-root-ca.crt` and legacy tokens carry: the bundle that verifies the API server, PEM.
    pub root_ca: String,
    /// Signs approved certificate requests of signers that have no authority of their own; `None`: they stay unsigned.
    pub signer: Option<Arc<Authority>>,
    /// Signs kubelets' client certificates, where another one than `signer` does.
    pub kubelet_client_signer: Option<Arc<Authority>>,
    /// Signs other client certificates, where another one than `signer` does.
    pub client_signer: Option<Arc<Authority>>,
    /// Signs certificates of which nothing is known, where another one than `signer` does.
    pub legacy_signer: Option<Arc<Authority>>,
    /// Signs kubelets' serving certificates; `None`: they stay unsigned. It must not be what verifies the API server.
    pub kubelet_serving_signer: Option<Arc<Authority>>,
}

impl Authorities {
    /// Who signs for a signer; `None`: nobody.
    pub fn of(&self, signer: &str) -> Option<&Arc<Authority>> {
        let own = match signer {
            KUBELET_SERVING => return self.kubelet_serving_signer.as_ref(),
            KUBE_APISERVER_CLIENT_KUBELET => &self.kubelet_client_signer,
            KUBE_APISERVER_CLIENT => &self.client_signer,
            LEGACY_UNKNOWN => &self.legacy_signer,
            _ => &None,
        };
        own.as_ref().or(self.signer.as_ref())
    }

    /// Whether nothing is signed at all.
    pub fn signs_nothing(&self) -> bool {
        let all = [KUBELET_SERVING, KUBE_APISERVER_CLIENT_KUBELET, KUBE_APISERVER_CLIENT, LEGACY_UNKNOWN];
        all.into_iter().all(|signer| self.of(signer).is_none())
    }

    /// For a [`Config`](crate::Config) whose authorities are never replaced.
    pub fn fixed(self) -> watch::Receiver<Self> {
        watch::channel(self).1
    }
}
