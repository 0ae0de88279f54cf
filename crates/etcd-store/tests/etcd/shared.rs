//! Several stores on one etcd, and writers that are not stores.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kelson_store::{PortChange, Precondition, StoreError, Write};
use serde_json::json;

use super::fixture::{Etcd, PATIENCE, body, config_map, create, key, lines, meta, resource, shown, update};

#[tokio::test(flavor = "multi_thread")]
async fn what_one_writes_the_others_see_under_one_revision() {
    let etcd = Etcd::start().await;
    let (a, b) = (etcd.open().await, etcd.open().await);
    assert!(a.is_mirror());
    let from = b.current_revision();
    let mut watch = b.watch(resource("configmaps"), from).unwrap();
    let made = create(&a, "m", "1").await.unwrap();
    assert_eq!((shown(&a, "m").as_deref(), a.current_revision() >= made.revision), (Some("1"), true));
    b.catch_up().await.unwrap();
    assert_eq!(shown(&b, "m").as_deref(), Some("1"), "a read after the write sees it");
    let changed = update(&b, "m", made.revision, "2").await.unwrap();
    a.catch_up().await.unwrap();
    assert_eq!(shown(&a, "m").as_deref(), Some("2"));
    // A write with an older revision conflicts, whichever store receives it.
    for store in [&a, &b] {
        let refused = update(store, "m", made.revision, "3").await.unwrap_err();
        assert!(matches!(refused, StoreError::Conflict { .. }), "{refused}");
        let refused = create(store, "m", "3").await.unwrap_err();
        assert!(matches!(refused, StoreError::AlreadyExists { .. }), "{refused}");
    }
    let gone = a.commit(Write::delete(key("configmaps", "m"), Precondition::Any)).await.unwrap();
    assert_eq!(gone.previous.unwrap().revision(), changed.revision);
    b.catch_up().await.unwrap();
    assert_eq!(shown(&b, "m"), None);
    let events = watch.next().await.unwrap();
    let want = [("Added", made.revision), ("Modified", changed.revision), ("Deleted", gone.revision)];
    assert_eq!(lines(&events), want.map(|(kind, revision)| format!("{kind} m {revision}")));
    assert_eq!(a.identity(), b.identity());
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_of_one_object_lose_no_write() {
    const EACH: usize = 25;
    let etcd = Etcd::start().await;
    let stores = [etcd.open().await, etcd.open().await];
    create(&stores[0], "n", "0").await.unwrap();
    stores[1].catch_up().await.unwrap();
    let count = |store: kelson_store::Store| async move {
        let mut done = 0;
        while done < EACH {
            let now = store.get(resource("configmaps"), "default", "n").unwrap();
            let object: serde_json::Value = serde_json::from_slice(&now.bytes()).unwrap();
            let next = object["data"]["k"].as_str().unwrap().parse::<usize>().unwrap() + 1;
            match update(&store, "n", now.revision(), &next.to_string()).await {
                Ok(_) => done += 1,
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    let counters = [0, 1, 0, 1].map(|i| tokio::spawn(count(stores[i].clone())));
    for counter in counters {
        tokio::time::timeout(PATIENCE, counter).await.unwrap().unwrap();
    }
    for store in &stores {
        store.catch_up().await.unwrap();
        assert_eq!(shown(store, "n"), Some((4 * EACH).to_string()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_wrote_is_read_and_what_is_none_of_ours_is_left_alone() {
    let etcd = Etcd::start().await;
    etcd.put("/registry/configmaps/default/early", config_map("early", "1").to_string().as_bytes()).await;
    etcd.put("/registry/masterleases/192.0.2.2", b"k8s\0junk").await;
    etcd.put("/registry/configmaps/default/broken", b"k8s\0\xff\xff").await;
    let store = etcd.open().await;
    assert_eq!(shown(&store, "early").as_deref(), Some("1"));
    assert_eq!(shown(&store, "broken"), None);
    let mut watch = store.watch(resource("configmaps"), store.current_revision()).unwrap();
    let late = etcd.put("/registry/configmaps/default/late", config_map("late", "2").to_string().as_bytes()).await;
    etcd.put("/elsewhere", b"of somebody else").await;
    store.catch_up().await.unwrap();
    assert_eq!(shown(&store, "late").as_deref(), Some("2"));
    assert_eq!(lines(&watch.next().await.unwrap()), [format!("Added late {late}")]);
    // What became unreadable is not shown as it was.
    etcd.put("/registry/configmaps/default/late", b"k8s\0\xff\xff").await;
    store.catch_up().await.unwrap();
    assert_eq!(shown(&store, "late"), None);
    assert!(etcd.value("/registry/masterleases/192.0.2.2").await.is_some());
}

/// A client continues its watch on a server that starts later, unless etcd has compacted what it missed.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_starts_has_the_changes_shortly_before() {
    let etcd = Etcd::start().await;
    let first = etcd.open().await;
    let made = create(&first, "m", "1").await.unwrap();
    let changed = update(&first, "m", made.revision, "2").await.unwrap();
    let gone = first.commit(Write::delete(key("configmaps", "m"), Precondition::Any)).await.unwrap();
    let last = create(&first, "n", "1").await.unwrap();
    let later = etcd.open().await;
    assert!(later.current_revision() >= last.revision, "it shows everything when it is open");
    let events = later.watch(resource("configmaps"), made.revision).unwrap().next().await.unwrap();
    let want = [
        format!("Modified m {}", changed.revision),
        format!("Deleted m {}", gone.revision),
        format!("Added n {}", last.revision),
    ];
    assert_eq!(lines(&events), want);
    etcd.compact(gone.revision).await;
    let latest = etcd.open().await;
    let expired = latest.watch(resource("configmaps"), made.revision).err();
    assert!(matches!(expired, Some(StoreError::Compacted { .. })), "{expired:?}");
    assert_eq!(shown(&latest, "n").as_deref(), Some("1"));
}

/// Values that could not be decoded before and can be decoded now do not prevent the start of a store.
#[tokio::test(flavor = "multi_thread")]
async fn changes_that_cannot_be_decoded_are_left_out_at_the_start() {
    let etcd = Etcd::start().await;
    etcd.put("/registry/configmaps/default/m", b"k8s\0\xff\xff").await;
    etcd.put("/registry/secrets/default/s", b"k8s:enc:aescbc:v1:gone:0123456789abcdef0123456789abcdef").await;
    etcd.put("/registry/configmaps/default/m", config_map("m", "1").to_string().as_bytes()).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"}});
    let last = etcd.put("/registry/secrets/default/s", secret.to_string().as_bytes()).await;
    let store = etcd.open().await;
    assert_eq!(shown(&store, "m").as_deref(), Some("1"));
    assert!(store.get(resource("secrets"), "default", "s").is_some());
    assert_eq!(store.current_revision(), u64::try_from(last).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_stored_as_the_reference_stores_them() {
    let etcd = Etcd::start().await;
    let store = etcd.open().await;
    create(&store, "m", "1").await.unwrap();
    let stored = etcd.value("/registry/configmaps/default/m").await.unwrap();
    assert!(stored.starts_with(b"k8s\0\n\x0f\n\x02v1\x12\tConfigMap\x12"), "{:?}", stored.escape_ascii().to_string());
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "spec": {"n": 1.5},
        "metadata": {"name": "w", "namespace": "default", "resourceVersion": "",
            "uid": "8f2c1f0e-6c1e-4b8a-9d8e-0123456789ab"}});
    store.commit(Write::create(key("example.com/widgets", "w"), body(&widget), meta())).await.unwrap();
    let stored = etcd.value("/registry/example.com/widgets/default/w").await.unwrap();
    let text = String::from_utf8(stored).unwrap();
    assert!(text.ends_with("}\n") && !text.contains("resourceVersion"), "{text}");
    let again = etcd.open().await;
    for name in ["configmaps", "example.com/widgets"] {
        let all = |store: &kelson_store::Store| {
            let view = store.list(resource(name), None, None, None);
            // Read from etcd, fields have their declared order, and not that of this test's body.
            let tree = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
            view.iter().map(|r| (r.revision(), r.meta().clone(), tree(&r.bytes()))).collect::<Vec<_>>()
        };
        assert_eq!(all(&store), all(&again), "{name}: what was written reads as it was");
        assert_eq!(all(&store).len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_by_itself_is_ended_by_etcd() {
    let etcd = Etcd::start().await;
    let store = etcd.open().await;
    let now_s = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let meta = kelson_store::RecordMeta { expires_at_s: now_s + 2, ..meta() };
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default", "resourceVersion": ""},
        "involvedObject": {}});
    let made = store.commit(Write::create(key("events", "e"), body(&event), meta)).await.unwrap();
    let mut watch = store.watch(resource("events"), made.revision).unwrap();
    let events = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
    assert!(lines(&events)[0].starts_with("Deleted e "), "{events:?}");
    assert!(etcd.value("/registry/events/default/e").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_know_of_each_other_by_leases_that_end() {
    let etcd = Etcd::start().await;
    let (a, b) = (etcd.open().await, etcd.open().await);
    let (first, second): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "2001:db8::2".parse().unwrap());
    assert_eq!(a.living().await.unwrap(), Some(vec![]));
    a.announce(first, Duration::from_secs(60)).await.unwrap();
    b.announce(second, Duration::from_secs(2)).await.unwrap();
    etcd.put("/registry/masterleases/somebody", b"else").await;
    for store in [&a, &b] {
        assert_eq!(store.living().await.unwrap(), Some(vec![first, second]));
    }
    let renewed = |bytes: Option<Vec<u8>>| bytes.unwrap();
    let before = renewed(etcd.value("/registry/masterleases/192.0.2.1").await);
    assert!(before.starts_with(b"k8s\0\n\x0f\n\x02v1\x12\tEndpoints"), "{:?}", before.escape_ascii().to_string());
    a.announce(first, Duration::from_secs(60)).await.unwrap();
    assert_ne!(renewed(etcd.value("/registry/masterleases/192.0.2.1").await), before, "each renewal is another value");
    // Nothing renews it.
    let ended = async { while b.living().await.unwrap() != Some(vec![first]) {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("a server that says nothing counts as dead");
    assert!(b.withdraw(first).await.unwrap());
    assert!(!b.withdraw(first).await.unwrap(), "it was not told any more");
    assert_eq!(a.living().await.unwrap(), Some(vec![]));
    assert_eq!(a.count(resource("endpoints")), 0, "leases are no objects of the API");
}

/// Upstream's servers look for `apiserverIdentity` and take the first address and port (KEP-4020).
#[tokio::test(flavor = "multi_thread")]
async fn servers_announce_an_address_for_each_other_as_the_reference_does() {
    const ID: &str = "apiserver-wlv32tlttr4jl3gtroqexyxapa";
    let (key, address) = (format!("/registry/peerserverleases/{ID}"), SocketAddr::from(([192, 0, 2, 1], 6443)));
    let etcd = Etcd::start().await;
    let (a, b) = (etcd.open().await, etcd.open().await);
    a.announce_peer(ID, address, Duration::from_secs(15)).await.unwrap();
    let stored = etcd.value(&key).await.unwrap();
    let endpoints = kelson_schema::Schema::builtin().by_gvk("", "v1", "Endpoints").unwrap();
    let object = |stored: &[u8]| kelson_codec::proto::decode_as(endpoints, stored).unwrap().1;
    let shown = object(&stored);
    assert_eq!(shown["metadata"]["labels"], json!({"apiserverIdentity": ID}));
    let subset =
        json!({"addresses": [{"ip": "192.0.2.1"}], "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}]});
    assert_eq!(shown["subsets"], json!([subset]));
    let (lease, granted_s) = etcd.lease(&key).await.unwrap();
    assert_eq!(granted_s, 15);
    a.announce_peer(ID, address, Duration::from_secs(15)).await.unwrap();
    let renewed = object(&etcd.value(&key).await.unwrap());
    assert_eq!(renewed["metadata"]["generation"].as_i64(), shown["metadata"]["generation"].as_i64().map(|n| n + 1));
    assert_ne!(etcd.lease(&key).await.unwrap().0, lease, "each renewal has the whole time again");
    assert!(b.withdraw_peer(ID).await.unwrap());
    assert!(!b.withdraw_peer(ID).await.unwrap(), "there is none any more");
    // One that nothing renews ends.
    a.announce_peer(ID, address, Duration::from_secs(2)).await.unwrap();
    let ended = async { while etcd.value(&key).await.is_some() {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("a server that does not renew it is gone");
    assert_eq!(a.living().await.unwrap(), Some(vec![]), "it is no endpoint of the kubernetes service");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_node_port_is_taken_twice() {
    const KEY: &str = "/registry/ranges/servicenodeports";
    let etcd = Etcd::start().await;
    let stores = [etcd.open().await, etcd.open().await];
    let change = |take: &[u16], give_back: &[u16]| PortChange {
        range: (30000, 32767),
        take: take.to_vec(),
        only_free: true,
        give_back: give_back.to_vec(),
    };
    assert_eq!(stores[0].ports_in_use().await.unwrap(), Some(vec![]));
    // A call without changes reports as well that there are ports to allocate.
    assert_eq!(stores[0].change_ports(change(&[], &[])).await.unwrap(), None);
    assert!(etcd.value(KEY).await.unwrap().starts_with(b"k8s\0\n\x15\n\x02v1\x12\x0fRangeAllocation\x12"));
    // Two of each, by two servers at once.
    let takers = (0..40u16).map(|i| {
        let (store, change) = (stores[usize::from(i % 2)].clone(), change(&[30000 + i / 2], &[]));
        tokio::spawn(async move { store.change_ports(change).await.unwrap() })
    });
    let mut refused = Vec::new();
    for taker in takers.collect::<Vec<_>>() {
        refused.extend(tokio::time::timeout(PATIENCE, taker).await.unwrap().unwrap());
    }
    refused.sort_unstable();
    let all: Vec<u16> = (30000..30020).collect();
    assert_eq!(refused, all, "one of two was refused");
    assert_eq!(stores[1].ports_in_use().await.unwrap(), Some(all));
    // All or none.
    assert_eq!(stores[1].change_ports(change(&[31000, 30003], &[30004])).await.unwrap(), Some(30003));
    assert_eq!(stores[1].change_ports(change(&[31000], &(30000..30019).collect::<Vec<_>>())).await.unwrap(), None);
    assert_eq!(stores[0].ports_in_use().await.unwrap(), Some(vec![30019, 31000]));
    // What cannot be read is not overwritten: every port in it would be free.
    etcd.put(KEY, b"k8s\0\xff").await;
    assert!(matches!(stores[0].change_ports(change(&[30500], &[])).await, Err(StoreError::Elsewhere(_))));
    assert_eq!(etcd.value(KEY).await.unwrap(), b"k8s\0\xff");
}
