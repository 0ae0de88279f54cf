//! Offer: what the answers to a request can be written as, by the kind that it is about.
use crate::catalog::{Behaviour, Served};
use crate::request::negotiate::{Extent, Offer};
use crate::request::route::RequestInfo;
use crate::request::routes::Route;

/// What may be asked for of a request's answer. Other servers negotiate for themselves.
pub fn of(info: &RequestInfo, route: Option<&Route>) -> Offer {
    let Some(Route::Stored(served)) = route else { return Offer::PLAIN };
    let extent = match info.verb {
        "watch" => Extent::Watch,
        "list" | "deletecollection" => Extent::List,
        _ => Extent::One,
    };
    let protobuf = matches!(served.strategy, Behaviour::Builtin(_));
    let (tables, metadata) = match info.subresource.as_str() {
        "scale" => (true, true),
        "binding" | "eviction" | "token" => (false, false),
        _ => (is_object(served), is_object(served)),
    };
    Offer { protobuf, tables, metadata, extent }
}

/// Reviews and bindings are only created: what they answer has no other view.
fn is_object(served: &Served) -> bool {
    served.has_objects() || served.has_verb("list")
}
