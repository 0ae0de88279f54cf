//! Etcd goes away, forgets, or comes back as another one.

use std::time::Duration;

use kelson_etcd_store::EtcdStore;
use kelson_store::{StoreError, Write};
use kelson_tasks::Tasks;
use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixListener, UnixStream};

use super::fixture::{
    Etcd, PATIENCE, body, config_map, create, key, lines, meta, options, resource, shown, until, update,
};

#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_acknowledged_writes_exist_and_watches_continue() {
    let mut etcd = Etcd::start().await;
    let store = etcd.open().await;
    let made = create(&store, "m", "1").await.unwrap();
    let mut watch = store.watch(resource("configmaps"), made.revision).unwrap();
    etcd.kill().await;
    until("readiness tells that etcd is away", || store.health().not_ready().is_some()).await;
    assert_eq!(store.health().not_alive(), None, "a restart of the server would not help");
    assert_eq!(shown(&store, "m").as_deref(), Some("1"), "what is known is shown");
    // Both wait for it, as long as a request may.
    let (refused, newest) = tokio::join!(update(&store, "m", made.revision, "2"), store.catch_up());
    assert!(matches!(refused, Err(StoreError::Elsewhere(_))), "{refused:?}");
    assert!(newest.is_err(), "nobody knows what is newest");
    etcd.run().await;
    until("it comes back by itself", || store.health().not_ready().is_none()).await;
    let changed = update(&store, "m", made.revision, "3").await.unwrap();
    assert_eq!(lines(&watch.next().await.unwrap()), [format!("Modified m {}", changed.revision)]);
    assert_eq!(shown(&etcd.open().await, "m").as_deref(), Some("3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_for_an_etcd_that_is_just_starting() {
    let mut etcd = Etcd::start().await;
    let store = etcd.open().await;
    etcd.kill().await;
    let waits = {
        let store = store.clone();
        tokio::spawn(async move { create(&store, "m", "1").await })
    };
    etcd.run().await;
    let done = tokio::time::timeout(PATIENCE, waits).await.unwrap().unwrap();
    // The write was sent while etcd was away: either it waited, or it failed and had no effect.
    match done {
        Ok(committed) => {
            assert_eq!(store.get(resource("configmaps"), "default", "m").unwrap().revision(), committed.revision)
        }
        Err(StoreError::Elsewhere(_)) => drop(create(&store, "m", "1").await.unwrap()),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compacted_revisions_are_read_again_and_watchers_end() {
    let mut etcd = Etcd::start().await;
    let store = etcd.open().await;
    let old = create(&store, "old", "1").await.unwrap();
    let kept = create(&store, "kept", "1").await.unwrap();
    let mut watch = store.watch(resource("configmaps"), kept.revision).unwrap();
    // The store hears nothing while others write, and what they wrote is compacted.
    etcd.kill().await;
    until("the watch is broken", || store.health().not_ready().is_some()).await;
    let ours = etcd.hide();
    etcd.run().await;
    let gone = Write::delete(key("configmaps", "old"), kelson_store::Precondition::Any);
    let other = etcd.open().await;
    other.commit(gone).await.unwrap();
    let last = create(&other, "new", "2").await.unwrap();
    etcd.compact(last.revision).await;
    etcd.show(ours);
    until("everything is read anew", || shown(&store, "new").is_some()).await;
    assert_eq!((shown(&store, "old"), shown(&store, "kept").as_deref()), (None, Some("1")));
    let reported = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap();
    assert!(matches!(reported, Err(StoreError::Compacted { .. })), "{reported:?}");
    assert!(store.watch(resource("configmaps"), old.revision).is_err());
    let next = update(&store, "kept", kept.revision, "2").await.unwrap();
    assert_eq!(shown(&store, "kept").as_deref(), Some("2"));
    assert!(next.revision > last.revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_etcd_behind_the_address_ends_the_store() {
    let mut etcd = Etcd::start().await;
    let store = etcd.open().await;
    for n in 0..5 {
        create(&store, &format!("m{n}"), "1").await.unwrap();
    }
    let failed = store.failed();
    etcd.wipe().await;
    etcd.run().await;
    let why = tokio::time::timeout(PATIENCE, failed).await.expect("the owner hears of it");
    assert!(why.contains("replaced or restored"), "{why}");
    assert!(create(&store, "x", "1").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_servers_compacts_what_was_replaced() {
    let etcd = Etcd::start().await;
    let tasks = Tasks::root("test");
    let mut stores = Vec::new();
    for _ in 0..2 {
        let options = etcd.options(&tasks, None);
        let options = kelson_etcd_store::EtcdOptions { compaction_every: Duration::from_millis(100), ..options };
        stores.push(EtcdStore::open(options).await.unwrap().store);
    }
    let made = create(&stores[0], "m", "1").await.unwrap();
    let compacted = async {
        let mut last = made.revision;
        loop {
            last = update(&stores[0], "m", last, "2").await.unwrap().revision;
            let request = kelson_etcd::proto::RangeRequest {
                key: b"/registry/configmaps/default/m".to_vec().into(),
                revision: i64::try_from(made.revision).unwrap(),
                ..Default::default()
            };
            if etcd.client().range(request).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, compacted).await.expect("the first version is forgotten");
    let rounds = etcd.value("compact_rev_key").await.unwrap();
    assert!(String::from_utf8(rounds).unwrap().parse::<u64>().unwrap() > made.revision - 1);
    // A list of that moment has no further pages, whichever server is asked.
    for store in &stores {
        until("what is forgotten is not listed", || {
            let list = store.list_at(made.revision, resource("configmaps"), None, None, None);
            matches!(list, Err(StoreError::Compacted { .. }))
        })
        .await;
        assert!(store.watch(resource("configmaps"), made.revision).is_ok(), "it still knows what happened since");
    }
    let written = stores[1].commit(Write::create(key("configmaps", "n"), body(&config_map("n", "1")), meta())).await;
    assert!(written.is_ok(), "both go on");
}

/// Passes connections on to an etcd, and breaks each of the first ones after so many bytes of answers.
async fn break_early(listener: UnixListener, etcd: String, breaks: usize, bytes: u64) {
    for n in 0.. {
        let (stream, _) = listener.accept().await.unwrap();
        let upstream = UnixStream::connect(&etcd).await.unwrap();
        let limit = if n < breaks { bytes } else { u64::MAX };
        tokio::spawn(async move {
            let (mut from_client, mut to_client) = stream.into_split();
            let (from_etcd, mut to_etcd) = upstream.into_split();
            let mut answers = from_etcd.take(limit);
            tokio::select! {
                _ = tokio::io::copy(&mut from_client, &mut to_etcd) => {}
                _ = tokio::io::copy(&mut answers, &mut to_client) => {}
            }
        });
    }
}

/// A member that fails while a server starts does not cost the server's clients their watches.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_whose_connection_breaks_has_the_whole_history() {
    const WRITES: usize = 300;
    let (dir, etcd) = (tempfile::tempdir().unwrap(), Etcd::start().await);
    let first = etcd.open().await;
    let value = "x".repeat(1000);
    let begun = create(&first, "m", "1").await.unwrap();
    for n in 0..WRITES {
        create(&first, &format!("m{n}"), &value).await.unwrap();
    }
    let socket = dir.path().join("breaks");
    let upstream = etcd.address().trim_start_matches("unix://").to_owned();
    // Less than what happened, and more than what was there before: the watch breaks, not the read of the objects.
    tokio::spawn(break_early(UnixListener::bind(&socket).unwrap(), upstream, 2, 100 << 10));
    let tasks = Tasks::root("test");
    let through = options(vec![format!("unix://{}", socket.display())], &tasks, None);
    let store = EtcdStore::open(through).await.unwrap().store;
    let mut watch = store.watch(resource("configmaps"), begun.revision).unwrap();
    let mut events = 0;
    while events < WRITES {
        events += watch.next().await.unwrap().len();
    }
    assert_eq!(events, WRITES);
}
