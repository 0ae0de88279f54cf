//! The servers of a cluster during a rotation of its CAs: all must have the same CAs, and each has them in its own directory.
use std::fmt;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use http::Method;
use kelson_client::kubeconfig::Config;
use kelson_client::remote::Remote;
use kelson_client::{Client, ClientError};

use crate::reach::{CERTIFICATE_FAULT, ask};
use crate::server_slice::{NAME, NAMESPACE, ServerSlice};

/// A server that does not use the new CAs, or may not.
#[derive(Debug, PartialEq, Eq)]
pub struct LateServer {
    /// Its URL.
    pub url: String,
    /// Why the answer is not known; `None` if its certificate is of another CA.
    pub unknown: Option<String>,
}

impl fmt::Display for LateServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.unknown {
            None => f.write_str(&self.url),
            Some(why) => write!(f, "{} ({why})", self.url),
        }
    }
}

/// Returns the URLs of all servers that the cluster lists.
pub async fn listed(client: &Client) -> anyhow::Result<Vec<String>> {
    let slice = client.get_opt::<ServerSlice>(NAMESPACE, NAME).await.context("list the servers")?;
    Ok(slice.map(|slice| slice.urls()).unwrap_or_default())
}

/// Returns the servers whose certificates are not of this CA.
pub async fn late(urls: &[String], ca_pem: &str) -> Vec<LateServer> {
    let mut late = Vec::new();
    for url in urls {
        let config = Config { server: url.clone(), ca_pem: ca_pem.into(), ..Config::default() };
        match Remote::new(config) {
            Ok(remote) => late.extend(asked(url, &Client::new(Arc::new(remote), "rotate-ca")).await),
            Err(error) => late.push(LateServer { url: url.clone(), unknown: Some(error.to_string()) }),
        }
    }
    late
}

/// Returns the server if this client does not trust its certificate, or got no answer.
async fn asked(url: &str, client: &Client) -> Option<LateServer> {
    let unknown = match ask(client.raw(Method::GET, "/version", "", Bytes::new())).await {
        Err(ClientError::Transport(e)) if e.to_string().contains(CERTIFICATE_FAULT) => None,
        Err(ClientError::Transport(e)) => Some(e.to_string()),
        // An answer, even a rejection, came over a connection that the CA verifies.
        _ => return None,
    };
    Some(LateServer { url: url.to_owned(), unknown })
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use jiff::Timestamp;
    use kelson_apiserver::{ApiServer, Config as ServerConfig, ServingConfig};
    use kelson_pki::{ClusterPki, PkiOptions, San, SwappableCertificate};
    use kelson_store::{Store, StoreOptions};

    use super::*;

    #[tokio::test]
    async fn a_server_with_another_ca_or_without_an_answer_is_late() {
        let dir = tempfile::tempdir().unwrap();
        let (now, loopback) = (Timestamp::now(), IpAddr::from([127, 0, 0, 1]));
        let [new, old] =
            ["new", "old"].map(|name| ClusterPki::open(&PkiOptions::new(dir.path().join(name)), now).unwrap());
        let mut config = ServerConfig::new(Store::in_memory(StoreOptions::default()));
        let names = ClusterPki::server_sans("cluster.local", loopback, &[San::Ip(loopback)]);
        let certificate = SwappableCertificate::new(&new.issue_server(&names, now).unwrap()).unwrap();
        config.serving = Some(ServingConfig { bind: SocketAddr::new(loopback, 0), certificate });
        config.advertise_address = IpAddr::from([192, 0, 2, 1]);
        let api = ApiServer::start(config).await.unwrap();
        let url = format!("https://{}", api.local_addr().unwrap());

        assert_eq!(late(std::slice::from_ref(&url), new.ca.cert_pem()).await, []);
        let with_other = late(std::slice::from_ref(&url), old.ca.cert_pem()).await;
        assert_eq!(with_other, [LateServer { url: url.clone(), unknown: None }]);
        let away = late(&["https://127.0.0.1:1".to_owned()], new.ca.cert_pem()).await;
        assert!(away[0].unknown.is_some() && away[0].to_string().starts_with("https://127.0.0.1:1 ("), "{away:?}");

        let user = kelson_auth::UserInfo::new("admin", [kelson_auth::user::MASTERS]);
        let servers = listed(&Client::new(api.in_process(user), "test")).await.unwrap();
        let port = api.local_addr().unwrap().port();
        assert_eq!(servers, [format!("https://192.0.2.1:{port}")]);
        api.shutdown().await;
    }
}
