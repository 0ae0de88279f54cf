//! Prepare: steps of every write between decoding and admission.
use kelson_meta::Status;
use serde_json::Value;

use crate::catalog::Served;
use crate::shared::context::RequestContext;

/// A string in an object's metadata; empty if it is missing.
pub fn meta_text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or("")
}

/// Applies the defaults of the served version and converts the object to the working version.
///
/// # Errors
/// 400 if there is no stored version; errors of a custom resource's conversion.
pub async fn to_working(served: &Served, mut object: Value) -> Result<Value, Status> {
    if let Some(o) = object.as_object_mut()
        && !o.get("metadata").is_some_and(Value::is_object)
    {
        o.insert("metadata".into(), Value::Object(Default::default()));
    }
    served.strategy.default(&served.gvk.version, &mut object)?;
    served.served_to_working(object).await
}

/// Sets the namespace in the path on the object. A namespace in the object must be the same.
///
/// # Errors
/// 400 if it differs.
pub fn set_namespace(cx: &RequestContext, served: &Served, object: &mut Value) -> Result<(), Status> {
    check_namespace(cx, served, object)?;
    if served.namespaced {
        object["metadata"]["namespace"] = cx.info.namespace.as_str().into();
    } else if let Some(meta) = object["metadata"].as_object_mut() {
        meta.remove("namespace");
    }
    Ok(())
}

/// Checks that a namespace in the object is the one in the path.
///
/// # Errors
/// 400 if it differs.
pub fn check_namespace(cx: &RequestContext, served: &Served, object: &Value) -> Result<(), Status> {
    let given = meta_text(object, "namespace");
    if served.namespaced && !given.is_empty() && given != cx.info.namespace {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::bad_request(why));
    }
    Ok(())
}

/// Checks that a name in the object is the one in the path.
///
/// # Errors
/// 400 if it differs.
pub fn check_name(cx: &RequestContext, object: &Value) -> Result<(), Status> {
    match meta_text(object, "name") {
        "" => Ok(()),
        given => same_name(cx, given),
    }
}

/// The error for an object without a name (upstream's message).
pub fn nameless(asked: &str) -> Status {
    let why = format!("the name of the object ({asked} based on URL) was undeterminable: name must be provided");
    Status::bad_request(why)
}

/// Checks that a name is the one in the path.
///
/// # Errors
/// 400 if it is empty or differs.
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

/// Whether `managedFields` are explicitly empty, which resets them. The canonical tree does not show this.
pub fn empties_managed_fields(object: &Value) -> bool {
    object["metadata"]["managedFields"].as_array().is_some_and(Vec::is_empty)
}

/// Sets explicitly empty `managedFields` in a canonical tree.
pub fn empty_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("managedFields".into(), Value::Array(Vec::new()));
    }
}
