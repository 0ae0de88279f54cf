//! The size that requests may add: such requests are rejected when the quota is exceeded, while deletions and
//! compactions stay possible.

use prost::Message as _;

use crate::proto::request_op::Request;
use crate::proto::{PutRequest, RequestOp, TxnRequest};

/// Returns the size that a put may add, in bytes.
pub(super) fn put(r: &PutRequest) -> u64 {
    r.encoded_len() as u64
}

/// Returns the size that a transaction may add in bytes; 0 if it puts nothing.
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
