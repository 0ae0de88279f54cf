//! The kubeconfig files of a node. They name the server that the node uses, so that they work for people and for the next
//! start although the server of the flag is gone for good.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or in the lane for files")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kelson_client::kubeconfig::{Config, Credentials};
use kelson_client::servers::Servers;
use kelson_pki::{Kubeconfig, PkiError, UserCredential};
use kelson_tasks::{FILES, Tasks};

/// Returns the URL of the server in use; at a start the preferred one of those that the cluster listed before.
pub fn in_use(choice: &Servers) -> String {
    choice.current().0.to_string().trim_end_matches('/').to_owned()
}

/// Writes the server, and the CAs, into a kubeconfig with a client certificate, if it has other ones. Credentials of an
/// earlier start stay valid.
pub fn name_server(file: &Path, server: &str, ca_pem: &str, ca_file: &Path) -> Result<(), PkiError> {
    let Ok(there) = Config::load(file) else { return Ok(()) };
    let Credentials::CertificateFiles { cert, key } = there.credentials else { return Ok(()) };
    if there.server == server && there.ca_file.as_deref() == Some(ca_file) {
        return Ok(());
    }
    if there.server != server {
        tracing::info!(file = %file.display(), from = there.server, to = server, "the kubeconfig names another API server from now on");
    }
    let named = Kubeconfig {
        cluster: "default-cluster".into(),
        user: "default-auth".into(),
        server: server.to_owned(),
        ca_pem: ca_pem.to_owned(),
        ca_file: Some(ca_file.to_owned()),
        credential: UserCredential::CertificateFiles { cert, key },
    };
    named.write(file)
}

/// Writes the server in use into a kubeconfig whenever the node uses another one, until `tasks` ends.
pub fn follow(file: PathBuf, choice: &Arc<Servers>, tasks: &Tasks) {
    let choice = Arc::clone(choice);
    tasks.supervise("kubeconfig-server", move || {
        let (file, choice) = (file.clone(), Arc::clone(&choice));
        async move {
            let mut switches = choice.switches();
            loop {
                let (file, server) = (file.clone(), in_use(&choice));
                let shown = file.display().to_string();
                let written = FILES.run(move || name_again(&file, &server)).await;
                if let Ok(Err(error)) = written {
                    tracing::warn!(file = shown, %error, "writing the server in use failed; retrying when the node uses another server");
                }
                if switches.changed().await.is_err() {
                    return;
                }
            }
        }
    });
}

/// Writes another server into a kubeconfig, and nothing else.
fn name_again(file: &Path, server: &str) -> Result<(), PkiError> {
    let Ok(there) = Config::load(file) else { return Ok(()) };
    let Some(ca_file) = there.ca_file.clone() else { return Ok(()) };
    name_server(file, server, &String::from_utf8_lossy(&there.ca_pem), &ca_file)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kelson_client::servers::{Previous, server_url};

    use super::*;

    /// A kubeconfig of a node that joined by a server.
    fn joined(dir: &Path, server: &str) -> PathBuf {
        let (file, ca_file) = (dir.join("kubeconfig"), dir.join("ca.crt"));
        std::fs::write(&ca_file, "").unwrap();
        let [cert, key] = ["client.crt", "client.key"].map(|name| dir.join(name));
        let config = Kubeconfig {
            cluster: "default-cluster".into(),
            user: "default-auth".into(),
            server: server.into(),
            ca_pem: String::new(),
            ca_file: Some(ca_file),
            credential: UserCredential::CertificateFiles { cert, key },
        };
        config.write(&file).unwrap();
        file
    }

    async fn names(file: &Path, server: &str) {
        let written = async {
            while Config::load(file).unwrap().server != server {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), written).await.expect("the file names the server in use");
    }

    #[tokio::test]
    async fn the_file_names_the_server_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = ["1", "2"].map(|n| format!("https://10.0.0.{n}:6443"));
        let file = joined(dir.path(), &first);
        // The cluster has one server, and lists none: the other one of the flag never answered.
        let choice = Arc::new(Servers::new(&[first.clone(), second.clone()], "n").unwrap());
        let before = Config::load(&file).unwrap();
        let tasks = Tasks::root("test");
        follow(file.clone(), &choice, &tasks);
        for server in [&second, &first, &second] {
            choice.switch(&server_url(server).unwrap(), Previous::Cut);
            names(&file, server).await;
        }
        let after = Config::load(&file).unwrap();
        assert_eq!(after.ca_file, before.ca_file);
        assert_eq!(format!("{:?}", after.credentials), format!("{:?}", before.credentials));
        tasks.shutdown(Duration::from_secs(1)).await;
    }

    #[test]
    fn a_start_without_the_first_server_names_one_that_was_listed() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = ["1", "2"].map(|n| format!("https://10.0.0.{n}:6443"));
        let file = joined(dir.path(), &first);
        let known = [second.clone(), "https://10.0.0.3:6443".to_owned()];
        let choice = Servers::new(std::slice::from_ref(&first), "n").unwrap().remembering(&known);
        let server = in_use(&choice);
        assert!(known.contains(&server), "{server}");
        name_server(&file, &server, "", &dir.path().join("ca.crt")).unwrap();
        assert_eq!(Config::load(&file).unwrap().server, server);
    }

    #[test]
    fn a_file_of_another_form_stays() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        name_again(&file, "https://10.0.0.2:6443").unwrap();
        assert!(!file.exists(), "the node has not joined yet");
        std::fs::write(&file, "broken").unwrap();
        name_again(&file, "https://10.0.0.2:6443").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "broken");
    }
}
