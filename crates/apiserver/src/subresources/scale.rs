//! Scale: the `autoscaling/v1 Scale` view of workloads, by the paths their strategies name.
use http::StatusCode;
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Gvk, LabelSelectorSpec, Status};
use kelson_resources::ScalePaths;
use kelson_schema::Schema;
use kelson_schema::shape::Shape;
use serde_json::{Value, json};

use crate::catalog::Served;
use crate::catalog::record::parse;
use crate::request::answer::{self, Answer};
use crate::request::body::RequestBody;
use crate::request::negotiate::{Accepted, View};
use crate::shared::context::RequestContext;
use crate::write::decode;
use crate::write::patch::Patch;
use crate::write::update::{self, Change};

fn gvk() -> Gvk {
    Gvk::new("autoscaling", "v1", "Scale")
}

/// Serves `scale`.
///
/// # Errors
/// Whatever the steps refuse.
pub async fn serve(cx: &RequestContext, served: &Served, body: RequestBody) -> Result<Answer, Status> {
    let accepted = Accepted { view: View::Whole, ..cx.accept()? };
    let paths = served.options().scale.as_ref().ok_or_else(Status::no_such_path)?;
    let value = match cx.info.verb {
        "get" => {
            let found = cx.server.store.get(served.store, cx.namespace(served), &cx.info.name);
            parse(&*found.ok_or_else(|| Status::not_found(&served.gr, &cx.info.name))?)
        }
        _ => write(cx, served, paths, body).await?,
    };
    let ty = Schema::builtin().by_gvk("autoscaling", "v1", "Scale");
    answer::tree(StatusCode::OK, &accepted, ty, view(paths, &value))
}

fn at<'a>(value: &'a Value, path: &[kelson_resources::Text]) -> &'a Value {
    path.iter().fold(value, |v, k| &v[&**k])
}

fn view(paths: &ScalePaths, object: &Value) -> Value {
    let meta = &object["metadata"];
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if !meta[field].is_null() {
            metadata[field] = meta[field].clone();
        }
    }
    let mut spec = json!({});
    let wanted = at(object, &paths.spec_replicas).as_i64().unwrap_or(0);
    if wanted != 0 {
        spec["replicas"] = wanted.into();
    }
    let mut status = json!({"replicas": at(object, &paths.status_replicas).as_i64().unwrap_or(0)});
    let selector = selector(at(object, &paths.selector));
    if !selector.is_empty() {
        status["selector"] = selector.into();
    }
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status})
}

fn selector(value: &Value) -> String {
    let spec = if value.get("matchLabels").is_some() || value.get("matchExpressions").is_some() {
        serde_json::from_value::<LabelSelectorSpec>(value.clone()).ok()
    } else {
        let labels = serde_json::from_value(value.clone()).unwrap_or_default();
        Some(LabelSelectorSpec { match_labels: labels, ..Default::default() })
    };
    spec.and_then(|s| s.selector().ok()).map(|s| s.to_string()).unwrap_or_default()
}

async fn write(cx: &RequestContext, served: &Served, paths: &ScalePaths, body: RequestBody) -> Result<Value, Status> {
    let dry_run = cx.dry_run()?;
    let bytes = body.read().await?;
    let gvk = gvk();
    let ty = Schema::builtin().by_gvk("autoscaling", "v1", "Scale");
    let mut patch = None;
    let mut wanted = None;
    if cx.info.verb == "patch" {
        let read = Patch::new(cx, &bytes)?;
        if read.is_apply() {
            return Err(Status::unsupported_media_type(&[
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/strategic-merge-patch+json",
            ]));
        }
        patch = Some(read);
    } else {
        wanted = Some(decode::object(cx, &gvk, ty, &bytes)?);
    }
    let shape = Shape::of_kind("autoscaling", "v1", "Scale");
    let change = Change {
        subresource: "",
        manager: "scale",
        kind: &gvk,
        dry_run,
        applied: false,
        admitted: true,
        patched: patch.is_some(),
    };
    let stored = update::run(cx, served, &cx.info.name, &change, |old, _| {
        let scale = match (&patch, &wanted) {
            (Some(patch), _) => patch.apply(cx, &shape, ty, &gvk, view(paths, old))?,
            (None, Some(wanted)) => wanted.clone(),
            (None, None) => Value::Null,
        };
        merge(cx, served, paths, old, &scale)
    })
    .await?;
    Ok(stored.into_tree())
}

fn merge(
    cx: &RequestContext,
    served: &Served,
    paths: &ScalePaths,
    old: &Value,
    scale: &Value,
) -> Result<Value, Status> {
    let name = scale["metadata"]["name"].as_str().unwrap_or("");
    if name != cx.info.name && !name.is_empty() {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            cx.info.name
        )));
    }
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    if replicas < 0 {
        let mut errors = FieldErrors::new();
        let path = FieldPath::new("spec").child("replicas");
        errors.invalid(&path, replicas, "must be greater than or equal to 0");
        let kind = GroupKind { group: "autoscaling".into(), kind: "Scale".into() };
        return Err(Status::invalid(&kind, &cx.info.name, &errors));
    }
    let _ = served;
    let mut new = old.clone();
    let mut place = &mut new;
    for key in paths.spec_replicas.iter() {
        place = &mut place[&**key];
    }
    *place = replicas.into();
    for field in ["resourceVersion", "uid"] {
        if let Some(given) = scale["metadata"][field].as_str().filter(|s| !s.is_empty()) {
            new["metadata"][field] = given.into();
        } else if field == "resourceVersion" {
            new["metadata"][field] = "".into();
        }
    }
    Ok(new)
}
