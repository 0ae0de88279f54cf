//! Views of objects other than the whole: tables with their rows, and partial metadata.
use kelson_meta::{Gvk, Status};
use serde_json::{Map, Value, json};

use crate::catalog::Served;
use crate::catalog::record::to_served;
use crate::request::negotiate::View;
use crate::request::view::{Include, ViewOptions};

/// `PartialObjectMetadata` of an object.
pub fn partial(version: &str, mut value: Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": value["metadata"].take()})
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

/// The kind's name of a list of partial metadata or of whole objects.
pub fn list_kind(served: &Served, view: View) -> Gvk {
    match view {
        View::Whole => Gvk::new(&served.gvk.group, &served.gvk.version, &served.list_kind),
        View::Partial(v) => Gvk::new("meta.k8s.io", v, "PartialObjectMetadataList"),
        View::Table(v) => Gvk::new("meta.k8s.io", v, "Table"),
    }
}
