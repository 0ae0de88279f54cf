//! Encode: answers of one object or one status in the form the client accepts. A stored record that is wanted as it is
//! stored is copied, not decoded. Lists are `list`'s, watch frames `watch`'s.
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderValue, Response, StatusCode, header};
use jiff::Timestamp;
use kelson_codec::Encoding;
use kelson_meta::{Gvk, Status};
use kelson_schema::{Schema, TypeId};
use kelson_store::Record;
use serde_json::{Map, Value, json};

use crate::catalog::Served;
use crate::request::body::ApiBody;
use crate::request::negotiate::{Accepted, View};

/// An answer.
pub type Answer = Response<ApiBody>;

const NEWLINE: Bytes = Bytes::from_static(b"\n");

/// An answer with a body of this type.
pub fn answer(code: StatusCode, content_type: &'static str, body: ApiBody) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A `Status` as the answer. Its code is the answer's.
pub fn status(status: &Status, accepted: &Accepted) -> Answer {
    let mut value = serde_json::to_value(status).unwrap_or_default();
    move_continue(&mut value);
    let accepted = Accepted { view: View::Whole, ..*accepted };
    let code = if status.success { StatusCode::OK } else { status.http() };
    let retry = status.details.as_ref().map_or(0, |d| d.retry_after_seconds);
    let ty = Schema::builtin().by_gvk("", "v1", "Status");
    let mut response = tree(code, &accepted, ty, value).unwrap_or_else(|_| {
        let bytes = serde_json::to_vec(status).unwrap_or_default();
        answer(code, "application/json", ApiBody::full(bytes))
    });
    if retry > 0 {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(retry));
    }
    response
}

fn move_continue(value: &mut Value) {
    let Some(causes) = value.pointer_mut("/details/causes").and_then(Value::as_array_mut) else { return };
    let Some(at) = causes.iter().position(|c| c["reason"] == crate::request::version_param::CONTINUE_CAUSE) else {
        return;
    };
    let mut cause = causes.remove(at);
    value["metadata"] = json!({"continue": cause["message"].take()});
    if let Some(o) = value.as_object_mut() {
        o.remove("details");
    }
}

/// Any tree that names its own kind.
///
/// # Errors
/// 406 when the type has no protobuf form and only that is accepted.
pub fn tree(code: StatusCode, accepted: &Accepted, ty: Option<TypeId>, value: Value) -> Result<Answer, Status> {
    let bytes = encode(accepted, ty, &value)?;
    Ok(answer(code, accepted.content_type(false), ApiBody::full(bytes)))
}

/// A tree's bytes as an answer carries them.
///
/// # Errors
/// 406 as [`tree`].
pub fn encode(accepted: &Accepted, ty: Option<TypeId>, value: &Value) -> Result<Bytes, Status> {
    if accepted.encoding == Encoding::Json {
        let mut bytes = if accepted.pretty { pretty(value) } else { serde_json::to_vec(value).unwrap_or_default() };
        bytes.push(b'\n');
        return Ok(bytes.into());
    }
    match kelson_codec::encode(accepted.encoding, ty, value) {
        Ok(bytes) => Ok(bytes.into()),
        Err(error) => {
            tracing::debug!(%error, "answer cannot be encoded as accepted");
            Err(Status::not_acceptable(&["application/json", "application/yaml"]))
        }
    }
}

fn pretty(value: &Value) -> Vec<u8> {
    serde_json::to_vec_pretty(value).unwrap_or_default()
}

/// An object as the handlers have it.
pub enum Object {
    /// As it is stored.
    Record(Arc<Record>),
    /// A tree in the stored form.
    Tree(Value),
}

impl Object {
    /// The tree in the stored form.
    pub fn into_tree(self) -> Value {
        match self {
            Self::Record(record) => parse(&record),
            Self::Tree(value) => value,
        }
    }
}

/// The tree of a stored record.
pub fn parse(record: &Record) -> Value {
    serde_json::from_slice(record.bytes()).unwrap_or_else(|error| {
        tracing::error!(key = %record.key(), %error, "stored record does not decode");
        Value::Null
    })
}

/// The served form of a tree in the stored form.
///
/// # Errors
/// 500 when it cannot be converted: a fault of ours.
pub fn to_served(served: &Served, value: Value) -> Result<Value, Status> {
    if !served.converts {
        return Ok(value);
    }
    kelson_resources::convert(&served.storage, &served.gvk, value).map_err(|e| Status::internal(&e.message))
}

/// The record's protobuf message (no envelope), transcoded once and kept beside the record.
///
/// # Errors
/// 406 when the type has no protobuf form.
pub fn message(served: &Served, record: &Record) -> Result<Bytes, Status> {
    if let Some(made) = record.protobuf_if_made() {
        return Ok(made);
    }
    let ty = served.storage_ty.filter(|t| t.has_proto());
    let none = || Status::not_acceptable(&["application/json", "application/yaml"]);
    let made = kelson_codec::proto::encode_message(ty.ok_or_else(none)?, &parse(record));
    let made = made.map_err(|e| Status::internal(e.to_string()))?;
    Ok(record.set_protobuf(made.into()))
}

/// One object as the answer.
///
/// # Errors
/// 406, or 500 for what cannot be converted.
pub fn object(
    code: StatusCode,
    accepted: &Accepted,
    served: &Served,
    view: &ViewOptions,
    object: Object,
) -> Result<Answer, Status> {
    if let (Object::Record(record), View::Whole, false) = (&object, accepted.view, served.converts) {
        if accepted.encoding == Encoding::Json && !accepted.pretty {
            let body = ApiBody::parts([record.bytes().clone(), NEWLINE]);
            return Ok(answer(code, accepted.content_type(false), body));
        }
        if accepted.encoding == Encoding::Protobuf {
            let message = message(served, record)?;
            let bytes = kelson_codec::proto::wrap(&served.api_version, &served.gvk.kind, &message);
            return Ok(answer(code, accepted.content_type(false), ApiBody::full(bytes)));
        }
    }
    let value = object.into_tree();
    match accepted.view {
        View::Whole => tree(code, accepted, served.ty, to_served(served, value)?),
        View::Partial(version) => {
            let ty = Schema::builtin().by_gvk("meta.k8s.io", version, "PartialObjectMetadata");
            tree(code, accepted, ty, partial(version, value))
        }
        View::Table(version) => {
            let meta = json!({"resourceVersion": value["metadata"]["resourceVersion"]});
            let mut table = table_head(served, version, meta, true);
            table.insert("rows".into(), json!([row(served, view, version, value)?]));
            tree(code, accepted, None, Value::Object(table))
        }
    }
}

/// `PartialObjectMetadata` of an object.
pub fn partial(version: &str, mut value: Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": value["metadata"].take()})
}

/// What each row of a table carries of its object (`includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    /// Nothing.
    None,
    /// Its metadata.
    Metadata,
    /// All of it.
    Object,
}

/// Choices for tables.
#[derive(Debug, Clone, Copy)]
pub struct ViewOptions {
    /// `includeObject`.
    pub include: Include,
    /// The server's clock, for ages.
    pub now: Timestamp,
}

impl ViewOptions {
    /// From the query.
    ///
    /// # Errors
    /// 400 for an unknown word.
    pub fn new(query: &crate::request::query::Query, now: Timestamp) -> Result<Self, Status> {
        let include = match query.text("includeObject") {
            "" | "Metadata" => Include::Metadata,
            "None" => Include::None,
            "Object" => Include::Object,
            other => return Err(Status::bad_request(format!("unrecognized includeObject value: {other:?}"))),
        };
        Ok(Self { include, now })
    }
}

/// A table without its rows; watch events after the first leave the columns out.
pub fn table_head(served: &Served, version: &str, metadata: Value, columns: bool) -> Map<String, Value> {
    let definitions: Vec<Value> = if columns {
        let each = |c: &kelson_resources::Column| json!({"name": c.name, "type": c.kind, "format": c.format, "description": c.description, "priority": c.priority});
        served.options().columns.iter().map(each).collect()
    } else {
        Vec::new()
    };
    let mut table = Map::new();
    table.insert("kind".into(), "Table".into());
    table.insert("apiVersion".into(), format!("meta.k8s.io/{version}").into());
    table.insert("metadata".into(), metadata);
    table.insert("columnDefinitions".into(), if columns { definitions.into() } else { Value::Null });
    table
}

/// One row.
///
/// # Errors
/// As [`to_served`].
pub fn row(served: &Served, view: &ViewOptions, version: &str, value: Value) -> Result<Value, Status> {
    let mut row = Map::new();
    row.insert("cells".into(), served.strategy.row(&value, view.now).into());
    let conditions = served.strategy.row_conditions(&value);
    if !conditions.is_empty() {
        row.insert("conditions".into(), conditions.into());
    }
    match view.include {
        Include::None => {}
        Include::Metadata => drop(row.insert("object".into(), partial(version, value))),
        Include::Object => drop(row.insert("object".into(), to_served(served, value)?)),
    }
    Ok(Value::Object(row))
}

/// A `Warning: 299` header value; control characters are dropped and quotes escaped.
pub fn warning(text: &str) -> Option<HeaderValue> {
    let mut out = BytesMut::with_capacity(text.len() + 8);
    out.put_slice(b"299 - \"");
    for c in text.chars().filter(|c| !c.is_control()) {
        if matches!(c, '"' | '\\') {
            out.put_u8(b'\\');
        }
        let mut buffer = [0; 4];
        out.put_slice(c.encode_utf8(&mut buffer).as_bytes());
    }
    out.put_u8(b'"');
    HeaderValue::from_maybe_shared(out.freeze()).ok()
}

/// The kind's name of a list of partial metadata or of whole objects.
pub fn list_kind(served: &Served, view: View) -> Gvk {
    match view {
        View::Whole => Gvk::new(&served.gvk.group, &served.gvk.version, &served.list_kind),
        View::Partial(v) => Gvk::new("meta.k8s.io", v, "PartialObjectMetadataList"),
        View::Table(v) => Gvk::new("meta.k8s.io", v, "Table"),
    }
}
