//! The CAs that the controllers publish and sign with. They may be rotated while the controllers run.
use std::sync::Arc;

use kelson_pki::{Authority, KUBE_APISERVER_CLIENT, KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING, LEGACY_UNKNOWN};
use tokio::sync::watch;

/// The CAs at one point in time. A rotation sends a new value to the receiver in [`Config`](crate::Config).
#[derive(Clone, Debug, Default)]
pub struct Authorities {
    /// The PEM bundle that verifies the API server, as published in `kube-root-ca.crt` and in legacy token secrets.
    pub root_ca: String,
    /// Signs approved requests of signers that have no CA in a field below. With `None` these requests stay unsigned.
    pub signer: Option<Arc<Authority>>,
    /// Signs kubelets' client certificates instead of `signer`.
    pub kubelet_client_signer: Option<Arc<Authority>>,
    /// Signs client certificates of the signer `kubernetes.io/kube-apiserver-client` instead of `signer`.
    pub client_signer: Option<Arc<Authority>>,
    /// Signs certificates of the signer `kubernetes.io/legacy-unknown` instead of `signer`.
    pub legacy_signer: Option<Arc<Authority>>,
    /// Signs kubelets' serving certificates. With `None` these requests stay unsigned. It must differ from the CA that
    /// verifies the API server.
    pub kubelet_serving_signer: Option<Arc<Authority>>,
}

impl Authorities {
    /// The CA for a signer name, or `None` if its requests stay unsigned.
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

    /// Whether no signer has a CA.
    pub fn signs_nothing(&self) -> bool {
        let all = [KUBELET_SERVING, KUBE_APISERVER_CLIENT_KUBELET, KUBE_APISERVER_CLIENT, LEGACY_UNKNOWN];
        all.into_iter().all(|signer| self.of(signer).is_none())
    }

    /// A receiver for a [`Config`](crate::Config) whose CAs are never rotated.
    pub fn fixed(self) -> watch::Receiver<Self> {
        watch::channel(self).1
    }
}
