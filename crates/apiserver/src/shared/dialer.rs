//! How kubelets are reached: the server's own client certificate, the authorities that kubelets' certificates lead to.
use std::sync::Arc;

use kelson_pki::{ServerChains, provider};
use rustls::ClientConfig;
use tokio_rustls::TlsConnector;

use crate::config::{KubeletConfig, StartError};

/// `--kubelet-preferred-address-types`, by default.
const ADDRESS_TYPES: [&str; 5] = ["Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"];

/// How kubelets are reached.
pub struct KubeletDialer {
    /// Shows the server's own certificate and checks the kubelet's.
    pub connector: TlsConnector,
    /// Whom kubelets' certificates must lead to; what it is replaced by counts for new connections.
    pub trusted: ServerChains,
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
        let trusted = ServerChains::new(&config.ca_pem).map_err(|e| fault(&e))?;
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|e| fault(&e))?.dangerous();
        let builder = builder.with_custom_certificate_verifier(Arc::new(trusted.clone()));
        // HTTP/1.1 alone: upgrades need it.
        let tls = builder.with_client_cert_resolver(Arc::clone(&config.client) as _);
        let given = config.address_types.clone();
        let address_types =
            if given.is_empty() { ADDRESS_TYPES.iter().map(|t| (*t).to_owned()).collect() } else { given };
        Ok(Self {
            connector: TlsConnector::from(Arc::new(tls)),
            trusted,
            address_types,
            local_node: config.local_node.clone(),
        })
    }
}
