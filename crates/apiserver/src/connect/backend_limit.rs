//! Limit of connections to backends. Streams may last for days, and each needs descriptors and buffers of the server, so that no user
//! may take all.
use std::sync::Arc;

use kelson_meta::Status;

use crate::request::body::{RETRY_AFTER_S, TOO_MANY};
use crate::shared::context::RequestContext;
use crate::shared::pool::{Class, PoolShare};

/// Takes one connection of the limit, until the returned value is dropped.
///
/// # Errors
/// 429 if the limit is reached.
pub fn take(cx: &RequestContext) -> Result<Arc<PoolShare>, Status> {
    let mut reservation = cx.server.backends.share(Arc::clone(&cx.user), Class::of(&cx.user, false));
    match reservation.take(1) {
        true => Ok(Arc::new(reservation)),
        false => Err(Status::too_many_requests(TOO_MANY, RETRY_AFTER_S)),
    }
}
