//! The role of the API server and the kubelet between a client and a backend: bytes are spliced after a verified 101
//! response, a WebSocket is translated to SPDY, or SPDY is extracted from a WebSocket tunnel. `dial` connects to the
//! backend. Upstream: `apiserver/pkg/util/proxy/{streamtranslator,streamtunnel}.go`,
//! `apimachinery/.../upgradeaware.go`.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use crate::copy::{copy, copy_noting};
use crate::error::StreamError;
use crate::exec::ExecStreams;
use crate::exec_client::{ExecClient, exec_client};
use crate::mux::ConnectionOptions;
use crate::negotiate::{ExecOptions, ExecProtocol, RemoteCommandVersion};
use crate::status::ExecResult;
use crate::ws::Role;
use crate::ws::tunnel::TunnelStream;

/// The time for which one direction may continue after the other has failed.
const BROKEN_LINGER: Duration = Duration::from_secs(10);

/// Copies bytes in both directions until both sides have ended. Each end is passed on when it arrives (half-close). A
/// direction that breaks ends its target, and data of the other direction is still delivered. Returns the number of
/// bytes from `a` to `b` and from `b` to `a`.
///
/// # Errors
/// Returns the first failure, after the other direction has ended or its time is over.
pub async fn splice<A, B>(a: A, b: B) -> io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    relay(a, b, None).await
}

/// Works like [`splice`], and closes both ends when neither direction has carried data for `idle`.
///
/// # Errors
/// Fails like [`splice`], and with `TimedOut` after `idle` without data.
pub async fn splice_until_idle<A, B>(a: A, b: B, idle: Duration) -> io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let carried = Activity::begin();
    let carry = relay_noting(a, b, None, &carried);
    tokio::pin!(carry);
    loop {
        let last = carried.last();
        match tokio::time::timeout_at(last + idle, &mut carry).await {
            Ok(outcome) => return outcome,
            Err(_) if carried.last() == last => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, StreamError::Idle));
            }
            Err(_) => {}
        }
    }
}

/// The time of the last traffic in either direction.
#[derive(Debug)]
struct Activity {
    begun: Instant,
    /// Milliseconds from `begun` to the last bytes. It is atomic so that both directions update it without a lock.
    last: AtomicU64,
}

impl Activity {
    fn begin() -> Self {
        Self { begun: Instant::now(), last: AtomicU64::new(0) }
    }
    fn note(&self) {
        let since = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
    }
    fn last(&self) -> Instant {
        self.begun + Duration::from_millis(self.last.load(Ordering::Relaxed))
    }
}

/// Copies bytes in both directions like [`splice`]. With a `linger`, `a` has no half-close: after the end of `b`, `a`
/// may send for that time, and then both are closed.
pub(crate) async fn relay<A, B>(a: A, b: B, linger: Option<Duration>) -> io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    relay_noting(a, b, linger, &Activity::begin()).await
}

async fn relay_noting<A, B>(a: A, b: B, linger: Option<Duration>, carried: &Activity) -> io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (a_read, a_write) = tokio::io::split(a);
    let (b_read, b_write) = tokio::io::split(b);
    let mut there = std::pin::pin!(pump(a_read, b_write, carried));
    let mut back = std::pin::pin!(pump(b_read, a_write, carried));
    let (first, second) = tokio::select! {
        there = &mut there => {
            let back = end(&there, back, None).await;
            (there, back)
        }
        back = &mut back => {
            let there = end(&back, there, linger).await;
            (there, back)
        }
    };
    Ok((first?, second?))
}

/// Waits for the second direction. After an orderly end of the first it waits for `linger`, or without limit; after a
/// failure it waits for [`BROKEN_LINGER`].
async fn end(
    first: &io::Result<u64>,
    second: impl Future<Output = io::Result<u64>>,
    linger: Option<Duration>,
) -> io::Result<u64> {
    match (first, linger) {
        (Ok(_), None) => second.await,
        (Ok(_), Some(limit)) => tokio::time::timeout(limit, second).await.unwrap_or(Ok(0)),
        (Err(_), _) => tokio::time::timeout(BROKEN_LINGER, second).await.unwrap_or(Ok(0)),
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    carried: &Activity,
) -> io::Result<u64> {
    let outcome = copy_noting(&mut from, &mut to, || carried.note()).await;
    // The target gets no more data, whether the copy ended or failed. A shutdown fails if the target has disconnected,
    // which does not matter.
    let _ = to.shutdown().await;
    outcome
}

/// Extracts SPDY from a client's WebSocket tunnel, and exchanges it with a backend that uses SPDY.
pub async fn tunnel_websocket_to_spdy<A, B>(client: A, backend: B) -> io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    relay(TunnelStream::new(client, Role::Server), backend, None).await
}

/// Translates a client's WebSocket exec or attach to SPDY for the kubelet. `backend` connects to it. It is called after
/// the client's streams exist, so that the client receives a connection failure as the result of its exec, as in
/// upstream.
///
/// # Errors
/// Fails when either connection fails; the client has received the error if its connection still worked.
pub async fn translate_websocket_to_spdy<A, B>(
    client: A,
    protocol: ExecProtocol,
    wanted: ExecOptions,
    backend: impl Future<Output = Result<(B, RemoteCommandVersion), ExecResult>>,
    options: &ConnectionOptions,
) -> Result<(), StreamError>
where
    A: AsyncRead + AsyncWrite + Send + 'static,
    B: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut server = ExecStreams::serve(client, protocol, wanted, options).await?;
    let (io, version) = match backend.await {
        Ok(dialed) => dialed,
        Err(result) => {
            server.finish(&result).await;
            return Ok(());
        }
    };
    let client = exec_client(io, ExecProtocol::Spdy(version), wanted, options).await;
    let mut client = match client {
        Ok(client) => client,
        Err(error) => {
            server.finish(&ExecResult::internal_error(&error)).await;
            return Err(error);
        }
    };
    let connection = server.connection().clone();
    let outcome = tokio::select! {
        outcome = carry(&mut server, &mut client) => outcome,
        // The client has disconnected, so the connection to the backend is closed.
        gone = server_gone(connection) => Err(gone),
    };
    match outcome {
        Ok(payload) if server.json_status() == client.json_status() => server.finish_raw(&payload).await,
        Ok(payload) => server.finish(&ExecResult::decode(&payload, client.json_status())).await,
        Err(error) => {
            server.finish(&ExecResult::internal_error(&error)).await;
            client.close().await;
            return Err(error);
        }
    }
    client.close().await;
    Ok(())
}

async fn server_gone(connection: crate::mux::Connection) -> StreamError {
    connection.closed().await.unwrap_or(StreamError::Closed)
}

/// Copies the streams until the outputs and the result have ended. Returns the bytes of the result.
async fn carry(server: &mut ExecStreams, client: &mut ExecClient) -> Result<Vec<u8>, StreamError> {
    let (stdin_from, stdin_to) = (server.stdin.take(), client.stdin.take());
    let input = async {
        if let (Some(mut from), Some(mut to)) = (stdin_from, stdin_to) {
            // The command may end its input before the client does, which is not a failure.
            let _ = copy(&mut from, &mut to).await;
            let _ = to.shutdown().await;
        }
        std::future::pending::<()>().await;
    };
    let (resize_from, resize_to) = (server.resize.take(), client.take_resize());
    let sizes = async {
        if let (Some(mut from), Some(mut to)) = (resize_from, resize_to) {
            while let Some(size) = from.next().await {
                if to.send(size).await.is_err() {
                    break;
                }
            }
        }
        std::future::pending::<()>().await;
    };
    let (stdout_from, stdout_to) = (client.stdout.take(), server.stdout.take());
    let (stderr_from, stderr_to) = (client.stderr.take(), server.stderr.take());
    let outputs = async {
        let (stdout, stderr, result) =
            tokio::join!(output(stdout_from, stdout_to), output(stderr_from, stderr_to), client.result_payload());
        stdout?;
        stderr?;
        result
    };
    tokio::select! {
        outcome = outputs => outcome,
        () = input => Err(StreamError::Closed),
        () = sizes => Err(StreamError::Closed),
    }
}

async fn output(from: Option<crate::mux::Stream>, to: Option<crate::mux::Stream>) -> Result<(), StreamError> {
    if let (Some(mut from), Some(mut to)) = (from, to) {
        copy(&mut from, &mut to).await?;
        to.shutdown().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const IDLE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_that_carries_nothing_for_its_limit_and_no_other() {
        let (mut client, near) = tokio::io::duplex(64);
        let (far, mut backend) = tokio::io::duplex(64);
        let begun = Instant::now();
        let carried = async {
            let outcome = splice_until_idle(near, far, IDLE).await;
            (outcome, begun.elapsed())
        };
        let traffic = async {
            let mut byte = [0];
            // Data in each direction in turn, for longer than the limit but never with a pause of that length.
            for n in 0..4 {
                tokio::time::sleep(Duration::from_secs(45)).await;
                let (from, to) = if n % 2 == 0 { (&mut client, &mut backend) } else { (&mut backend, &mut client) };
                from.write_all(b"x").await.expect("carried");
                to.read_exact(&mut byte).await.expect("carried");
            }
            let last = begun.elapsed();
            // Without further data, both ends receive the end of their streams.
            assert_eq!(client.read(&mut byte).await.expect("an end"), 0);
            assert_eq!(backend.read(&mut byte).await.expect("an end"), 0);
            last
        };
        let ((outcome, ended), last) = tokio::join!(carried, traffic);
        assert_eq!(outcome.expect_err("it was idle").kind(), io::ErrorKind::TimedOut);
        let rested = ended - last;
        assert!(last >= 3 * IDLE && (IDLE..IDLE + Duration::from_secs(1)).contains(&rested), "{last:?} {ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_ends_by_itself_is_not_called_idle() {
        let (mut client, near) = tokio::io::duplex(64);
        let (far, mut backend) = tokio::io::duplex(64);
        let traffic = async {
            client.write_all(b"in").await.expect("carried");
            client.shutdown().await.expect("ended");
            let mut all = Vec::new();
            backend.read_to_end(&mut all).await.expect("carried");
            tokio::time::sleep(Duration::from_secs(50)).await;
            backend.write_all(b"out").await.expect("carried");
            drop(backend);
            all
        };
        let (outcome, all) = tokio::join!(splice_until_idle(near, far, IDLE), traffic);
        assert_eq!((outcome.expect("an end"), all), ((2, 3), b"in".to_vec()));
    }
}
