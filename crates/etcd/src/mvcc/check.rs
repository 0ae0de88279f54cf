//! Validates requests independent of the stored state.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::range::KeyRange;
use crate::error::Error;
use crate::proto::request_op::Request;
use crate::proto::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, range_request};

/// Validates a range request.
///
/// # Errors
/// The first problem in etcd's order. This applies to the other functions as well.
pub fn check_range(r: &RangeRequest) -> Result<(), Error> {
    if r.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    let order = range_request::SortOrder::try_from(r.sort_order);
    let target = range_request::SortTarget::try_from(r.sort_target);
    if order.is_err() || target.is_err() { Err(Error::InvalidSortOption) } else { Ok(()) }
}

/// Validates a put.
///
/// # Errors
/// As of [`check_range`].
pub fn check_put(r: &PutRequest) -> Result<(), Error> {
    if r.key.is_empty() {
        Err(Error::EmptyKey)
    } else if r.ignore_value && !r.value.is_empty() {
        Err(Error::ValueProvided)
    } else if r.ignore_lease && r.lease != 0 {
        Err(Error::LeaseProvided)
    } else {
        Ok(())
    }
}

/// Validates a deletion.
///
/// # Errors
/// As of [`check_range`].
pub fn check_delete(r: &DeleteRangeRequest) -> Result<(), Error> {
    if r.key.is_empty() { Err(Error::EmptyKey) } else { Ok(()) }
}

/// Validates a transaction with nested ones. Nested transactions share `ops_max` with the outer one.
///
/// # Errors
/// As of [`check_range`].
pub fn check_txn(r: &TxnRequest, ops_max: usize) -> Result<(), Error> {
    check_ops(r, ops_max)?;
    // Checked last, since it costs more than counting operations, which bounds it.
    Writes::of(&r.success)?;
    Writes::of(&r.failure)?;
    Ok(())
}

/// Reports whether a transaction changes nothing, whichever list runs. A transaction with a nested one counts as a
/// change.
pub fn is_read_only(r: &TxnRequest) -> bool {
    r.success.iter().chain(&r.failure).all(|op| matches!(op.request, Some(Request::RequestRange(_))))
}

fn check_ops(r: &TxnRequest, ops_max: usize) -> Result<(), Error> {
    let ops = r.compare.len().max(r.success.len()).max(r.failure.len());
    let left = ops_max.checked_sub(ops).ok_or(Error::TooManyOps)?;
    if r.compare.iter().any(|c| c.key.is_empty()) {
        return Err(Error::EmptyKey);
    }
    for op in r.success.iter().chain(&r.failure) {
        match &op.request {
            Some(Request::RequestRange(r)) => check_range(r),
            Some(Request::RequestPut(r)) => check_put(r),
            Some(Request::RequestDeleteRange(r)) => check_delete(r),
            Some(Request::RequestTxn(r)) => check_ops(r, left),
            None => Err(Error::KeyNotFound),
        }?;
    }
    Ok(())
}

/// The keys that a list of operations may write.
#[derive(Default)]
struct Writes {
    puts: BTreeSet<Bytes>,
    deletes: Vec<KeyRange>,
}

impl Writes {
    /// # Errors
    /// A key that would be written twice at one revision.
    fn of(ops: &[RequestOp]) -> Result<Self, Error> {
        let mut all = Self::default();
        for op in ops {
            if let Some(Request::RequestDeleteRange(r)) = &op.request {
                all.deletes.push(KeyRange::new(&r.key, &r.range_end));
            }
        }
        for op in ops {
            let Some(Request::RequestTxn(r)) = &op.request else { continue };
            let (then, otherwise) = (Self::of(&r.success)?, Self::of(&r.failure)?);
            // Only one of the two lists runs, so both may write the same key.
            let twice = |puts: &BTreeSet<Bytes>| puts.iter().any(|key| all.puts.contains(key)) || all.deletes_any(puts);
            if twice(&then.puts) || twice(&otherwise.puts) {
                return Err(Error::DuplicateKey);
            }
            for one in [then, otherwise] {
                all.puts.extend(one.puts);
                all.deletes.extend(one.deletes);
            }
        }
        let mut own = BTreeSet::new();
        for op in ops {
            let Some(Request::RequestPut(r)) = &op.request else { continue };
            if all.puts.contains(&r.key) || !own.insert(r.key.clone()) {
                return Err(Error::DuplicateKey);
            }
        }
        if all.deletes_any(&own) {
            return Err(Error::DuplicateKey);
        }
        all.puts.append(&mut own);
        Ok(all)
    }

    fn deletes_any(&self, puts: &BTreeSet<Bytes>) -> bool {
        self.deletes.iter().filter_map(KeyRange::bounds).any(|bounds| puts.range::<[u8], _>(bounds).next().is_some())
    }
}
