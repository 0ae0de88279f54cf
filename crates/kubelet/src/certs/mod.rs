//! The kubelet's certificates: TLS bootstrap with a token, the store on disk, and renewal of client and serving
//! certificates before they end. Approval and signing are the control plane's work.
pub mod bootstrap;
pub mod request;
pub mod rotate;
pub mod serving;
pub mod store;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    /// Files, keys, requests.
    #[error(transparent)]
    Pki(#[from] kelson_pki::PkiError),
    /// A file operation.
    #[error("{what}: {source}")]
    File {
        /// The operation and its file.
        what: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A kubeconfig that cannot be used.
    #[error("unable to load {which} kubeconfig: {why}")]
    Kubeconfig {
        /// `bootstrap` or none.
        which: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The API refused.
    #[error("cannot create certificate signing request: {0}")]
    Api(#[from] kelson_client::ClientError),
    /// Denied by an approver.
    #[error("certificate signing request {name} is denied, reason: {reason}, message: {message}")]
    Denied {
        /// Of the request.
        name: String,
        /// In the words of who refused it.
        reason: String,
        /// In the words of who refused it.
        message: String,
    },
    /// The signer failed it.
    #[error("certificate signing request {name} failed, reason: {reason}, message: {message}")]
    Failed {
        /// Of the request.
        name: String,
        /// In the words of who could not sign.
        reason: String,
        /// In the words of who could not sign.
        message: String,
    },
    /// A request of another client has this name.
    #[error("retrieved csr {0:?} is not compatible with the request")]
    Incompatible(String),
    /// It was not approved and signed in time.
    #[error("timed out waiting for certificate signing request {0} to be approved and signed")]
    Timeout(String),
}
