//! A look at one server: a separate connection, whose pings show within a second that the server does not answer, and
//! the server's readiness. One for each node, however many connections the node has.
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kelson_tasks::{FILES, Scoped, scoped};

use super::dial::tcp;
use super::monitor::{Ending, Probe, Prober};
use super::proxy::Way;
use super::tls::Tls;
use crate::kubeconfig::{Config, Credentials};

/// A server that does not answer is noticed after these two.
const PING_INTERVAL: Duration = Duration::from_millis(400);
const PING_TIMEOUT: Duration = Duration::from_millis(350);
/// The maximum size of an answer to a look at the readiness.
const ANSWER_MAX: usize = 64 << 10;

/// Opens connections without credentials.
pub(super) struct TlsProber(pub(super) Config);

/// A connection of HTTP/2.
pub(super) struct TlsProbe {
    server: Uri,
    sender: http2::SendRequest<Empty<Bytes>>,
    connection: Scoped<hyper::Result<()>>,
}

impl Prober for TlsProber {
    type Probe = TlsProbe;

    async fn open(&self, server: Uri) -> io::Result<TlsProbe> {
        let config = self.0.clone().under(Credentials::None);
        let way = Way::to(&server, &config.proxy, tcp()).map_err(io::Error::other)?;
        // The CA is read again each time, since it may have been rotated.
        let tls = FILES.run(move || Tls::of(&config)).await.map_err(io::Error::other)?;
        let stream = tls.map_err(io::Error::other)?.open(way, server.clone()).await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the server does not support HTTP/2"));
        }
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        Ok(TlsProbe { server, sender, connection: scoped("server-probe", connection) })
    }
}

impl Probe for TlsProbe {
    async fn ended(&mut self) -> Ending {
        match (&mut self.connection).await {
            Some(Ok(())) => Ending::Closed,
            _ => Ending::Broken,
        }
    }

    async fn is_ready(&mut self) -> bool {
        let uri = Uri::builder().scheme("https").path_and_query("/readyz");
        let uri = match self.server.authority() {
            Some(authority) => uri.authority(authority.clone()),
            None => uri,
        };
        let request = uri.build().and_then(|uri| Request::builder().method(Method::GET).uri(uri).body(Empty::new()));
        let Ok(request) = request else { return false };
        let Ok(answer) = self.sender.send_request(request).await else { return false };
        // A server that does not answer this without credentials says 401 or 403, and is there.
        let is_ready = !answer.status().is_server_error();
        let _ = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
        is_ready
    }
}
