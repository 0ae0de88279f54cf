//! What a kubeconfig file says (`client.authentication` types of `k8s.io/client-go/tools/clientcmd/api/v1`), for all that
//! read or write one.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, or at start")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Why a kubeconfig is invalid; the message names the file's field.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct KubeconfigError(pub String);

/// The whole file.
#[derive(Serialize, Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
pub struct KubeconfigFile {
    /// Servers by name.
    pub clusters: Vec<NamedCluster>,
    /// Identities by name.
    pub users: Vec<NamedUser>,
    /// Pairs of a server and an identity, by name.
    pub contexts: Vec<NamedContext>,
    /// The name of the context that is meant where none is asked for.
    pub current_context: String,
}

/// An entry of `clusters`.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
pub struct NamedCluster {
    /// The name by which contexts refer to it.
    pub name: String,
    /// The server itself.
    pub cluster: Cluster,
}

/// An entry of `users`.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
pub struct NamedUser {
    /// The name by which contexts refer to it.
    pub name: String,
    /// The identity itself.
    pub user: User,
}

/// An entry of `contexts`.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
pub struct NamedContext {
    /// The name by which `current-context` refers to it.
    pub name: String,
    /// The pair itself.
    pub context: Context,
}

/// A server and an identity, by their names.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Context {
    /// The name of an entry in `clusters`.
    pub cluster: String,
    /// The name of an entry in `users`; empty means anonymous.
    pub user: String,
}

/// A server and how it is verified.
#[derive(Serialize, Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
pub struct Cluster {
    /// `https://host:port`, perhaps with a path before `/api`.
    pub server: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_authority: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_authority_data: Option<String>,
    /// Name to verify instead of the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_server_name: Option<String>,
    /// Whether the server's certificate is taken as it comes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure_skip_tls_verify: bool,
    /// The proxy that leads there (`http://` or `socks5://`); empty: what the environment says.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub proxy_url: String,
    /// Extensions by name; credential plugins get theirs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    extensions: Vec<NamedExtension>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct NamedExtension {
    name: String,
    extension: Value,
}

/// The user that a client impersonates (`as` and its like).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    /// The user's name (`as`).
    pub user: String,
    /// The user's UID (`as-uid`).
    pub uid: String,
    /// The user's groups (`as-groups`).
    pub groups: Vec<String>,
    /// Additional attributes of the user (`as-user-extra`).
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The credentials of a user.
#[derive(Serialize, Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
pub struct User {
    #[serde(skip_serializing_if = "Option::is_none")]
    client_certificate: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_certificate_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_key: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_key_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(rename = "tokenFile", skip_serializing_if = "Option::is_none")]
    token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "String::is_empty")]
    username: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    password: String,
    #[serde(skip_serializing_if = "Value::is_null")]
    exec: Value,
    #[serde(skip_serializing_if = "Value::is_null")]
    auth_provider: Value,
    #[serde(rename = "as", skip_serializing_if = "String::is_empty")]
    impersonate: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    as_uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    as_groups: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    as_user_extra: BTreeMap<String, Vec<String>>,
}

/// Data that is inline or in another file. `Debug` does not print it.
#[derive(Clone, Default)]
pub enum Source {
    /// It is not given.
    #[default]
    None,
    /// The content is in the kubeconfig.
    Data(Vec<u8>),
    /// It is in this file, which may change.
    File(PathBuf),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Data(_) => f.write_str("Data(..)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

impl Source {
    fn new(field: &str, data: Option<&String>, file: Option<&PathBuf>, base: &Path) -> Result<Self, KubeconfigError> {
        Ok(match (data.filter(|d| !d.is_empty()), file.filter(|f| !f.as_os_str().is_empty())) {
            (Some(data), _) => {
                let decoded = STANDARD.decode(data.trim());
                Self::Data(decoded.map_err(|_| KubeconfigError(format!("{field} is not base64")))?)
            }
            (None, Some(file)) => Self::File(base.join(file)),
            (None, None) => Self::None,
        })
    }

    /// Returns the data; `None` when there is none. Blocks if it is in a file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn load(&self) -> Result<Option<Vec<u8>>, KubeconfigError> {
        match self {
            Self::None => Ok(None),
            Self::Data(data) => Ok(Some(data.clone())),
            Self::File(path) => {
                std::fs::read(path).map(Some).map_err(|e| KubeconfigError(format!("{}: {e}", path.display())))
            }
        }
    }
}

impl KubeconfigFile {
    /// Reads the file's JSON or YAML.
    ///
    /// # Errors
    /// When it is neither, says something twice, or has a field of another type.
    pub fn parse(text: &[u8]) -> Result<Self, KubeconfigError> {
        let (mut tree, duplicates) = kelson_codec::yaml::to_value(text).map_err(|e| KubeconfigError(e.to_string()))?;
        if let Some(duplicate) = duplicates.first() {
            return Err(KubeconfigError(format!("yaml: {duplicate}")));
        }
        numbers_as_text(&mut tree);
        serde_json::from_value(tree).map_err(|e| KubeconfigError(e.to_string()))
    }

    /// The file's YAML. Secret.
    pub fn to_yaml(&self) -> String {
        // A struct of strings, lists and flags has a tree.
        let mut tree = serde_json::to_value(self).unwrap_or_default();
        tree["apiVersion"] = "v1".into();
        tree["kind"] = "Config".into();
        kelson_codec::yaml::to_yaml(&tree)
    }

    /// Returns a kubeconfig with a server and no credentials, as in `cluster-info`.
    pub fn of_cluster(server: &str, ca_pem: &str) -> Self {
        let cluster = Cluster::new(server, ca_pem);
        Self { clusters: vec![NamedCluster { name: String::new(), cluster }], ..Self::default() }
    }

    /// The server and the identity of the current context; an identity that is not named is anonymous.
    ///
    /// # Errors
    /// When one of them does not exist.
    pub fn current(&self) -> Result<(&Cluster, Option<&User>), KubeconfigError> {
        let missing = |what: &str, name: &str| KubeconfigError(format!("{what} {name:?} does not exist"));
        let context = self.contexts.iter().find(|c| c.name == self.current_context);
        let context = &context.ok_or_else(|| missing("context", &self.current_context))?.context;
        let cluster = self.clusters.iter().find(|c| c.name == context.cluster);
        let cluster = &cluster.ok_or_else(|| missing("cluster", &context.cluster))?.cluster;
        if context.user.is_empty() {
            return Ok((cluster, None));
        }
        let user = self.users.iter().find(|u| u.name == context.user);
        Ok((cluster, Some(&user.ok_or_else(|| missing("user", &context.user))?.user)))
    }
}

impl Cluster {
    /// A server of which nothing but the address is known.
    pub fn at(server: &str) -> Self {
        Self { server: server.to_owned(), ..Self::default() }
    }

    /// A server that is verified with this CA.
    pub fn new(server: &str, ca_pem: &str) -> Self {
        let certificate_authority_data = Some(STANDARD.encode(ca_pem));
        Self { server: server.to_owned(), certificate_authority_data, ..Self::default() }
    }

    /// A server that is verified with the CA in this file.
    pub fn with_ca_file(server: &str, file: &Path) -> Self {
        Self { server: server.to_owned(), certificate_authority: Some(file.to_owned()), ..Self::default() }
    }

    /// Returns the value in `extensions` for credential plugins (`client.authentication.k8s.io/exec`); null when there
    /// is none.
    pub fn exec_configuration(&self) -> &Value {
        const EXEC: &str = "client.authentication.k8s.io/exec";
        self.extensions.iter().find(|named| named.name == EXEC).map_or(&Value::Null, |named| &named.extension)
    }

    /// The CA bundle; paths are relative to `base`.
    ///
    /// # Errors
    /// When the data are not base64.
    pub fn ca(&self, base: &Path) -> Result<Source, KubeconfigError> {
        let (data, file) = (&self.certificate_authority_data, &self.certificate_authority);
        Source::new("certificate-authority-data", data.as_ref(), file.as_ref(), base)
    }
}

impl User {
    /// Returns a user with an embedded certificate and key.
    pub fn with_certificate(cert_pem: &str, key_pem: &str) -> Self {
        let encode = |pem| Some(STANDARD.encode(pem));
        Self { client_certificate_data: encode(cert_pem), client_key_data: encode(key_pem), ..Self::default() }
    }

    /// Returns a user with a certificate and a key in files.
    pub fn with_files(cert: &Path, key: &Path) -> Self {
        let (client_certificate, client_key) = (Some(cert.to_owned()), Some(key.to_owned()));
        Self { client_certificate, client_key, ..Self::default() }
    }

    /// Returns a user with a bearer token.
    pub fn with_token(token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..Self::default() }
    }

    /// The certificate chain, PEM; paths are relative to `base`.
    ///
    /// # Errors
    /// When the data are not base64.
    pub fn certificate(&self, base: &Path) -> Result<Source, KubeconfigError> {
        let (data, file) = (&self.client_certificate_data, &self.client_certificate);
        Source::new("client-certificate-data", data.as_ref(), file.as_ref(), base)
    }

    /// The private key, PEM.
    ///
    /// # Errors
    /// When the data are not base64.
    pub fn key(&self, base: &Path) -> Result<Source, KubeconfigError> {
        Source::new("client-key-data", self.client_key_data.as_ref(), self.client_key.as_ref(), base)
    }

    /// The bearer token. A file takes precedence over an inline token, since its content is newer.
    pub fn token(&self, base: &Path) -> Source {
        match (&self.token, &self.token_file) {
            (_, Some(file)) if !file.as_os_str().is_empty() => Source::File(base.join(file)),
            (Some(token), _) if !token.is_empty() => Source::Data(token.clone().into_bytes()),
            _ => Source::None,
        }
    }

    /// Name and password of HTTP's `Basic` scheme, encoded.
    pub fn basic(&self) -> Option<String> {
        let given = !self.username.is_empty() || !self.password.is_empty();
        given.then(|| STANDARD.encode(format!("{}:{}", self.username, self.password)))
    }

    /// The program that proves who it is, as `exec` describes it.
    pub fn exec(&self) -> Option<&Value> {
        Some(&self.exec).filter(|exec| !exec.is_null())
    }

    /// The user that it impersonates; `None`: no one.
    ///
    /// # Errors
    /// When more than a name is given, and no name.
    pub fn impersonation(&self) -> Result<Option<Impersonation>, KubeconfigError> {
        let (uid, groups, extra) = (self.as_uid.clone(), self.as_groups.clone(), self.as_user_extra.clone());
        if !self.impersonate.is_empty() {
            return Ok(Some(Impersonation { user: self.impersonate.clone(), uid, groups, extra }));
        }
        match uid.is_empty() && groups.is_empty() && extra.is_empty() {
            true => Ok(None),
            false => Err(KubeconfigError("as-uid, as-groups and as-user-extra require a user in `as`".into())),
        }
    }

    /// Whether one of the providers that client-go once had built in is named.
    pub fn has_auth_provider(&self) -> bool {
        !self.auth_provider.is_null()
    }

    /// Whether a program or a provider is to prove who it is (`exec`, `auth-provider`).
    pub fn asks_elsewhere(&self) -> bool {
        !self.exec.is_null() || !self.auth_provider.is_null()
    }
}

/// No field of a kubeconfig is a number, but a name or a token may look like one; and a field that is null is not set.
fn numbers_as_text(value: &mut Value) {
    match value {
        Value::Number(number) => *value = number.to_string().into(),
        Value::Array(items) => items.iter_mut().for_each(numbers_as_text),
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            // Extensions have their own types.
            map.iter_mut().filter(|(name, _)| *name != "extension").for_each(|(_, value)| numbers_as_text(value));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut file = KubeconfigFile::of_cluster("https://h:1", "CA");
        for (name, user) in [
            ("cert", User::with_certificate("C", "K")),
            ("files", User::with_files(Path::new("c.pem"), Path::new("k.pem"))),
            ("token", User::with_token("12345")),
        ] {
            file.users.push(NamedUser { name: name.to_owned(), user });
        }
        let read = KubeconfigFile::parse(file.to_yaml().as_bytes()).expect("a kubeconfig");
        assert_eq!(read.clusters[0].cluster.server, "https://h:1");
        let base = Path::new("/etc/x");
        let data = |source: Result<Source, KubeconfigError>| source.unwrap().load().unwrap().unwrap();
        assert_eq!(data(read.clusters[0].cluster.ca(base)), b"CA");
        assert_eq!(data(read.users[0].user.certificate(base)), b"C");
        assert_eq!(data(read.users[0].user.key(base)), b"K");
        let Source::File(path) = read.users[1].user.key(base).unwrap() else { panic!("a file") };
        assert_eq!(path, Path::new("/etc/x/k.pem"));
        assert_eq!(data(Ok(read.users[2].user.token(base))), b"12345");
        assert!(!read.users[2].user.asks_elsewhere() && read.users[2].user.basic().is_none());
        assert!(!format!("{:?}", read.users[2].user.token(base)).contains("123"));
    }
}
