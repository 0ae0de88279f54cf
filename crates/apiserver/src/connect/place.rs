//! Places among the connections to backends. Streams may last for days, and each holds descriptors and buffers of the server: no
//! user has them all.
use std::sync::Arc;

use kelson_meta::Status;

use crate::request::body::{RETRY_AFTER_S, TOO_MANY};
use crate::shared::context::RequestContext;
use crate::shared::room::{Class, Place};

/// Takes a place, which is held until it is dropped.
///
/// # Errors
/// 429.
pub fn take(cx: &RequestContext) -> Result<Arc<Place>, Status> {
    let mut place = cx.server.backends.enter(Arc::clone(&cx.user), Class::of(&cx.user, false));
    match place.take(1) {
        true => Ok(Arc::new(place)),
        false => Err(Status::too_many_requests(TOO_MANY, RETRY_AFTER_S)),
    }
}
