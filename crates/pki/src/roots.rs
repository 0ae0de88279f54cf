//! The CAs that the system trusts, for servers without a configured CA.
#![allow(clippy::disallowed_methods, reason = "blocking: for the lane for files, or a start")]
use std::path::PathBuf;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

/// The usual files of systems' CAs, of which the first existing one is used; `SSL_CERT_FILE` has precedence.
const SYSTEM_FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The certificates of a bundle in PEM. What is none is passed over, as Go does.
pub fn bundle_roots(bundle: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(bundle).filter_map(Result::ok).collect()
}

/// Returns the CAs that the system trusts: of `SSL_CERT_FILE`, else of the first of the usual files that exists. Reads
/// files, so it must run in a blocking pool.
pub fn system_roots() -> Vec<CertificateDer<'static>> {
    let chosen = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let mut files = chosen.into_iter().chain(SYSTEM_FILES.iter().map(Into::into));
    files.find_map(|file| std::fs::read(file).ok()).map(|pem| bundle_roots(&pem)).unwrap_or_default()
}
