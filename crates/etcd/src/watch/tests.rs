//! Answers of watch streams, with a state changed by hand and with a store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use kelson_tasks::Tasks;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::watchers::Watchers;
use super::{WatchOptions, watch};
use crate::mvcc::{Limits, State};
use crate::proto::watch_request::RequestUnion;
use crate::proto::*;
use crate::store::{NOTHING, Options, Store};

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, value: &str) -> PutRequest {
    PutRequest { key: bytes(key), value: bytes(value), ..PutRequest::default() }
}

fn create(key: &str, end: &str) -> WatchCreateRequest {
    WatchCreateRequest { key: bytes(key), range_end: bytes(end), ..WatchCreateRequest::default() }
}

/// A stream over a state that the test changes by hand.
struct Stream {
    state: State,
    watchers: Watchers,
    unread: i64,
}

impl Stream {
    fn new() -> Self {
        let watchers = Watchers::new(ResponseHeader::default(), 1000);
        Self { state: State::default(), watchers, unread: NOTHING }
    }

    fn put(&mut self, key: &str, value: &str) {
        self.state.put(&put(key, value)).unwrap();
        self.show();
    }

    fn delete(&mut self, key: &str) {
        self.state.delete_range(&DeleteRangeRequest { key: bytes(key), ..DeleteRangeRequest::default() });
        self.show();
    }

    fn show(&mut self) {
        self.unread = self.unread.min(self.state.revision() + 1);
        self.state.show();
    }

    fn create(&mut self, r: WatchCreateRequest) {
        let shown = self.state.revision();
        self.watchers.create(r, |_, _| {}, || shown);
    }

    /// Returns all answers until there is nothing left, one per line.
    fn reported(&mut self) -> Vec<String> {
        while self.watchers.advance(&self.state, std::mem::replace(&mut self.unread, NOTHING)) {}
        self.watchers.out.drain(..).map(|answer| line(&answer)).collect()
    }
}

fn line(answer: &WatchResponse) -> String {
    let mut line = format!("{}", answer.watch_id);
    for (flag, name) in [(answer.created, "created"), (answer.canceled, "canceled"), (answer.fragment, "fragment")] {
        if flag {
            line += &format!(" {name}");
        }
    }
    if answer.compact_revision != 0 {
        line += &format!(" compacted {}", answer.compact_revision);
    }
    if !answer.cancel_reason.is_empty() {
        line += &format!(" because {}", answer.cancel_reason);
    }
    for event in &answer.events {
        let kv = event.kv.clone().unwrap_or_default();
        let sign = if event.r#type == 0 { "" } else { "-" };
        line += &format!(" {sign}{}@{}", kv.key.escape_ascii(), kv.mod_revision);
        if let Some(before) = &event.prev_kv {
            line += &format!("(was {})", before.value.escape_ascii());
        }
    }
    if line == format!("{}", answer.watch_id) {
        line += &format!(" is at {}", answer.header.map_or(0, |h| h.revision));
    }
    line
}

#[test]
fn new_and_old_events_come_once_and_in_order() {
    let mut s = Stream::new();
    s.put("a", "1");
    s.put("b", "1");
    s.create(create("a", ""));
    s.create(WatchCreateRequest { start_revision: 2, ..create("a", "c") });
    s.create(WatchCreateRequest { start_revision: 5, ..create("a", "c") });
    assert_eq!(s.reported(), ["0 created", "1 created", "2 created", "1 a@2 b@3"]);
    s.put("a", "2");
    s.delete("b");
    assert_eq!(s.reported(), ["0 a@4", "1 a@4 -b@5", "2 -b@5"]);
    s.put("z", "");
    assert_eq!(s.reported(), [""; 0]);
}

#[test]
fn a_watch_that_catches_up_while_others_hear_news() {
    let mut s = Stream::new();
    s.create(create("a", "\0"));
    s.reported();
    for i in 0..10_000 {
        s.put(&format!("k{i:05}"), "");
    }
    s.create(WatchCreateRequest { start_revision: 2, ..create("k", "l") });
    // It takes several steps; what is new meanwhile is sent to both after the old changes.
    s.watchers.advance(&s.state, std::mem::replace(&mut s.unread, NOTHING));
    s.put("k_new", "");
    while s.watchers.advance(&s.state, std::mem::replace(&mut s.unread, NOTHING)) {}
    for id in 0..2 {
        let reported = s.watchers.out.iter().filter(|answer| answer.watch_id == id).flat_map(|answer| &answer.events);
        let revisions: Vec<i64> = reported.map(|event| event.kv.as_ref().unwrap().mod_revision).collect();
        assert_eq!(revisions, (2..=10_002).collect::<Vec<_>>(), "watch {id}");
    }
}

#[test]
fn filters_and_former_values() {
    let mut s = Stream::new();
    s.create(WatchCreateRequest { prev_kv: true, ..create("a", "") });
    s.create(WatchCreateRequest { filters: vec![0], ..create("a", "") });
    s.create(WatchCreateRequest { filters: vec![1], ..create("a", "") });
    s.reported();
    s.put("a", "1");
    s.put("a", "2");
    s.delete("a");
    assert_eq!(s.reported(), ["0 a@2 a@3(was 1) -a@4(was 2)", "1 -a@4", "2 a@2 a@3"]);
}

#[test]
fn ids_and_refusals() {
    let mut s = Stream::new();
    s.create(WatchCreateRequest { watch_id: 7, ..create("a", "") });
    s.create(WatchCreateRequest { watch_id: 7, ..create("b", "") });
    s.create(create("b", ""));
    s.create(create("b", "a"));
    s.create(WatchCreateRequest { start_revision: -1, ..create("b", "") });
    s.watchers.cancel(7, 1);
    s.watchers.cancel(9, 1);
    s.create(WatchCreateRequest { watch_id: 7, ..create("", "\0") });
    assert_eq!(
        s.reported(),
        [
            "7 created",
            "-1 created canceled because mvcc: duplicate watch ID provided on the WatchStream",
            "0 created",
            "-1 created canceled because mvcc: watcher range is empty",
            "-1 created canceled because etcdserver: mvcc: required revision has been compacted",
            "7 canceled",
            "7 created",
        ]
    );
    s.put("x", "");
    assert_eq!(s.reported(), ["7 x@2"]);
}

#[test]
fn a_compacted_revision_is_reported() {
    let mut s = Stream::new();
    s.create(create("a", "\0"));
    s.reported();
    for value in ["1", "2", "3", "4"] {
        s.put("a", value);
    }
    s.state.compact(4);
    s.create(WatchCreateRequest { start_revision: 3, ..create("a", "") });
    s.create(WatchCreateRequest { start_revision: 4, ..create("a", "") });
    let mut reported = s.reported();
    reported.sort();
    assert_eq!(reported, ["0 canceled compacted 4", "1 canceled compacted 4", "1 created", "2 a@4 a@5", "2 created"]);
}

#[test]
fn progress_is_sent_after_all_events() {
    let mut s = Stream::new();
    s.watchers.ask_progress();
    assert_eq!(s.reported(), [""; 0], "there is nobody whose progress it would be");
    s.create(WatchCreateRequest { progress_notify: true, ..create("a", "") });
    s.create(create("b", ""));
    s.reported();
    s.put("a", "");
    s.watchers.ask_progress();
    assert_eq!(s.reported(), ["0 a@2", "-1 is at 2"]);
    s.watchers.progress_is_due();
    assert_eq!(s.reported(), [""; 0], "it was told an event since");
    s.watchers.progress_is_due();
    assert_eq!(s.reported(), ["0 is at 2"]);
    s.create(WatchCreateRequest { start_revision: 9, ..create("b", "") });
    s.watchers.ask_progress();
    assert_eq!(s.reported(), ["2 created"], "one that waits for a later revision has made no progress");
}

#[test]
fn large_answers_come_in_pieces_where_asked_for() {
    let mut s = Stream::new();
    s.create(create("a", "b"));
    s.create(WatchCreateRequest { fragment: true, ..create("a", "b") });
    s.reported();
    for i in 0..5 {
        s.put(&format!("a{i}"), &"x".repeat(450));
    }
    assert_eq!(s.reported(), ["0 a0@2 a1@3 a2@4 a3@5 a4@6", "1 fragment a0@2 a1@3", "1 fragment a2@4 a3@5", "1 a4@6"]);
}

async fn store(tasks: &Tasks) -> Store {
    let limits = Limits { txn_ops_max: 128, request_bytes_max: 1 << 20, quota_bytes: None };
    Store::open(Options { data_dir: None, syncs: true, limits, auto_compaction: None }, tasks).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_stream_over_a_store() {
    let tasks = Tasks::root("test");
    let store = store(&tasks).await;
    let (send, requests) = mpsc::channel(8);
    let options = WatchOptions { progress_every: Duration::from_secs(600), response_bytes_max: 1 << 20 };
    let stop = tasks.token().clone();
    let answers = watch(Arc::clone(store.shared()), ReceiverStream::new(requests), options, stop);
    tokio::pin!(answers);
    let ask = |union| send.try_send(Ok(WatchRequest { request_union: Some(union) })).unwrap();
    ask(RequestUnion::CreateRequest(WatchCreateRequest { progress_notify: true, ..create("a", "") }));
    let next =
        async |answers: &mut (dyn futures::Stream<Item = Result<WatchResponse, tonic::Status>> + Send + Unpin)| {
            answers.next().await.unwrap().map(|answer| line(&answer))
        };
    assert_eq!(next(&mut answers).await.unwrap(), "0 created");
    store.put(put("other", "")).await.unwrap();
    store.put(put("a", "")).await.unwrap();
    assert_eq!(next(&mut answers).await.unwrap(), "0 a@3");
    ask(RequestUnion::ProgressRequest(WatchProgressRequest {}));
    assert_eq!(next(&mut answers).await.unwrap(), "-1 is at 3");
    let quiet_since = tokio::time::Instant::now();
    assert_eq!(next(&mut answers).await.unwrap(), "0 is at 3");
    assert!(quiet_since.elapsed() >= Duration::from_secs(600), "not before two looks without an event");
    // A client that has ended its side still receives events.
    drop(send);
    store.put(put("a", "")).await.unwrap();
    assert_eq!(next(&mut answers).await.unwrap(), "0 a@4");
    assert_eq!(store.shared().watches(), 1);
    tasks.token().cancel();
    assert_eq!(next(&mut answers).await.unwrap_err().message(), "etcdserver: server stopped");
}
