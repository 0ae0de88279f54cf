//! Get: one object, at least as new as the client asks for.
use http::StatusCode;
use kelson_meta::Status;
use kelson_traces::{KeyValue, child, event};

use crate::catalog::Served;
use crate::catalog::record::Object;
use crate::read::encode;
use crate::request::answer::Answer;
use crate::request::version_param;
use crate::shared::context::RequestContext;

/// Reads one object.
///
/// # Errors
/// 404, 406, 504.
pub async fn get(cx: &RequestContext, served: &Served) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let view = cx.view(&accepted)?;
    event("About to Get from storage", Vec::new);
    if let Some(revision) = version_param::parse(cx.query.text("resourceVersion"))? {
        version_param::wait_for_revision(&cx.server.store, revision).await?;
    }
    let version = || {
        let asked = KeyValue::text("resource-version", cx.query.text("resourceVersion"));
        vec![KeyValue::text("audit-id", cx.audit_id.to_str().unwrap_or("")), asked]
    };
    let found = child("cacher.Get", version);
    found.event("About to fetch object from cache", Vec::new);
    let record = cx.stored(served, &cx.info.name)?;
    drop(found);
    encode::object(StatusCode::OK, &accepted, served, &view, Object::Record(record)).await
}
