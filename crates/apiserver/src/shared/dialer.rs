//! How the server connects to kubelets: its client certificate, and which kubelet certificates it trusts.
use std::sync::Arc;

use kelson_auth::user;
use kelson_pki::{
    AnyServerCertificate, CertInfo, Judge, PeerCertificates, PeerVerifier, PkiError, ServerChains, provider,
};
use rustls::ClientConfig;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio_rustls::TlsConnector;

use crate::config::{KubeletConfig, KubeletTrust, StartError};

/// Default of `--kubelet-preferred-address-types`.
const ADDRESS_TYPES: [&str; 5] = ["Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"];
/// Prefix of the user name of a node.
const NODE_USER: &str = "system:node:";

/// Makes TLS connections to kubelets.
pub struct KubeletDialer {
    verified: TlsConnector,
    unverified: TlsConnector,
    /// Verifies certificates of the cluster's CA, which must name their node; `None` if any name is accepted.
    own: Option<ServerChains>,
    /// The types of a node's addresses in order of preference.
    pub address_types: Vec<String>,
    /// The node on this machine.
    pub local_node: Option<String>,
}

impl KubeletDialer {
    /// Builds the connectors from the configuration.
    ///
    /// # Errors
    /// [`StartError::Tls`] if a CA bundle cannot be parsed.
    pub fn new(config: &KubeletConfig) -> Result<Self, StartError> {
        let fault = |e: &dyn std::fmt::Display| StartError::Tls(format!("kubelet client: {e}"));
        let of = |pem: &str| ServerChains::new(pem).map_err(|e| fault(&e));
        let (checks, own) = match &config.trust {
            KubeletTrust::Cluster(own) => {
                let own = of(own)?;
                (own.verifier(), Some(own))
            }
            KubeletTrust::Authority { own, given } if own.is_empty() => (of(given)?.verifier(), None),
            KubeletTrust::Authority { own, given } => {
                let own = of(own)?;
                (PeerVerifier::of_servers(Either { own: own.clone(), given: of(given)? }), Some(own))
            }
            KubeletTrust::Anyone => (AnyServerCertificate::verifier(), None),
        };
        let connector = |checks| -> Result<TlsConnector, StartError> {
            let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
            let builder = builder.map_err(|e| fault(&e))?.dangerous();
            // Only HTTP/1.1, because upgrades need it.
            let tls = builder.with_custom_certificate_verifier(checks);
            Ok(TlsConnector::from(Arc::new(tls.with_client_cert_resolver(Arc::clone(&config.client) as _))))
        };
        let given = config.address_types.clone();
        let address_types =
            if given.is_empty() { ADDRESS_TYPES.iter().map(|t| (*t).to_owned()).collect() } else { given };
        Ok(Self {
            verified: connector(checks)?,
            unverified: connector(AnyServerCertificate::verifier())?,
            own,
            address_types,
            local_node: config.local_node.clone(),
        })
    }

    /// Replaces the cluster's CA for new connections.
    ///
    /// # Errors
    /// The bundle cannot be parsed. Nothing changes then.
    pub fn trust(&self, own_pem: &str) -> Result<(), PkiError> {
        self.own.as_ref().map_or(Ok(()), |own| own.replace(own_pem))
    }

    /// A connector with the server's client certificate. If `verified`, it verifies the kubelet's certificate.
    pub fn connector(&self, verified: bool) -> &TlsConnector {
        if verified { &self.verified } else { &self.unverified }
    }

    /// Checks the verified certificate chain of a node's kubelet. A certificate of the cluster's CA must name the node, because that CA
    /// signs the certificates of all kubelets. For other CAs, the handshake has already checked the address.
    ///
    /// # Errors
    /// The certificate belongs to another node or component.
    pub fn check(&self, chain: &[CertificateDer<'_>], host: &ServerName<'_>, node: &str) -> Result<(), String> {
        let Some(own) = &self.own else { return Ok(()) };
        let (leaf, between) = chain.split_first().ok_or("the kubelet showed no certificate")?;
        if own.judge(&PeerCertificates { leaf, rest: between, name: Some(host), now: jiff::Timestamp::now() }).is_err()
        {
            return Ok(());
        }
        let info = CertInfo::from_der(leaf).map_err(|e| e.to_string())?;
        let is_node = info.organizations.iter().any(|o| o == user::NODES);
        if is_node && info.common_name.strip_prefix(NODE_USER) == Some(node) {
            return Ok(());
        }
        Err(format!("the certificate is that of {:?} and not of the kubelet of node {node:?}", info.common_name))
    }
}

/// Trusts the cluster's CA and another CA.
#[derive(Debug)]
struct Either {
    own: ServerChains,
    given: ServerChains,
}

impl Judge for Either {
    fn judge(&self, shown: &PeerCertificates<'_>) -> Result<(), rustls::Error> {
        self.own.judge(shown).or_else(|_| self.given.judge(shown))
    }
}

#[cfg(test)]
mod tests {
    use kelson_doubles::chains::{believes_server, rows_of};
    use kelson_pki::{Authority, LeafSpec, Purpose, SwappableCertificate, Usage};

    use super::*;

    #[test]
    fn kubelet_certificates_are_verified_as_in_go() {
        let now = jiff::Timestamp::now();
        let ca = Authority::create("ca", now).expect("an authority");
        let lifetime = std::time::Duration::from_secs(3600);
        let spec = LeafSpec { common_name: "api", organizations: &[], sans: &[], purpose: Purpose::Client, lifetime };
        let client = SwappableCertificate::new(&ca.issue(&spec, now).expect("issued")).expect("a certificate");
        for row in rows_of(Usage::Server) {
            let (bundle, own) = (row.bundle_pem(), ca.cert_pem().to_owned());
            for trust in [
                KubeletTrust::Cluster(bundle.clone()),
                KubeletTrust::Authority { own: String::new(), given: bundle.clone() },
                KubeletTrust::Authority { own, given: bundle },
            ] {
                let config =
                    KubeletConfig { trust, client: Arc::clone(&client), address_types: Vec::new(), local_node: None };
                let dialer = KubeletDialer::new(&config).expect("a dialer");
                let believed = believes_server(Arc::clone(dialer.connector(true).config()), &row);
                assert_eq!(believed.is_ok(), row.is_accepted, "{}: {believed:?}", row.what);
                let unverified = believes_server(Arc::clone(dialer.connector(false).config()), &row);
                assert!(unverified.is_ok() || !row.is_accepted, "{}: {unverified:?}", row.what);
            }
        }
    }
}
