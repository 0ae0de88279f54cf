//! A connection to the system's message bus: who we are, calls one after the other, signals as they come, descriptors.
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

/// Where the system's bus listens when nobody says otherwise.
const SOCKET: &str = "/run/dbus/system_bus_socket";
/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(25);
/// Longest line of the handshake.
const LINE_BYTES_MAX: usize = 4096;
/// Descriptors of one reading, and those that wait for their message.
const DESCRIPTORS_MAX: usize = 8;
/// Signals that nobody has taken yet; the oldest go.
const SIGNALS_MAX: usize = 64;
const BUS: &str = "org.freedesktop.DBus";

/// Why the bus or who was asked over it did not do something.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The connection cannot be made or has ended.
    #[error("system bus: {0}")]
    Connection(#[from] io::Error),
    /// What came is no message.
    #[error("system bus: {0}")]
    Wire(#[from] WireError),
    /// Whoever was asked refused.
    #[error("{name}: {message}")]
    Refused {
        /// The error's name on the bus.
        name: String,
        /// What was wrong, in the words of who was asked.
        message: String,
    },
    /// No answer came in time, or not the one that was asked for.
    #[error("system bus: {0}")]
    Answer(&'static str),
}

/// A connection of this process. One at a time calls.
#[derive(Debug)]
pub struct Bus {
    stream: UnixStream,
    serial: u32,
    unread: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    signals: VecDeque<Message>,
}

/// An answer, and the descriptors that came with it.
#[derive(Debug)]
pub struct Answered {
    /// The answer's values.
    pub body: Vec<Value>,
    /// In the order in which the values name them.
    pub descriptors: Vec<OwnedFd>,
}

impl Bus {
    /// Where the system's bus is on this machine (`DBUS_SYSTEM_BUS_ADDRESS`).
    pub fn system() -> PathBuf {
        let named = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_default();
        named.strip_prefix("unix:path=").map_or_else(|| SOCKET.into(), |p| p.split(',').next().unwrap_or(p).into())
    }

    /// Connects to the bus at `socket` as the user that this process is.
    ///
    /// # Errors
    /// When there is none, or it does not let us in.
    pub async fn connect(socket: &Path) -> Result<Self, BusError> {
        let stream = UnixStream::connect(socket).await?;
        let mut bus =
            Self { stream, serial: 0, unread: Vec::new(), descriptors: VecDeque::new(), signals: VecDeque::new() };
        let greet = async {
            let uid = rustix::process::geteuid().as_raw().to_string();
            let hex: String = uid.bytes().map(|b| format!("{b:02x}")).collect();
            bus.stream.write_all(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes()).await?;
            if !bus.line().await?.starts_with("OK") {
                return Err(BusError::Answer("it does not let this user in"));
            }
            bus.stream.write_all(b"NEGOTIATE_UNIX_FD\r\n").await?;
            if !bus.line().await?.starts_with("AGREE_UNIX_FD") {
                return Err(BusError::Answer("it passes no descriptors on"));
            }
            bus.stream.write_all(b"BEGIN\r\n").await?;
            bus.call(Message::call(BUS, "/org/freedesktop/DBus", BUS, "Hello", Vec::new())).await?;
            Ok(())
        };
        tokio::time::timeout(ANSWER_MAX, greet).await.map_err(|_| BusError::Answer("no answer in time"))??;
        Ok(bus)
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The refusal, or what is wrong with the connection.
    pub async fn call(&mut self, mut message: Message) -> Result<Answered, BusError> {
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
                        return Ok(Answered { body: got.body, descriptors });
                    }
                    MessageKind::Error if got.answers == Some(serial) => {
                        let message = match got.body.into_iter().next() {
                            Some(Value::Text(text)) => text,
                            _ => String::new(),
                        };
                        return Err(BusError::Refused { name: got.error, message });
                    }
                    // Answers to calls that were given up, and calls to us, who serve nothing.
                    _ => {}
                }
            }
        };
        tokio::time::timeout(ANSWER_MAX, answer).await.map_err(|_| BusError::Answer("no answer in time"))?
    }

    /// Has the bus send signals that match a rule, such as `type='signal',member='PrepareForShutdown'`.
    ///
    /// # Errors
    /// As of [`Bus::call`].
    pub async fn listen(&mut self, rule: &str) -> Result<(), BusError> {
        let body = vec![Value::text(rule)];
        self.call(Message::call(BUS, "/org/freedesktop/DBus", BUS, "AddMatch", body)).await.map(drop)
    }

    /// The next signal; waits for it. Nothing is lost when the waiting is given up.
    ///
    /// # Errors
    /// When the connection ends.
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

    /// A line of the handshake, without its end.
    async fn line(&mut self) -> Result<String, BusError> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|w| w == b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.unread.len() > LINE_BYTES_MAX {
                return Err(BusError::Answer("its handshake does not end"));
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

    /// Reads what there is, and waits for it.
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
