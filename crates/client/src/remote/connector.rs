//! TCP plus TLS for hyper's pool, with the negotiated protocol handed on.
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use kelson_transport::PooledTls;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tower_service::Service;

use super::proxy::Way;

/// The timeout of a connection, including TLS.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects to the host of a URI.
#[derive(Clone)]
pub(super) struct TlsConnector {
    way: Way,
    tls: tokio_rustls::TlsConnector,
    name: Option<ServerName<'static>>,
}

impl TlsConnector {
    pub(super) fn new(way: Way, config: Arc<ClientConfig>, name: Option<ServerName<'static>>) -> Self {
        Self { way, tls: config.into(), name }
    }
}

impl Service<Uri> for TlsConnector {
    type Response = PooledTls;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<PooledTls>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.way.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (mut way, tls, name) = (self.way.clone(), self.tls.clone(), self.name.clone());
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
            let name = match name {
                Some(n) => n,
                None => ServerName::try_from(host).map_err(io::Error::other)?,
            };
            let connect = async {
                let stream = way.connect(uri).await?;
                tls.connect(name, stream).await
            };
            let stream =
                tokio::time::timeout(CONNECT_TIMEOUT, connect).await.map_err(|_| io::ErrorKind::TimedOut)??;
            Ok(PooledTls::new(stream))
        })
    }
}
