//! Which requests need room: those are refused when the quota is used up, while deletions and compactions make room.

use prost::Message as _;

use crate::proto::request_op::Request;
use crate::proto::{PutRequest, RequestOp, TxnRequest};

/// Bytes that a put may add.
pub(super) fn put(r: &PutRequest) -> u64 {
    r.encoded_len() as u64
}

/// Bytes that a transaction may add; 0 where it puts nothing.
pub(super) fn txn(r: &TxnRequest) -> u64 {
    let sum = |ops: &[RequestOp]| -> u64 {
        let of = |op: &RequestOp| match &op.request {
            Some(Request::RequestPut(r)) => put(r),
            Some(Request::RequestTxn(r)) => txn(r),
            _ => 0,
        };
        ops.iter().map(of).sum()
    };
    sum(&r.success).max(sum(&r.failure))
}
