//! Addresses of etcd's members (`--etcd-servers`) and how a connection to one is made: TCP, TLS, a unix socket. Certificate
//! files are read again for each connection, as etcd does, so that renewed ones are used without a restart.
#![allow(clippy::disallowed_methods, reason = "blocking: reads files, in the lane for files")]

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use http::Uri;
use hyper_util::rt::TokioIo;
use kelson_pki::{Pool, ServerChains};
use kelson_platform::sockets;
use kelson_tasks::FILES;
use parking_lot::RwLock;
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tower_service::Service;

/// The longest time for one attempt to connect to one member, including TLS.
const CONNECT_MAX: Duration = Duration::from_secs(5);
const PORT: u16 = 2379;

/// Files for connections by https, as the flags name them.
#[derive(Clone, Debug, Default)]
pub struct ClientTlsFiles {
    /// `--etcd-cafile`: the CAs of the members; without it, those that the system trusts.
    pub ca: Option<PathBuf>,
    /// `--etcd-certfile`: what is shown to the members.
    pub cert: Option<PathBuf>,
    /// `--etcd-keyfile`: its key.
    pub key: Option<PathBuf>,
}

impl ClientTlsFiles {
    /// Reads the files into a configuration of HTTP/2 over TLS.
    ///
    /// # Errors
    /// A file that cannot be read or does not contain what it should, with the flag that names it.
    pub fn config(&self) -> Result<ClientConfig, String> {
        let read = |path: &Path| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
        let authorities = match &self.ca {
            Some(file) => kelson_pki::bundle_roots(&read(file)?),
            None => kelson_pki::system_roots(),
        };
        let chains = ServerChains::of(Pool::of_readable(authorities));
        let builder = ClientConfig::builder_with_provider(kelson_pki::provider()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|e| e.to_string())?.dangerous();
        let builder = builder.with_custom_certificate_verifier(chains.verifier());
        let mut config = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(cert)?).collect();
                let chain = chain.map_err(|e| format!("--etcd-certfile: {e}"))?;
                let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|e| format!("--etcd-keyfile: {e}"))?;
                builder.with_client_auth_cert(chain, key).map_err(|e| format!("--etcd-certfile: {e}"))?
            }
            (None, None) => builder.with_no_client_auth(),
            _ => return Err("--etcd-certfile and --etcd-keyfile go together".to_owned()),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

/// The address of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
enum MemberAddress {
    Tcp { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

impl fmt::Display for MemberAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix {}", path.display()),
            Self::Tcp { host, port, .. } => write!(f, "tcp {host}:{port}"),
        }
    }
}

impl MemberAddress {
    /// Reads `http://HOST:PORT`, `https://HOST:PORT`, `unix:///PATH` or `HOST:PORT`.
    fn parse(url: &str) -> Result<Self, String> {
        let bad = |why: &str| format!("--etcd-servers: {url:?}: {why}");
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let tls = match scheme {
            "http" => false,
            "https" => true,
            "unix" if rest.starts_with('/') => return Ok(Self::Unix(PathBuf::from(rest))),
            "unix" => return Err(bad("the socket's path must be absolute")),
            _ => return Err(bad("the scheme must be http, https or unix")),
        };
        let uri: Uri =
            format!("http://{}", rest.trim_end_matches('/')).parse().map_err(|_| bad("must be an address"))?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| bad("has no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = match uri.authority().map(http::uri::Authority::as_str).and_then(|text| text.rsplit_once(':')) {
            Some((_, port)) if !port.ends_with(']') => port.parse().map_err(|_| bad("port must be a number"))?,
            _ => PORT,
        };
        Ok(Self::Tcp { host, port, tls })
    }
}

/// All members. Any of them serves any request.
pub struct Endpoints {
    members: Vec<MemberAddress>,
    files: ClientTlsFiles,
    /// The configuration that was read last; `None` without a member by https.
    tls: Option<RwLock<Arc<ClientConfig>>>,
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.members).finish()
    }
}

impl Endpoints {
    /// Reads addresses, and the files where one of them is by https.
    ///
    /// # Errors
    /// What is wrong with the flags, in words for the operator.
    pub fn new(servers: &[String], files: &ClientTlsFiles) -> Result<Self, String> {
        let members: Vec<MemberAddress> =
            servers.iter().map(|url| MemberAddress::parse(url.trim())).collect::<Result<_, _>>()?;
        if members.is_empty() {
            return Err("--etcd-servers must be specified".to_owned());
        }
        let tls = members.iter().any(|member| matches!(member, MemberAddress::Tcp { tls: true, .. }));
        let tls = tls.then(|| files.config().map(|config| RwLock::new(Arc::new(config)))).transpose()?;
        Ok(Self { members, files: files.clone(), tls })
    }

    /// Reads the certificate files again. Files that cannot be read now leave the last configuration in use.
    async fn renewed(&self, last: &RwLock<Arc<ClientConfig>>) -> Arc<ClientConfig> {
        if self.files.cert.is_none() && self.files.ca.is_none() {
            return Arc::clone(&last.read());
        }
        let files = self.files.clone();
        match FILES.run(move || files.config()).await {
            Ok(Ok(config)) => *last.write() = Arc::new(config),
            Ok(Err(error)) => tracing::warn!(error, "reading the certificates for etcd failed; using the earlier ones"),
            Err(error) => tracing::warn!(%error, "reading the certificates for etcd failed; using the earlier ones"),
        }
        Arc::clone(&last.read())
    }

    /// Returns the number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Reports whether there are none, which [`Endpoints::new`] does not accept.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the address of the member that this turn selects, for messages.
    pub fn name(&self, turn: usize) -> String {
        self.member(turn).to_string()
    }

    fn member(&self, turn: usize) -> &MemberAddress {
        &self.members[turn % self.members.len()]
    }

    async fn connect(&self, turn: usize) -> io::Result<Stream> {
        let member = self.member(turn);
        let attempt = async {
            Ok::<Stream, io::Error>(match member {
                MemberAddress::Unix(path) => Box::new(sockets::connect(path).await?),
                MemberAddress::Tcp { host, port, tls } => {
                    let tcp = TcpStream::connect((host.as_str(), *port)).await?;
                    tcp.set_nodelay(true)?;
                    match self.tls.as_ref().filter(|_| *tls) {
                        None => Box::new(tcp) as Stream,
                        Some(last) => {
                            let (name, config) = (ServerName::try_from(host.clone()), self.renewed(last).await);
                            let name = name.map_err(io::Error::other)?;
                            Box::new(tokio_rustls::TlsConnector::from(config).connect(name, tcp).await?)
                        }
                    }
                }
            })
        };
        let done = tokio::time::timeout(CONNECT_MAX, attempt).await;
        let done = done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        done.map_err(|error| io::Error::new(error.kind(), format!("dial {member}: {error}")))
    }
}

/// Bytes to and from a member.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}
type Stream = Box<dyn Duplex>;

/// Makes the connections of a channel, which are all to one member.
#[derive(Clone, Debug)]
pub struct Connector {
    endpoints: Arc<Endpoints>,
    turn: usize,
}

impl Connector {
    /// Creates a connector to the member that this turn selects.
    pub fn new(endpoints: &Arc<Endpoints>, turn: usize) -> Self {
        Self { endpoints: Arc::clone(endpoints), turn }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Duplex>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (endpoints, turn) = (Arc::clone(&self.endpoints), self.turn);
        Box::pin(async move { endpoints.connect(turn).await.map(TokioIo::new) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_the_flag_gives_them() {
        let tcp = |host: &str, port, tls| Some(MemberAddress::Tcp { host: host.to_owned(), port, tls });
        for (url, want) in [
            ("http://127.0.0.1:2379", tcp("127.0.0.1", 2379, false)),
            ("https://etcd.example.com:1/", tcp("etcd.example.com", 1, true)),
            ("https://[::1]:2379", tcp("::1", 2379, true)),
            ("http://a", tcp("a", 2379, false)),
            ("127.0.0.1:4001", tcp("127.0.0.1", 4001, false)),
            ("unix:///run/etcd.sock", Some(MemberAddress::Unix("/run/etcd.sock".into()))),
            ("unix://localhost:1", None),
            ("ftp://a:1", None),
            ("http://", None),
            ("http://a:99999", None),
            ("", None),
        ] {
            assert_eq!(MemberAddress::parse(url).ok(), want, "{url}");
        }
        assert!(Endpoints::new(&[], &ClientTlsFiles::default()).is_err());
        let half = ClientTlsFiles { cert: Some("a".into()), ..ClientTlsFiles::default() };
        assert!(Endpoints::new(&["https://a:1".to_owned()], &half).is_err());
        assert!(Endpoints::new(&["http://a:1".to_owned()], &half).is_ok(), "files are for https alone");
    }

    #[test]
    fn members_are_believed_as_go_believes_them() {
        let dir = tempfile::tempdir().expect("a directory");
        for row in kelson_doubles::chains::rows_of(kelson_pki::Usage::Server) {
            let ca = dir.path().join("ca.pem");
            std::fs::write(&ca, row.bundle_pem()).expect("written");
            let files = ClientTlsFiles { ca: Some(ca), ..ClientTlsFiles::default() };
            let believed = kelson_doubles::chains::believes_server(files.config().expect("a client"), &row);
            assert_eq!(believed.is_ok(), row.is_accepted, "{}: {believed:?}", row.what);
        }
    }
}
