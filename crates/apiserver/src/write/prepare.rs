//! Prepare: what every written object goes through between its decoding and its admission, whatever the verb.
use kelson_meta::Status;
use serde_json::Value;

use crate::catalog::Served;
use crate::shared::context::RequestContext;

/// A text of an object's metadata; empty where there is none.
pub fn meta_text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or("")
}

/// A decoded object with the defaults of the served version, in the form that is worked on.
///
/// # Errors
/// 400 for what has no stored form; what a kind made at run time refuses.
pub async fn to_working(served: &Served, mut object: Value) -> Result<Value, Status> {
    if let Some(o) = object.as_object_mut()
        && !o.get("metadata").is_some_and(Value::is_object)
    {
        o.insert("metadata".into(), Value::Object(Default::default()));
    }
    served.strategy.default(&served.gvk.version, &mut object)?;
    served.served_to_working(object).await
}

/// The namespace of the path goes into the object; one that the object names must be the same.
///
/// # Errors
/// 400.
pub fn set_namespace(cx: &RequestContext, served: &Served, object: &mut Value) -> Result<(), Status> {
    check_namespace(cx, served, object)?;
    if served.namespaced {
        object["metadata"]["namespace"] = cx.info.namespace.as_str().into();
    } else if let Some(meta) = object["metadata"].as_object_mut() {
        meta.remove("namespace");
    }
    Ok(())
}

/// An object of a namespaced kind that names a namespace must name the one of the path.
///
/// # Errors
/// 400.
pub fn check_namespace(cx: &RequestContext, served: &Served, object: &Value) -> Result<(), Status> {
    let given = meta_text(object, "namespace");
    if served.namespaced && !given.is_empty() && given != cx.info.namespace {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::bad_request(why));
    }
    Ok(())
}

/// An object that names itself must have the name of the path.
///
/// # Errors
/// 400.
pub fn check_name(cx: &RequestContext, object: &Value) -> Result<(), Status> {
    match meta_text(object, "name") {
        "" => Ok(()),
        given => same_name(cx, given),
    }
}

/// 400 for an object that must say its name and does not.
pub fn nameless(asked: &str) -> Status {
    let why = format!("the name of the object ({asked} based on URL) was undeterminable: name must be provided");
    Status::bad_request(why)
}

/// A name must be the one of the path.
///
/// # Errors
/// 400.
pub fn same_name(cx: &RequestContext, given: &str) -> Result<(), Status> {
    let asked = &cx.info.name;
    if given == asked {
        return Ok(());
    }
    if given.is_empty() {
        return Err(nameless(asked));
    }
    let why = format!("the name of the object ({given}) does not match the name on the URL ({asked})");
    Err(Status::bad_request(why))
}

/// Whether the object says explicitly that it has no `managedFields`, which resets them. Its canonical form does not say so.
pub fn empties_managed_fields(object: &Value) -> bool {
    object["metadata"]["managedFields"].as_array().is_some_and(Vec::is_empty)
}

/// Makes a canonical object say that it has no `managedFields`.
pub fn empty_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("managedFields".into(), Value::Array(Vec::new()));
    }
}
