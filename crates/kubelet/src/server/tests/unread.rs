//! Peers that ask and do not read. The kubelet serves HTTP/1.1 alone.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;

use super::answer::Body;
use super::logs::BLOCKS_MAX;
use super::{BUFFER_BYTES_MAX, HEADER_MAX, http1_builder};

use crate::logs::read::{self, Options};

/// The bytes that a peer's end of the connection buffers without reading.
const PIPE_BYTES: usize = 64 << 10;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

/// Answers a request with this body, of which the peer reads nothing.
async fn ask(body: Body) -> (tokio::io::DuplexStream, tokio::task::JoinHandle<Result<(), String>>) {
    let (mut client, server) = tokio::io::duplex(PIPE_BYTES);
    let body = parking_lot::Mutex::new(Some(body));
    let service = service_fn(move |_: http::Request<hyper::body::Incoming>| {
        std::future::ready(Ok::<_, Infallible>(http::Response::new(body.lock().take().expect("one request"))))
    });
    let served = tokio::spawn(async move {
        let connection = http1_builder().serve_connection(TokioIo::new(server), service).with_upgrades();
        connection.await.map_err(|error| error.to_string())
    });
    client.write_all(REQUEST).await.expect("a pipe");
    (client, served)
}

#[tokio::test(start_paused = true)]
async fn what_no_peer_reads_is_not_made() {
    const PIECE: usize = 16 << 10;
    let made = Arc::new(AtomicUsize::new(0));
    let of_body = Arc::clone(&made);
    let bytes_max = BUFFER_BYTES_MAX + PIPE_BYTES + 4 * PIECE;
    let pieces = futures::stream::repeat_with(move || {
        let before = of_body.fetch_add(PIECE, Ordering::SeqCst);
        assert!(before < bytes_max, "an answer that no peer reads is made without bound");
        Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; PIECE])))
    });
    let (_client, served) = ask(StreamBody::new(pieces).boxed_unsync()).await;
    tokio::time::sleep(HEADER_MAX * 10).await;
    assert!(!served.is_finished(), "the peer may read later");
    served.abort();
    let made = made.load(Ordering::SeqCst);
    assert!((PIECE..=bytes_max).contains(&made), "{made} bytes");
}

/// The blocks of a log are counted where they leave the reader of the file.
#[tokio::test]
async fn a_log_that_no_peer_reads_is_not_read_from_the_disk() {
    const LINES: usize = 400_000;
    const QUIET: usize = 10_000;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("0.log");
    let line = "2026-01-01T00:00:00.000000000Z stdout F 0123456789012345678901234567890123456789\n";
    std::fs::write(&path, line.repeat(LINES)).expect("writes");
    let read = Arc::new(AtomicUsize::new(0));
    let of_body = Arc::clone(&read);
    let (sink, blocks) = tokio::sync::mpsc::channel::<Bytes>(BLOCKS_MAX);
    let queue = sink.clone();
    let reader = tokio::spawn(async move { read::read(path, Options::default(), sink, || async { false }).await });
    let blocks = tokio_stream::wrappers::ReceiverStream::new(blocks).map(move |block| {
        of_body.fetch_add(block.len(), Ordering::SeqCst);
        Ok::<_, Infallible>(Frame::data(block))
    });
    let (_client, served) = ask(StreamBody::new(blocks).boxed_unsync()).await;
    // The queue is full and stays so: nothing takes from it any more.
    let mut quiet = 0;
    while quiet < QUIET && !reader.is_finished() {
        quiet = if queue.capacity() == 0 { quiet + 1 } else { 0 };
        tokio::task::yield_now().await;
    }
    let read = read.load(Ordering::SeqCst);
    assert!(!reader.is_finished(), "the file was read to its end");
    assert!(read > 0 && read < 4 * BUFFER_BYTES_MAX, "{read} bytes of {}", LINES * 41);
    reader.abort();
    served.abort();
}
