//! The node of the certificates: its files, and how it reaches the API.
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use kelson_client::kubeconfig::Config;
use kelson_client::remote::Remote;
use kelson_client::servers::Servers;
use kelson_client::{Client, Transport};
use kelson_meta::Clock;

use crate::CertError;
use crate::connection::{Connection, Connections};
use crate::demand::{self, Demands};
use crate::files::Store;

/// The paths of the files.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The value of `--kubeconfig`.
    pub kubeconfig: PathBuf,
    /// The value of `--bootstrap-kubeconfig`.
    pub bootstrap: Option<PathBuf>,
    /// The value of `--cert-dir`.
    pub cert_dir: PathBuf,
}

impl Paths {
    /// The node's client certificates.
    pub(crate) fn files(&self) -> Store {
        Store::new("kubelet-client", &self.cert_dir)
    }
}

/// Opens a connection with a kubeconfig.
pub(crate) type Connect = dyn Fn(&Config) -> Result<Arc<dyn Transport>, CertError> + Send + Sync;

/// Looks up the cluster's CA again in a verifiable way (a signature with a token, a file), and writes it where both
/// kubeconfigs reference it. For nodes that missed a complete CA rotation.
pub type Discovery = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), CertError>> + Send>> + Send + Sync>;

/// The client certificate of one node.
#[derive(Clone)]
pub struct ClientCertificate {
    /// The paths of the files.
    pub paths: Paths,
    /// The node's name.
    pub node_name: String,
    /// The clock for lifetimes.
    pub clock: Arc<dyn Clock>,
    /// Additional demands on the certificate.
    pub demands: Demands,
    pub(crate) connect: Arc<Connect>,
    pub(crate) connections: Connections,
    pub(crate) discovery: Option<Discovery>,
    /// The servers to choose from; kubeconfigs name one.
    pub(crate) servers: Option<Arc<Servers>>,
}

impl ClientCertificate {
    /// Creates the settings of the node with this name.
    pub fn new(paths: Paths, node_name: &str, clock: Arc<dyn Clock>) -> Self {
        let connect = |config: &Config| {
            let remote = Remote::new(config.clone());
            let remote = remote.map_err(|e| CertError::Kubeconfig { which: "the", why: e.to_string() })?;
            Ok(Arc::new(remote) as Arc<dyn Transport>)
        };
        let demands = demand::none();
        // Links and kubeconfigs name files by their whole paths: what is relative would be sought elsewhere.
        let whole = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let paths = Paths {
            kubeconfig: whole(paths.kubeconfig),
            bootstrap: paths.bootstrap.map(whole),
            cert_dir: whole(paths.cert_dir),
        };
        let (connect, connections) = (Arc::new(connect), Connections::default());
        let node_name = node_name.to_owned();
        Self { paths, node_name, clock, demands, connect, connections, discovery: None, servers: None }
    }

    /// The same, following demands.
    pub fn demanding(self, demands: Demands) -> Self {
        Self { demands, ..self }
    }

    /// Sets the discovery that looks up the cluster's CA again when the API server presents an untrusted certificate.
    pub fn discovering(self, discovery: Discovery) -> Self {
        Self { discovery: Some(discovery), ..self }
    }

    /// Uses one of these servers at a time, whichever server the kubeconfigs name.
    pub fn among(self, servers: Arc<Servers>) -> Self {
        Self { servers: Some(servers), ..self }
    }

    /// A way to the API for one of the node's components, which follows the node's credentials for as long as
    /// [`ClientCertificate::run`] keeps them.
    ///
    /// # Errors
    /// When the configuration cannot be used.
    pub fn connection(&self, config: &Config) -> Result<Arc<Connection>, CertError> {
        Ok(self.connections.add((self.connect)(config)?))
    }

    pub(crate) fn client(&self, config: &Config) -> Result<Client, CertError> {
        Ok(Client::new((self.connect)(config)?, "kubelet"))
    }
}
