//! Writing kubeconfig files. Everything is embedded, so that the file works wherever it is copied.
use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::{Issued, PkiError, file};

/// How the user of a kubeconfig proves who they are.
#[derive(Clone)]
pub enum UserCredential {
    /// Certificate and key, embedded.
    Certificate(Box<Issued>),
    /// Files that rotate in place (a kubelet's).
    CertificateFiles {
        /// Certificate, or certificate and key in one.
        cert: PathBuf,
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
    /// The user's proof.
    pub credential: UserCredential,
}

impl Kubeconfig {
    /// The file's text (YAML). Secret.
    pub fn to_yaml(&self) -> String {
        // JSON strings are YAML strings, so quoting by serde_json is right for any value.
        let quote = |s: &str| serde_json::Value::from(s).to_string();
        let (cluster, user) = (quote(&self.cluster), quote(&self.user));
        let context = quote(&format!("{}@{}", self.user, self.cluster));
        let credential = match &self.credential {
            UserCredential::Certificate(issued) => format!(
                "    client-certificate-data: {}\n    client-key-data: {}\n",
                STANDARD.encode(&issued.cert_pem),
                STANDARD.encode(issued.key.to_pem())
            ),
            UserCredential::CertificateFiles { cert, key } => format!(
                "    client-certificate: {}\n    client-key: {}\n",
                quote(&cert.to_string_lossy()),
                quote(&key.to_string_lossy())
            ),
            UserCredential::Token(token) => format!("    token: {}\n", quote(token)),
        };
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: {cluster}\n  cluster:\n    server: {}\n    \
             certificate-authority-data: {}\nusers:\n- name: {user}\n  user:\n{credential}contexts:\n- name: {context}\n  \
             context:\n    cluster: {cluster}\n    user: {user}\ncurrent-context: {context}\npreferences: {{}}\n",
            quote(&self.server),
            STANDARD.encode(&self.ca_pem),
        )
    }

    /// Writes the file, mode 0600, atomically.
    pub fn write(&self, path: &Path) -> Result<(), PkiError> {
        file::write_secret(path, self.to_yaml().as_bytes(), false)
    }
}

/// Value of a `key: value` line in a file written by [`Kubeconfig::to_yaml`].
pub(crate) fn embedded(text: &str, key: &str) -> Option<String> {
    let line = text.lines().map(str::trim).find_map(|l| l.strip_prefix(key)?.strip_prefix(": "))?;
    if line.starts_with('"') {
        return serde_json::from_str(line).ok();
    }
    String::from_utf8(STANDARD.decode(line).ok()?).ok()
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
            credential: UserCredential::Token("s3cret\"".into()),
        };
        let text = k.to_yaml();
        assert!(text.contains("    token: \"s3cret\\\"\"\n"));
        assert!(text.contains("current-context: \"admin@kelson\"\n"));
        assert_eq!(embedded(&text, "certificate-authority-data").as_deref(), Some("CA"));
        assert_eq!(embedded(&text, "server").as_deref(), Some("https://127.0.0.1:6443"));
        assert!(!format!("{k:?}").contains("s3cret"));
    }
}
