//! Whose certificates these are: the node, where its files lie, and how it reaches the API.
use std::path::PathBuf;
use std::sync::Arc;

use kelson_client::Client;
use kelson_client::kubeconfig::Config;
use kelson_client::remote::Remote;
use kelson_meta::Clock;

use crate::CertError;
use crate::demand::{self, Demands};
use crate::files::Store;

/// Where things lie.
#[derive(Clone, Debug)]
pub struct Paths {
    /// `--kubeconfig`.
    pub kubeconfig: PathBuf,
    /// `--bootstrap-kubeconfig`.
    pub bootstrap: Option<PathBuf>,
    /// `--cert-dir`.
    pub cert_dir: PathBuf,
}

impl Paths {
    /// The node's client certificates.
    pub(crate) fn files(&self) -> Store {
        Store::new("kubelet-client", &self.cert_dir)
    }
}

/// How a client is made of a kubeconfig.
pub(crate) type Connect = dyn Fn(&Config) -> Result<Client, CertError> + Send + Sync;

/// The client certificate of one node.
#[derive(Clone)]
pub struct ClientCertificate {
    /// Where things lie.
    pub paths: Paths,
    /// The node's name.
    pub node_name: String,
    /// The clock that lifetimes are judged by.
    pub clock: Arc<dyn Clock>,
    /// What is asked of the certificate beyond being good.
    pub demands: Demands,
    pub(crate) connect: Arc<Connect>,
}

impl ClientCertificate {
    /// Of the node of this name.
    pub fn new(paths: Paths, node_name: &str, clock: Arc<dyn Clock>) -> Self {
        let connect = |config: &Config| {
            let remote = Remote::new(config.clone());
            let remote = remote.map_err(|e| CertError::Kubeconfig { which: "the", why: e.to_string() })?;
            Ok(Client::new(Arc::new(remote), "kubelet"))
        };
        let demands = demand::none();
        // Links and kubeconfigs name files by their whole paths: what is relative would be sought elsewhere.
        let whole = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let paths = Paths {
            kubeconfig: whole(paths.kubeconfig),
            bootstrap: paths.bootstrap.map(whole),
            cert_dir: whole(paths.cert_dir),
        };
        Self { paths, node_name: node_name.to_owned(), clock, demands, connect: Arc::new(connect) }
    }

    /// The same, following demands.
    pub fn demanding(self, demands: Demands) -> Self {
        Self { demands, ..self }
    }
}
