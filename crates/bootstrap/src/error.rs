//! Errors of requesting a certificate.

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
        /// The fault of the file.
        why: String,
    },
    /// The API rejected the request.
    #[error("cannot create certificate signing request: {0}")]
    Api(#[from] kelson_client::ClientError),
    /// The machine's clock is wrong, and cannot be set.
    #[error("the clock shows {now}, which is before this program was built; set the clock ({why})")]
    Clock {
        /// The time of the clock.
        now: jiff::Timestamp,
        /// Why the clock was not set.
        why: String,
    },
    /// Denied by an approver.
    #[error("certificate signing request {name} is denied, reason: {reason}, message: {message}")]
    Denied {
        /// The name of the request.
        name: String,
        /// The reason of the denial.
        reason: String,
        /// The message of the denial.
        message: String,
    },
    /// The signer failed it.
    #[error("certificate signing request {name} failed, reason: {reason}, message: {message}")]
    Failed {
        /// The name of the request.
        name: String,
        /// The reason of the signer.
        reason: String,
        /// The message of the signer.
        message: String,
    },
    /// A request of another client has this name.
    #[error("retrieved csr {0:?} is not compatible with the request")]
    Incompatible(String),
    /// The request was deleted or replaced before there was a certificate.
    #[error("certificate signing request {0} was deleted before it was signed")]
    Deleted(String),
    /// An earlier request of the same key and subject has a certificate, which has ended.
    #[error("the certificate of certificate signing request {0} has expired")]
    Expired(String),
    /// An earlier request of the same key and subject has a certificate that the API does not accept.
    #[error("the API server rejects the certificate of certificate signing request {0}")]
    Refused(String),
    /// The API server rejects the node's certificate, and there are no other credentials.
    #[error(
        "the API server rejects the node's certificate, and there is no bootstrap kubeconfig for requesting a new one"
    )]
    Stranger,
    /// The API accepts neither the node's certificate nor its bootstrap credentials.
    #[error(
        "the API server accepts neither the node's certificate nor its bootstrap credentials: it needs a new token \
         (kelson token create, kubeadm token create)"
    )]
    Outsider,
    /// The API server presents a certificate that the node does not trust.
    #[error("the API server's certificate is not trusted: {0}")]
    Unverified(String),
    /// It was not approved and signed in time.
    #[error("timed out waiting for certificate signing request {0} to be approved and signed")]
    Timeout(String),
}

impl CertError {
    /// Whether a request under the same key can never lead anywhere, so that the next one takes another key.
    pub(crate) fn spends_key(&self) -> bool {
        matches!(self, Self::Denied { .. } | Self::Failed { .. } | Self::Deleted(_)) || self.is_of_the_past()
    }

    /// Reports whether an existing request was found whose certificate is no longer valid.
    pub(crate) fn is_of_the_past(&self) -> bool {
        matches!(self, Self::Expired(_) | Self::Refused(_))
    }
}
