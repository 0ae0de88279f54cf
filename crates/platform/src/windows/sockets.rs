//! Listening TCP sockets. Unix sockets fail, because the runtime does not support them on Windows.
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket};

/// A listening Unix socket. It has no values on this system.
#[derive(Debug)]
pub enum UnixListener {}

/// A connection over a Unix socket. It has no values on this system.
#[derive(Debug)]
pub enum UnixStream {}

impl UnixListener {
    /// Cannot be called, because the type has no values.
    ///
    /// # Errors
    /// This function never fails on this system; it may fail on others.
    pub async fn accept(&self) -> io::Result<(UnixStream, ())> {
        match *self {}
    }
}

impl AsyncRead for UnixStream {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }
}

impl AsyncWrite for UnixStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        match *self {}
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }
}

fn unsupported(path: &Path) -> io::Error {
    let why = format!("{}: sockets of the file system are not supported on Windows; use a TCP address", path.display());
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// Fails, because Unix sockets are not supported on this system.
///
/// # Errors
/// Always returns [`io::ErrorKind::Unsupported`].
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    Err(unsupported(path))
}

/// Fails, because Unix sockets are not supported on this system.
///
/// # Errors
/// Always returns [`io::ErrorKind::Unsupported`].
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    Err(unsupported(path))
}

/// Returns false, because no process can listen on a Unix socket.
pub fn is_served(_: &Path) -> bool {
    false
}

/// Listens on a TCP address that no other process uses. The option to reuse an address while connections linger would
/// let a second process share it on Windows.
///
/// # Errors
/// Returns the error of the operating system.
pub fn listen_tcp(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.bind(address)?;
    socket.listen(backlog)
}
