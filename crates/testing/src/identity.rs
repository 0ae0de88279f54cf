//! The CAs and keys of a test cluster, in memory only.
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_apiserver::ServiceAccountConfig;
use kelson_pki::{
    Authority, ClusterPki, Issued, Key, Kubeconfig, LeafSpec, PkiError, Purpose, SwappableCertificate, UserCredential,
};

/// The DNS domain of services.
pub const DOMAIN: &str = "cluster.local";
/// The lifetime of certificates: longer than any test.
const LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// The CAs and keys of a cluster.
pub struct Identity {
    ca: Authority,
    accounts: Key,
    now: Timestamp,
}

impl Identity {
    /// Creates new CAs and keys.
    pub fn new(now: Timestamp) -> Result<Self, PkiError> {
        Ok(Self { ca: Authority::create("kubernetes", now)?, accounts: Key::generate()?, now })
    }

    /// Returns the CA of the API's certificate and of users, PEM.
    pub fn ca_pem(&self) -> &str {
        self.ca.cert_pem()
    }

    /// Returns the CA, for the controllers that sign.
    pub fn authority(&self) -> &Authority {
        &self.ca
    }

    /// Returns the serving certificate of the API, valid for this machine only.
    pub fn serving(&self) -> Result<Arc<SwappableCertificate>, PkiError> {
        let sans = ClusterPki::server_sans(DOMAIN, IpAddr::V4(Ipv4Addr::LOCALHOST), &[]);
        let leaf = LeafSpec {
            common_name: "kube-apiserver",
            organizations: &[],
            sans: &sans,
            purpose: Purpose::Server,
            lifetime: LIFETIME,
        };
        SwappableCertificate::new(&self.ca.issue(&leaf, self.now)?)
    }

    /// Returns how service account tokens are issued.
    pub fn service_accounts(&self) -> ServiceAccountConfig {
        ServiceAccountConfig {
            issuer: format!("https://kubernetes.default.svc.{DOMAIN}"),
            issuers_before: Vec::new(),
            verifiers: vec![self.accounts.public().clone()],
            key: self.accounts.clone(),
            audiences: Vec::new(),
            terms: Default::default(),
        }
    }

    /// Issues a user's certificate.
    pub fn user(&self, name: &str, groups: &[&str]) -> Result<Issued, PkiError> {
        let organizations: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
        let leaf = LeafSpec {
            common_name: name,
            organizations: &organizations,
            sans: &[],
            purpose: Purpose::Client,
            lifetime: LIFETIME,
        };
        self.ca.issue(&leaf, self.now)
    }

    /// Returns a kubeconfig of a user with a new certificate.
    pub fn kubeconfig(&self, server: SocketAddr, name: &str, groups: &[&str]) -> Result<String, PkiError> {
        let kubeconfig = Kubeconfig {
            cluster: "kelson".into(),
            user: name.to_owned(),
            server: format!("https://{server}"),
            ca_pem: self.ca.cert_pem().to_owned(),
            ca_file: None,
            credential: UserCredential::Certificate(Box::new(self.user(name, groups)?)),
        };
        Ok(kubeconfig.to_yaml())
    }
}
