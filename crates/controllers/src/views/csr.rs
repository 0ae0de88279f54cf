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

/// A request's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsrSpecView {
    /// The request: PEM, and that in base64.
    pub request: String,
    /// Who is to sign.
    pub signer_name: String,
    /// The lifetime that is wished for; the signer may give less.
    pub expiration_seconds: Option<i32>,
    #[serde(deserialize_with = "null_default")]
    pub usages: Vec<String>,
    /// Who made the request, written by the API server.
    pub username: String,
    /// UID of who asked.
    pub uid: String,
    /// Groups of who asked.
    #[serde(deserialize_with = "null_default")]
    pub groups: Vec<String>,
    /// More about who asked.
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
    /// PEM, base64, once issued.
    pub certificate: String,
}

impl CsrView {
    /// Whether a condition of this type is there.
    pub fn has(&self, kind: &str) -> bool {
        self.status.conditions.iter().any(|c| c.r#type == kind)
    }
    /// The request inside, with its signature verified; parsed at most once for all who share this view.
    ///
    /// # Errors
    /// Why nobody can read it.
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
