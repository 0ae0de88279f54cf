//! Views of objects: tables with their rows, and partial metadata.
use std::ops::Range;

use bytes::{BufMut as _, BytesMut};
use kelson_meta::{Gvk, Status};
use kelson_store::Record;
use serde_json::{Map, Value, json};

use crate::catalog::Served;
use crate::catalog::record::parse_bytes;
use crate::request::negotiate::View;
use crate::request::order::Ordered;
use crate::request::view::{Include, ViewOptions};

/// `PartialObjectMetadata` of an object.
pub fn partial(version: &str, mut value: Value) -> Value {
    let mut object = Map::new();
    object.insert("kind".into(), "PartialObjectMetadata".into());
    object.insert("apiVersion".into(), format!("meta.k8s.io/{version}").into());
    object.insert("metadata".into(), value.get_mut("metadata").map(Value::take).unwrap_or_default());
    Value::Object(object)
}

/// Appends a `PartialObjectMetadata` with a record's metadata, which is cut from its JSON. Bytes that are no object have
/// none. Returns the range of the metadata.
pub fn put_partial_json(version: &str, record: &Record, out: &mut BytesMut) -> Option<Range<usize>> {
    put_partial_head(version, out);
    let begin = out.len();
    let found = record.put_metadata(out);
    let range = found.then_some(begin..out.len());
    out.put_slice(if found { b"}" } else { b"null}" });
    range
}

/// The JSON of a `PartialObjectMetadata` before its metadata.
fn put_partial_head(version: &str, out: &mut BytesMut) {
    for part in [r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/"#, version, r#"","metadata":"#] {
        out.put_slice(part.as_bytes());
    }
}

/// A table without rows. `columns`: with column definitions, which watch events after the first one omit.
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

/// Objects in the stored or working version as list items in this view: whole objects in the served version, metadata, or rows.
///
/// # Errors
/// An object cannot be converted.
pub async fn items(
    served: &Served,
    view: View,
    options: &ViewOptions,
    objects: Vec<Value>,
) -> Result<Vec<Value>, Status> {
    // The columns of a custom resource are those of the requested version.
    let objects = if served.works_as_served() { served.to_served(objects).await? } else { objects };
    working_items(served, view, options, objects).await
}

/// Objects in the working version as list items.
///
/// # Errors
/// An object cannot be converted.
pub async fn working_items(
    served: &Served,
    view: View,
    options: &ViewOptions,
    objects: Vec<Value>,
) -> Result<Vec<Value>, Status> {
    match view {
        View::Whole if served.works_as_served() => Ok(objects),
        View::Whole => served.to_served(objects).await,
        View::Partial(version) => Ok(objects.into_iter().map(|o| partial(version, o)).collect()),
        View::Table(version) => rows(served, version, options, objects).await,
    }
}

async fn rows(
    served: &Served,
    version: &str,
    options: &ViewOptions,
    objects: Vec<Value>,
) -> Result<Vec<Value>, Status> {
    let mut rows: Vec<Map<String, Value>> = objects.iter().map(|o| row(served, options, o)).collect();
    let shown = match options.include {
        Include::None => objects.iter().map(|_| Value::Null).collect(),
        Include::Metadata => objects.into_iter().map(|o| partial(version, o)).collect(),
        Include::Object if served.works_as_served() => objects,
        Include::Object => served.to_served(objects).await?,
    };
    for (row, object) in rows.iter_mut().zip(shown) {
        row.insert("object".into(), object);
    }
    Ok(rows.into_iter().map(Value::Object).collect())
}

/// Cells and conditions of a row.
fn row(served: &Served, options: &ViewOptions, object: &Value) -> Map<String, Value> {
    let mut row = Map::new();
    row.insert("cells".into(), served.strategy.row(object, options.now).into());
    let conditions = served.strategy.row_conditions(object);
    if !conditions.is_empty() {
        row.insert("conditions".into(), conditions.into());
    }
    row
}

/// Appends the JSON of a stored object's row. The object's bytes are put together once: only what the columns show is decoded, and the
/// object or its metadata is copied.
pub fn put_row(served: &Served, version: &str, options: &ViewOptions, record: &Record, out: &mut BytesMut) {
    let (json, metadata) = record.bytes_with_metadata();
    let shown = parse_bytes(record, &json, served.strategy.row_parts(), metadata.clone());
    put_cells(served, options, &shown, out);
    out.put_slice(b",\"object\":");
    match options.include {
        Include::None => out.put_slice(b"null"),
        Include::Metadata => {
            put_partial_head(version, out);
            out.put_slice(metadata.and_then(|range| json.get(range)).unwrap_or(b"null"));
            out.put_u8(b'}');
        }
        Include::Object => out.put_slice(&json),
    }
    out.put_u8(b'}');
}

/// Appends the JSON of a row up to its object. Few rows have conditions, whose fields have an order.
fn put_cells(served: &Served, options: &ViewOptions, shown: &Value, out: &mut BytesMut) {
    let cells = served.strategy.row(shown, options.now);
    let conditions = served.strategy.row_conditions(shown);
    let begin = out.len();
    out.put_slice(b"{\"cells\":");
    let mut written = serde_json::to_writer((&mut *out).writer(), &cells);
    if written.is_ok() && !conditions.is_empty() {
        out.put_slice(b",\"conditions\":");
        written = serde_json::to_writer((&mut *out).writer(), &Ordered::row_conditions(&conditions.into()));
    }
    if written.is_err() {
        out.truncate(begin);
        out.put_slice(b"{\"cells\":[]");
    }
}

/// The JSON of a row.
pub fn row_json(row: &Value) -> Vec<u8> {
    serde_json::to_vec(&Ordered::row(row)).unwrap_or_default()
}

/// The kind of a list in this view.
pub fn list_kind(served: &Served, view: View) -> Gvk {
    match view {
        View::Whole => Gvk::new(&served.gvk.group, &served.gvk.version, &served.list_kind),
        View::Partial(v) => Gvk::new("meta.k8s.io", v, "PartialObjectMetadataList"),
        View::Table(v) => Gvk::new("meta.k8s.io", v, "Table"),
    }
}

#[cfg(test)]
mod tests {
    use kelson_store::{Body, Key, Precondition, RecordMeta, Store, StoreOptions, Write};

    use super::*;
    use crate::catalog::{Catalog, record};

    #[tokio::test]
    async fn a_row_that_is_copied_is_the_row_of_the_tree() {
        let store = Store::in_memory(StoreOptions::default());
        let metadata = r#"{"name":"a","namespace":"n","uid":"u","resourceVersion":"","creationTimestamp":"2026-01-01T00:00:00Z","managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:data":{}}}]}"#;
        for (kind, rest) in [
            ("ConfigMap", r#""data":{"k":"v","l":"w"},"binaryData":{"b":"AA=="}"#),
            ("Secret", r#""data":{"k":"dg=="},"type":"Opaque""#),
            (
                "Pod",
                r#""spec":{"containers":[{"name":"c","image":"i"}],"nodeName":"x"},"status":{"phase":"Succeeded","podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}"#,
            ),
            ("Namespace", r#""spec":{"finalizers":["kubernetes"]},"status":{"phase":"Active"}"#),
        ] {
            let plural = format!("{}s", kind.to_lowercase());
            let served = Catalog::builtin().find("", "v1", &plural).unwrap();
            let json = format!(r#"{{"kind":"{kind}","apiVersion":"v1","metadata":{metadata},{rest}}}"#);
            let key = Key::new(served.store, "n", "a");
            let write = Write::put(key, Precondition::Any, Body::locate(json).unwrap(), RecordMeta::default());
            let record = store.commit(write).await.unwrap().record;
            for include in [Include::None, Include::Metadata, Include::Object] {
                let options = ViewOptions { include, now: "2026-01-02T00:00:00Z".parse().unwrap() };
                let mut copied = BytesMut::new();
                put_row(&served, "v1", &options, &record, &mut copied);
                let rows = rows(&served, "v1", &options, vec![record::parse(&record)]).await.unwrap();
                let expected = String::from_utf8(row_json(&rows[0])).unwrap();
                assert_eq!(String::from_utf8(copied.to_vec()).unwrap(), expected, "{kind} {include:?}");
            }
        }
    }
}
