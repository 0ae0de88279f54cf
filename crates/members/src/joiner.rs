//! The joining server's side: a listener at its peer URL for the check by the cluster, then its member.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use kelson_pki::{ClientChains, provider};
use kelson_tasks::{FILES, Scoped};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::error::MemberError;
use crate::layout::Layout;
use crate::options::MemberOptions;
use crate::peer::{Greeting, PATH};
use crate::pki::Certificates;

/// The largest request.
const REQUEST_BYTES_MAX: usize = 4096;
/// The time that one check may take.
const CHECK_MAX: Duration = Duration::from_secs(5);
/// Checks at a time.
const CHECKS_MAX: usize = 16;
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A server that is about to join. It listens at its peer URL until it is dropped or its member starts.
pub struct Joiner {
    pub(crate) options: MemberOptions,
    peer_url: String,
    listener: Scoped<()>,
}

impl Joiner {
    /// Issues the member's certificates with the CA in `DIR/etcd/pki`, and opens the listener.
    ///
    /// # Errors
    /// The CA is missing, or the address is not free.
    pub async fn prepare(options: MemberOptions) -> Result<Self, MemberError> {
        let (layout, peer_url, now) = (options.layout(), options.peer_url(), options.clock.now());
        let certificates = Certificates::new(&layout, &options.name, &peer_url);
        let files = layout.clone();
        let tls = FILES.run(move || {
            certificates.ensure(false, now)?;
            serving(&files)
        });
        let acceptor = TlsAcceptor::from(Arc::new(tls.await??));
        let port = options.peer_port.unwrap_or(crate::options::PEER_PORT);
        let address = SocketAddr::new(options.peer_address, port);
        let listener = TcpListener::bind(address).await;
        let failed = |source| MemberError::Listen { address: address.to_string(), source };
        let listener = listener.map_err(failed)?;
        // Port 0 is any free one, for tests.
        let peer_url = match port {
            0 => crate::options::peer_url(listener.local_addr().map_err(failed)?),
            _ => peer_url,
        };
        let greeting = Greeting { joiner: Some(options.name.clone()), ..Greeting::default() };
        let greeting = serde_json::to_string(&greeting).unwrap_or_default();
        let listener = options.tasks.scoped("etcd-join-check", serve(listener, acceptor, greeting));
        Ok(Self { options, peer_url, listener })
    }

    /// Returns the name under which the server joins.
    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// Returns the URLs for [`crate::Member::admit`].
    pub fn peer_urls(&self) -> Vec<String> {
        vec![self.peer_url.clone()]
    }

    /// Closes the listener, so that etcd can listen at its address.
    pub(crate) async fn into_options(self) -> MemberOptions {
        self.listener.abort();
        let _ = self.listener.await;
        self.options
    }
}

/// Reads the member's certificate for a server that requires a certificate of the same CA.
#[allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]
fn serving(layout: &Layout) -> Result<ServerConfig, MemberError> {
    let read = |name: &str| {
        let path = layout.pki_file(name);
        std::fs::read_to_string(&path).map_err(|source| MemberError::File { path, source })
    };
    let tls = |e: rustls::Error| MemberError::Tls(e.to_string());
    let pem = |e: rustls::pki_types::pem::Error| MemberError::Tls(e.to_string());
    let clients = ClientChains::new(&[&read("ca.crt")?])?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(read("peer.crt")?.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(read("peer.key")?.as_bytes()).map_err(pem)?;
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(tls)?;
    let builder = builder.with_client_cert_verifier(clients.verifier());
    builder.with_single_cert(chain.map_err(pem)?, key).map_err(tls)
}

/// Answers checks, a bounded number at a time: members of the cluster connect here as well once the server was added.
async fn serve(listener: TcpListener, acceptor: TlsAcceptor, greeting: String) {
    let mut answers = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if answers.len() < CHECKS_MAX => match accepted {
                Ok((stream, from)) => {
                    let answer = tokio::time::timeout(CHECK_MAX, answer(stream, &acceptor, &greeting));
                    answers.push(async move { (answer.await, from) });
                }
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection at the peer URL failed; retrying");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some((answered, from)) = answers.next() => {
                if let Err(error) = answered.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                    tracing::debug!(%error, %from, "answering a connection at the peer URL failed");
                }
            }
        }
    }
}

/// Answers one request of HTTP/1.1: the greeting at [`PATH`], 404 elsewhere.
async fn answer(stream: TcpStream, acceptor: &TlsAcceptor, greeting: &str) -> io::Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut buffer).await?;
        if read == 0 || request.len() + read > REQUEST_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        request.extend_from_slice(&buffer[..read]);
    }
    stream.write_all(response(&request, greeting).as_bytes()).await?;
    stream.shutdown().await
}

fn response(request: &[u8], greeting: &str) -> String {
    let is_asked = request.starts_with(format!("GET {PATH} ").as_bytes());
    let (status, body) = if is_asked { ("200 OK", greeting) } else { ("404 Not Found", "{}") };
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::path::Path;

    use kelson_meta::SystemClock;
    use kelson_tasks::Tasks;

    use super::*;
    use crate::peer::Peers;

    fn options(dir: &Path, name: &str) -> MemberOptions {
        MemberOptions {
            data_dir: dir.to_owned(),
            binary: None,
            name: name.to_owned(),
            peer_address: IpAddr::from([127, 0, 0, 1]),
            peer_address_given: true,
            peer_port: Some(0),
            client_port: None,
            quota_bytes: 0,
            tasks: Tasks::root("test"),
            clock: Arc::new(SystemClock),
        }
    }

    #[tokio::test]
    async fn a_joining_server_answers_to_its_cluster_only() {
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let now = jiff::Timestamp::now();
        for (dir, name) in [(&own, "b"), (&other, "x")] {
            Certificates::new(&Layout::new(dir.path()), name, "https://127.0.0.1:1").ensure(true, now).unwrap();
        }
        let joiner = Joiner::prepare(options(own.path(), "b")).await.unwrap();
        let urls = joiner.peer_urls();
        // The second question finds the first one answered and the listener free.
        for _ in 0..2 {
            let (greeting, _) = Peers::new(&Layout::new(own.path())).ask(&urls[0]).await.unwrap();
            assert_eq!((greeting.joiner.as_deref(), greeting.server), (Some("b"), None));
        }
        assert!(!Peers::new(&Layout::new(own.path())).is_running(&urls).await, "it is no member yet");
        let foreign = Peers::new(&Layout::new(other.path())).ask(&urls[0]).await;
        assert!(foreign.is_err(), "another CA: {foreign:?}");
        drop(joiner.into_options().await);
        assert!(Peers::new(&Layout::new(own.path())).ask(&urls[0]).await.is_err(), "the listener is closed");
    }

    #[test]
    fn only_the_version_is_served() {
        let answer = response(b"GET /version HTTP/1.1\r\n\r\n", "{\"a\":1}");
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n")
                && answer.ends_with("content-length: 7\r\nconnection: close\r\n\r\n{\"a\":1}"),
            "{answer}"
        );
        assert!(response(b"GET /members HTTP/1.1\r\n\r\n", "x").starts_with("HTTP/1.1 404"));
    }
}
