//! A connection that ends when its server is given up, so that its requests and watches continue at another server at
//! once instead of waiting for a machine that is away.
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::{Connected, Connection};
use kelson_transport::PooledTls;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// A TLS connection that a token can end.
pub(super) struct Severable {
    stream: PooledTls,
    cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Severable {
    /// A connection that lasts as long as its peers keep it.
    pub(super) fn lasting(stream: PooledTls) -> Self {
        Self { stream, cut: None }
    }

    /// A connection that ends with the token.
    pub(super) fn until(cut: CancellationToken, stream: PooledTls) -> Self {
        Self { stream, cut: Some(Box::pin(cut.cancelled_owned())) }
    }

    /// Fails once the connection is cut. A pending read is woken by that.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.cut.as_mut().map(|cut| cut.as_mut().poll(cx)) {
            Some(Poll::Ready(())) => {
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server does not answer"))
            }
            _ => Ok(()),
        }
    }
}

impl Connection for Severable {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

impl hyper::rt::Read for Severable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl hyper::rt::Write for Severable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
}
