//! Reads the part of a kubeconfig that a component uses: the current context's server, CA and credentials. Auth
//! providers and passwords are errors, since a client without them would be anonymous.
#![allow(clippy::disallowed_methods, reason = "blocking: callers read at start or in the lane for files")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use kelson_pki::kubeconfig::KubeconfigError;
use kelson_pki::kubeconfig::{Cluster, Impersonation, KubeconfigFile, NamedCluster, Source, User};

use crate::exec::ExecPlugin;
use crate::servers::Servers;

/// The directory of a pod's service account files.
const ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The configuration of a connection to an API server.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The URL of the API server: `https://host:port`, optionally with a path before `/api`.
    pub server: String,
    /// The servers of the same API to choose from. `None` if `server` is the only one.
    pub servers: Option<Arc<Servers>>,
    /// The PEM of the CA. Without it the connection cannot be verified and is an error.
    pub ca_pem: Vec<u8>,
    /// The file of the CA, which is reloaded when it changes. `None` for an embedded CA.
    pub ca_file: Option<PathBuf>,
    /// Name to verify instead of the host's.
    pub tls_server_name: Option<String>,
    /// Whether the server's certificate is not verified (`insecure-skip-tls-verify`).
    pub insecure_skip_tls_verify: bool,
    /// The proxy of the connection.
    pub proxy: Proxy,
    /// The impersonated user, if any.
    pub impersonation: Option<Impersonation>,
    /// The kubeconfig file, for later error messages, if any.
    pub file: Option<PathBuf>,
    /// The client's credentials.
    pub credentials: Credentials,
    /// Whether the files of [`Credentials::CertificateFiles`] may be created later. Requests fail until they exist.
    /// Otherwise they must exist at the start.
    pub credentials_may_come: bool,
}

/// The proxy of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Proxy {
    /// No proxy, regardless of the environment: for servers that this program found by itself.
    #[default]
    None,
    /// The proxy in `HTTPS_PROXY` and `NO_PROXY`.
    Environment,
    /// This proxy (`proxy-url`).
    Url(String),
}

/// The credentials of a client. They are never printed.
#[derive(Clone, Default)]
pub enum Credentials {
    /// No credentials: the user is `system:anonymous`, if the server allows anonymous requests.
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
    /// The output of a program (client-go credential plugins, `client.authentication.k8s.io`).
    Exec(ExecPlugin),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Token(_) => "Token(..)",
            Self::TokenFile(_) => "TokenFile(..)",
            Self::Certificate { .. } => "Certificate(..)",
            Self::CertificateFiles { .. } => "CertificateFiles(..)",
            Self::Exec(_) => "Exec(..)",
        })
    }
}

impl Config {
    /// Reads a file; relative paths inside it are relative to it.
    pub fn load(path: &Path) -> Result<Self, KubeconfigError> {
        let text = std::fs::read(path).map_err(|e| KubeconfigError(format!("{}: {e}", path.display())))?;
        let parsed = Self::parse(&text, path.parent().unwrap_or(Path::new(".")));
        let config = parsed.map_err(|KubeconfigError(why)| KubeconfigError(format!("{}: {why}", path.display())))?;
        if config.insecure_skip_tls_verify {
            tracing::warn!(
                file = %path.display(),
                server = config.server,
                "insecure-skip-tls-verify is set; the server's certificate is not verified"
            );
        }
        Ok(Self { file: Some(path.to_owned()), ..config })
    }

    /// Reads the JSON or YAML of a kubeconfig.
    pub fn parse(text: &[u8], base: &Path) -> Result<Self, KubeconfigError> {
        let file = KubeconfigFile::parse(text)?;
        let (cluster, user) = file.current()?;
        let ca = cluster.ca(base)?;
        if cluster.insecure_skip_tls_verify && !matches!(ca, Source::None) {
            return Err(KubeconfigError(
                "certificate-authority and insecure-skip-tls-verify are mutually exclusive".into(),
            ));
        }
        let ca_pem = ca.load()?.unwrap_or_default();
        Ok(Self {
            server: cluster.server.clone(),
            servers: None,
            ca_file: match ca {
                Source::File(file) => Some(file),
                _ => None,
            },
            tls_server_name: cluster.tls_server_name.clone(),
            insecure_skip_tls_verify: cluster.insecure_skip_tls_verify,
            proxy: match cluster.proxy_url.as_str() {
                "" => Proxy::Environment,
                url => Proxy::Url(url.to_owned()),
            },
            impersonation: user.map(User::impersonation).transpose()?.flatten(),
            credentials: match user {
                Some(user) => credentials(user, cluster, &ca_pem, base)?,
                None => Credentials::None,
            },
            ca_pem,
            credentials_may_come: false,
            file: None,
        })
    }

    /// The same server with other credentials and without impersonation.
    pub fn under(self, credentials: Credentials) -> Self {
        Self { credentials, impersonation: None, ..self }
    }

    /// The server, as an entry of a kubeconfig.
    pub fn cluster(&self) -> Cluster {
        let mut cluster = match &self.ca_file {
            Some(file) => Cluster::with_ca_file(&self.server, file),
            None if self.ca_pem.is_empty() => Cluster::at(&self.server),
            None => Cluster::new(&self.server, &String::from_utf8_lossy(&self.ca_pem)),
        };
        cluster.tls_server_name.clone_from(&self.tls_server_name);
        cluster.insecure_skip_tls_verify = self.insecure_skip_tls_verify;
        if let Proxy::Url(url) = &self.proxy {
            cluster.proxy_url.clone_from(url);
        }
        cluster
    }

    /// The configuration of a pod of the cluster, with its service account. Token and CA are read again when they
    /// change (client-go `rest.InClusterConfig`).
    ///
    /// # Errors
    /// Outside of pods.
    pub fn in_cluster() -> Result<Self, KubeconfigError> {
        Self::of_pod(|name| std::env::var(name).ok(), Path::new(ACCOUNT_DIR))
    }

    fn of_pod(variable: impl Fn(&str) -> Option<String>, account: &Path) -> Result<Self, KubeconfigError> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        let (Some(host), Some(port)) = (variable("KUBERNETES_SERVICE_HOST"), variable("KUBERNETES_SERVICE_PORT"))
        else {
            return Err(KubeconfigError(
                "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be \
                 defined"
                    .into(),
            ));
        };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let (token, ca) = (account.join("token"), account.join("ca.crt"));
        let fault = |path: &Path, e: std::io::Error| KubeconfigError(format!("{}: {e}", path.display()));
        // Looked at here, so that what is missing is said at once.
        std::fs::metadata(&token).map_err(|e| fault(&token, e))?;
        let ca_pem = std::fs::read(&ca).map_err(|e| fault(&ca, e))?;
        let server = format!("https://{host}:{port}");
        let (credentials, proxy) = (Credentials::TokenFile(token), Proxy::Environment);
        Ok(Self { server, ca_pem, ca_file: Some(ca), credentials, proxy, ..Self::default() })
    }

    /// Reads the one cluster of a kubeconfig that has no context and no user, as `cluster-info` holds it.
    pub fn parse_cluster(text: &[u8]) -> Result<Self, KubeconfigError> {
        let file = KubeconfigFile::parse(text)?;
        let [NamedCluster { cluster, .. }] = file.clusters.as_slice() else {
            return Err(KubeconfigError(format!("expected one cluster, found {}", file.clusters.len())));
        };
        // What comes from elsewhere names no files of this machine.
        let Source::Data(ca_pem) = cluster.ca(Path::new(""))? else {
            return Err(KubeconfigError("certificate-authority-data is missing".into()));
        };
        Ok(Self { server: cluster.server.clone(), ca_pem, ..Self::default() })
    }
}

fn credentials(user: &User, cluster: &Cluster, ca_pem: &[u8], base: &Path) -> Result<Credentials, KubeconfigError> {
    if user.has_auth_provider() {
        return Err(KubeconfigError(
            "auth-provider is not supported: use an exec plugin, a token or a certificate".into(),
        ));
    }
    if user.basic().is_some() {
        return Err(KubeconfigError("username and password are not supported by Kubernetes API servers".into()));
    }
    match user.token(base) {
        Source::File(file) => return Ok(Credentials::TokenFile(file)),
        Source::Data(token) => return Ok(Credentials::Token(String::from_utf8_lossy(&token).into_owned())),
        Source::None => {}
    }
    Ok(match (user.certificate(base)?, user.key(base)?) {
        (Source::Data(cert_pem), Source::Data(key_pem)) => Credentials::Certificate { cert_pem, key_pem },
        (Source::File(cert), Source::File(key)) => Credentials::CertificateFiles { cert, key },
        (Source::None, Source::None) => match user.exec() {
            Some(exec) => Credentials::Exec(ExecPlugin::parse(exec, cluster, ca_pem, base)?),
            None => Credentials::None,
        },
        (Source::None, _) => return Err(KubeconfigError("client-key requires client-certificate".into())),
        (_, Source::None) => return Err(KubeconfigError("client-certificate requires client-key".into())),
        // One of the two embedded: read once, as the embedded one is.
        (cert, key) => Credentials::Certificate {
            cert_pem: cert.load()?.unwrap_or_default(),
            key_pem: key.load()?.unwrap_or_default(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_becomes_anonymous_silently() {
        let with = |user: &str| {
            let text = FILE.replace("{client-certificate: a.pem, client-key: a.pem}", user);
            Config::parse(text.as_bytes(), Path::new("/etc/x")).map(|c| format!("{:?}", c.credentials))
        };
        for (user, wanted) in [
            (
                "{exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, interactiveMode: Never}}",
                Ok("Exec(..)"),
            ),
            ("{exec: {apiVersion: client.authentication.k8s.io/v1alpha1, command: aws}}", Err("v1alpha1")),
            ("{exec: {apiVersion: client.authentication.k8s.io/v1}}", Err("command")),
            (
                "{exec: {apiVersion: client.authentication.k8s.io/v1, command: x, interactiveMode: Always}}",
                Err("interactive"),
            ),
            ("{auth-provider: {name: gcp}}", Err("auth-provider")),
            ("{username: a, password: b}", Err("password")),
            ("{client-certificate: a.pem}", Err("requires client-key")),
            ("{client-key: a.pem}", Err("requires client-certificate")),
            ("{}", Ok("None")),
        ] {
            match (with(user), wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{user}"),
                (Err(e), Err(part)) => assert!(e.to_string().contains(part), "{user}: {e}"),
                (found, _) => panic!("{user}: {found:?}"),
            }
        }
    }

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
    fn a_pod_is_its_service_account() {
        let dir = tempfile::tempdir().unwrap();
        let of = |host: &'static str, port: &'static str| {
            let variable = move |name: &str| Some(if name.ends_with("HOST") { host } else { port }.to_owned());
            Config::of_pod(variable, dir.path()).map_err(|e| e.to_string())
        };
        assert!(of("", "443").unwrap_err().contains("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be"));
        assert!(of("10.43.0.1", "443").unwrap_err().contains("/token: "), "what is missing is named");
        std::fs::write(dir.path().join("token"), "t").unwrap();
        std::fs::write(dir.path().join("ca.crt"), "CA").unwrap();
        for (host, server) in [("10.43.0.1", "https://10.43.0.1:443"), ("fd00::1", "https://[fd00::1]:443")] {
            let config = of(host, "443").unwrap();
            assert_eq!((config.server.as_str(), config.ca_pem.as_slice()), (server, b"CA".as_slice()));
            assert!(matches!(config.credentials, Credentials::TokenFile(file) if file == dir.path().join("token")));
            assert_eq!(config.ca_file, Some(dir.path().join("ca.crt")));
        }
    }

    #[test]
    fn impersonation_and_the_way_to_the_server() {
        let of = |user: &str, cluster: &str| {
            let text = FILE.replace("{client-certificate: a.pem, client-key: a.pem}", user);
            let text = text.replace("{server: 'https://127.0.0.1:6443', certificate-authority-data: aGk=}", cluster);
            Config::parse(text.as_bytes(), Path::new(".")).map_err(|e| e.to_string())
        };
        let server = "{server: 'https://h:1'}";
        let acting =
            of("{token: t, as: jane, as-uid: '7', as-groups: [dev], as-user-extra: {k: [v]}}", server).unwrap();
        let jane = Impersonation {
            user: "jane".into(),
            uid: "7".into(),
            groups: vec!["dev".into()],
            extra: [("k".to_owned(), vec!["v".to_owned()])].into(),
        };
        assert_eq!((acting.impersonation.clone(), acting.proxy.clone()), (Some(jane), Proxy::Environment));
        assert_eq!(acting.under(Credentials::None).impersonation, None);
        for user in ["{token: t, as-uid: '7'}", "{token: t, as-groups: [a]}", "{token: t, as-user-extra: {k: [v]}}"] {
            assert!(of(user, server).unwrap_err().contains("`as`"), "{user}");
        }
        let full = "{server: 'https://h:1', proxy-url: 'http://p:3128', tls-server-name: name, insecure-skip-tls-verify: true}";
        let there = of("{token: t}", full).unwrap();
        assert_eq!(there.proxy, Proxy::Url("http://p:3128".into()));
        let mut again = KubeconfigFile::of_cluster("", "");
        again.clusters[0].cluster = there.cluster();
        again.clusters[0].name = "k".into();
        let text =
            FILE.split("clusters:").next().unwrap().to_owned() + &again.to_yaml().replace("current-context: ''", "");
        for part in ["proxy-url: http://p:3128", "tls-server-name: name", "insecure-skip-tls-verify: true"] {
            assert!(text.contains(part), "{part} is written again: {text}");
        }
        let both = "{server: 'https://h:1', certificate-authority-data: aGk=, insecure-skip-tls-verify: true}";
        assert!(of("{token: t}", both).unwrap_err().contains("insecure-skip-tls-verify"));
        let without_user = FILE
            .replace("{cluster: k, user: u}", "{cluster: k}")
            .replace("\nusers:\n- name: u\n  user: {client-certificate: a.pem, client-key: a.pem}", "");
        assert!(matches!(
            Config::parse(without_user.as_bytes(), Path::new(".")).unwrap().credentials,
            Credentials::None
        ));
        let bare = FILE.replace("\n  user: {client-certificate: a.pem, client-key: a.pem}", "");
        assert!(matches!(Config::parse(bare.as_bytes(), Path::new(".")).unwrap().credentials, Credentials::None));
    }

    #[test]
    fn names_what_is_missing() {
        let e = Config::parse(FILE.replace("current-context: c", "current-context: z").as_bytes(), Path::new("."));
        assert_eq!(e.unwrap_err().to_string(), "context \"z\" does not exist");
    }
}
