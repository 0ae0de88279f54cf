//! TLS with certificates that are reloaded from their files, and with client certificates.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kelson_pki::{ClientChains, Key, certificates_from_pem, provider};
use kelson_tasks::{FILES, Tasks};
use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use super::options::{StartError, TlsFiles};

/// The interval at which the files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Accepts connections with the newest certificates.
#[derive(Clone)]
pub(super) struct Acceptor(Arc<RwLock<TlsAcceptor>>);

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").finish_non_exhaustive()
    }
}

/// The content of the files.
#[derive(PartialEq, Eq)]
struct Texts {
    certificate: String,
    key: String,
    authority: Option<String>,
}

/// Returns the error for an endpoint with TLS and without certificates.
pub(super) fn missing() -> StartError {
    StartError::Tls("https URLs require --cert-file and --key-file".to_owned())
}

impl Acceptor {
    pub async fn load(files: TlsFiles, tasks: &Tasks) -> Result<Self, StartError> {
        let first = read(files.clone()).await.map_err(StartError::Tls)?;
        let made = accept(&first).map_err(StartError::Tls)?;
        let acceptor = Self(Arc::new(RwLock::new(made)));
        let of = acceptor.clone();
        let first = Arc::new(first);
        tasks.supervise("etcd-certificates", move || of.clone().follow(files.clone(), Arc::clone(&first)));
        Ok(acceptor)
    }

    pub fn get(&self) -> TlsAcceptor {
        self.0.read().clone()
    }

    /// Reloads changed files; if they are invalid, the last valid ones stay in use.
    async fn follow(self, files: TlsFiles, first: Arc<Texts>) {
        let mut last = first;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Ok(texts) = read(files.clone()).await else { continue };
            if texts == *last {
                continue;
            }
            match accept(&texts) {
                Ok(made) => {
                    *self.0.write() = made;
                    tracing::info!(certificate = %files.certificate.display(), "reloaded changed certificates");
                }
                Err(error) => tracing::warn!(error, "changed certificates are invalid; keeping the current ones"),
            }
            last = Arc::new(texts);
        }
    }
}

async fn read(files: TlsFiles) -> Result<Texts, String> {
    let text = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let read = move || {
        let authority = files.client_authority.as_deref().map(text).transpose()?;
        Ok(Texts { certificate: text(&files.certificate)?, key: text(&files.key)?, authority })
    };
    FILES.run(read).await.unwrap_or_else(|error| Err(error.to_string()))
}

fn accept(texts: &Texts) -> Result<TlsAcceptor, String> {
    server_config(texts).map(|config| TlsAcceptor::from(Arc::new(config)))
}

fn server_config(texts: &Texts) -> Result<ServerConfig, String> {
    let chain = certificates_from_pem(&texts.certificate).map_err(|error| error.to_string())?;
    let key = Key::from_pem(&texts.key).map_err(|error| error.to_string())?;
    let certified = Arc::new(CertifiedKey::new(chain, key.signing()));
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    let builder = match &texts.authority {
        None => builder.with_no_client_auth(),
        Some(text) => {
            let chains = ClientChains::new(&[text]).map_err(|error| format!("--trusted-ca-file: {error}"))?;
            builder.with_client_cert_verifier(chains.verifier())
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use kelson_doubles::chains::{believes_client, key_pem, rows_of};
    use kelson_pki::Usage;

    use super::*;

    #[test]
    fn clients_are_believed_as_go_believes_them() {
        for row in rows_of(Usage::Client) {
            let own = row.shown.first().map(|der| kelson_pki::pem_block("CERTIFICATE", der)).expect("a certificate");
            let texts = Texts { certificate: own, key: key_pem(), authority: Some(row.bundle_pem()) };
            let believed = believes_client(server_config(&texts).expect("a server"), &row);
            assert_eq!(believed.is_ok(), row.is_accepted, "{}: {believed:?}", row.what);
        }
    }
}
