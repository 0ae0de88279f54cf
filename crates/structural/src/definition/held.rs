//! Versions of a definition in upstream's internal form, for errors that concern all of them: with internal field
//! names, without their shared parts.
use kelson_meta::tree::{flag, int, items, present, text};
use serde::Serialize;
use serde_json::Value;

use super::view::Spec;

/// One version. Schemas that differ between versions are left out, because they are large and do not explain the error.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct HeldVersion<'a> {
    name: &'a str,
    served: bool,
    storage: bool,
    deprecated: bool,
    deprecation_warning: &'a Value,
    schema: (),
    subresources: Option<HeldSubresources<'a>>,
    additional_printer_columns: Option<Vec<HeldColumn<'a>>>,
    selectable_fields: Option<Vec<HeldField<'a>>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct HeldSubresources<'a> {
    status: &'a Value,
    scale: Option<HeldScale<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct HeldScale<'a> {
    spec_replicas_path: &'a str,
    status_replicas_path: &'a str,
    label_selector_path: &'a Value,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct HeldColumn<'a> {
    name: &'a str,
    r#type: &'a str,
    format: &'a str,
    description: &'a str,
    priority: i64,
    #[serde(rename = "JSONPath")]
    json_path: &'a str,
}

#[derive(Serialize)]
struct HeldField<'a> {
    #[serde(rename = "JSONPath")]
    json_path: &'a str,
}

/// Returns all versions of a definition.
pub(super) fn versions<'a>(spec: &Spec<'a>) -> Vec<HeldVersion<'a>> {
    let one = |version: &'a Value| HeldVersion {
        name: text(&version["name"]),
        served: flag(&version["served"]),
        storage: flag(&version["storage"]),
        deprecated: flag(&version["deprecated"]),
        deprecation_warning: &version["deprecationWarning"],
        schema: (),
        subresources: Some(spec.subresources_of(version)).filter(|s| present(s)).map(subresources),
        additional_printer_columns: list(spec.columns_of(version), |column| HeldColumn {
            name: text(&column["name"]),
            r#type: text(&column["type"]),
            format: text(&column["format"]),
            description: text(&column["description"]),
            priority: int(&column["priority"]).unwrap_or(0),
            json_path: text(&column["jsonPath"]),
        }),
        selectable_fields: list(spec.fields_of(version), |field| HeldField { json_path: text(&field["jsonPath"]) }),
    };
    spec.versions.iter().map(one).collect()
}

fn subresources(tree: &Value) -> HeldSubresources<'_> {
    let scale = Some(&tree["scale"]).filter(|scale| present(scale)).map(|scale| HeldScale {
        spec_replicas_path: text(&scale["specReplicasPath"]),
        status_replicas_path: text(&scale["statusReplicasPath"]),
        label_selector_path: &scale["labelSelectorPath"],
    });
    HeldSubresources { status: &tree["status"], scale }
}

fn list<'a, T>(tree: &'a Value, one: impl Fn(&'a Value) -> T) -> Option<Vec<T>> {
    Some(items(tree)).filter(|all| !all.is_empty()).map(|all| all.iter().map(one).collect())
}
