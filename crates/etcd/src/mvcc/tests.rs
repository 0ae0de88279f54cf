//! Tables for reads, transactions and their errors; random requests are compared with a model without index or
//! compaction.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::*;
use crate::error::Error;
use crate::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::range_request::{SortOrder, SortTarget};
use crate::proto::request_op::Request;
use crate::proto::response_op::Response;
use crate::proto::*;

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, value: &str) -> PutRequest {
    PutRequest { key: bytes(key), value: bytes(value), ..PutRequest::default() }
}

fn get(key: &str, end: &str) -> RangeRequest {
    RangeRequest { key: bytes(key), range_end: bytes(end), ..RangeRequest::default() }
}

fn delete(key: &str, end: &str) -> DeleteRangeRequest {
    DeleteRangeRequest { key: bytes(key), range_end: bytes(end), prev_kv: true }
}

fn op(request: impl Into<Request>) -> RequestOp {
    RequestOp { request: Some(request.into()) }
}

impl From<PutRequest> for Request {
    fn from(r: PutRequest) -> Self {
        Self::RequestPut(r)
    }
}

impl From<RangeRequest> for Request {
    fn from(r: RangeRequest) -> Self {
        Self::RequestRange(r)
    }
}

impl From<DeleteRangeRequest> for Request {
    fn from(r: DeleteRangeRequest) -> Self {
        Self::RequestDeleteRange(r)
    }
}

impl From<TxnRequest> for Request {
    fn from(r: TxnRequest) -> Self {
        Self::RequestTxn(r)
    }
}

fn compare(key: &str, result: CompareResult, union: TargetUnion) -> Compare {
    let target = match union {
        TargetUnion::Version(_) => CompareTarget::Version,
        TargetUnion::CreateRevision(_) => CompareTarget::Create,
        TargetUnion::ModRevision(_) => CompareTarget::Mod,
        TargetUnion::Value(_) => CompareTarget::Value,
        TargetUnion::Lease(_) => CompareTarget::Lease,
    };
    Compare {
        result: result as i32,
        target: target as i32,
        key: bytes(key),
        target_union: Some(union),
        range_end: Bytes::new(),
    }
}

/// Keys a, b, c at revisions 2, 3, 4; b again at 5, c deleted at 6, a again at 7.
fn filled() -> State {
    let mut state = State::default();
    for (key, value) in [("a", "3"), ("b", "2"), ("c", "1"), ("b", "5")] {
        state.put(&put(key, value)).unwrap();
    }
    state.delete_range(&delete("c", ""));
    state.put(&put("a", "4")).unwrap();
    state.show();
    state
}

/// Formats an answer: `key=value@modified` of each, `+` if there are more, and the count.
fn shown(answer: &RangeResponse) -> String {
    let kvs: Vec<String> = answer
        .kvs
        .iter()
        .map(|kv| format!("{}={}@{}", kv.key.escape_ascii(), kv.value.escape_ascii(), kv.mod_revision))
        .collect();
    format!("{}{} of {}", kvs.join(" "), if answer.more { " +" } else { "" }, answer.count)
}

#[test]
fn ranges() {
    let state = filled();
    let check = |r: RangeRequest, wanted: Result<&str, Error>| {
        assert_eq!(state.range(&r).map(|answer| shown(&answer)), wanted.map(str::to_owned), "{r:?}");
    };
    let all = || get("a", "\0");
    check(get("a", ""), Ok("a=4@7 of 1"));
    check(get("c", ""), Ok(" of 0"));
    check(get("a", "b"), Ok("a=4@7 of 1"));
    check(get("b", "a"), Ok(" of 0"));
    check(all(), Ok("a=4@7 b=5@5 of 2"));
    check(RangeRequest { limit: 1, ..all() }, Ok("a=4@7 + of 2"));
    check(RangeRequest { limit: 2, ..all() }, Ok("a=4@7 b=5@5 of 2"));
    check(RangeRequest { limit: -1, ..all() }, Ok("a=4@7 b=5@5 of 2"));
    check(RangeRequest { count_only: true, ..all() }, Ok(" of 2"));
    check(RangeRequest { keys_only: true, ..all() }, Ok("a=@7 b=@5 of 2"));
    check(RangeRequest { revision: 4, ..all() }, Ok("a=3@2 b=2@3 c=1@4 of 3"));
    check(RangeRequest { revision: 1, ..all() }, Ok(" of 0"));
    check(RangeRequest { revision: 8, ..all() }, Err(Error::FutureRevision));
    let sorted = |order: SortOrder, target: SortTarget| RangeRequest {
        sort_order: order as i32,
        sort_target: target as i32,
        revision: 5,
        ..all()
    };
    check(sorted(SortOrder::Descend, SortTarget::Key), Ok("c=1@4 b=5@5 a=3@2 of 3"));
    check(sorted(SortOrder::Ascend, SortTarget::Value), Ok("c=1@4 a=3@2 b=5@5 of 3"));
    check(sorted(SortOrder::None, SortTarget::Value), Ok("c=1@4 a=3@2 b=5@5 of 3"));
    check(sorted(SortOrder::Descend, SortTarget::Create), Ok("c=1@4 b=5@5 a=3@2 of 3"));
    check(sorted(SortOrder::Ascend, SortTarget::Mod), Ok("a=3@2 c=1@4 b=5@5 of 3"));
    check(sorted(SortOrder::Descend, SortTarget::Version), Ok("b=5@5 a=3@2 c=1@4 of 3"));
    check(RangeRequest { limit: 1, ..sorted(SortOrder::Descend, SortTarget::Key) }, Ok("c=1@4 + of 3"));
    check(RangeRequest { min_mod_revision: 6, ..all() }, Ok("a=4@7 of 2"));
    check(RangeRequest { max_mod_revision: 6, limit: 1, ..all() }, Ok("b=5@5 of 2"));
    check(RangeRequest { min_create_revision: 3, ..all() }, Ok("b=5@5 of 2"));
    check(RangeRequest { max_create_revision: 2, ..all() }, Ok("a=4@7 of 2"));
}

#[test]
fn versions_count_from_each_making() {
    let mut state = filled();
    state.put(&put("c", "9")).unwrap();
    state.show();
    let of = |key: &str| {
        let kv = state.range(&get(key, "")).unwrap().kvs.remove(0);
        (kv.create_revision, kv.mod_revision, kv.version)
    };
    assert_eq!((of("a"), of("b"), of("c")), ((2, 7, 2), (3, 5, 2), (8, 8, 1)));
}

#[test]
fn what_is_wrong_with_a_request_by_itself() {
    let txn = |success: Vec<RequestOp>, failure: Vec<RequestOp>| TxnRequest { compare: vec![], success, failure };
    let check = |r: TxnRequest, wanted: Result<(), Error>| assert_eq!(check_txn(&r, 3), wanted, "{r:?}");
    check(txn(vec![op(put("a", "")), op(put("b", ""))], vec![op(put("a", ""))]), Ok(()));
    check(txn(vec![op(put("a", "")), op(put("a", ""))], vec![]), Err(Error::DuplicateKey));
    check(txn(vec![], vec![op(put("a", "")), op(delete("a", "b"))]), Err(Error::DuplicateKey));
    check(txn(vec![op(delete("a", "")), op(delete("a", "b"))], vec![]), Ok(()));
    check(txn(vec![op(put("b", "")), op(delete("a", "b"))], vec![]), Ok(()));
    check(txn(vec![op(put("z", "")), op(delete("a", "\0"))], vec![]), Err(Error::DuplicateKey));
    let nested = txn(vec![op(put("a", ""))], vec![op(put("a", ""))]);
    check(txn(vec![op(nested.clone())], vec![]), Ok(()));
    check(txn(vec![op(nested.clone()), op(put("a", ""))], vec![]), Err(Error::DuplicateKey));
    check(txn(vec![op(nested.clone()), op(nested.clone())], vec![]), Err(Error::DuplicateKey));
    check(txn(vec![op(delete("a", "")), op(nested.clone())], vec![]), Err(Error::DuplicateKey));
    check(
        txn(vec![op(put("a", "")), op(put("b", "")), op(put("c", "")), op(put("d", ""))], vec![]),
        Err(Error::TooManyOps),
    );
    let deep = txn(vec![op(txn(vec![op(txn(vec![op(txn(vec![op(get("a", ""))], vec![]))], vec![]))], vec![]))], vec![]);
    check(deep, Err(Error::TooManyOps));
    check(txn(vec![RequestOp { request: None }], vec![]), Err(Error::KeyNotFound));
    check(txn(vec![op(put("", ""))], vec![]), Err(Error::EmptyKey));
    check(txn(vec![op(delete("", "a"))], vec![]), Err(Error::EmptyKey));
    check(txn(vec![op(RangeRequest { sort_order: 7, ..get("a", "") })], vec![]), Err(Error::InvalidSortOption));
    check(txn(vec![op(PutRequest { ignore_value: true, ..put("a", "1") })], vec![]), Err(Error::ValueProvided));
    check(
        txn(vec![op(PutRequest { ignore_lease: true, lease: 1, ..put("a", "1") })], vec![]),
        Err(Error::LeaseProvided),
    );
    let empty = TxnRequest {
        compare: vec![compare("", CompareResult::Equal, TargetUnion::Version(0))],
        ..TxnRequest::default()
    };
    check(empty, Err(Error::EmptyKey));
    assert!(is_read_only(&txn(vec![op(get("a", ""))], vec![])) && !is_read_only(&txn(vec![op(nested)], vec![])));
}

#[test]
fn conditions() {
    let mut state = filled();
    state.grant(7, 10, Duration::ZERO);
    state.put(&PutRequest { lease: 7, ..put("l", "x") }).unwrap();
    state.show();
    let check = |c: Compare, wanted: bool| {
        let r = TxnRequest { compare: vec![c], success: vec![], failure: vec![] };
        assert_eq!(state.read_txn(&r).unwrap().succeeded, wanted, "{r:?}");
    };
    use CompareResult::{Equal, Greater, Less, NotEqual};
    check(compare("a", Equal, TargetUnion::ModRevision(7)), true);
    check(compare("a", Less, TargetUnion::ModRevision(7)), false);
    check(compare("a", Greater, TargetUnion::CreateRevision(1)), true);
    check(compare("b", Equal, TargetUnion::Version(2)), true);
    check(compare("b", NotEqual, TargetUnion::Version(2)), false);
    check(compare("a", Equal, TargetUnion::Value(bytes("4"))), true);
    check(compare("l", Equal, TargetUnion::Lease(7)), true);
    // A key that does not exist has numbers of zero and no value at all.
    check(compare("no", Equal, TargetUnion::ModRevision(0)), true);
    check(compare("c", Equal, TargetUnion::Version(0)), true);
    check(compare("no", Equal, TargetUnion::Value(Bytes::new())), false);
    check(compare("no", NotEqual, TargetUnion::Value(bytes("x"))), false);
    // All keys of a range must meet the condition.
    let all = |c: Compare| Compare { range_end: bytes("c"), ..c };
    check(all(compare("a", Greater, TargetUnion::ModRevision(4))), true);
    check(all(compare("a", Greater, TargetUnion::ModRevision(5))), false);
    // Absent fields are zero.
    check(Compare { target_union: None, ..compare("no", Equal, TargetUnion::Version(1)) }, true);
}

#[test]
fn a_transaction_has_one_revision_and_sees_its_own_changes() {
    let mut state = filled();
    let nested = TxnRequest {
        compare: vec![compare("n", CompareResult::Equal, TargetUnion::Version(0))],
        success: vec![op(put("m", "2"))],
        failure: vec![op(put("never", ""))],
    };
    let r = TxnRequest {
        compare: vec![compare("a", CompareResult::Equal, TargetUnion::ModRevision(7))],
        success: vec![op(put("n", "1")), op(nested), op(get("m", "o")), op(delete("a", "c"))],
        failure: vec![],
    };
    let answer = state.txn(&r).unwrap();
    state.show();
    assert!(answer.succeeded && state.revision() == 8);
    assert_eq!(answer.header.map(|h| h.revision), Some(8));
    let Some(Response::ResponseRange(seen)) = &answer.responses[2].response else { panic!("a range") };
    assert_eq!(shown(seen), "m=2@8 n=1@8 of 2", "the condition on n held before the transaction wrote it");
    let Some(Response::ResponseDeleteRange(deleted)) = &answer.responses[3].response else { panic!("a deletion") };
    assert_eq!((deleted.deleted, deleted.prev_kvs.len()), (2, 2));
    let subs: Vec<u32> = state.changes_from(8).map(|(change, _)| change.revision.sub).collect();
    assert_eq!(subs, [0, 1, 2, 3]);
}

#[test]
fn a_transaction_that_fails_did_nothing() {
    let mut state = filled();
    let before = state.hash(0).unwrap();
    let check = |state: &mut State, last: RequestOp, wanted: Error| {
        let r = TxnRequest {
            compare: vec![],
            success: vec![op(put("n", "1")), op(delete("a", "")), last],
            failure: vec![],
        };
        assert_eq!(state.txn(&r), Err(wanted));
        state.show();
        assert_eq!((state.revision(), state.hash(0).unwrap()), (7, before));
    };
    check(&mut state, op(RangeRequest { revision: 9, ..get("a", "") }), Error::FutureRevision);
    check(&mut state, op(PutRequest { lease: 5, ..put("x", "") }), Error::LeaseNotFound);
    check(&mut state, op(PutRequest { ignore_value: true, ..put("x", "") }), Error::KeyNotFound);
    // It exists when the transaction is validated and is deleted before its operation runs.
    check(&mut state, op(PutRequest { ignore_value: true, ..put("a", "") }), Error::KeyNotFound);
}

#[test]
fn puts_that_keep_what_is_there() {
    let mut state = State::default();
    state.grant(1, 10, Duration::ZERO);
    state.put(&PutRequest { lease: 1, ..put("a", "v") }).unwrap();
    let kept = state.put(&PutRequest { ignore_value: true, prev_kv: true, ..put("a", "") }).unwrap();
    assert_eq!(kept.prev_kv.map(|kv| (kv.value, kv.lease)), Some((bytes("v"), 1)));
    assert_eq!(state.lease(1).map(|l| l.keys.len()), Some(0), "without a lease of its own the key leaves the old one");
    state.put(&PutRequest { lease: 1, ..put("a", "v") }).unwrap();
    state.put(&PutRequest { ignore_lease: true, ..put("a", "w") }).unwrap();
    state.show();
    let kv = state.range(&get("a", "")).unwrap().kvs.remove(0);
    assert_eq!((kv.value, kv.lease), (bytes("w"), 1));
    assert_eq!(state.put(&PutRequest { ignore_lease: true, ..put("b", "w") }), Err(Error::KeyNotFound));
    assert_eq!(state.put(&PutRequest { lease: 2, ..put("b", "w") }), Err(Error::LeaseNotFound));
}

#[test]
fn a_lease_takes_its_keys_at_one_revision() {
    let mut state = filled();
    state.grant(1, 10, Duration::ZERO);
    for key in ["y", "x"] {
        state.put(&PutRequest { lease: 1, ..put(key, "") }).unwrap();
    }
    state.show();
    state.revoke(1).unwrap();
    state.end_lease(1);
    state.show();
    let gone: Vec<_> = state.changes_from(10).map(|(c, v)| (c.key.clone(), c.revision.sub, v.is_deletion())).collect();
    assert_eq!(gone, [(bytes("x"), 0, true), (bytes("y"), 1, true)]);
    assert_eq!(state.revoke(1), Err(Error::LeaseNotFound));
    assert_eq!(state.revision(), 10);
}

#[test]
fn what_was_not_shown_is_taken_back() {
    let mut state = filled();
    state.grant(1, 10, Duration::ZERO);
    state.grant(2, 10, Duration::ZERO);
    state.put(&PutRequest { lease: 1, ..put("a", "leased") }).unwrap();
    state.show();
    let before = (state.hash(0).unwrap(), state.bytes(), state.lease(1).cloned());
    state.put(&PutRequest { lease: 2, ..put("a", "") }).unwrap();
    state.put(&put("new", "")).unwrap();
    state.delete_range(&delete("a", "c"));
    assert_eq!(state.revision(), 8, "nobody sees it");
    assert_eq!(state.changes_not_shown().count(), 4);
    state.undo();
    assert_eq!((state.hash(0).unwrap(), state.bytes(), state.lease(1).cloned()), before);
    assert_eq!(state.lease(2).map(|l| l.keys.len()), Some(0));
    state.put(&put("a", "again")).unwrap();
    state.show();
    assert_eq!(state.revision(), 9);
}

#[test]
fn compaction() {
    let mut state = filled();
    let bytes_before = state.bytes();
    assert_eq!((state.check_compact(8), state.check_compact(-1)), (Err(Error::FutureRevision), Err(Error::Compacted)));
    let hash = state.hash(7).unwrap();
    state.compact(6);
    let at = |state: &State, revision| state.range(&RangeRequest { revision, ..get("a", "\0") }).map(|a| shown(&a));
    assert_eq!(at(&state, 5), Err(Error::Compacted));
    assert_eq!(at(&state, 6), Ok("a=3@2 b=5@5 of 2".to_owned()));
    while state.forget_some(1) {}
    assert_eq!(at(&state, 6), Ok("a=3@2 b=5@5 of 2".to_owned()));
    assert_eq!(at(&state, 0), Ok("a=4@7 b=5@5 of 2".to_owned()));
    assert_eq!(state.check_compact(6), Err(Error::Compacted));
    assert!(state.bytes() < bytes_before && state.hash(7).unwrap() != hash);
    let kept: Vec<i64> = state.changes_from(0).map(|(change, _)| change.revision.main).collect();
    assert_eq!(kept, [6, 7], "a watch from the compacted revision on hears of the deletion");
    state.compact(7);
    while state.forget_some(1) {}
    assert_eq!(state.keys(), 2, "nothing is left of what was deleted");
}

/// All revisions as whole maps.
#[derive(Default)]
struct Model {
    revisions: BTreeMap<i64, BTreeMap<String, (String, i64, i64, i64)>>,
    compacted: i64,
}

impl Model {
    fn now(&self) -> (i64, BTreeMap<String, (String, i64, i64, i64)>) {
        self.revisions.iter().next_back().map_or_else(|| (1, BTreeMap::new()), |(main, keys)| (*main, keys.clone()))
    }

    fn at(&self, main: i64) -> Option<&BTreeMap<String, (String, i64, i64, i64)>> {
        (main >= self.compacted).then(|| self.revisions.range(..=main).next_back().map(|(_, keys)| keys)).flatten()
    }
}

fn random_key(random: &mut StdRng) -> String {
    ["a", "b", "ba", "bb", "c", "d", "da", "e"][random.random_range(0..8)].to_owned()
}

fn compare_all(state: &State, model: &Model) {
    let (now, _) = model.now();
    for main in model.compacted.max(1)..=now {
        let answer = state.range(&RangeRequest { revision: main, ..get("a", "\0") }).unwrap();
        let found: BTreeMap<String, (String, i64, i64, i64)> = answer
            .kvs
            .iter()
            .map(|kv| {
                let text = |b: &Bytes| String::from_utf8(b.to_vec()).unwrap();
                (text(&kv.key), (text(&kv.value), kv.create_revision, kv.mod_revision, kv.version))
            })
            .collect();
        let empty = BTreeMap::new();
        assert_eq!(&found, model.at(main).unwrap_or(&empty), "at {main}");
    }
}

#[test]
fn random_histories_are_as_the_model_says() {
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut state, mut model) = (State::default(), Model::default());
        for step in 0..300 {
            let (now, mut keys) = model.now();
            let key = random_key(&mut random);
            match random.random_range(0..10) {
                0..6 => {
                    let value = step.to_string();
                    state.put(&put(&key, &value)).unwrap();
                    let old = keys.get(&key).map_or((now + 1, 0), |k| (k.1, k.3));
                    keys.insert(key, (value, old.0, now + 1, old.1 + 1));
                    model.revisions.insert(now + 1, keys);
                    state.show();
                }
                6..8 => {
                    let end = random_key(&mut random);
                    state.delete_range(&delete(&key, &end));
                    state.show();
                    let before = keys.len();
                    keys.retain(|k, _| !(*k >= key && *k < end));
                    if keys.len() != before {
                        model.revisions.insert(now + 1, keys);
                    }
                }
                8 => {
                    state.put(&put(&key, "taken back")).unwrap();
                    state.delete_range(&delete("a", "\0"));
                    state.undo();
                }
                _ => {
                    let main = random.random_range(0..=now);
                    if state.check_compact(main).is_ok() {
                        state.compact(main);
                        // Sometimes the next compaction begins before this one is complete.
                        while random.random_range(0..10) > 0 && state.forget_some(3) {}
                        model.compacted = main;
                    }
                }
            }
            assert_eq!(state.revision(), model.now().0, "seed {seed} step {step}");
        }
        while state.forget_some(7) {}
        compare_all(&state, &model);
        let versions: u64 = state.versions_after(None).map(|(k, v)| 128 + (k.len() + v.value.len()) as u64).sum();
        assert_eq!(state.bytes(), versions, "seed {seed}: bytes are counted as they are");
    }
}

/// The checksum of etcd 3.4.23 for the same requests.
#[test]
fn the_checksum_is_etcds() {
    let mut state = State::default();
    for (key, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
        state.put(&put(key, value)).unwrap();
    }
    state.delete_range(&delete("b", ""));
    state.show();
    assert_eq!(state.hash(0).map(|(hash, _)| hash), Ok(ETCD_SUM));
    state.compact(4);
    while state.forget_some(9) {}
    assert_eq!(state.hash(0).map(|(hash, _)| hash), Ok(ETCD_SUM_COMPACTED));
}
const ETCD_SUM: u32 = 1_125_682_900;
const ETCD_SUM_COMPACTED: u32 = 1_468_967_122;
