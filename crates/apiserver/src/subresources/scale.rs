//! Scale: the `autoscaling/v1` Scale of workloads, at the paths that their strategies define.
use http::StatusCode;
use kelson_meta::{FieldPath, GroupKind, Gvk, LabelSelectorSpec, Reason, Status, format_seconds};
use kelson_patch::apply::EntriesError;
use kelson_patch::apply::scale::{self, ReplicaPaths};
use kelson_patch::{ApplyError, FieldManager, FieldSet};
use kelson_resources::{ScalePaths, Text, table as cells};
use serde_json::{Value, json};

use crate::catalog::record::Object;
use crate::catalog::{Behaviour, ObjectSchema, Served};
use crate::read::table::partial;
use crate::request::answer::{self, Answer};
use crate::request::body::RequestBody;
use crate::request::negotiate::View;
use crate::request::view::{Include, ViewOptions};
use crate::shared::context::RequestContext;
use crate::write::patch::Patch;
use crate::write::prepare;
use crate::write::update::{self, AdmissionView, Basis, Change, Ownership, TreeVersion};
use crate::write::{decode, fields};

fn schema() -> ObjectSchema {
    ObjectSchema::builtin("autoscaling", "v1", "Scale")
}

fn gvk() -> Gvk {
    Gvk::new("autoscaling", "v1", "Scale")
}

/// Serves the `scale` subresource.
///
/// # Errors
/// Errors of the steps.
pub async fn serve(cx: &RequestContext, served: &Served, body: RequestBody) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let options = cx.view(&accepted)?;
    let paths = served.options().scale.as_ref().ok_or_else(Status::no_such_path)?;
    let value = match cx.info.verb {
        "get" => {
            let object = served.one_working(&cx.stored(served, &cx.info.name)?).await?;
            if lacks_replicas(served, paths, &object) {
                let why = format!("the spec replicas field {:?} does not exist", written(&paths.spec_replicas));
                return Err(Status::internal(why));
            }
            object
        }
        _ => write(cx, served, paths, body).await?,
    };
    let scale = view(paths, &value);
    match accepted.view {
        View::Table(version) => {
            answer::tree(StatusCode::OK, &accepted, &ObjectSchema::Open, table(version, &options, scale))
        }
        View::Partial(version) => {
            answer::tree(StatusCode::OK, &accepted, &ObjectSchema::partial(version, false), partial(version, scale))
        }
        View::Whole => answer::tree(StatusCode::OK, &accepted, &schema(), scale),
    }
}

/// A scale as a table with one row.
fn table(version: &str, options: &ViewOptions, scale: Value) -> Value {
    let columns = [
        ("Name", "string", "name", "Name of the scaled object."),
        ("Desired", "integer", "", "Desired number of replicas."),
        ("Available", "integer", "", "Observed number of replicas."),
        ("Age", "string", "", "Time since the object was created."),
    ];
    let columns = columns.map(|(name, kind, format, description)| {
        json!({"name": name, "type": kind, "format": format, "description": description, "priority": 0})
    });
    let desired = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    let metadata = json!({"resourceVersion": scale["metadata"]["resourceVersion"]});
    let age = cells::age(&scale, options.now);
    let cells = json!([scale["metadata"]["name"], desired, scale["status"]["replicas"], age]);
    let object = match options.include {
        Include::None => Value::Null,
        Include::Metadata => partial(version, scale),
        Include::Object => scale,
    };
    json!({"kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": metadata,
        "columnDefinitions": columns, "rows": [{"cells": cells, "object": object}]})
}

fn at<'a>(value: &'a Value, path: &[Text]) -> &'a Value {
    path.iter().fold(value, |v, k| &v[&**k])
}

/// Placeholder for the replicas of a custom resource that has none, until a patch sets them (as in upstream).
const NO_REPLICAS: i64 = i32::MIN as i64;

/// Whether a custom resource lacks the replicas field of its definition.
fn lacks_replicas(served: &Served, paths: &ScalePaths, object: &Value) -> bool {
    matches!(served.strategy, Behaviour::Dynamic(_)) && at(object, &paths.spec_replicas).is_null()
}

/// A path as in definitions: `.spec.replicas`.
fn written(path: &[Text]) -> String {
    path.iter().map(|key| format!(".{key}")).collect()
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
    if !paths.selector.is_empty() {
        let selector = selector(at(object, &paths.selector));
        if !selector.is_empty() {
            status["selector"] = selector.into();
        }
    }
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status})
}

/// The selector as a string. Custom resources store a string, built-in workloads an object or a map of labels.
fn selector(value: &Value) -> String {
    if let Value::String(text) = value {
        return text.clone();
    }
    let spec = if value.get("matchLabels").is_some() || value.get("matchExpressions").is_some() {
        serde_json::from_value::<LabelSelectorSpec>(value.clone()).ok()
    } else {
        let labels = serde_json::from_value(value.clone()).unwrap_or_default();
        Some(LabelSelectorSpec { match_labels: labels, ..Default::default() })
    };
    spec.and_then(|s| s.selector().ok()).map(|s| s.to_string()).unwrap_or_default()
}

/// The content of a write.
enum ScaleWrite {
    By(Patch),
    Whole(Value),
}

/// Field managers of the replicas. A `Scale` has its own `managedFields`, which are derived from the object's and merged back.
struct ReplicasManager {
    manager: FieldManager,
    paths: ReplicaPaths,
    api_version: String,
}

impl ReplicasManager {
    fn new(cx: &RequestContext, served: &Served) -> Self {
        let versions = cx.server.catalog.resources_in_store(served.store).into_iter().map(|one| {
            let path =
                one.options().scale.as_ref().map(|scale| scale.spec_replicas.iter().map(Text::to_string).collect());
            (one.api_version.clone(), path)
        });
        let mut paths: ReplicaPaths = versions.collect();
        // Old objects may have entries of removed versions.
        if served.gvr.group == "apps" {
            let usual = vec!["spec".to_owned(), "replicas".to_owned()];
            paths.extend(["apps/v1beta1", "apps/v1beta2"].map(|gone| (gone.to_owned(), Some(usual.clone()))));
        }
        let manager = FieldManager::builtin("autoscaling", "v1", "Scale", "scale", FieldSet::default());
        Self { manager, paths, api_version: served.api_version.clone() }
    }
    fn show(&self, object: &Value, scale: &mut Value) -> Result<(), Status> {
        scale::to_scale(object, &self.paths, scale).map_err(undecoded)
    }
    fn note(&self, cx: &RequestContext, before: &Value, mut wanted: Value) -> Value {
        self.manager.update(Some(before), &mut wanted, &cx.manager(), &format_seconds(cx.server.clock.now()));
        wanted
    }
    fn apply(&self, cx: &RequestContext, before: &Value, config: &Value) -> Result<Value, Status> {
        let (manager, force) = (cx.query.text("fieldManager"), cx.query.flag("force"));
        let now = format_seconds(cx.server.clock.now());
        self.manager.apply(Some(before), config, manager, force, &now).map_err(fields::apply_error)
    }
    fn take_over(&self, old: &Value, scale: &Value, new: &mut Value) -> Result<(), Status> {
        scale::to_parent(old, scale, &self.paths, &self.api_version, new).map_err(undecoded)
    }
}

fn undecoded(error: EntriesError) -> Status {
    Status::failure(500, Reason::Unknown, ApplyError::from(error).to_string())
}

async fn write(cx: &RequestContext, served: &Served, paths: &ScalePaths, body: RequestBody) -> Result<Value, Status> {
    let dry_run = cx.dry_run()?;
    let bytes = body.read().await?;
    let gvk = gvk();
    let schema = schema();
    let wanted = if cx.info.verb == "patch" {
        ScaleWrite::By(Patch::new(cx, served, &bytes)?)
    } else {
        let scale = decode::object(cx, &gvk, &schema, &bytes)?;
        prepare::check_namespace(cx, served, &scale)?;
        ScaleWrite::Whole(scale)
    };
    let seen = ScaleView { cx, served, paths };
    let change = Change {
        subresource: "",
        manager: "scale",
        kind: &gvk,
        admission_view: Some(&seen),
        dry_run,
        ownership: Ownership::Merged,
        // A `Scale` without a version is written to any stored version.
        basis: match &wanted {
            ScaleWrite::Whole(scale) if !matches!(prepare::meta_text(scale, "resourceVersion"), "" | "0") => {
                Basis::Sent
            }
            _ => Basis::Stored,
        },
        form: TreeVersion::Working,
    };
    let owners = ReplicasManager::new(cx, served);
    let make = |old: &Value| -> Result<Value, Status> {
        let mut before = view(paths, old);
        if lacks_replicas(served, paths, old) {
            before["spec"]["replicas"] = NO_REPLICAS.into();
        }
        owners.show(old, &mut before)?;
        let scale = match &wanted {
            ScaleWrite::By(patch) if patch.is_apply() => {
                prepare::check_namespace(cx, served, &patch.config().fields)?;
                let applied = owners.apply(cx, &before, &patch.config().fields)?;
                patch.config().check_repeated(cx)?;
                applied
            }
            ScaleWrite::By(patch) => owners.note(cx, &before, patch.apply(cx, &schema, &before)?),
            ScaleWrite::Whole(wanted) => owners.note(cx, &before, wanted.clone()),
        };
        prepare::check_namespace(cx, served, &scale)?;
        let (wanted_uid, uid) = (prepare::meta_text(&scale, "uid"), prepare::meta_text(old, "uid"));
        if !wanted_uid.is_empty() && wanted_uid != uid {
            let key = (prepare::meta_text(old, "namespace"), prepare::meta_text(old, "name"));
            return Err(update::uid_conflict(served, key, wanted_uid, uid));
        }
        let mut new = old.clone();
        merge(cx, served, paths, &scale, &mut new)?;
        owners.take_over(old, &scale, &mut new)?;
        Ok(new)
    };
    match update::run(cx, served, &cx.info.name, &change, &make).await? {
        Object::Record(record) => served.one_working(&record).await,
        Object::Tree(value) => Ok(value),
    }
}

/// Admission sees the `Scale`, whose kind the request has.
struct ScaleView<'a> {
    cx: &'a RequestContext,
    served: &'a Served,
    paths: &'a ScalePaths,
}

impl AdmissionView for ScaleView<'_> {
    fn show(&self, object: &Value) -> Value {
        view(self.paths, object)
    }
    fn take_over(&self, scale: &Value, object: &mut Value) -> Result<(), Status> {
        let version = object["metadata"]["resourceVersion"].take();
        merge(self.cx, self.served, self.paths, scale, object)?;
        object["metadata"]["resourceVersion"] = version;
        Ok(())
    }
}

/// Copies a `Scale` into its object.
fn merge(
    cx: &RequestContext,
    served: &Served,
    paths: &ScalePaths,
    scale: &Value,
    new: &mut Value,
) -> Result<(), Status> {
    prepare::same_name(cx, prepare::meta_text(scale, "name"))?;
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    if replicas == NO_REPLICAS {
        let path = written(&paths.spec_replicas);
        return Err(Status::bad_request(format!("the spec replicas field {path:?} cannot be empty")));
    }
    let mut errors = kelson_resources::metadata::check_view(&scale["metadata"]);
    // The replicas of a custom resource are validated with the object.
    if replicas < 0 && matches!(served.strategy, Behaviour::Builtin(_)) {
        let path = FieldPath::new("spec").child("replicas");
        errors.invalid(&path, replicas, "must be greater than or equal to 0");
    }
    if !errors.is_empty() {
        let kind = GroupKind { group: "autoscaling".into(), kind: "Scale".into() };
        return Err(Status::invalid(&kind, &cx.info.name, &errors));
    }
    let mut place = &mut *new;
    for key in paths.spec_replicas.iter() {
        place = &mut place[&**key];
    }
    *place = replicas.into();
    // Without a version, the stored object's is kept.
    if let Some(version) = scale["metadata"]["resourceVersion"].as_str().filter(|s| !matches!(*s, "" | "0")) {
        new["metadata"]["resourceVersion"] = version.into();
    }
    Ok(())
}
