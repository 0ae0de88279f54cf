//! How kubelets are reached: the server's own client certificate, and what a kubelet must show to be believed.
use std::sync::Arc;

use kelson_auth::user;
use kelson_pki::{AnyServerCertificate, CertInfo, Judge, PeerVerifier, PkiError, ServerChains, Shown, provider};
use rustls::ClientConfig;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio_rustls::TlsConnector;

use crate::config::{KubeletConfig, KubeletTrust, StartError};

/// `--kubelet-preferred-address-types`, by default.
const ADDRESS_TYPES: [&str; 5] = ["Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"];
/// What the name of a node as a user begins with.
const NODE_USER: &str = "system:node:";

/// How kubelets are reached.
pub struct KubeletDialer {
    verified: TlsConnector,
    unverified: TlsConnector,
    /// Knows certificates of the cluster's own authority, which must name their node; `None`: nobody's does.
    own: Option<ServerChains>,
    /// The types of a node's addresses, the preferred one first.
    pub address_types: Vec<String>,
    /// The node of this machine.
    pub local_node: Option<String>,
}

impl KubeletDialer {
    /// From the configuration.
    ///
    /// # Errors
    /// [`StartError::Tls`].
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
            // HTTP/1.1 alone: upgrades need it.
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

    /// Another bundle is the cluster's own authority for connections from now on.
    ///
    /// # Errors
    /// When it cannot be read; what was trusted stays so.
    pub fn trust(&self, own_pem: &str) -> Result<(), PkiError> {
        self.own.as_ref().map_or(Ok(()), |own| own.replace(own_pem))
    }

    /// Shows the server's own certificate and, where that is wished, checks the kubelet's.
    pub fn connector(&self, verified: bool) -> &TlsConnector {
        if verified { &self.verified } else { &self.unverified }
    }

    /// Whether a chain that the handshake took is good for this node. One that leads to the cluster's own authority must
    /// name the node: that authority signs for every kubelet, so its word alone says nothing of which one answers. Other
    /// authorities vouch for the address, which the handshake has looked at.
    ///
    /// # Errors
    /// Whose certificate it is instead.
    pub fn check(&self, chain: &[CertificateDer<'_>], host: &ServerName<'_>, node: &str) -> Result<(), String> {
        let Some(own) = &self.own else { return Ok(()) };
        let (leaf, between) = chain.split_first().ok_or("the kubelet showed no certificate")?;
        if own.judge(&Shown { leaf, rest: between, name: Some(host), now: jiff::Timestamp::now() }).is_err() {
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

/// Believes the cluster's own authority, and another one beside it.
#[derive(Debug)]
struct Either {
    own: ServerChains,
    given: ServerChains,
}

impl Judge for Either {
    fn judge(&self, shown: &Shown<'_>) -> Result<(), rustls::Error> {
        self.own.judge(shown).or_else(|_| self.given.judge(shown))
    }
}

#[cfg(test)]
mod tests {
    use kelson_doubles::chains::{believes_server, rows_of};
    use kelson_pki::{Authority, LeafSpec, Purpose, SwappableCertificate, Usage};

    use super::*;

    #[test]
    fn kubelets_are_believed_as_go_believes_them() {
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
