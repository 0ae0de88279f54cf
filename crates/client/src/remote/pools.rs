//! Connections to one server, as many as its streams need. A server lets a client have so many streams on one connection of HTTP/2, a
//! hundred with the reference's API server, and watches never end: whoever waited for a place on the one connection would wait for ever.
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::connector::TlsConnector;
use super::{PING_INTERVAL, PING_TIMEOUT};

/// Streams on one connection; less than any server in use allows.
const STREAMS_MAX: usize = 80;

/// Sends requests over a connection that it keeps.
pub(super) type HttpPool = Client<TlsConnector, Full<Bytes>>;

/// A request's place; free again when the last of its clones is dropped.
#[derive(Clone, Debug)]
pub(super) struct Place(#[allow(dead_code, reason = "held, never read: that it is there is what counts")] Arc<()>);

/// Pools that each hold one connection of HTTP/2.
pub(super) struct Pools {
    connector: TlsConnector,
    pools: Vec<(HttpPool, Arc<()>)>,
}

impl Pools {
    /// Without a connection yet.
    pub fn new(connector: TlsConnector) -> Self {
        Self { connector, pools: Vec::new() }
    }

    /// The first pool with a place, and the place.
    pub fn take(&mut self) -> (HttpPool, Place) {
        let free = |(_, taken): &&(HttpPool, Arc<()>)| Arc::strong_count(taken) <= STREAMS_MAX;
        let (pool, taken) = match self.pools.iter().find(free) {
            Some(found) => found.clone(),
            None => {
                let made = (pool(self.connector.clone()), Arc::new(()));
                self.pools.push(made.clone());
                made
            }
        };
        (pool, Place(taken))
    }
}

fn pool(connector: TlsConnector) -> HttpPool {
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .build(connector)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use http::{Request, Response};
    use http_body_util::{BodyExt as _, StreamBody};
    use hyper::body::{Frame, Incoming};
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use jiff::Timestamp;
    use kelson_pki::{Authority, LeafSpec, Purpose, San, SwappableCertificate};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use crate::Transport as _;
    use crate::kubeconfig::Config;
    use crate::remote::Remote;

    /// A server as the reference's: a hundred streams on a connection. Answers begin and never end.
    async fn server(authority: &Authority) -> String {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let at = listener.local_addr().expect("its address");
        let spec = LeafSpec {
            common_name: "server",
            organizations: &[],
            sans: &[San::Ip(at.ip())],
            purpose: Purpose::Server,
            lifetime: Duration::from_secs(3600),
        };
        let issued = authority.issue(&spec, Timestamp::now()).expect("issued");
        let mut tls = rustls::ServerConfig::builder_with_provider(kelson_pki::provider())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_cert_resolver(SwappableCertificate::new(&issued).expect("a certificate"));
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(std::sync::Arc::new(tls));
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.expect("accepted");
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let io = TokioIo::new(acceptor.accept(tcp).await.expect("TLS"));
                    let service = service_fn(|_: Request<Incoming>| async {
                        let first = futures::stream::iter([Ok::<_, Infallible>(Frame::data(bytes::Bytes::from("x")))]);
                        let body = futures::StreamExt::chain(first, futures::stream::pending());
                        Ok::<_, Infallible>(Response::new(StreamBody::new(body)))
                    });
                    let mut http = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
                    let _ = http.max_concurrent_streams(100).serve_connection(io, service).await;
                });
            }
        });
        format!("https://{at}")
    }

    #[tokio::test]
    async fn watches_leave_a_place_for_those_who_come_after_them() {
        let authority = Authority::create("a", Timestamp::now()).expect("an authority");
        let server = server(&authority).await;
        let config = Config { server, ca_pem: authority.cert_pem().into(), ..Config::default() };
        let remote = Remote::new(config).expect("a transport");
        let mut open = Vec::new();
        for n in 0..250 {
            let request = Request::get("/watch").body(bytes::Bytes::new()).expect("a request");
            let answer = tokio::time::timeout(Duration::from_secs(60), remote.send(request)).await;
            let mut answer = answer.unwrap_or_else(|_| panic!("request {n} waits for a place")).expect("answered");
            assert!(answer.body_mut().frame().await.is_some(), "it begins");
            open.push(answer);
        }
        // Places are free again when their answers are dropped.
        let pools = || remote.current.lock().pools.as_ref().map_or(0, |p| p.pools.len());
        assert_eq!(pools(), 4);
        open.clear();
        let request = Request::get("/watch").body(bytes::Bytes::new()).expect("a request");
        remote.send(request).await.expect("answered");
        assert_eq!(pools(), 4);
    }
}
