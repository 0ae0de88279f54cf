//! Transactions: all conditions, also those of nested transactions, are evaluated before any operation runs.

use std::cmp::Ordering;

use super::history::Version;
use super::range::KeyRange;
use super::read::{self, header};
use super::state::State;
use super::write::Write;
use crate::error::Error;
use crate::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::request_op::Request;
use crate::proto::response_op::Response;
use crate::proto::{Compare, PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseOp, TxnRequest, TxnResponse};

impl State {
    /// Runs a transaction that [changes nothing](super::is_read_only), on the visible state.
    ///
    /// # Errors
    /// As of [`State::range`].
    pub fn read_txn(&self, r: &TxnRequest) -> Result<TxnResponse, Error> {
        run_read(self, r)
    }

    /// Runs a transaction: all its changes have one revision.
    ///
    /// # Errors
    /// As of [`State::range`] and [`State::put`]; nothing was changed then.
    pub fn txn(&mut self, r: &TxnRequest) -> Result<TxnResponse, Error> {
        let before = self.applied;
        let answer = run_write(self, r);
        if answer.is_err() {
            self.undo_to(before);
        }
        answer
    }
}

/// The results of the conditions of a transaction, and of those nested in the list that runs, in order.
struct Verdict {
    succeeded: bool,
    nested: Vec<Verdict>,
}

fn run_read(state: &State, r: &TxnRequest) -> Result<TxnResponse, Error> {
    let verdict = judge(state, r, state.revision());
    let mut responses = Vec::new();
    for op in ops(r, &verdict) {
        let Some(Request::RequestRange(range)) = &op.request else { continue };
        responses.push(ResponseOp { response: Some(Response::ResponseRange(state.range(range)?)) });
    }
    Ok(TxnResponse { header: header(state.revision()), succeeded: verdict.succeeded, responses })
}

/// Runs any transaction. After an error the caller must revert its changes.
fn run_write(state: &mut State, r: &TxnRequest) -> Result<TxnResponse, Error> {
    let mut write = Write::new(state);
    let verdict = judge(write.state(), r, write.revision());
    check(write.state(), r, &verdict, write.revision())?;
    let done = run(&mut write, r, &verdict);
    let revision = write.end();
    Ok(TxnResponse { header: header(revision), ..done? })
}

fn ops<'a>(r: &'a TxnRequest, verdict: &Verdict) -> &'a [RequestOp] {
    if verdict.succeeded { &r.success } else { &r.failure }
}

fn judge(state: &State, r: &TxnRequest, main: i64) -> Verdict {
    let succeeded = r.compare.iter().all(|c| holds(state, c, main));
    let mut verdict = Verdict { succeeded, nested: Vec::new() };
    for op in ops(r, &verdict) {
        if let Some(Request::RequestTxn(nested)) = &op.request {
            verdict.nested.push(judge(state, nested, main));
        }
    }
    verdict
}

/// Finds errors that would occur while it runs.
fn check(state: &State, r: &TxnRequest, verdict: &Verdict, main: i64) -> Result<(), Error> {
    let mut nested = verdict.nested.iter();
    for op in ops(r, verdict) {
        match &op.request {
            Some(Request::RequestRange(range)) => read::check_revision(range, main, state.compacted())?,
            Some(Request::RequestPut(put)) => check_put(state, put)?,
            Some(Request::RequestTxn(txn)) => {
                let Some(verdict) = nested.next() else { continue };
                check(state, txn, verdict, main)?;
            }
            Some(Request::RequestDeleteRange(_)) | None => {}
        }
    }
    Ok(())
}

fn check_put(state: &State, r: &PutRequest) -> Result<(), Error> {
    if (r.ignore_value || r.ignore_lease) && state.index.newest(&r.key).is_none() {
        return Err(Error::KeyNotFound);
    }
    state.check_lease(r.lease)
}

fn run(write: &mut Write<'_>, r: &TxnRequest, verdict: &Verdict) -> Result<TxnResponse, Error> {
    let mut nested = verdict.nested.iter();
    let mut responses = Vec::with_capacity(ops(r, verdict).len());
    for op in ops(r, verdict) {
        let response = match &op.request {
            Some(Request::RequestRange(r)) => Some(Response::ResponseRange(range(write, r)?)),
            Some(Request::RequestPut(r)) => Some(Response::ResponsePut(write.put(r)?)),
            Some(Request::RequestDeleteRange(r)) => Some(Response::ResponseDeleteRange(write.delete_range(r))),
            Some(Request::RequestTxn(r)) => match nested.next() {
                Some(verdict) => Some(Response::ResponseTxn(run(write, r, verdict)?)),
                None => None,
            },
            None => None,
        };
        responses.push(ResponseOp { response });
    }
    // The header of a nested answer is present but empty, as in etcd.
    Ok(TxnResponse { header: header(0), succeeded: verdict.succeeded, responses })
}

fn range(write: &Write<'_>, r: &RangeRequest) -> Result<RangeResponse, Error> {
    write.range(r)
}

/// Reports whether a condition is true for all keys of its range, or, if there are none, for a key that was never
/// written.
fn holds(state: &State, c: &Compare, main: i64) -> bool {
    let range = KeyRange::new(&c.key, &c.range_end);
    let mut found = state.index.range(&range, main).peekable();
    if found.peek().is_none() {
        // An absent value cannot be distinguished from an empty one, so every condition on it is false.
        return c.target() != CompareTarget::Value && meets(c, None);
    }
    found.all(|(_, version)| meets(c, Some(version)))
}

fn meets(c: &Compare, version: Option<&Version>) -> bool {
    let number = |of: fn(&Version) -> i64, wanted: Option<i64>| version.map_or(0, of).cmp(&wanted.unwrap_or(0));
    let union = &c.target_union;
    let order = match CompareTarget::try_from(c.target) {
        Ok(CompareTarget::Version) => {
            number(|v| v.number, if let Some(TargetUnion::Version(n)) = union { Some(*n) } else { None })
        }
        Ok(CompareTarget::Create) => {
            number(|v| v.created, if let Some(TargetUnion::CreateRevision(n)) = union { Some(*n) } else { None })
        }
        Ok(CompareTarget::Mod) => {
            number(|v| v.revision.main, if let Some(TargetUnion::ModRevision(n)) = union { Some(*n) } else { None })
        }
        Ok(CompareTarget::Lease) => {
            number(|v| v.lease, if let Some(TargetUnion::Lease(n)) = union { Some(*n) } else { None })
        }
        Ok(CompareTarget::Value) => {
            let wanted = if let Some(TargetUnion::Value(value)) = union { value.as_ref() } else { &[] };
            version.map_or(&[] as &[u8], |v| v.value.as_ref()).cmp(wanted)
        }
        Err(_) => Ordering::Equal,
    };
    match CompareResult::try_from(c.result) {
        Ok(CompareResult::Equal) => order.is_eq(),
        Ok(CompareResult::NotEqual) => order.is_ne(),
        Ok(CompareResult::Greater) => order.is_gt(),
        Ok(CompareResult::Less) => order.is_lt(),
        Err(_) => true,
    }
}
