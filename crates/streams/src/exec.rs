//! The server's side of exec and attach: the streams of the request over either transport, and their end. The caller
//! runs the command. Upstream: `cri-streaming/pkg/streaming/remotecommand`.

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::error::StreamError;
use crate::mux::{Connection, ConnectionOptions, Stream};
use crate::negotiate::{ExecOptions, ExecProtocol, RemoteCommandVersion};
use crate::status::ExecResult;
use crate::ws::Role;
use crate::ws::wire::{ChannelDecode, ChannelEncode, ChannelFormat};

/// The header with the purpose of a stream.
pub const STREAM_TYPE: &str = "streamType";
/// The number of channels of a WebSocket exec. In order: stdin, stdout, stderr, error, resize.
pub(crate) const CHANNELS: u8 = 5;
/// The limit of buffered bytes of incomplete resize messages.
const RESIZE_BYTES_MAX: usize = 4 * 1024;

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TerminalSize {
    /// The width in characters.
    #[serde(rename = "Width")]
    pub width: u16,
    /// The height in lines.
    #[serde(rename = "Height")]
    pub height: u16,
}

/// Decodes as upstream does: names match in any case, missing fields are 0, and other fields are ignored.
impl<'de> Deserialize<'de> for TerminalSize {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut size = Self::default();
        for (name, value) in serde_json::Map::deserialize(from)? {
            let member = match name.to_ascii_lowercase().as_str() {
                "width" => &mut size.width,
                "height" => &mut size.height,
                _ => continue,
            };
            if !value.is_null() {
                *member = u16::deserialize(value).map_err(serde::de::Error::custom)?;
            }
        }
        Ok(size)
    }
}

/// The sizes of the client's terminal as they arrive.
#[derive(Debug)]
pub struct ResizeStream {
    stream: Stream,
    held: Vec<u8>,
}

impl ResizeStream {
    /// Waits for the next size. Returns `None` if no more sizes will arrive.
    pub async fn next(&mut self) -> Option<TerminalSize> {
        loop {
            let mut sizes = serde_json::Deserializer::from_slice(&self.held).into_iter::<TerminalSize>();
            match sizes.next() {
                Some(Ok(size)) => {
                    let parsed = sizes.byte_offset();
                    self.held.drain(..parsed);
                    return Some(size);
                }
                Some(Err(error)) if !error.is_eof() => return None,
                _ if self.held.len() > RESIZE_BYTES_MAX => return None,
                _ => {}
            }
            match self.stream.read_buf(&mut self.held).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }
}

/// The streams of one exec or attach, as the side that runs the command sees them. The caller takes the streams that it
/// needs. [`ExecStreams::finish`] ends the others.
#[derive(Debug)]
pub struct ExecStreams {
    /// The command's input, which is read.
    pub stdin: Option<Stream>,
    /// The command's output, which is written.
    pub stdout: Option<Stream>,
    /// The command's error output, which is written.
    pub stderr: Option<Stream>,
    /// The sizes of the terminal, if there is one.
    pub resize: Option<ResizeStream>,
    error: Stream,
    json_status: bool,
    connection: Connection,
}

impl ExecStreams {
    /// Serves an upgraded connection. Waits for the streams that `wanted` announces.
    ///
    /// # Errors
    /// [`StreamError::StreamCreation`] when the client does not create them in time.
    pub async fn serve<T>(
        io: T,
        protocol: ExecProtocol,
        wanted: ExecOptions,
        options: &ConnectionOptions,
    ) -> Result<Self, StreamError>
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        match protocol {
            ExecProtocol::WebSocket { version, base64 } => {
                Ok(Self::serve_channels(io, version, base64, wanted, options))
            }
            ExecProtocol::Spdy(version) => {
                let connection = Connection::spdy_server(io, options)?;
                let streams = wait_for_streams(&connection, version, wanted);
                tokio::time::timeout(options.stream_creation, streams).await.map_err(|_| StreamError::StreamCreation)?
            }
        }
    }

    fn serve_channels<T>(
        io: T,
        version: RemoteCommandVersion,
        base64: bool,
        wanted: ExecOptions,
        options: &ConnectionOptions,
    ) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (connection, streams) = open_channels(io, Role::Server, version, base64, options);
        let [stdin, stdout, stderr, error, resize] = streams;
        // An empty message on the first channel that the client reads shows that the connection works.
        if wanted.stdout {
            stdout.write_empty();
        } else if wanted.stderr {
            stderr.write_empty();
        } else {
            error.write_empty();
        }
        Self {
            stdin: wanted.stdin.then_some(stdin),
            stdout: wanted.stdout.then_some(stdout),
            stderr: (wanted.stderr && !wanted.tty).then_some(stderr),
            resize: wanted.tty.then_some(ResizeStream { stream: resize, held: Vec::new() }),
            error,
            json_status: version.json_status(),
            connection,
        }
    }

    /// The connection that carries the streams.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Waits until the client has disconnected; see [`Connection::closed`].
    pub async fn closed(&self) -> Option<StreamError> {
        self.connection.closed().await
    }

    /// Ends the exec. Sends everything written, then the end of the outputs, then the result, then the end of the
    /// connection. Returns when the transport has accepted all of it, or when the client has disconnected.
    pub async fn finish(self, result: &ExecResult) {
        let payload = result.payload(self.json_status);
        self.finish_raw(&payload).await;
    }

    pub(crate) async fn finish_raw(mut self, payload: &[u8]) {
        for stream in [&self.stdin, &self.stdout, &self.stderr].into_iter().flatten() {
            stream.finish();
        }
        // A client that has disconnected does not receive the result, which is not an error here.
        let _ = self.error.write_all(payload).await;
        let _ = self.error.shutdown().await;
        self.connection.close().await;
    }

    pub(crate) fn json_status(&self) -> bool {
        self.json_status
    }
}

/// Opens the five channels of a WebSocket exec, for either end.
pub(crate) fn open_channels<T>(
    io: T,
    role: Role,
    version: RemoteCommandVersion,
    base64: bool,
    options: &ConnectionOptions,
) -> (Connection, [Stream; CHANNELS as usize])
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let format = ChannelFormat { base64, close_signal: version == RemoteCommandVersion::V5 };
    let decode = ChannelDecode::new(role, format);
    let encode = ChannelEncode::new(role, format);
    let (connection, streams) = Connection::channels(io, CHANNELS, decode, encode, options);
    let streams = streams.try_into().expect("more streams than requested channels");
    (connection, streams)
}

async fn wait_for_streams(
    connection: &Connection,
    version: RemoteCommandVersion,
    wanted: ExecOptions,
) -> Result<ExecStreams, StreamError> {
    let stderr = wanted.stderr && !wanted.tty;
    let resizes = wanted.tty && version.resizes();
    let kinds = ["error", "stdin", "stdout", "stderr", "resize"];
    let expected = [true, wanted.stdin, wanted.stdout, stderr, resizes];
    let mut found: [Option<Stream>; 5] = Default::default();
    while found.iter().zip(expected).any(|(found, expected)| expected && found.is_none()) {
        let Some(incoming) = connection.next_stream().await else {
            return Err(connection.closed().await.unwrap_or(StreamError::Closed));
        };
        let headers = incoming.headers();
        let kind = headers.get(STREAM_TYPE).unwrap_or_default();
        match kinds.iter().position(|known| *known == kind) {
            Some(at) if found[at].is_none() => found[at] = Some(incoming.accept()),
            _ => {
                tracing::debug!(kind, "unexpected stream type");
                incoming.refuse();
            }
        }
    }
    let [error, stdin, stdout, stderr, resize] = found;
    Ok(ExecStreams {
        stdin,
        stdout,
        stderr,
        resize: resize.map(|stream| ResizeStream { stream, held: Vec::new() }),
        error: error.ok_or(StreamError::StreamCreation)?,
        json_status: version.json_status(),
        connection: connection.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_clients_write_them() {
        let read = |text: &str| serde_json::from_str(text).ok().map(|s: TerminalSize| (s.width, s.height));
        for (text, expected) in [
            (r#"{"Width":80,"Height":24}"#, Some((80, 24))),
            (r#"{"width":80,"HEIGHT":24,"depth":1}"#, Some((80, 24))),
            (r#"{"Width":80,"Height":null}"#, Some((80, 0))),
            ("{}", Some((0, 0))),
            (r#"{"Width":"80"}"#, None),
            (r#"{"Width":65536}"#, None),
            (r#"{"Width":-1}"#, None),
            ("[80, 24]", None),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }
}
