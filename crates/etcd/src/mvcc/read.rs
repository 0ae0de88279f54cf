//! Answers range requests from the index: revision, order and limit.

use std::cmp::Ordering;

use super::index::Index;
use super::range::KeyRange;
use crate::error::Error;
use crate::proto::range_request::{SortOrder, SortTarget};
use crate::proto::{KeyValue, RangeRequest, RangeResponse, ResponseHeader};

/// Returns the header of an answer, with the fields that the state knows.
pub(super) fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..ResponseHeader::default() })
}

/// Answers a range as of a revision, `current` if it names none.
///
/// # Errors
/// The revision is compacted, or does not exist yet.
pub(super) fn range(index: &Index, r: &RangeRequest, current: i64, compacted: i64) -> Result<RangeResponse, Error> {
    check_revision(r, current, compacted)?;
    let main = if r.revision <= 0 { current } else { r.revision };
    let keys = KeyRange::new(&r.key, &r.range_end);
    let limit = usize::try_from(r.limit).ok().filter(|limit| *limit > 0);
    let mut answer = RangeResponse { header: header(current), ..RangeResponse::default() };
    if r.count_only {
        answer.count = count(index.range(&keys, main).count());
        return Ok(answer);
    }
    let (order, target) = sorting(r);
    // If keys are filtered or sorted, the result is known only at the end.
    let taken = limit.filter(|_| order == SortOrder::None && !leaves_out(r)).unwrap_or(usize::MAX);
    let mut seen = 0;
    for (key, version) in index.range(&keys, main) {
        seen += 1;
        if answer.kvs.len() < taken && within(r, version.revision.main, version.created) {
            answer.kvs.push(version.key_value(key));
        }
    }
    answer.count = count(seen);
    answer.more = taken < seen;
    match order {
        SortOrder::None => {}
        SortOrder::Ascend => answer.kvs.sort_by(|a, b| compare(target, a, b)),
        SortOrder::Descend => answer.kvs.sort_by(|a, b| compare(target, b, a)),
    }
    if let Some(limit) = limit
        && answer.kvs.len() > limit
    {
        answer.kvs.truncate(limit);
        answer.more = true;
    }
    if r.keys_only {
        answer.kvs.iter_mut().for_each(|kv| kv.value.clear());
    }
    Ok(answer)
}

/// Checks that the revision of a range can be read.
///
/// # Errors
/// As of [`range`].
pub(super) fn check_revision(r: &RangeRequest, current: i64, compacted: i64) -> Result<(), Error> {
    if r.revision > current {
        Err(Error::FutureRevision)
    } else if r.revision > 0 && r.revision < compacted {
        Err(Error::Compacted)
    } else {
        Ok(())
    }
}

fn count(keys: usize) -> i64 {
    i64::try_from(keys).unwrap_or(i64::MAX)
}

/// Returns the order of the answer; keys are in ascending order anyway.
fn sorting(r: &RangeRequest) -> (SortOrder, SortTarget) {
    let (order, target) = (r.sort_order(), r.sort_target());
    let order = match (order, target) {
        (SortOrder::Ascend, SortTarget::Key) => SortOrder::None,
        (SortOrder::None, target) if target != SortTarget::Key => SortOrder::Ascend,
        (order, _) => order,
    };
    (order, target)
}

fn leaves_out(r: &RangeRequest) -> bool {
    [r.min_mod_revision, r.max_mod_revision, r.min_create_revision, r.max_create_revision].iter().any(|main| *main != 0)
}

fn within(r: &RangeRequest, modified: i64, created: i64) -> bool {
    let from = |min: i64, main: i64| min == 0 || main >= min;
    let to = |max: i64, main: i64| max == 0 || main <= max;
    from(r.min_mod_revision, modified)
        && to(r.max_mod_revision, modified)
        && from(r.min_create_revision, created)
        && to(r.max_create_revision, created)
}

fn compare(target: SortTarget, a: &KeyValue, b: &KeyValue) -> Ordering {
    match target {
        SortTarget::Key => a.key.cmp(&b.key),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => a.value.cmp(&b.value),
    }
}
