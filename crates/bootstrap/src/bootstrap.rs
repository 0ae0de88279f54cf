//! TLS bootstrap: from a kubeconfig with a token to one with the node's own certificate (upstream:
//! `pkg/kubelet/certificate/bootstrap/bootstrap.go`).
//!
//! A node whose certificate expired while it was off first presents that certificate: it still proves that the node has
//! the key, and a Kelson control plane lets it request another one during a grace period. Other control planes reject
//! it, and the bootstrap credentials are used.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use kelson_client::kubeconfig::{Config as ClientConfig, Credentials};
use kelson_client::remote::client_config;
use kelson_client::{Client, ClientError};
use kelson_pki::kubeconfig::{Context, KubeconfigFile, NamedCluster, NamedContext, NamedUser, User};
use kelson_pki::{Issued, KUBE_APISERVER_CLIENT_KUBELET, Key, write_secret};
use kelson_tasks::FILES;

use crate::connection::Standing;
use crate::files::{blocks, info};
use crate::node::ClientCertificate;
use crate::request::{RequestedCertificate, certificate};
use crate::{CertError, clock};

/// The time to wait for the server to come up before the request is tried anyway.
const SERVER_WAIT: Duration = Duration::from_secs(60);
/// Between attempts to reach it, jittered by a fifth.
const SERVER_RETRY: Duration = Duration::from_secs(2);
/// The timeout of one attempt to reach the server.
const SERVER_LIMIT: Duration = Duration::from_secs(1);
/// The timeout for approval and signing.
const CERTIFICATE_WAIT: Duration = Duration::from_secs(3600);

/// The result of joining: the node's credentials.
pub struct Joined {
    /// The configuration for reaching the API as this node.
    pub config: ClientConfig,
    /// Whether there is no certificate yet. [`ClientCertificate::run`] obtains it, and requests fail until then.
    pub awaited: bool,
}

impl ClientCertificate {
    /// Returns the client configuration. Bootstraps first and waits for the certificate, if that is configured and
    /// necessary.
    ///
    /// # Errors
    /// There is no usable kubeconfig, or the request was rejected.
    pub async fn load(&self) -> Result<ClientConfig, CertError> {
        if !self.needs_bootstrap().await? {
            return self.own().await;
        }
        tracing::info!("using bootstrap kubeconfig to request a client certificate");
        self.obtain().await?;
        self.own().await
    }

    /// As [`ClientCertificate::load`], without waiting for a certificate: for a node that has work meanwhile, such as static
    /// pods.
    ///
    /// # Errors
    /// When there is neither a kubeconfig that can be used nor a bootstrap one.
    pub async fn begin(&self) -> Result<Joined, CertError> {
        if !self.needs_bootstrap().await? {
            let config = self.adopt_embedded(self.own().await?).await?;
            return Ok(Joined { config, awaited: false });
        }
        let with = self.bootstrap().await?;
        let pem = self.paths.files().current_path();
        let credentials = Credentials::CertificateFiles { cert: pem.clone(), key: pem };
        let config = ClientConfig { credentials_may_come: true, ..with.under(credentials) };
        Ok(Joined { config, awaited: true })
    }

    /// Whether a certificate must be requested before the node can authenticate.
    async fn needs_bootstrap(&self) -> Result<bool, CertError> {
        if self.paths.bootstrap.is_none() {
            tracing::info!("no bootstrapping requested, will use kubeconfig");
            return Ok(false);
        }
        let (file, now) = (self.paths.kubeconfig.clone(), self.clock.now());
        let valid = FILES.run(move || {
            // A file that cannot be accessed is an error for the operator. A missing or invalid one is created.
            match std::fs::metadata(&file) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    Err(CertError::File { what: file.display().to_string(), source })
                }
                Err(_) => Ok(false),
                Ok(_) => Ok(still_valid(&file, now)),
            }
        });
        let valid = valid.await.map_err(|e| self.lane(e))??;
        if valid {
            tracing::info!(path = %self.paths.kubeconfig.display(), "kubeconfig exists and is valid, skipping bootstrap");
        }
        Ok(!valid)
    }

    /// Returns the configuration in the kubeconfig.
    pub(crate) async fn own(&self) -> Result<ClientConfig, CertError> {
        self.kubeconfig("the", &self.paths.kubeconfig).await
    }

    /// The same, with the certificate of the store where the kubeconfig has an earlier one embedded.
    pub(crate) async fn shown(&self) -> Result<ClientConfig, CertError> {
        let own = self.own().await?;
        let embedded = matches!(own.credentials, Credentials::Certificate { .. });
        if !embedded || self.paths.files().read().await?.is_none() {
            return Ok(own);
        }
        let pem = self.paths.files().current_path();
        Ok(ClientConfig { credentials: Credentials::CertificateFiles { cert: pem.clone(), key: pem }, ..own })
    }

    async fn bootstrap(&self) -> Result<ClientConfig, CertError> {
        match &self.paths.bootstrap {
            Some(file) => self.kubeconfig("bootstrap", file).await,
            None => Err(CertError::Kubeconfig { which: "bootstrap", why: "there is none".into() }),
        }
    }

    async fn kubeconfig(&self, which: &'static str, path: &Path) -> Result<ClientConfig, CertError> {
        let file = path.to_owned();
        let loaded = FILES.run(move || ClientConfig::load(&file)).await.map_err(|e| self.lane(e))?;
        let loaded = loaded.map_err(|e| CertError::Kubeconfig { which, why: e.to_string() })?;
        Ok(ClientConfig { servers: self.servers.clone(), ..loaded })
    }

    pub(crate) fn lane(&self, e: kelson_tasks::LaneError) -> CertError {
        CertError::File { what: self.paths.cert_dir.display().to_string(), source: std::io::Error::other(e) }
    }

    /// A kubeconfig with an embedded certificate, as kubeadm writes for a first control plane, is read once, and
    /// renewed certificates are in the store. The embedded certificate is therefore copied to the store unless that has
    /// a newer one, and the store is used.
    async fn adopt_embedded(&self, config: ClientConfig) -> Result<ClientConfig, CertError> {
        let Credentials::Certificate { cert_pem, key_pem } = &config.credentials else { return Ok(config) };
        let text = |pem: &[u8]| String::from_utf8_lossy(pem).into_owned();
        let embedded = Issued { cert_pem: text(cert_pem), key: Key::from_pem(&text(key_pem))? };
        let given = info(&embedded)?;
        let files = self.paths.files();
        let stored = files.read().await.ok().flatten().and_then(|issued| info(&issued).ok());
        let newer = stored.is_some_and(|s| s.common_name == given.common_name && s.not_after >= given.not_after);
        if !newer {
            files.update(&embedded, self.clock.now()).await?;
        }
        let pem = files.current_path();
        Ok(ClientConfig { credentials: Credentials::CertificateFiles { cert: pem.clone(), key: pem }, ..config })
    }

    /// Requests a certificate, stores it and writes the kubeconfig that references it. Authenticates with the node's
    /// expired certificate if there is one, and with the bootstrap credentials if there is none or it is rejected.
    pub(crate) async fn obtain(&self) -> Result<(), CertError> {
        if let Ok(own) = self.shown().await
            && matches!(own.credentials, Credentials::CertificateFiles { .. } | Credentials::Certificate { .. })
        {
            match self.obtain_with(&own, true).await {
                Ok(()) => return Ok(()),
                Err(e) if self.paths.bootstrap.is_some() => {
                    tracing::info!(error = %e, "the node's certificate is no longer accepted");
                }
                Err(e) => return Err(e),
            }
        }
        let with = self.bootstrap().await?;
        self.obtain_with(&with, false).await
    }

    /// Like [`ClientCertificate::obtain`], after the API server rejected the node's certificate. All clients then use
    /// the new one.
    pub(crate) async fn obtain_again(&self) -> Result<(), CertError> {
        if self.paths.bootstrap.is_none() {
            return Err(CertError::Stranger);
        }
        tracing::warn!("the API server rejects the node's certificate; using the bootstrap credentials");
        let with = self.bootstrap().await?;
        match self.obtain_with(&with, false).await {
            Err(e) if Standing::of_failure(&e) == Standing::Refused => Err(CertError::Outsider),
            Err(e) => Err(e),
            Ok(()) => self.reconnect().await,
        }
    }

    /// Reconnects the node's components with the current kubeconfig.
    pub(crate) async fn reconnect(&self) -> Result<(), CertError> {
        let shown = self.shown().await?;
        self.connections.lead_to(|| (self.connect)(&shown))
    }

    async fn obtain_with(&self, with: &ClientConfig, own: bool) -> Result<(), CertError> {
        clock::repair(with, &*self.clock, &clock::ThisMachine).await?;
        let client = self.client(with)?;
        if !wait_for_server(&client).await && !own {
            tracing::warn!("timed out waiting to connect to apiserver");
        }
        let (files, issued) = (self.paths.files(), self.issued(&client, with).await?);
        files.update(&issued, self.clock.now()).await?;
        // A certificate that is not found again would be requested repeatedly.
        if files.read().await?.is_none() {
            let what = files.current_path().display().to_string();
            return Err(CertError::File { what, source: std::io::ErrorKind::NotFound.into() });
        }
        self.write_kubeconfig(with).await?;
        files.forget_key().await;
        Ok(())
    }

    /// Requests a certificate for the current key, as upstream; else for that of an interrupted attempt; else for a new
    /// one. The name of a request is derived from its key, so a key whose certificate has expired, or was issued by a
    /// previous CA, leads to that certificate again: then the next key is used.
    async fn issued(&self, client: &Client, with: &ClientConfig) -> Result<Issued, CertError> {
        let files = self.paths.files();
        if let Ok(Some(there)) = files.read().await {
            match self.accepted(client, with, &there.key).await {
                Err(e) if e.is_of_the_past() => {
                    tracing::info!(error = %e, "the pending key cannot be used; creating a new one")
                }
                other => return other,
            }
        }
        match self.accepted(client, with, &files.key_to_ask_with().await?).await {
            Err(e) if e.is_of_the_past() => files.forget_key().await,
            other => return other,
        }
        self.accepted(client, with, &files.key_to_ask_with().await?).await
    }

    /// As [`ClientCertificate::request`]; a certificate that was there before is shown to the API, which may not accept it.
    async fn accepted(&self, client: &Client, with: &ClientConfig, key: &Key) -> Result<Issued, CertError> {
        let (issued, before) = self.request(client, key).await?;
        if let Some(name) = before {
            let (cert_pem, key_pem) = (issued.cert_pem.clone().into_bytes(), issued.key.to_pem().as_bytes().to_vec());
            let credentials = Credentials::Certificate { cert_pem, key_pem };
            let shown = self.client(&with.clone().under(credentials))?;
            if Standing::ask(&shown).await == Standing::Refused {
                return Err(CertError::Refused(name));
            }
        }
        Ok(issued)
    }

    /// Asks for the node's client certificate under this key, and waits for it. The name is of a request that was there before.
    pub(crate) async fn request(&self, client: &Client, key: &Key) -> Result<(Issued, Option<String>), CertError> {
        let wanted = RequestedCertificate {
            key,
            common_name: format!("system:node:{}", self.node_name),
            organizations: vec!["system:nodes".into()],
            sans: Vec::new(),
            signer: KUBE_APISERVER_CLIENT_KUBELET,
            usage: "client auth",
        };
        let answered = certificate(client, &wanted, CERTIFICATE_WAIT, &*self.clock).await?;
        let issued = Issued { cert_pem: answered.cert_pem, key: key.clone() };
        info(&issued)?;
        Ok((issued, answered.found.then_some(answered.name)))
    }

    async fn write_kubeconfig(&self, with: &ClientConfig) -> Result<(), CertError> {
        let pem = self.paths.files().current_path();
        let cluster = NamedCluster { name: "default-cluster".into(), cluster: with.cluster() };
        let user = NamedUser { name: "default-auth".into(), user: User::with_files(&pem, &pem) };
        let context = Context { cluster: cluster.name.clone(), user: user.name.clone() };
        let context = NamedContext { name: "default-context".into(), context };
        let current_context = context.name.clone();
        let kubeconfig =
            KubeconfigFile { clusters: vec![cluster], users: vec![user], contexts: vec![context], current_context };
        let file = self.paths.kubeconfig.clone();
        FILES
            .run(move || write_secret(&file, kubeconfig.to_yaml().as_bytes(), false))
            .await
            .map_err(|e| self.lane(e))??;
        Ok(())
    }
}

/// Whether the file loads, its TLS builds, and it has certificates of which none has ended.
pub fn still_valid(path: &Path, now: Timestamp) -> bool {
    let Ok(config) = ClientConfig::load(path) else { return false };
    if client_config(&config).is_err() {
        return false;
    }
    let pem = match &config.credentials {
        Credentials::Certificate { cert_pem, .. } => cert_pem.clone(),
        Credentials::CertificateFiles { cert, .. } => std::fs::read(cert).unwrap_or_default(),
        _ => return false,
    };
    let text = blocks(&String::from_utf8_lossy(&pem), |kind| kind == "CERTIFICATE");
    match kelson_pki::certificates_from_pem(&text) {
        Ok(chain) if !chain.is_empty() => {
            chain.iter().all(|c| kelson_pki::CertInfo::from_der(c).is_ok_and(|i| now <= i.not_after))
        }
        _ => false,
    }
}

async fn wait_for_server(client: &Client) -> bool {
    let work = async {
        loop {
            let ask = client.call(http::Method::GET, "/healthz", "", bytes::Bytes::new());
            let answer = tokio::time::timeout(SERVER_LIMIT, ask).await;
            // A rejection shows that the server is up. So does an invalid certificate, which waiting does not resolve.
            let refuses = |e: &ClientError| e.status().is_some() || Standing::of_error(e) != Standing::Untold;
            if answer.is_ok_and(|answer| answer.err().is_none_or(|e| refuses(&e))) {
                return;
            }
            tokio::time::sleep(SERVER_RETRY.mul_f64(rand::random_range(1.0..1.2))).await;
        }
    };
    tokio::time::timeout(SERVER_WAIT, work).await.is_ok()
}
