//! Views of objects: tables with their rows, and partial metadata.
use kelson_meta::{Gvk, Status};
use serde_json::{Map, Value, json};

use crate::catalog::Served;
use crate::request::negotiate::View;
use crate::request::order::Ordered;
use crate::request::view::{Include, ViewOptions};

/// `PartialObjectMetadata` of an object.
pub fn partial(version: &str, mut value: Value) -> Value {
    let mut object = Map::new();
    object.insert("kind".into(), "PartialObjectMetadata".into());
    object.insert("apiVersion".into(), format!("meta.k8s.io/{version}").into());
    object.insert("metadata".into(), value["metadata"].take());
    Value::Object(object)
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
