//! `tlsCipherSuites`: the TLS 1.2 cipher suites that the kubelet's server offers, by the names of Go's `crypto/tls`. TLS 1.3 suites are
//! always offered, as in Go. The TLS library supports none of the other suites in Go's list: they lack forward secrecy or use CBC.
use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// Names of TLS 1.3 suites. They may be listed but have no effect.
const OF_TLS13: [&str; 3] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];
/// Suites that Go knows and the TLS library does not offer.
const NEVER_OFFERED: [&str; 16] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];
/// Old names that Go accepts for two suites.
const OLD_NAMES: [(&str, &str); 2] = [
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
];

/// Result of looking up a name in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CipherSupport {
    /// A suite that is offered if it is listed.
    Offered,
    /// A suite that exists in Go and is never offered here.
    Never,
    /// An unknown name.
    Unknown,
}

/// Looks up a cipher suite by Go's name.
pub fn named(name: &str) -> CipherSupport {
    match () {
        () if NEVER_OFFERED.contains(&name) => CipherSupport::Never,
        () if OF_TLS13.contains(&name) => CipherSupport::Offered,
        () if is_there(full(name)) => CipherSupport::Offered,
        () => CipherSupport::Unknown,
    }
}

/// Returns whether the TLS library has this TLS 1.2 suite.
fn is_there(name: &str) -> bool {
    let all = kelson_pki::provider();
    all.cipher_suites.iter().any(|s| s.tls13().is_none() && s.suite().as_str() == Some(name))
}

fn full(name: &str) -> &str {
    OLD_NAMES.iter().find(|(old, _)| *old == name).map_or(name, |(_, full)| full)
}

/// Returns a crypto provider that offers only the listed TLS 1.2 suites. An empty list means all suites.
pub fn provider(listed: &[String]) -> Arc<CryptoProvider> {
    let all = kelson_pki::provider();
    if listed.is_empty() {
        return all;
    }
    let mut some = CryptoProvider::clone(&all);
    some.cipher_suites.retain(|suite| {
        let name = suite.suite().as_str();
        suite.tls13().is_some() || listed.iter().any(|l| name == Some(full(l)))
    });
    Arc::new(some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(listed: &[&str]) -> Vec<&'static str> {
        let listed: Vec<String> = listed.iter().map(ToString::to_string).collect();
        let provider = provider(&listed);
        let mut names: Vec<_> = provider.cipher_suites.iter().filter_map(|s| s.suite().as_str()).collect();
        names.retain(|name| !name.starts_with("TLS13_"));
        assert_eq!(provider.cipher_suites.len() - names.len(), 3, "those of TLS 1.3 are always there");
        names.sort_unstable();
        names
    }

    #[test]
    fn only_listed_tls12_suites_are_offered() {
        assert_eq!(offered(&[]).len(), 6, "all that the library has");
        let one = ["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"];
        assert_eq!(offered(&one), one);
        let old = offered(&["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_RSA_WITH_AES_128_CBC_SHA"]);
        assert_eq!(old, ["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"]);
        assert_eq!(offered(&["TLS_AES_128_GCM_SHA256"]), Vec::<&str>::new(), "TLS 1.3 alone");
        assert_eq!(offered(&["TLS_RSA_WITH_RC4_128_SHA"]), Vec::<&str>::new());
    }

    #[test]
    fn names_are_those_of_go() {
        for name in OF_TLS13.iter().chain(OLD_NAMES.iter().flat_map(|(old, new)| [old, new])) {
            assert_eq!(named(name), CipherSupport::Offered, "{name}");
        }
        assert_eq!(named("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"), CipherSupport::Offered);
        assert!(NEVER_OFFERED.iter().all(|name| named(name) == CipherSupport::Never));
        for name in ["", "TLS13_AES_128_GCM_SHA256", "tls_aes_128_gcm_sha256", "ECDHE-RSA-AES128-GCM-SHA256"] {
            assert_eq!(named(name), CipherSupport::Unknown, "{name}");
        }
    }
}
