//! Reads the part of a kubeconfig that a component uses: the current context's server, CA and credentials. Exec plugins
//! and auth providers are not followed.
use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde::Deserialize;

/// What is needed to reach a server.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The API server: `https://host:port`, perhaps with a path before `/api`.
    pub server: String,
    /// PEM of the CA; empty: the connection cannot be verified and is refused.
    pub ca_pem: Vec<u8>,
    /// Name to verify instead of the host's.
    pub tls_server_name: Option<String>,
    /// Whether the server's certificate is taken as it comes. Only for reading what proves itself, such as a signed
    /// `cluster-info`: no credentials are sent over such a connection.
    pub insecure_skip_tls_verify: bool,
    /// Who the client is.
    pub credentials: Credentials,
}

/// How a client proves who it is. Never printed.
#[derive(Clone, Default)]
pub enum Credentials {
    /// No credentials: the server sees `system:anonymous`, if it serves that at all.
    #[default]
    None,
    /// A bearer token.
    Token(String),
    /// A bearer token that is re-read from a file when it changes.
    TokenFile(PathBuf),
    /// PEM certificate chain and key.
    Certificate {
        /// Chain, leaf first.
        cert_pem: Vec<u8>,
        /// The private key, PEM.
        key_pem: Vec<u8>,
    },
    /// PEM files, re-read when they change (rotation); both may be one file.
    CertificateFiles {
        /// File with the certificate and those that sign it, PEM.
        cert: PathBuf,
        /// File with the private key, PEM.
        key: PathBuf,
    },
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Token(_) => "Token(..)",
            Self::TokenFile(_) => "TokenFile(..)",
            Self::Certificate { .. } => "Certificate(..)",
            Self::CertificateFiles { .. } => "CertificateFiles(..)",
        })
    }
}

/// Why a kubeconfig cannot be used; the message names the file's field.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct KubeconfigError(String);

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct File {
    #[serde(rename = "current-context")]
    current_context: String,
    contexts: Vec<Named<Context>>,
    clusters: Vec<Named<Cluster>>,
    users: Vec<Named<User>>,
}

#[derive(Deserialize)]
struct ClusterFile {
    clusters: Vec<Named<Cluster>>,
}

#[derive(Deserialize)]
struct Named<T> {
    name: String,
    #[serde(alias = "context", alias = "cluster", alias = "user")]
    value: T,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    tls_server_name: Option<String>,
    insecure_skip_tls_verify: bool,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
}

impl Config {
    /// Reads a file; relative paths inside it are relative to it.
    pub fn load(path: &Path) -> Result<Self, KubeconfigError> {
        let text = std::fs::read(path).map_err(|e| KubeconfigError(format!("{}: {e}", path.display())))?;
        Self::parse(&text, path.parent().unwrap_or(Path::new("."))).map_err(|e| {
            let KubeconfigError(why) = e;
            KubeconfigError(format!("{}: {why}", path.display()))
        })
    }

    /// Reads the JSON or YAML of a kubeconfig.
    pub fn parse(text: &[u8], base: &Path) -> Result<Self, KubeconfigError> {
        let file: File = parse_yaml(text)?;
        let context = pick(&file.contexts, &file.current_context, "context")?;
        let cluster = pick(&file.clusters, &context.cluster, "cluster")?;
        let none = User::default();
        let user = if context.user.is_empty() { &none } else { pick(&file.users, &context.user, "user")? };
        let ca_pem = match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
            (Some(d), _) => decode("certificate-authority-data", d)?,
            (None, Some(p)) => read(&base.join(p))?,
            (None, None) => Vec::new(),
        };
        Ok(Self {
            server: cluster.server.clone(),
            ca_pem,
            tls_server_name: cluster.tls_server_name.clone(),
            insecure_skip_tls_verify: cluster.insecure_skip_tls_verify,
            credentials: credentials(user, base)?,
        })
    }

    /// Reads the one cluster of a kubeconfig that has no context and no user, as `cluster-info` holds it.
    pub fn parse_cluster(text: &[u8]) -> Result<Self, KubeconfigError> {
        let file: ClusterFile = parse_yaml(text)?;
        let [Named { value: cluster, .. }] = file.clusters.as_slice() else {
            return Err(KubeconfigError(format!("expected one cluster, found {}", file.clusters.len())));
        };
        let ca_pem = match &cluster.certificate_authority_data {
            Some(d) => decode("certificate-authority-data", d)?,
            None => return Err(KubeconfigError("certificate-authority-data is missing".into())),
        };
        Ok(Self { server: cluster.server.clone(), ca_pem, ..Self::default() })
    }
}

fn credentials(user: &User, base: &Path) -> Result<Credentials, KubeconfigError> {
    if let Some(file) = &user.token_file {
        return Ok(Credentials::TokenFile(base.join(file)));
    }
    if let Some(token) = &user.token {
        return Ok(Credentials::Token(token.clone()));
    }
    if let (Some(cert), Some(key)) = (&user.client_certificate_data, &user.client_key_data) {
        let cert_pem = decode("client-certificate-data", cert)?;
        return Ok(Credentials::Certificate { cert_pem, key_pem: decode("client-key-data", key)? });
    }
    match (&user.client_certificate, &user.client_key) {
        (Some(cert), Some(key)) => Ok(Credentials::CertificateFiles { cert: base.join(cert), key: base.join(key) }),
        _ => Ok(Credentials::None),
    }
}

fn pick<'a, T>(list: &'a [Named<T>], name: &str, what: &str) -> Result<&'a T, KubeconfigError> {
    let found = list.iter().find(|n| n.name == name).map(|n| &n.value);
    found.ok_or_else(|| KubeconfigError(format!("{what} {name:?} does not exist")))
}

fn decode(field: &str, data: &str) -> Result<Vec<u8>, KubeconfigError> {
    let decoded = base64::engine::general_purpose::STANDARD.decode(data.trim());
    decoded.map_err(|_| KubeconfigError(format!("{field} is not base64")))
}

fn read(path: &Path) -> Result<Vec<u8>, KubeconfigError> {
    std::fs::read(path).map_err(|e| KubeconfigError(format!("{}: {e}", path.display())))
}

fn parse_yaml<T: serde::de::DeserializeOwned>(text: &[u8]) -> Result<T, KubeconfigError> {
    let (mut tree, duplicates) = kelson_codec::yaml::to_value(text).map_err(|e| KubeconfigError(e.to_string()))?;
    if let Some(duplicate) = duplicates.first() {
        return Err(KubeconfigError(format!("yaml: {duplicate}")));
    }
    numbers_as_text(&mut tree);
    serde_json::from_value(tree).map_err(|e| KubeconfigError(e.to_string()))
}

/// No field of a kubeconfig is a number, but a name or a token may look like one; and a field that is null is not set.
fn numbers_as_text(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Number(number) => *value = number.to_string().into(),
        serde_json::Value::Array(items) => items.iter_mut().for_each(numbers_as_text),
        serde_json::Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(numbers_as_text);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
apiVersion: v1
kind: Config
current-context: c
clusters:
- name: k
  cluster: {server: 'https://127.0.0.1:6443', certificate-authority-data: aGk=}
users:
- name: u
  user: {client-certificate: a.pem, client-key: a.pem}
contexts:
- name: c
  context: {cluster: k, user: u}
";

    #[test]
    fn reads_the_current_context() {
        let c = Config::parse(FILE.as_bytes(), Path::new("/etc/x")).unwrap();
        assert_eq!((c.server.as_str(), c.ca_pem.as_slice()), ("https://127.0.0.1:6443", b"hi".as_slice()));
        let Credentials::CertificateFiles { cert, .. } = c.credentials else { panic!("certificate files") };
        assert_eq!(cert, Path::new("/etc/x/a.pem"));
    }

    #[test]
    fn reads_text_that_looks_like_a_number_and_lists_that_are_null() {
        let file =
            FILE.replace("{client-certificate: a.pem, client-key: a.pem}", "{token: 12345}") + "extensions: null\n";
        let Credentials::Token(token) = Config::parse(file.as_bytes(), Path::new(".")).unwrap().credentials else {
            panic!("a token")
        };
        assert_eq!(token, "12345");
        let twice = format!("{FILE}current-context: c\n");
        assert!(Config::parse(twice.as_bytes(), Path::new(".")).is_err(), "which context is meant?");
    }

    #[test]
    fn reads_a_cluster_alone() {
        let text = "apiVersion: v1\nclusters:\n- cluster: {certificate-authority-data: aGk=, server: 'https://h:1'}\n  \
                    name: ''\ncontexts: null\ncurrent-context: ''\nkind: Config\nusers: null\n";
        let c = Config::parse_cluster(text.as_bytes()).unwrap();
        assert_eq!((c.server.as_str(), c.ca_pem.as_slice()), ("https://h:1", b"hi".as_slice()));
        assert!(Config::parse_cluster(b"clusters: []").is_err());
        assert!(Config::parse_cluster(b"clusters: [{name: '', cluster: {server: 'https://h:1'}}]").is_err());
    }

    #[test]
    fn names_what_is_missing() {
        let e = Config::parse(FILE.replace("current-context: c", "current-context: z").as_bytes(), Path::new("."));
        assert_eq!(e.unwrap_err().to_string(), "context \"z\" does not exist");
    }
}
