//! What clients show of themselves: certificate requests, certificates, service account tokens.
use std::sync::Arc;

use bytes::Bytes;
use kelson_auth::authenticate::TokenAuthenticator as _;
use kelson_auth::token::{ServiceAccountTokens, VerifierOptions};
use kelson_meta::SystemClock;
use kelson_pki::{
    CertInfo, CertificateRequest, Key, certificates_from_pem, pem_block, validate_kubelet_client,
    validate_kubelet_serving,
};

pub(crate) fn csr(data: &[u8]) {
    let usages = ["digital signature", "client auth"].map(str::to_owned);
    let text = String::from_utf8_lossy(data);
    for text in [text.into_owned(), pem_block("CERTIFICATE REQUEST", data)] {
        if let Ok(request) = CertificateRequest::parse(&text) {
            let _client = validate_kubelet_client(&request, &usages);
            let _serving = validate_kubelet_serving(&request, &usages);
        }
    }
}

pub(crate) fn certificate(data: &[u8]) {
    let _info = CertInfo::from_der(data);
    let _read = certificates_from_pem(&String::from_utf8_lossy(data));
}

/// A cluster in which nothing is.
struct Nothing;

impl kelson_auth::Objects for Nothing {
    fn get(&self, _: &str, _: &str, _: &str, _: &str) -> Option<Bytes> {
        None
    }
    fn list(&self, _: &str, _: &str, _: &str) -> Vec<Bytes> {
        Vec::new()
    }
}

pub(crate) fn jwt(data: &[u8]) {
    let Ok(token) = std::str::from_utf8(data) else { return };
    let Ok(key) = Key::generate() else { return };
    let keys = vec![key.public().clone()];
    let tokens = ServiceAccountTokens::new(keys, VerifierOptions::default(), Arc::new(Nothing), Arc::new(SystemClock));
    let found = tokens.authenticate_token(token, &[]);
    assert!(!matches!(found, Ok(Some(_))), "a token that nobody signed was believed");
}
