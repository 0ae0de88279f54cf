//! A connection to the system's D-Bus: authentication, sequential calls, signals, file descriptors.
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;

use super::wire::{FIXED_BYTES, Message, MessageKind, Value, WireError};

/// Default path of the system bus socket.
const SOCKET: &str = "/run/dbus/system_bus_socket";
/// Timeout of a call.
const ANSWER_MAX: Duration = Duration::from_secs(25);
/// Maximum length of a line in the handshake.
const LINE_BYTES_MAX: usize = 4096;
/// Maximum number of file descriptors per read, and of those that wait for their message.
const DESCRIPTORS_MAX: usize = 8;
/// Maximum number of pending signals; older ones are dropped.
const SIGNALS_MAX: usize = 64;
const BUS: &str = "org.freedesktop.DBus";

/// Why a call or the connection failed.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The connection cannot be opened or was closed.
    #[error("system bus: {0}")]
    Connection(#[from] io::Error),
    /// The received bytes are not a valid message.
    #[error("system bus: {0}")]
    Wire(#[from] WireError),
    /// The called service returned an error.
    #[error("{name}: {message}")]
    Refused {
        /// Name of the D-Bus error.
        name: String,
        /// Message of the service.
        message: String,
    },
    /// There was no response in time, or an unexpected one.
    #[error("system bus: {0}")]
    Answer(&'static str),
}

/// A connection of this process. Calls are sequential.
#[derive(Debug)]
pub struct Bus {
    stream: UnixStream,
    serial: u32,
    unread: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    signals: VecDeque<Message>,
}

/// A response with its file descriptors.
#[derive(Debug)]
pub struct BusResponse {
    /// Values of the response.
    pub body: Vec<Value>,
    /// File descriptors, in the order of the indices in the values.
    pub descriptors: Vec<OwnedFd>,
}

impl Bus {
    /// Path of the system bus socket (`DBUS_SYSTEM_BUS_ADDRESS`).
    pub fn system() -> PathBuf {
        let named = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_default();
        named.strip_prefix("unix:path=").map_or_else(|| SOCKET.into(), |p| p.split(',').next().unwrap_or(p).into())
    }

    /// Connects to the bus at `socket` and authenticates with this process's user ID.
    ///
    /// # Errors
    /// There is no bus, or it rejects the user.
    pub async fn connect(socket: &Path) -> Result<Self, BusError> {
        let stream = UnixStream::connect(socket).await?;
        let mut bus =
            Self { stream, serial: 0, unread: Vec::new(), descriptors: VecDeque::new(), signals: VecDeque::new() };
        let greet = async {
            let uid = rustix::process::geteuid().as_raw().to_string();
            let hex: String = uid.bytes().map(|b| format!("{b:02x}")).collect();
            bus.stream.write_all(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes()).await?;
            if !bus.line().await?.starts_with("OK") {
                return Err(BusError::Answer("the bus rejected the authentication"));
            }
            bus.stream.write_all(b"NEGOTIATE_UNIX_FD\r\n").await?;
            if !bus.line().await?.starts_with("AGREE_UNIX_FD") {
                return Err(BusError::Answer("the bus does not support file descriptor passing"));
            }
            bus.stream.write_all(b"BEGIN\r\n").await?;
            bus.call(Message::call(BUS, "/org/freedesktop/DBus", BUS, "Hello", Vec::new())).await?;
            Ok(())
        };
        tokio::time::timeout(ANSWER_MAX, greet).await.map_err(|_| BusError::Answer("the response timed out"))??;
        Ok(bus)
    }

    /// Sends a call and waits for its response.
    ///
    /// # Errors
    /// The service's error, or an error of the connection.
    pub async fn call(&mut self, mut message: Message) -> Result<BusResponse, BusError> {
        self.serial += 1;
        message.serial = self.serial;
        self.stream.write_all(&message.encode()).await?;
        let serial = self.serial;
        let answer = async {
            loop {
                let (got, descriptors) = self.read().await?;
                match got.kind {
                    MessageKind::Signal => self.keep(got),
                    MessageKind::Return if got.answers == Some(serial) => {
                        return Ok(BusResponse { body: got.body, descriptors });
                    }
                    MessageKind::Error if got.answers == Some(serial) => {
                        let message = match got.body.into_iter().next() {
                            Some(Value::Text(text)) => text,
                            _ => String::new(),
                        };
                        return Err(BusError::Refused { name: got.error, message });
                    }
                    // Responses to abandoned calls, and calls to this process, which offers no service.
                    _ => {}
                }
            }
        };
        tokio::time::timeout(ANSWER_MAX, answer).await.map_err(|_| BusError::Answer("the response timed out"))?
    }

    /// Subscribes to signals that match a rule, such as `type='signal',member='PrepareForShutdown'`.
    ///
    /// # Errors
    /// As for [`Bus::call`].
    pub async fn listen(&mut self, rule: &str) -> Result<(), BusError> {
        let body = vec![Value::text(rule)];
        self.call(Message::call(BUS, "/org/freedesktop/DBus", BUS, "AddMatch", body)).await.map(drop)
    }

    /// Waits for the next signal. The future can be dropped without losing a signal.
    ///
    /// # Errors
    /// The connection was closed.
    pub async fn signal(&mut self) -> Result<Message, BusError> {
        loop {
            if let Some(signal) = self.signals.pop_front() {
                return Ok(signal);
            }
            let (got, _) = self.read().await?;
            if got.kind == MessageKind::Signal {
                return Ok(got);
            }
        }
    }

    fn keep(&mut self, signal: Message) {
        if self.signals.len() >= SIGNALS_MAX {
            self.signals.pop_front();
        }
        self.signals.push_back(signal);
    }

    /// Reads a line of the handshake, without its end.
    async fn line(&mut self) -> Result<String, BusError> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|w| w == b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.unread.len() > LINE_BYTES_MAX {
                return Err(BusError::Answer("the line of the handshake is too long"));
            }
            self.fill().await?;
        }
    }

    async fn read(&mut self) -> Result<(Message, Vec<OwnedFd>), BusError> {
        loop {
            if let Some(fixed) = self.unread.first_chunk::<FIXED_BYTES>() {
                let length = Message::length(fixed)?;
                if self.unread.len() >= length {
                    let bytes: Vec<u8> = self.unread.drain(..length).collect();
                    let Some(message) = Message::decode(&bytes)? else { continue };
                    let with_it = (message.descriptors as usize).min(self.descriptors.len());
                    return Ok((message, self.descriptors.drain(..with_it).collect()));
                }
            }
            self.fill().await?;
        }
    }

    /// Reads available bytes, or waits for some.
    async fn fill(&mut self) -> Result<(), BusError> {
        let Self { stream, unread, descriptors, .. } = self;
        let read = stream.async_io(Interest::READABLE, || {
            let mut bytes = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut beside = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let got = rustix::net::recvmsg(stream.as_fd(), &mut [io::IoSliceMut::new(&mut bytes)], &mut beside, flags)?;
            for message in beside.drain() {
                if let RecvAncillaryMessage::ScmRights(all) = message {
                    let room = DESCRIPTORS_MAX.saturating_sub(descriptors.len());
                    descriptors.extend(all.take(room));
                }
            }
            unread.extend_from_slice(&bytes[..got.bytes]);
            Ok(got.bytes)
        });
        match read.await? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            _ => Ok(()),
        }
    }
}
