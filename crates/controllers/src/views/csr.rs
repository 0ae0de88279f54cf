//! `certificates.k8s.io/v1` CertificateSigningRequest.
use std::collections::BTreeMap;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kelson_client::{ResourceType, slim_object};
use kelson_meta::{ObjectMeta, null_default};
use kelson_pki::CertificateRequest;
use serde::Deserialize;

use super::condition::Condition;
use super::index::Indexed;

/// `certificates.k8s.io/v1` CertificateSigningRequest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsrView {
    pub metadata: ObjectMeta,
    pub spec: CsrSpecView,
    pub status: CsrStatusView,
    #[serde(skip)]
    parsed: OnceLock<Result<CertificateRequest, String>>,
}

/// The spec of a certificate signing request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsrSpecView {
    /// The request as base64 of PEM.
    pub request: String,
    /// The requested signer.
    pub signer_name: String,
    /// The requested lifetime in seconds; the signer may issue a shorter one.
    pub expiration_seconds: Option<i32>,
    #[serde(deserialize_with = "null_default")]
    pub usages: Vec<String>,
    /// The user who created the request, set by the API server.
    pub username: String,
    /// The UID of that user.
    pub uid: String,
    /// The groups of that user.
    #[serde(deserialize_with = "null_default")]
    pub groups: Vec<String>,
    /// The extra fields of that user.
    #[serde(deserialize_with = "null_default")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A request's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsrStatusView {
    /// `Approved`, `Denied`, `Failed`.
    #[serde(deserialize_with = "null_default")]
    pub conditions: Vec<Condition>,
    /// The issued certificate as base64 of PEM, or empty.
    pub certificate: String,
}

impl CsrView {
    /// Whether the request has a condition of this type.
    pub fn has(&self, kind: &str) -> bool {
        self.status.conditions.iter().any(|c| c.r#type == kind)
    }
    /// Returns the parsed request with a verified signature. It is parsed at most once per view.
    ///
    /// # Errors
    /// The request is invalid; the error is the reason.
    pub fn request(&self) -> Result<&CertificateRequest, &str> {
        let parsed = self.parsed.get_or_init(|| {
            let pem = STANDARD.decode(&self.spec.request).map_err(|e| e.to_string())?;
            let pem = String::from_utf8(pem).map_err(|e| e.to_string())?;
            CertificateRequest::parse(&pem).map_err(|e| e.to_string())
        });
        parsed.as_ref().map_err(String::as_str)
    }
}

impl Indexed for CsrView {}
slim_object!(
    CsrView,
    ResourceType::cluster("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest")
);
