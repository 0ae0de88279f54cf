//! The API servers of a node's cluster: those of its flags, those that the cluster lists (the EndpointSlice of
//! `default/kubernetes`), and those that it listed before an earlier end of the node, which are in a file.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use kelson_client::kubeconfig::{Config, Credentials};
use kelson_client::remote::choose_server;
use kelson_client::servers::Servers;
use kelson_client::{Change, Client, Informer, InformerConfig};
use kelson_pki::write_secret;
use kelson_tasks::{FILES, Tasks};
use serde::{Deserialize, Serialize};

use crate::server_slice::{NAME, NAMESPACE, ServerSlice};

/// The file of the servers that the cluster listed, in the data directory.
const FILE: &str = "servers.json";

/// The servers of a cluster, as the flags of a node name them.
#[derive(Clone)]
pub struct ApiServers {
    /// The choice that all connections of the node share.
    pub choice: Arc<Servers>,
    given: Vec<String>,
}

impl ApiServers {
    /// Returns the servers of an agent: those of its flags, and those in its data directory.
    pub fn of_agent(given: &[String], dir: &Path, node: &str) -> anyhow::Result<Self> {
        let choice = Servers::new(given, node).context("--server")?.remembering(&remembered(dir));
        Ok(Self { choice: Arc::new(choice), given: given.to_vec() })
    }

    /// Returns the servers of a server's own node, which prefers the server of its process.
    pub fn of_server(local_url: &str, dir: &Path, node: &str) -> anyhow::Result<Self> {
        let given = vec![local_url.to_owned()];
        let choice = Servers::new(&given, node)?.preferring_given().remembering(&remembered(dir));
        Ok(Self { choice: Arc::new(choice), given })
    }

    /// Returns the first given server.
    pub fn first(&self) -> &str {
        &self.given[0]
    }

    /// Returns a configuration that uses one of the servers at a time.
    pub fn config(&self, ca_pem: &str, credentials: Credentials) -> Config {
        let (server, servers) = (self.first().to_owned(), Some(Arc::clone(&self.choice)));
        Config { server, servers, ca_pem: ca_pem.into(), credentials, ..Config::default() }
    }

    /// Follows the servers that the cluster lists, writes them into the data directory, and uses another server when
    /// one does not answer, until `tasks` ends. `config` has the CA of the servers.
    pub fn follow(&self, dir: &Path, config: &Config, client: Client, tasks: &Tasks) {
        let (choice, config) = (Arc::clone(&self.choice), config.clone());
        tasks.supervise("api-server-choice", move || {
            choose_server(Config { servers: Some(Arc::clone(&choice)), ..config.clone() })
        });
        let given = InformerConfig {
            namespace: NAMESPACE.to_owned(),
            fields: format!("metadata.name={NAME}"),
            ..InformerConfig::default()
        };
        let choice = Arc::clone(&self.choice);
        let listed = Informer::<ServerSlice>::new(client, given).on_change(move |change| {
            // A deleted slice says nothing about the servers.
            if !matches!(change, Change::Deleted(_)) {
                choice.learn(&change.object().ready_urls());
            }
        });
        let (listed, choice, file) = (listed.start_in(tasks), Arc::clone(&self.choice), dir.join(FILE));
        tasks.supervise("api-server-list", move || {
            let (listed, choice, file) = (listed.clone(), Arc::clone(&choice), file.clone());
            async move {
                let _listed = listed;
                keep_file(&choice, file).await;
            }
        });
    }
}

impl fmt::Display for ApiServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.given.join(","))
    }
}

/// Lets a command of this machine use the servers that the node of a data directory knows.
pub fn among_known(dir: &Path, config: Config) -> Config {
    match Servers::new(std::slice::from_ref(&config.server), "").map(|s| s.remembering(&remembered(dir))) {
        Ok(servers) if servers.are_several() => Config { servers: Some(Arc::new(servers)), ..config },
        _ => config,
    }
}

/// The content of [`FILE`].
#[derive(Default, Serialize, Deserialize)]
struct ServersFile {
    servers: Vec<String>,
}

/// Returns the servers that the cluster of a node listed before.
fn remembered(dir: &Path) -> Vec<String> {
    let file = dir.join(FILE);
    let Ok(text) = std::fs::read(&file) else { return Vec::new() };
    match kelson_meta::from_json::<ServersFile>(&text) {
        Ok(known) => known.servers,
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "the file of API servers is not valid; using --server");
            Vec::new()
        }
    }
}

/// Writes the listed servers whenever they change.
async fn keep_file(choice: &Servers, file: PathBuf) {
    let mut changes = choice.changes();
    let mut written = Vec::new();
    loop {
        let servers = choice.learned();
        if !servers.is_empty() && servers != written {
            match save(&file, servers.clone()).await {
                Ok(()) => written = servers,
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(error, "writing the list of API servers failed; retrying when it changes");
                }
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn save(file: &Path, servers: Vec<String>) -> anyhow::Result<()> {
    let (path, text) = (file.to_owned(), serde_json::to_vec_pretty(&ServersFile { servers })?);
    Ok(FILES.run(move || write_secret(&path, &text, true)).await??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_restart_knows_the_servers_although_the_given_one_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let given = ["https://10.0.0.1:6443".to_owned()];
        let first = ApiServers::of_agent(&given, dir.path(), "n").unwrap();
        assert!(!first.choice.are_several());
        let listed = ["10.0.0.2", "10.0.0.3"].map(|ip| format!("https://{ip}:6443"));
        first.choice.learn(&listed);
        save(&dir.path().join(FILE), first.choice.learned()).await.unwrap();

        let again = ApiServers::of_agent(&given, dir.path(), "n").unwrap();
        let order = |servers: &Servers| servers.order().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(listed.iter().all(|url| order(&again.choice).contains(&format!("{url}/"))));
        let own = ApiServers::of_server("https://127.0.0.1:6443", dir.path(), "n").unwrap();
        assert_eq!((order(&own.choice)[0].as_str(), order(&own.choice).len()), ("https://127.0.0.1:6443/", 3));
        let command = among_known(dir.path(), Config { server: given[0].clone(), ..Config::default() });
        assert_eq!(order(&command.servers.unwrap()).len(), 3);
        assert!(
            among_known(Path::new("/none"), Config { server: given[0].clone(), ..Config::default() }).servers.is_none()
        );
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(!ApiServers::of_agent(&given, dir.path(), "n").unwrap().choice.are_several(), "the flag is enough");
        assert!(ApiServers::of_agent(&["http://a".to_owned()], dir.path(), "n").is_err());
    }
}
