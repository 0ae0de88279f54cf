//! Offer: the forms in which a request can be answered, by its kind.
use crate::catalog::{ObjectSchema, Served};
use crate::request::negotiate::{Extent, Offer};
use crate::request::route::RequestInfo;
use crate::request::routes::Route;

/// The offer for a request. Aggregated API servers negotiate themselves.
pub fn offer_for(info: &RequestInfo, route: Option<&Route>) -> Offer {
    let Some(Route::Stored(served)) = route else { return Offer::PLAIN };
    let extent = match info.verb {
        "watch" => Extent::Watch,
        "list" | "deletecollection" => Extent::List,
        _ => Extent::One,
    };
    let protobuf = matches!(served.schema, ObjectSchema::Builtin(_));
    let (tables, metadata) = match info.subresource.as_str() {
        "scale" => (true, true),
        "binding" | "eviction" | "token" => (false, false),
        _ => (is_object(served), is_object(served)),
    };
    Offer { protobuf, tables, metadata, extent }
}

/// Whether the response has other views. Reviews and bindings, which can only be created, have none.
fn is_object(served: &Served) -> bool {
    served.has_objects() || served.has_verb("list")
}
