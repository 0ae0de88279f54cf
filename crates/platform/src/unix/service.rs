//! Communication with the service manager that started the process: datagrams of `sd_notify(3)`, and the journal for
//! standard error.
#![allow(clippy::disallowed_methods, reason = "blocking: at start; a datagram to the service manager does not wait")]

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// A connection to the service manager.
#[derive(Debug)]
pub struct Notifier {
    socket: UnixDatagram,
    manager: SocketAddr,
}

impl Notifier {
    /// Connects to the socket in `NOTIFY_SOCKET`. Returns `None` if the variable is not set.
    ///
    /// # Errors
    /// Fails if the variable names no socket, or if the system cannot create one.
    pub fn from_env() -> io::Result<Option<Self>> {
        match std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) {
            Some(name) => Self::new(&name).map(Some),
            None => Ok(None),
        }
    }

    /// Connects to a socket by its name in the form of `NOTIFY_SOCKET`: a path, or `@` and an abstract name.
    ///
    /// # Errors
    /// Fails as [`Notifier::from_env`].
    pub fn new(name: &OsStr) -> io::Result<Self> {
        let manager = match name.as_bytes() {
            [b'@', name @ ..] => outside(name)?,
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            _ => return Err(io::Error::new(io::ErrorKind::Unsupported, "NOTIFY_SOCKET must be a Unix socket")),
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, manager })
    }

    /// Sends assignments, one per line: `READY=1`, `STATUS=…`.
    ///
    /// # Errors
    /// Returns the error of the operating system, also if the manager's queue is full.
    pub fn send(&self, state: &str) -> io::Result<()> {
        self.socket.send_to_addr(state.as_bytes(), &self.manager).map(drop)
    }
}

#[cfg(target_os = "linux")]
fn outside(name: &[u8]) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt as _;
    SocketAddr::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn outside(_: &[u8]) -> io::Result<SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns the time within which the manager expects the next `WATCHDOG=1`, or `None` if it expects none.
pub fn watchdog() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok();
    watchdog_of(number("WATCHDOG_USEC").as_deref(), number("WATCHDOG_PID").as_deref(), std::process::id())
}

fn watchdog_of(usec: Option<&str>, pid: Option<&str>, me: u32) -> Option<Duration> {
    let usec: u64 = usec?.parse().ok().filter(|usec| *usec > 0)?;
    let is_meant = pid.is_none_or(|pid| pid.parse() == Ok(me));
    is_meant.then(|| Duration::from_micros(usec))
}

/// Returns whether the journal reads standard error, and so adds time and priority to each line (`JOURNAL_STREAM`).
pub fn logs_to_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let stderr = std::fs::metadata("/proc/self/fd/2").or_else(|_| std::fs::metadata("/dev/fd/2"));
    stderr.is_ok_and(|file| is_stream(&stream, file.dev(), file.ino()))
}

/// Compares a stream with the format of `JOURNAL_STREAM`: device and inode in decimal, separated by a colon.
fn is_stream(stream: &str, device: u64, inode: u64) -> bool {
    let pair = stream.split_once(':').map(|(device, inode)| (device.parse(), inode.parse()));
    pair == Some((Ok(device), Ok(inode)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_hears_what_is_sent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::new(path.as_os_str()).unwrap();
        notifier.send("READY=1\nSTATUS=serves").unwrap();
        let mut read = [0; 64];
        let length = manager.recv(&mut read).unwrap();
        assert_eq!(&read[..length], b"READY=1\nSTATUS=serves");
        drop(manager);
        assert!(notifier.send("STOPPING=1").is_err(), "no manager is there any more");
        assert!(Notifier::new(OsStr::new("vsock:2:1")).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_socket_may_be_outside_of_the_file_system() {
        let name = format!("kelson-notify-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&outside(name.as_bytes()).unwrap()).unwrap();
        Notifier::new(OsStr::new(&format!("@{name}"))).unwrap().send("WATCHDOG=1").unwrap();
        let mut read = [0; 64];
        let length = manager.recv(&mut read).unwrap();
        assert_eq!(&read[..length], b"WATCHDOG=1");
    }

    #[test]
    fn the_watchdog_may_be_meant_for_another_process() {
        let rows = [
            (Some("60000000"), None, Some(60)),
            (Some("60000000"), Some("7"), Some(60)),
            (Some("60000000"), Some("8"), None),
            (Some("0"), None, None),
            (Some("soon"), None, None),
            (None, Some("7"), None),
        ];
        for (usec, pid, want) in rows {
            assert_eq!(watchdog_of(usec, pid, 7), want.map(Duration::from_secs), "{usec:?} {pid:?}");
        }
    }

    #[test]
    fn the_journal_is_known_by_device_and_inode() {
        assert!(is_stream("8:1234", 8, 1234));
        for stream in ["8:1235", "9:1234", "8", "", "8:1234:1"] {
            assert!(!is_stream(stream, 8, 1234), "{stream}");
        }
    }
}
