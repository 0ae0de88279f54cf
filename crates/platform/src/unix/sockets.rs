//! Private Unix sockets, and listening TCP sockets.
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use tokio::net::{TcpListener, TcpSocket};
pub use tokio::net::{UnixListener, UnixStream};

/// Listens on a Unix socket that only its owner can use. The path must not exist. Blocks.
///
/// # Errors
/// Returns the error of the operating system.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    super::files::make_private(path)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Connects to the Unix socket at a path.
///
/// # Errors
/// Returns the error of the operating system.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path).await
}

/// Returns whether a process listens on the Unix socket at a path. Blocks.
pub fn is_served(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_ok()
}

/// Listens on a TCP address, also while connections of an ended process linger there.
///
/// # Errors
/// Returns the error of the operating system.
pub fn listen_tcp(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(backlog)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn a_socket_is_its_owners_and_answers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        assert!(!is_served(&path));
        let listener = listen(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (accepted, connected) = tokio::join!(listener.accept(), connect(&path));
        assert!(accepted.is_ok() && connected.is_ok() && is_served(&path));
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn an_address_is_had_by_one() {
        let first = listen_tcp(([127, 0, 0, 1], 0).into(), 8).unwrap();
        let taken = listen_tcp(first.local_addr().unwrap(), 8);
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
