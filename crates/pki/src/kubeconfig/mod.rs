//! Kubeconfig files: what they say ([`file`]), and those that Kelson writes. In the latter everything is embedded, so that
//! the file works wherever it is copied, but for credentials that rotate.
mod file;

use std::fmt;
use std::path::{Path, PathBuf};

pub use file::{
    Cluster, Context, Impersonation, KubeconfigError, KubeconfigFile, NamedCluster, NamedContext, NamedUser, Source,
    User,
};

use crate::file::write_secret;
use crate::{Issued, PkiError};

/// The kind of credential of a kubeconfig's user.
#[derive(Clone)]
pub enum UserCredential {
    /// Certificate and key, embedded.
    Certificate(Box<Issued>),
    /// Files that rotate in place (a kubelet's).
    CertificateFiles {
        /// Certificate, or certificate and key in one.
        cert: PathBuf,
        /// File of the private key, perhaps the same one.
        key: PathBuf,
    },
    /// A bearer token.
    Token(String),
}

impl fmt::Debug for UserCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Certificate(_) => "Certificate(..)",
            Self::CertificateFiles { .. } => "CertificateFiles(..)",
            Self::Token(_) => "Token(..)",
        })
    }
}

/// A kubeconfig with one cluster, one user, one context.
#[derive(Clone, Debug)]
pub struct Kubeconfig {
    /// Name of the cluster entry.
    pub cluster: String,
    /// Name of the user entry.
    pub user: String,
    /// The API server, as `https://HOST:PORT`.
    pub server: String,
    /// CA bundle the server's certificate is checked with.
    pub ca_pem: String,
    /// The file that holds this bundle, which may change; it is named then instead of being embedded.
    pub ca_file: Option<PathBuf>,
    /// The user's proof.
    pub credential: UserCredential,
}

impl Kubeconfig {
    /// Formats the file as YAML. The result is secret.
    pub fn to_yaml(&self) -> String {
        let user = match &self.credential {
            UserCredential::Certificate(issued) => User::with_certificate(&issued.cert_pem, &issued.key.to_typed_pem()),
            UserCredential::CertificateFiles { cert, key } => User::with_files(cert, key),
            UserCredential::Token(token) => User::with_token(token),
        };
        let (cluster, name) = (self.cluster.clone(), format!("{}@{}", self.user, self.cluster));
        let entry = match &self.ca_file {
            Some(file) => Cluster::with_ca_file(&self.server, file),
            None => Cluster::new(&self.server, &self.ca_pem),
        };
        let context = Context { cluster: cluster.clone(), user: self.user.clone() };
        let file = KubeconfigFile {
            clusters: vec![NamedCluster { name: cluster, cluster: entry }],
            users: vec![NamedUser { name: self.user.clone(), user }],
            contexts: vec![NamedContext { name: name.clone(), context }],
            current_context: name,
        };
        file.to_yaml()
    }

    /// Writes the file, mode 0600, atomically.
    pub fn write(&self, path: &Path) -> Result<(), PkiError> {
        write_secret(path, self.to_yaml().as_bytes(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_silence() {
        let k = Kubeconfig {
            cluster: "kelson".into(),
            user: "admin".into(),
            server: "https://127.0.0.1:6443".into(),
            ca_pem: "CA".into(),
            ca_file: None,
            credential: UserCredential::Token("s3cret\"".into()),
        };
        let text = k.to_yaml();
        let file = KubeconfigFile::parse(text.as_bytes()).unwrap();
        assert_eq!(file.current_context, "admin@kelson");
        let (cluster, user) = file.current().unwrap();
        assert_eq!(cluster.server, "https://127.0.0.1:6443");
        let token = user.unwrap().token(Path::new("")).load().unwrap();
        assert_eq!(token.as_deref(), Some(b"s3cret\"".as_slice()));
        assert!(!format!("{k:?}").contains("s3cret"));
    }
}
