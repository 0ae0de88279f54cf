//! TLS bootstrap: from a kubeconfig with a token to one with the node's own certificate (upstream:
//! `pkg/kubelet/certificate/bootstrap/bootstrap.go`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, removals in one of their own")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kelson_client::Client;
use kelson_client::kubeconfig::{Config as ClientConfig, Credentials};
use kelson_client::remote::{Remote, client_config};
use kelson_meta::Clock;
use kelson_pki::{Issued, KUBE_APISERVER_CLIENT_KUBELET, Key, Kubeconfig, UserCredential};
use kelson_tasks::FILES;

use super::request::{Wanted, certificate, digested_name};
use super::store::{Store, blocks};
use super::{CertError, store};

/// The key while its certificate is not there yet, so that a restart asks with the same one.
const KEY_TMP: &str = "kubelet-client.key.tmp";
/// How long the server may take to come up before the request is tried nevertheless.
const SERVER_WAIT: Duration = Duration::from_secs(60);
/// Between attempts to reach it, jittered by a fifth.
const SERVER_RETRY: Duration = Duration::from_secs(2);
/// How long one attempt to reach the server may take.
const SERVER_LIMIT: Duration = Duration::from_secs(1);
/// How long approval and signing may take.
const CERTIFICATE_WAIT: Duration = Duration::from_secs(3600);

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

/// The client configuration the kubelet is to run with; bootstraps first where that is asked for and needed.
pub async fn load(paths: &Paths, node_name: &str, clock: &Arc<dyn Clock>) -> Result<ClientConfig, CertError> {
    let kubeconfig = async |which: &'static str, path: &Path| {
        let file = path.to_owned();
        let loaded = FILES.run(move || ClientConfig::load(&file)).await;
        let loaded = loaded.map_err(|e| CertError::Kubeconfig { which, why: e.to_string() })?;
        loaded.map_err(|e| CertError::Kubeconfig { which, why: e.to_string() })
    };
    let Some(bootstrap) = &paths.bootstrap else {
        return kubeconfig("the", &paths.kubeconfig).await;
    };
    let (file, now) = (paths.kubeconfig.clone(), clock.now());
    if FILES.run(move || still_valid(&file, now)).await.unwrap_or(false) {
        tracing::info!(path = %paths.kubeconfig.display(), "kubeconfig exists and is valid, skipping bootstrap");
        return kubeconfig("the", &paths.kubeconfig).await;
    }
    tracing::info!("using bootstrap kubeconfig to request a client certificate");
    let with = kubeconfig("bootstrap", bootstrap).await?;
    obtain(paths, &with, node_name, clock).await?;
    kubeconfig("the", &paths.kubeconfig).await
}

/// Whether the file loads, its TLS builds, and it has certificates of which none has ended.
pub fn still_valid(path: &Path, now: jiff::Timestamp) -> bool {
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

async fn obtain(paths: &Paths, with: &ClientConfig, node_name: &str, clock: &Arc<dyn Clock>) -> Result<(), CertError> {
    let remote = Remote::new(with.clone());
    let remote = remote.map_err(|e| CertError::Kubeconfig { which: "bootstrap", why: e.to_string() })?;
    let client = Client::new(Arc::new(remote), "kubelet");
    let files = Store::new("kubelet-client", &paths.cert_dir);
    let tmp = paths.cert_dir.join(KEY_TMP);
    let key = {
        let (dir, files, tmp) = (paths.cert_dir.clone(), files.clone(), tmp.clone());
        let lane = |e| CertError::File { what: paths.cert_dir.display().to_string(), source: std::io::Error::other(e) };
        FILES.run(move || key_to_ask_with(&dir, &files, &tmp)).await.map_err(lane)??
    };
    if !wait_for_server(&client).await {
        tracing::warn!("timed out waiting to connect to apiserver");
    }
    let issued = request_client(&client, &key, node_name, true).await?;
    files.update(&issued, clock.now()).await?;
    FILES.later(move || {
        if let Err(e) = std::fs::remove_file(&tmp)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            tracing::info!(path = %tmp.display(), error = %e, "temporary key not removed");
        }
    });
    let pem = files.current_path();
    let kubeconfig = Kubeconfig {
        cluster: "default-cluster".into(),
        user: "default-auth".into(),
        server: with.server.clone(),
        ca_pem: String::from_utf8_lossy(&with.ca_pem).into_owned(),
        credential: UserCredential::CertificateFiles { cert: pem.clone(), key: pem },
    };
    let file = paths.kubeconfig.clone();
    let lane = |e| CertError::File { what: paths.kubeconfig.display().to_string(), source: std::io::Error::other(e) };
    FILES.run(move || kubeconfig.write(&file)).await.map_err(lane)??;
    Ok(())
}

/// The key of the last certificate, or else the one of an earlier attempt, so that an attempt that was cut short is taken up.
fn key_to_ask_with(dir: &Path, files: &Store, tmp: &Path) -> Result<Key, CertError> {
    std::fs::create_dir_all(dir).map_err(|source| CertError::File { what: dir.display().to_string(), source })?;
    match files.current() {
        Ok(Some(found)) => Ok(found.key),
        _ => Ok(Key::load_or_generate(tmp)?),
    }
}

async fn wait_for_server(client: &Client) -> bool {
    let work = async {
        loop {
            let ask = client.call(http::Method::GET, "/healthz", "", bytes::Bytes::new());
            if let Ok(Ok(_)) = tokio::time::timeout(SERVER_LIMIT, ask).await {
                return;
            }
            tokio::time::sleep(SERVER_RETRY.mul_f64(rand::random_range(1.0..1.2))).await;
        }
    };
    tokio::time::timeout(SERVER_WAIT, work).await.is_ok()
}

/// Asks for the node's client certificate. `named`: under the digest's name, as bootstrap does.
pub(crate) async fn request_client(
    client: &Client,
    key: &Key,
    node_name: &str,
    named: bool,
) -> Result<Issued, CertError> {
    let mut wanted = Wanted {
        key,
        common_name: format!("system:node:{node_name}"),
        organizations: vec!["system:nodes".into()],
        sans: Vec::new(),
        signer: KUBE_APISERVER_CLIENT_KUBELET,
        usage: "client auth",
        name: None,
    };
    wanted.name = named.then(|| digested_name(&wanted));
    let cert_pem = certificate(client, &wanted, CERTIFICATE_WAIT).await?;
    let issued = Issued { cert_pem, key: key.clone() };
    store::info(&issued)?;
    Ok(issued)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_pki::{Authority, LeafSpec, Purpose};

    #[tokio::test]
    async fn a_kubeconfig_is_valid_while_its_certificate_is() {
        let dir = tempfile::tempdir().expect("tempdir");
        let now = jiff::Timestamp::now();
        let ca = Authority::create("ca", now).expect("ca");
        let hour = Duration::from_secs(3600);
        let spec =
            LeafSpec { common_name: "n", organizations: &[], sans: &[], purpose: Purpose::Client, lifetime: hour };
        let issued = ca.issue(&spec, now).expect("leaf");
        let files = Store::new("kubelet-client", dir.path());
        files.update(&issued, now).await.expect("store");
        let path = dir.path().join("kubeconfig");
        let write = |credential| {
            let k = Kubeconfig {
                cluster: "c".into(),
                user: "u".into(),
                server: "https://127.0.0.1:1".into(),
                ca_pem: ca.cert_pem().to_owned(),
                credential,
            };
            k.write(&path).expect("kubeconfig");
        };
        assert!(!still_valid(&path, now), "missing");
        write(UserCredential::CertificateFiles { cert: files.current_path(), key: files.current_path() });
        assert!(still_valid(&path, now));
        assert!(!still_valid(&path, now + 2 * hour), "expired");
        write(UserCredential::Token("x".into()));
        assert!(!still_valid(&path, now), "no certificate");
    }
}
