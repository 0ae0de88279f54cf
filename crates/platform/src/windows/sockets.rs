//! Sockets: those in the file system are refused, since the runtime has none of them here; listening TCP sockets.
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket};

/// A listening socket in the file system: there is none.
#[derive(Debug)]
pub enum UnixListener {}

/// A connection through the file system: there is none.
#[derive(Debug)]
pub enum UnixStream {}

impl UnixListener {
    /// Never called: nobody has one.
    ///
    /// # Errors
    /// Never here; other systems have reasons to fail.
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

/// Refused: sockets have no place in the file system here.
///
/// # Errors
/// Always [`io::ErrorKind::Unsupported`].
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    Err(unsupported(path))
}

/// Refused: sockets have no place in the file system here.
///
/// # Errors
/// Always [`io::ErrorKind::Unsupported`].
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    Err(unsupported(path))
}

/// Nobody listens in the file system.
pub fn is_served(_: &Path) -> bool {
    false
}

/// Listens at a TCP address that nobody else has: with the option that lets an address be used again while connections linger,
/// a second process could take it here.
///
/// # Errors
/// The system's.
pub fn listen_tcp(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.bind(address)?;
    socket.listen(backlog)
}
