//! The client's side of exec and attach over either transport, to a runtime's streaming server or a kubelet. `dial`
//! performs the upgrade. Upstream: `client-go/tools/remotecommand`.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::error::StreamError;
use crate::exec::{STREAM_TYPE, TerminalSize, open_channels};
use crate::mux::{Connection, ConnectionOptions, Stream};
use crate::negotiate::{ExecOptions, ExecProtocol};
use crate::spdy::Headers;
use crate::status::ExecResult;
use crate::ws::Role;

/// The size limit of a result that this side reads, in bytes. The remainder is cut off.
const RESULT_BYTES_MAX: u64 = 256 * 1024;

/// The streams of one exec or attach, as the side that requested it sees them.
#[derive(Debug)]
pub struct ExecClient {
    /// The command's input. The caller writes it and shuts it down at its end.
    pub stdin: Option<Stream>,
    /// The command's output. The caller reads it to its end before it waits for the result.
    pub stdout: Option<Stream>,
    /// The command's error output.
    pub stderr: Option<Stream>,
    resize: Option<Stream>,
    error: Stream,
    json_status: bool,
    connection: Connection,
}

/// Opens the streams of an exec or attach over an upgraded connection.
pub async fn exec_client<T>(
    io: T,
    protocol: ExecProtocol,
    wanted: ExecOptions,
    options: &ConnectionOptions,
) -> Result<ExecClient, StreamError>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let stderr = wanted.stderr && !wanted.tty;
    let version = match protocol {
        ExecProtocol::Spdy(version) => version,
        ExecProtocol::WebSocket { version, base64 } => {
            let (connection, channels) = open_channels(io, Role::Client, version, base64, options);
            let [stdin, stdout, stderr_channel, error, resize] = channels;
            return Ok(ExecClient {
                stdin: wanted.stdin.then_some(stdin),
                stdout: wanted.stdout.then_some(stdout),
                stderr: stderr.then_some(stderr_channel),
                resize: wanted.tty.then_some(resize),
                error,
                json_status: version.json_status(),
                connection,
            });
        }
    };
    let connection = Connection::spdy_client(io, options)?;
    let open = async |wanted: bool, kind: &str| match wanted {
        true => connection.open_stream(Headers::new().with(STREAM_TYPE, kind)).await.map(Some),
        false => Ok(None),
    };
    // This is the order of client-go. Runtimes count the streams, and the error stream comes first.
    let error = connection.open_stream(Headers::new().with(STREAM_TYPE, "error")).await?;
    Ok(ExecClient {
        stdin: open(wanted.stdin, "stdin").await?,
        stdout: open(wanted.stdout, "stdout").await?,
        stderr: open(stderr, "stderr").await?,
        resize: open(wanted.tty && version.resizes(), "resize").await?,
        error,
        json_status: version.json_status(),
        connection: connection.clone(),
    })
}

impl ExecClient {
    /// The connection that carries the streams.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Takes the sender of terminal sizes, if there is a terminal.
    pub fn take_resize(&mut self) -> Option<ResizeSender> {
        self.resize.take().map(ResizeSender)
    }

    /// Waits for the command's result. Meanwhile the outputs must be read, or must have been dropped. Otherwise the
    /// connection blocks.
    pub async fn result(&mut self) -> Result<ExecResult, StreamError> {
        let payload = self.result_payload().await?;
        Ok(ExecResult::decode(&payload, self.json_status))
    }

    pub(crate) async fn result_payload(&mut self) -> Result<Vec<u8>, StreamError> {
        let mut payload = Vec::new();
        (&mut self.error).take(RESULT_BYTES_MAX).read_to_end(&mut payload).await?;
        Ok(payload)
    }

    pub(crate) fn json_status(&self) -> bool {
        self.json_status
    }

    /// Ends the connection in order.
    pub async fn close(self) {
        self.connection.close().await;
    }
}

/// Sends terminal sizes.
#[derive(Debug)]
pub struct ResizeSender(Stream);

impl ResizeSender {
    /// Sends one size.
    pub async fn send(&mut self, size: TerminalSize) -> Result<(), StreamError> {
        let text = format!("{{\"Width\":{},\"Height\":{}}}\n", size.width, size.height);
        Ok(self.0.write_all(text.as_bytes()).await?)
    }
}
