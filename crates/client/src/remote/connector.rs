//! TCP plus TLS for hyper's pool, with the negotiated protocol handed on. Of several servers, the first that answers is used.
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use kelson_transport::PooledTls;
use tower_service::Service;

use super::dial::{CONNECT_TIMEOUT, tcp};
use super::proxy::Way;
use super::race::race;
use super::severable::Severable;
use super::tls::Tls;
use crate::kubeconfig::Proxy;
use crate::servers::Servers;

/// The server that a new connection reaches.
#[derive(Clone)]
pub(super) enum Route {
    /// Every connection reaches the host of its request.
    One(Way),
    /// Every connection reaches the first of several API servers that answers.
    Several(Arc<Servers>, Proxy),
}

/// Connects to the host of a URI, or to one of several servers.
#[derive(Clone)]
pub(super) struct TlsConnector {
    route: Route,
    tls: Tls,
}

impl TlsConnector {
    pub(super) fn new(route: Route, tls: Tls) -> Self {
        Self { route, tls }
    }

    /// Returns whether there is a choice of servers.
    pub(super) fn has_choice(&self) -> bool {
        matches!(&self.route, Route::Several(servers, _) if servers.are_several())
    }
}

impl Service<Uri> for TlsConnector {
    type Response = Severable;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Severable>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.route {
            Route::One(way) => way.poll_ready(cx),
            // Each attempt has its own way.
            Route::Several(..) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tls = self.tls.clone();
        match self.route.clone() {
            Route::One(way) => Box::pin(async move {
                let opened = tokio::time::timeout(CONNECT_TIMEOUT, tls.open(way, uri)).await;
                Ok(Severable::lasting(PooledTls::new(opened.map_err(|_| io::ErrorKind::TimedOut)??)))
            }),
            Route::Several(servers, proxy) if !servers.are_several() => Box::pin(async move {
                let (server, _) = servers.current();
                let way = Way::to(&server, &proxy, tcp()).map_err(io::Error::other)?;
                let opened = tokio::time::timeout(CONNECT_TIMEOUT, tls.open(way, server.clone())).await;
                let stream = PooledTls::new(opened.map_err(|_| io::ErrorKind::TimedOut)??);
                Ok(Severable::until(servers.connection(&server), stream))
            }),
            Route::Several(servers, proxy) => Box::pin(async move {
                let open = |server: Uri| {
                    let (tls, way) = (tls.clone(), Way::to(&server, &proxy, tcp()));
                    async move { tls.open(way.map_err(io::Error::other)?, server).await }
                };
                let (server, stream) = race(servers.order(), open).await?;
                Ok(Severable::until(servers.connection(&server), PooledTls::new(stream)))
            }),
        }
    }
}
