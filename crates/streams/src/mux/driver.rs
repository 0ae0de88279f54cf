//! Moves a connection's bytes: one task reads, one writes, and one handles timeouts. The frames are handled in `state`.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use kelson_tasks::OnPanic;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::Instant;

use super::state::{Next, Shared};
use super::table::Phase;
use super::{ConnectionOptions, Decode, Encode, Inbound, LINGER, Outbound};
use crate::error::StreamError;

/// The size of the first reads, in bytes.
const READ_BYTES: usize = 8 * 1024;
/// The size of a read after a read that filled its buffer.
const READ_BYTES_MAX: usize = 128 * 1024;
/// Small frames are collected up to this size before they are written.
const BATCH_BYTES: usize = 64 * 1024;
/// The time that an orderly end may take without progress, when the peer does not read.
const CLOSE_STALL: Duration = Duration::from_secs(60);

/// Starts the tasks of a connection. They end with the connection.
pub(super) fn spawn<T, D, E>(io: T, shared: Arc<Shared>, decode: D, encode: E, options: ConnectionOptions)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
    D: Decode,
    E: Encode,
{
    let (read, write) = tokio::io::split(io);
    let tasks = options.tasks.clone();
    tasks.spawn("stream-read", OnPanic::Contain, read_loop(read, shared.clone(), decode));
    tasks.spawn("stream-write", OnPanic::Contain, write_loop(write, shared.clone(), encode));
    tasks.spawn("stream-time", OnPanic::Contain, keep_time(shared, options));
}

/// Ends the connection when the task that holds this ends, also by a panic or with its task group.
struct EndsWith(Option<Arc<Shared>>);

impl Drop for EndsWith {
    fn drop(&mut self) {
        if let Some(shared) = &self.0
            && *shared.phase.borrow() != Phase::Dead
        {
            shared.input_ended(StreamError::Aborted);
        }
    }
}

async fn read_loop<T: AsyncRead>(mut io: ReadHalf<T>, shared: Arc<Shared>, mut decode: impl Decode) {
    let _end = EndsWith(Some(shared.clone()));
    let mut phase = shared.phase.subscribe();
    let mut ended = std::pin::pin!(lingered(shared.phase.subscribe()));
    let mut input = BytesMut::new();
    let mut room = READ_BYTES;
    let error = 'connection: loop {
        loop {
            match decode.decode(&mut input) {
                Ok(None) => break,
                Ok(Some(frame)) => match handle(&shared, frame) {
                    Ok(None) => {}
                    Ok(Some(full)) => wait_for_room(&shared, full).await,
                    Err(error) => break 'connection error,
                },
                Err(error) => break 'connection error,
            }
        }
        input.reserve(room);
        tokio::select! {
            read = io.read_buf(&mut input) => match read {
                Ok(0) => break StreamError::Aborted,
                Ok(read) => {
                    shared.core.lock().heard = Instant::now();
                    room = match read {
                        all if all >= room => (room * 2).min(READ_BYTES_MAX),
                        little if little < room / 4 => READ_BYTES,
                        _ => room,
                    };
                }
                // TLS peers often close without `close_notify`. The framings above TLS have an end of their streams.
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break StreamError::Aborted,
                Err(error) => break error.into(),
            },
            () = &mut ended => break StreamError::Closed,
        }
    };
    if matches!(error, StreamError::Protocol(_) | StreamError::Limit(_)) {
        tracing::debug!(%error, "streaming connection failed");
        shared.fail(error.clone());
        let _ = tokio::time::timeout(LINGER, phase.wait_for(|phase| *phase >= Phase::Written)).await;
    }
    shared.input_ended(error);
}

/// Waits until this side has sent its final frame and the peer had time to read it, or until the connection is dead.
async fn lingered(mut phase: watch::Receiver<Phase>) {
    let _ = phase.wait_for(|phase| *phase >= Phase::Written).await;
    let _ = tokio::time::timeout(LINGER, phase.wait_for(|phase| *phase == Phase::Dead)).await;
}

/// Handles a frame. Returns the stream that is full now, if any.
fn handle(shared: &Shared, frame: Inbound) -> Result<Option<u32>, StreamError> {
    match frame {
        Inbound::Open { id, headers, fin } => shared.opened(id, headers, fin)?,
        Inbound::Reply { id, fin } => shared.replied(id, fin),
        Inbound::Data { id, data, fin } => return Ok((!shared.received(id, data, fin)).then_some(id)),
        Inbound::Reset { id } => shared.reset_by_peer(id),
        Inbound::Ping(data) => shared.pong(data)?,
        Inbound::GoAway => shared.peer_farewell(),
        Inbound::Close => shared.peer_closed(),
        Inbound::Pong | Inbound::Nothing => {}
    }
    Ok(None)
}

async fn wait_for_room(shared: &Shared, id: u32) {
    shared.core.lock().stalled = true;
    while !shared.has_room(id) {
        shared.room.notified().await;
    }
    let mut core = shared.core.lock();
    core.stalled = false;
    core.heard = Instant::now();
}

async fn write_loop<T: AsyncWrite>(mut io: WriteHalf<T>, shared: Arc<Shared>, encode: impl Encode) {
    let mut end = EndsWith(Some(shared.clone()));
    let mut phase = shared.phase.subscribe();
    let outcome = tokio::select! {
        outcome = write_frames(&mut io, &shared, encode) => outcome,
        _ = phase.wait_for(|phase| *phase == Phase::Dead) => Ok(()),
    };
    // If the shutdown fails, the transport is closed already. The timeout ends the task even if the peer does not read.
    let _ = tokio::time::timeout(LINGER, io.shutdown()).await;
    shared.output_ended(outcome.err());
    // This task ended in order, so the read task continues to read.
    end.0 = None;
}

async fn write_frames<T: AsyncWrite>(
    io: &mut WriteHalf<T>,
    shared: &Shared,
    mut encode: impl Encode,
) -> Result<(), StreamError> {
    let mut batch = BytesMut::new();
    loop {
        match shared.next() {
            Next::Control(frame) => encode.control(frame, &mut batch)?,
            Next::Fin(id) => encode.fin(id, &mut batch),
            Next::Data(id, data) => {
                if let Some(payload) = encode.data(id, data, &mut batch) {
                    write_out(io, &mut batch, payload).await?;
                }
            }
            Next::Farewell { last_good, error } => {
                encode.control(Outbound::GoAway { last_good, error }, &mut batch)?;
                write_out(io, &mut batch, Bytes::new()).await?;
                io.flush().await?;
                return Ok(());
            }
            Next::Wait if batch.is_empty() => shared.send.notified().await,
            Next::Wait => {
                write_out(io, &mut batch, Bytes::new()).await?;
                io.flush().await?;
            }
        }
        if batch.len() >= BATCH_BYTES {
            write_out(io, &mut batch, Bytes::new()).await?;
        }
    }
}

async fn write_out<T: AsyncWrite>(
    io: &mut WriteHalf<T>,
    batch: &mut BytesMut,
    payload: Bytes,
) -> Result<(), StreamError> {
    io.write_all_buf(&mut batch.chain(payload)).await?;
    batch.clear();
    Ok(())
}

/// Sends pings, and enforces the idle limit and the limit of an orderly end that makes no progress.
async fn keep_time(shared: Arc<Shared>, options: ConnectionOptions) {
    let mut phase = shared.phase.subscribe();
    let mut next_ping = options.keep_alive.map(|period| Instant::now() + period);
    loop {
        let current = *phase.borrow_and_update();
        let now = Instant::now();
        let (active, heard, failed) = {
            let core = shared.core.lock();
            (core.active, if core.stalled { now } else { core.heard }, core.error.is_some())
        };
        let deadline = match current {
            Phase::Written | Phase::Dead => return,
            Phase::Closing => {
                let deadline = active + if failed { LINGER } else { CLOSE_STALL };
                if now >= deadline {
                    shared.input_ended(StreamError::Closed);
                    return;
                }
                Some(deadline)
            }
            Phase::Open => {
                let idle = options.idle_limit.map(|limit| (active + limit, StreamError::Idle));
                let silent = options.keep_alive_timeout.map(|limit| (heard + limit, StreamError::KeepAlive));
                let over = idle.into_iter().chain(silent).min_by_key(|(deadline, _)| *deadline);
                if let Some((deadline, error)) = &over
                    && now >= *deadline
                {
                    shared.fail(error.clone());
                    continue;
                }
                if let (Some(at), Some(period)) = (next_ping, options.keep_alive)
                    && now >= at
                {
                    shared.ping();
                    next_ping = Some(now + period);
                }
                over.map(|(deadline, _)| deadline).into_iter().chain(next_ping).min()
            }
        };
        let sleep = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep => {}
            changed = phase.changed() => if changed.is_err() { return },
        }
    }
}
