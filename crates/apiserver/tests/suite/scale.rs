//! What must not grow with the number of objects or clients, counted: pieces between two turns of other requests, bytes of a piece.
// Helpers of a test panic on errors, like the test itself.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::common::Api;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const OBJECTS: usize = 60;
const OBJECT_BYTES: usize = 9000;
/// The bytes of records in one piece of a list, at most, with the record that exceeds the limit.
const PIECE_BYTES_MAX: usize = 64 * 1024 + OBJECT_BYTES + 1024;

async fn filled() -> Api {
    let api = Api::start().await;
    for i in 0..OBJECTS {
        let text = format!("{i:02} ").repeat(OBJECT_BYTES / 3);
        api.create(MAPS, json!({"metadata": {"name": format!("m{i:02}")}, "data": {"t": text}})).await;
    }
    api
}

/// Reads a list to its end, and counts its pieces as they come.
async fn read_list(api: &Api, accept: &str, pieces: &AtomicUsize) -> Vec<usize> {
    let mut body = api.raw("GET", MAPS, &[("accept", accept)], "").await.into_body();
    let mut sizes = Vec::new();
    while let Some(frame) = body.frame().await {
        sizes.push(frame.unwrap().into_data().unwrap().len());
        pieces.fetch_add(1, Ordering::Relaxed);
    }
    sizes
}

/// Counts the turns that another task of the same thread has, and the most pieces between two of them.
struct Observer {
    over: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<(usize, usize)>,
}

impl Observer {
    fn start(pieces: &Arc<AtomicUsize>) -> Self {
        let (over, pieces) = (Arc::new(AtomicBool::new(false)), Arc::clone(pieces));
        let ends = Arc::clone(&over);
        let task = tokio::spawn(async move {
            let (mut turns, mut most, mut before) = (0, 0, 0);
            while !ends.load(Ordering::Relaxed) {
                let now = pieces.load(Ordering::Relaxed);
                (turns, most, before) = (turns + 1, most.max(now - before), now);
                tokio::task::yield_now().await;
            }
            (turns, most)
        });
        Self { over, task }
    }

    async fn end(self) -> (usize, usize) {
        self.over.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

#[tokio::test]
async fn other_requests_have_their_turn_after_each_piece_of_a_list() {
    const CLIENTS: usize = 16;
    let api = filled().await;
    for accept in ["application/json", PROTOBUF, TABLE] {
        let pieces = Arc::new(AtomicUsize::new(0));
        let observer = Observer::start(&pieces);
        let reads = (0..CLIENTS).map(|_| read_list(&api, accept, &pieces));
        let sizes = futures::future::join_all(reads).await;
        let (turns, most) = observer.end().await;
        let each = sizes[0].len();
        assert!(each >= 8, "{accept}: {each} pieces");
        // The first piece of a list and the second may come together. A table is so small that it is sent whole.
        assert!(accept == TABLE || most <= 2 * CLIENTS, "{accept}: {most} pieces between two turns of another task");
        assert!(turns >= each / 2, "{accept}: {turns} turns");
        assert!(sizes.iter().flatten().all(|bytes| *bytes <= PIECE_BYTES_MAX), "{accept}: {sizes:?}");
    }
}

#[tokio::test]
async fn a_protobuf_list_of_a_cold_store_gives_turns_before_its_first_piece() {
    let api = filled().await;
    let pieces = Arc::new(AtomicUsize::new(0));
    let observer = Observer::start(&pieces);
    let response = api.raw("GET", MAPS, &[("accept", PROTOBUF)], "").await;
    let (turns, most) = observer.end().await;
    drop(response);
    assert_eq!(most, 0);
    assert!(turns >= OBJECTS * OBJECT_BYTES / PIECE_BYTES_MAX, "{turns} turns while messages were made");
}

#[tokio::test]
async fn a_deleted_collection_is_answered_in_pieces() {
    let api = filled().await;
    let mut body = api.raw("DELETE", MAPS, &[], "").await.into_body();
    let (mut all, mut largest) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let piece = frame.unwrap().into_data().unwrap();
        largest = largest.max(piece.len());
        all.extend_from_slice(&piece);
    }
    let list: Value = serde_json::from_slice(&all).unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), OBJECTS);
    assert!(largest <= PIECE_BYTES_MAX, "{largest} of {} bytes at once", all.len());
    let left = api.get(MAPS).await;
    assert_eq!(left["items"].as_array().unwrap().len(), 0);
}

/// Watchers that resume behind the current revision get large frames that all of them share, not separate copies.
#[tokio::test]
async fn a_watch_that_resumes_sends_large_events_one_by_one() {
    let api = Api::start().await;
    let before = api.get(MAPS).await["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    for (name, bytes) in [("a", 10_000), ("b", 10), ("c", 10), ("d", 10_000)] {
        api.create(MAPS, json!({"metadata": {"name": name}, "data": {"t": "x".repeat(bytes)}})).await;
    }
    let uri = format!("{MAPS}?watch=1&resourceVersion={before}");
    let (mut one, mut other) =
        (api.raw("GET", &uri, &[], "").await.into_body(), api.raw("GET", &uri, &[], "").await.into_body());
    for (events, is_shared) in [(1, true), (2, false), (1, true)] {
        let next = async |body: &mut kelson_transport::Body| {
            let chunk = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(chunk.iter().filter(|byte| **byte == b'\n').count(), events);
            chunk
        };
        let (first, second) = (next(&mut one).await, next(&mut other).await);
        assert_eq!(first, second);
        assert_eq!(first.as_ptr() == second.as_ptr(), is_shared, "{events} events");
    }
}
