//! Tests of watches of a part of a resource.
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::*;
use crate::{
    Body, Cursor, FieldNames, Fields, Key, Precondition, RecordMeta, Resource, Store, StoreError, StoreOptions, Write,
};

fn pods() -> Resource {
    Resource::parse("pods")
}

fn put(name: &str, node: &str) -> Write {
    let names = FieldNames::new(["spec.nodeName"]);
    let meta = RecordMeta { fields: Fields::new(&names, [node]), ..RecordMeta::default() };
    let body = Body::locate(r#"{"metadata":{"resourceVersion":""}}"#).unwrap();
    let (namespace, name) = name.split_once('/').unwrap();
    Write::put(Key::new(pods(), namespace, name), Precondition::Any, body, meta)
}

fn delete(name: &str) -> Write {
    let (namespace, name) = name.split_once('/').unwrap();
    Write::delete(Key::new(pods(), namespace, name), Precondition::Exists)
}

fn node(value: &str) -> WatchScope {
    WatchScope::Field { name: "spec.nodeName".into(), value: value.into() }
}

fn name(namespace: &str, name: &str) -> WatchScope {
    WatchScope::Name { namespace: namespace.into(), name: name.into() }
}

fn revisions(cursor: &mut Cursor) -> Vec<u64> {
    cursor.try_next().unwrap().iter().map(|event| event.revision).collect()
}

/// Counts how often a watcher is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_write_wakes_only_the_watchers_that_it_concerns() {
    const WATCHERS: usize = 1000;
    let store = Store::in_memory(StoreOptions::default());
    type Scope = fn(usize) -> WatchScope;
    let kinds: [(&str, Scope); 3] = [
        ("by node", |i| node(&format!("node-{i}"))),
        ("by name", |i| name("n7", &format!("pod-{i}"))),
        ("by namespace", |i| WatchScope::Namespace(format!("n{i}").into())),
    ];
    for (kind, scope) in kinds {
        let from = store.current_revision();
        let mut cursors: Vec<Cursor> =
            (0..WATCHERS).map(|i| store.watch_scope(pods(), scope(i), from).unwrap()).collect();
        let wakes: Vec<Arc<Wakes>> = cursors.iter().map(|_| Arc::default()).collect();
        let mut waits: Vec<_> = cursors.iter_mut().map(|cursor| Box::pin(cursor.next())).collect();
        for (wait, wakes) in waits.iter_mut().zip(&wakes) {
            let waker = Waker::from(Arc::clone(wakes));
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "{kind}: no change yet");
        }
        store.commit(put("n7/pod-7", "node-7")).await.unwrap();
        let woken: Vec<usize> = (0..WATCHERS).filter(|i| wakes[*i].0.load(Ordering::Relaxed) > 0).collect();
        assert_eq!(woken, [7], "{kind}");
        let waker = Waker::noop();
        let Poll::Ready(batch) = waits[7].as_mut().poll(&mut Context::from_waker(waker)) else { panic!("{kind}") };
        assert_eq!(batch.unwrap().len(), 1, "{kind}");
        drop(waits);
        drop(cursors);
        store.commit(delete("n7/pod-7")).await.unwrap();
    }
    // Nothing reads these scopes any more, so nothing of them stays but what was never written.
    let mut state = store.shared().state.write();
    let scopes = &mut state.slot_mut(pods()).scopes;
    scopes.sweep();
    assert_eq!(scopes.all().count(), 0);
    assert!(scopes.names.is_empty() && scopes.fields.is_empty());
}

#[tokio::test]
async fn a_watcher_by_field_sees_objects_come_and_go() {
    let store = Store::in_memory(StoreOptions::default());
    let from = store.current_revision();
    let mut unbound = store.watch_scope(pods(), node(""), from).unwrap();
    let mut of_node = store.watch_scope(pods(), node("a"), from).unwrap();
    let mut revs = Vec::new();
    for write in [put("n/x", ""), put("n/x", "a"), put("n/y", "b"), put("n/x", "a"), delete("n/x")] {
        revs.push(store.commit(write).await.unwrap().revision);
    }
    assert_eq!(revisions(&mut unbound), [revs[0], revs[1]]);
    assert_eq!(revisions(&mut of_node), [revs[1], revs[3], revs[4]]);
    // One that begins in the past gets the same, although the log of the scope began with another watcher.
    for (begin, expected) in [(from, &[revs[1], revs[3], revs[4]][..]), (revs[1], &[revs[3], revs[4]]), (revs[4], &[])]
    {
        let mut late = store.watch_scope(pods(), node("a"), begin).unwrap();
        assert_eq!(revisions(&mut late), expected);
    }
}

#[tokio::test]
async fn an_earlier_begin_extends_the_log_of_a_scope() {
    let store = Store::in_memory(StoreOptions::default());
    let begin = store.current_revision();
    let mut revs = Vec::new();
    for _ in 0..3 {
        revs.push(store.commit(put("n/x", "a")).await.unwrap().revision);
        store.commit(put("n/y", "b")).await.unwrap();
    }
    let scopes: [fn() -> WatchScope; 4] =
        [|| node("a"), || name("n", "x"), || name("", "x"), || WatchScope::Namespace("n".into())];
    for scope in scopes {
        let all = matches!(scope(), WatchScope::Namespace(_));
        let mut late = store.watch_scope(pods(), scope(), revs[1]).unwrap();
        let mut early = store.watch_scope(pods(), scope(), begin).unwrap();
        let expected = if all { 6 } else { 3 };
        assert_eq!(revisions(&mut early).len(), expected, "{:?}", scope());
        assert_eq!(revisions(&mut late).len(), if all { 3 } else { 1 }, "{:?}", scope());
        assert_eq!((revisions(&mut early), revisions(&mut late)), (vec![], vec![]));
    }
}

#[tokio::test]
async fn a_quiet_watcher_outlives_the_log_and_one_that_missed_a_change_does_not() {
    // The log has room for a few changes only.
    let store = Store::in_memory(StoreOptions { log_bytes_max: 4096, ..StoreOptions::default() });
    let from = store.current_revision();
    let mut quiet = store.watch_scope(pods(), node("quiet"), from).unwrap();
    let mut missed = store.watch_scope(pods(), node("busy"), from).unwrap();
    for _ in 0..200 {
        store.commit(put("n/x", "busy")).await.unwrap();
    }
    assert!(matches!(missed.try_next(), Err(StoreError::Compacted { .. })));
    assert!(matches!(store.watch_scope(pods(), node("quiet"), from), Err(StoreError::Compacted { .. })));
    assert_eq!(quiet.progress(), Some(store.current_revision()));
    let change = store.commit(put("n/y", "quiet")).await.unwrap().revision;
    assert_eq!(quiet.progress(), None, "a change is pending");
    assert_eq!(revisions(&mut quiet), [change]);
    assert_eq!(quiet.progress(), Some(change));
    let kept = store.shared().state.read().slot(pods()).map_or(0, |slot| slot.log.len());
    let log = store.watch_scope(pods(), node("busy"), store.current_revision()).unwrap();
    let mut of_scope = 0;
    log.scope_log().unwrap().after(0, |_| {
        of_scope += 1;
        true
    });
    assert!(of_scope <= kept, "the log of a part holds no more than that of the resource: {of_scope} of {kept}");
}

#[tokio::test]
async fn closing_the_store_wakes_watchers_of_every_scope() {
    let store = Store::in_memory(StoreOptions::default());
    for scope in [node("a"), name("n", "x"), WatchScope::Namespace("n".into()), WatchScope::All] {
        let mut cursor = store.watch_scope(pods(), scope, store.current_revision()).unwrap();
        let mut wait = pin!(cursor.next());
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        store.shared().state.write().restart(pods());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        let ended = wait.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(matches!(ended, Poll::Ready(Err(StoreError::Compacted { .. }))));
    }
    let mut cursor = store.watch_scope(pods(), node("a"), store.current_revision()).unwrap();
    let next = cursor.next();
    store.shared().close();
    assert!(matches!(next.await, Err(StoreError::Closed)));
}

#[tokio::test]
async fn a_list_by_a_field_looks_at_the_records_with_its_value_only() {
    let store = Store::in_memory(StoreOptions::default());
    for i in 0..500 {
        store.commit(put(&format!("n{}/pod-{i}", i % 3), &format!("node-{}", i % 100))).await.unwrap();
    }
    let list = |value: &str, namespace: Option<&str>| {
        let view = store.list_by_field(pods(), ("spec.nodeName", value), namespace, None);
        let names: Vec<String> = view.iter().map(|r| format!("{}/{}", r.key().namespace, r.key().name)).collect();
        (view.len(), names)
    };
    // The first list makes the index, and the second uses it.
    for _ in 0..2 {
        assert_eq!(list("node-7", None).0, 5, "records visited");
        let expected = ["n0/pod-207", "n1/pod-307", "n1/pod-7", "n2/pod-107", "n2/pod-407"];
        assert_eq!(list("node-7", None).1, expected);
        assert_eq!(list("node-7", Some("n1")).1, ["n1/pod-307", "n1/pod-7"]);
        assert_eq!(list("none", None).0, 0);
    }
    store.commit(put("n1/pod-7", "node-8")).await.unwrap();
    store.commit(delete("n1/pod-307")).await.unwrap();
    store.commit(put("n1/new", "node-7")).await.unwrap();
    assert_eq!(list("node-7", Some("n1")).1, ["n1/new"]);
    assert_eq!(list("node-8", Some("n1")).1, ["n1/pod-208", "n1/pod-7"]);
    let after = store.list_by_field(pods(), ("spec.nodeName", "node-7"), None, Some(("n1", "new")));
    assert_eq!(after.iter().map(|r| r.key().name.to_string()).collect::<Vec<_>>(), ["pod-107", "pod-407"]);
}

#[tokio::test]
async fn an_index_made_beside_writes_has_them() {
    let store = Store::in_memory(StoreOptions::default());
    for write in [put("n/a", "1"), put("n/b", "1")] {
        store.commit(write).await.unwrap();
    }
    let snapshot = {
        let state = store.shared().state.read();
        state.slot(pods()).unwrap().snapshot(state.revision)
    };
    let index = crate::lookup::FieldIndex::new("spec.nodeName", &snapshot.table);
    for write in [put("n/a", "2"), delete("n/b"), put("n/c", "1")] {
        store.commit(write).await.unwrap();
    }
    store.shared().state.write().add_index(pods(), index, &snapshot);
    let names = |value| {
        let view = store.list_by_field(pods(), ("spec.nodeName", value), None, None);
        view.iter().map(|r| r.key().name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!((names("1"), names("2")), (vec!["c".to_owned()], vec!["a".to_owned()]));
    // One that was made before the records were replaced is not used.
    let index = crate::lookup::FieldIndex::new("spec.other", &snapshot.table);
    store.shared().state.write().slot_mut(pods()).set_table(crate::table::Table::default());
    store.shared().state.write().add_index(pods(), index, &snapshot);
    assert!(store.shared().state.read().slot(pods()).unwrap().indexes.is_empty());
}

#[tokio::test]
async fn a_record_is_found_by_its_name_in_a_view() {
    let store = Store::in_memory(StoreOptions::default());
    for i in 0..300 {
        store.commit(put(&format!("n{}/pod-{i}", i % 3), "")).await.unwrap();
    }
    let found = |view: crate::ListView, namespace: &str, name: &str| {
        let one = view.named(namespace, name);
        let names = one.iter().map(|r| format!("{}/{}", r.key().namespace, r.key().name)).collect::<Vec<_>>();
        assert_eq!(names.len(), one.len());
        names
    };
    let all = || store.list(pods(), None, None, None);
    let one = || store.list(pods(), Some("n1"), None, None);
    assert_eq!(found(all(), "n1", "pod-100"), ["n1/pod-100"]);
    assert_eq!(found(one(), "n1", "pod-100"), ["n1/pod-100"]);
    for (namespace, name) in [("n1", "pod-101"), ("n1", "zz"), ("", "pod-100"), ("zz", "zz"), ("n0", "pod-0")] {
        assert_eq!(found(one(), namespace, name), [""; 0], "{namespace}/{name}");
    }
    let after = store.list(pods(), Some("n1"), Some(("n1", "pod-100")), None);
    assert_eq!(found(after, "n1", "pod-100"), [""; 0], "it was on an earlier page");
}
