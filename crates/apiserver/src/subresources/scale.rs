//! Scale: the `autoscaling/v1 Scale` view of workloads, by the paths their strategies name.
use http::StatusCode;
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Gvk, LabelSelectorSpec, Reason, Status, format_seconds};
use kelson_patch::apply::scale::{self, ReplicaPaths};
use kelson_patch::{FieldManager, FieldSet};
use kelson_resources::{ScalePaths, Text};
use serde_json::{Value, json};

use crate::catalog::record::{Object, parse};
use crate::catalog::{Behaviour, ObjectSchema, Served};
use crate::read::table::partial;
use crate::request::answer::{self, Answer};
use crate::request::body::RequestBody;
use crate::request::negotiate::View;
use crate::shared::context::RequestContext;
use crate::write::patch::Patch;
use crate::write::prepare;
use crate::write::update::{self, AdmissionView, Basis, Change, Form, Ownership};
use crate::write::{decode, fields};

fn schema() -> ObjectSchema {
    ObjectSchema::builtin("autoscaling", "v1", "Scale")
}

fn gvk() -> Gvk {
    Gvk::new("autoscaling", "v1", "Scale")
}

/// Serves `scale`.
///
/// # Errors
/// Whatever the steps refuse.
pub async fn serve(cx: &RequestContext, served: &Served, body: RequestBody) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let paths = served.options().scale.as_ref().ok_or_else(Status::no_such_path)?;
    let value = match cx.info.verb {
        "get" => {
            let object = served.stored_to_working(parse(&*cx.stored(served, &cx.info.name)?)).await?;
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
        View::Partial(version) => {
            answer::tree(StatusCode::OK, &accepted, &ObjectSchema::partial(version, false), partial(version, scale))
        }
        View::Whole | View::Table(_) => answer::tree(StatusCode::OK, &accepted, &schema(), scale),
    }
}

fn at<'a>(value: &'a Value, path: &[Text]) -> &'a Value {
    path.iter().fold(value, |v, k| &v[&**k])
}

/// Stands for the count of a custom resource that has none, until a patch says one (upstream's way, too).
const NO_REPLICAS: i64 = i32::MIN as i64;

/// Custom resources need not have the field that their definition says the count is in.
fn lacks_replicas(served: &Served, paths: &ScalePaths, object: &Value) -> bool {
    matches!(served.strategy, Behaviour::Dynamic(_)) && at(object, &paths.spec_replicas).is_null()
}

/// A path as definitions write it: `.spec.replicas`.
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

/// The selector as text, which custom resources hold already and built-in workloads as an object or a map of labels.
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

/// What a write brings.
enum Wanted {
    By(Patch),
    Whole(Value),
}

/// Who owns the count: a `Scale` has entries of its own, made of the object's and put back among them.
struct Owners {
    manager: FieldManager,
    paths: ReplicaPaths,
    api_version: String,
}

impl Owners {
    fn new(cx: &RequestContext, served: &Served) -> Self {
        let versions = cx.server.catalog.of_store(served.store).into_iter().map(|one| {
            let path =
                one.options().scale.as_ref().map(|scale| scale.spec_replicas.iter().map(Text::to_string).collect());
            (one.api_version.clone(), path)
        });
        let mut paths: ReplicaPaths = versions.collect();
        // Objects of former servers have entries of versions that are long gone.
        if served.gvr.group == "apps" {
            let usual = vec!["spec".to_owned(), "replicas".to_owned()];
            paths.extend(["apps/v1beta1", "apps/v1beta2"].map(|gone| (gone.to_owned(), Some(usual.clone()))));
        }
        let manager = FieldManager::builtin("autoscaling", "v1", "Scale", "scale", FieldSet::default());
        Self { manager, paths, api_version: served.api_version.clone() }
    }
    fn show(&self, object: &Value, scale: &mut Value) -> Result<(), Status> {
        scale::to_scale(object, &self.paths, scale).map_err(|e| undecoded(&e))
    }
    fn note(&self, cx: &RequestContext, before: &Value, mut wanted: Value) -> Value {
        self.manager.update(Some(before), &mut wanted, &cx.manager(), &format_seconds(cx.server.clock.now()));
        wanted
    }
    fn apply(&self, cx: &RequestContext, before: &Value, config: &Value) -> Result<Value, Status> {
        let (manager, force) = (cx.query.text("fieldManager"), cx.query.flag("force"));
        let now = format_seconds(cx.server.clock.now());
        self.manager.apply(Some(before), config, manager, force, &now).map_err(fields::refused)
    }
    fn take_over(&self, old: &Value, scale: &Value, new: &mut Value) -> Result<(), Status> {
        scale::to_parent(old, scale, &self.paths, &self.api_version, new).map_err(|e| undecoded(&e))
    }
}

fn undecoded(error: &str) -> Status {
    Status::failure(500, Reason::Unknown, format!("failed to decode managed fields: {error}"))
}

async fn write(cx: &RequestContext, served: &Served, paths: &ScalePaths, body: RequestBody) -> Result<Value, Status> {
    let dry_run = cx.dry_run()?;
    let bytes = body.read().await?;
    let gvk = gvk();
    let schema = schema();
    let wanted = if cx.info.verb == "patch" {
        let patch = Patch::new(cx, served, &bytes)?;
        if patch.is_apply() {
            prepare::check_namespace(cx, served, patch.config())?;
        }
        Wanted::By(patch)
    } else {
        Wanted::Whole(decode::object(cx, &gvk, &schema, &bytes)?)
    };
    let seen = ScaleView { cx, paths };
    let change = Change {
        subresource: "",
        manager: "scale",
        kind: &gvk,
        admission_view: Some(&seen),
        dry_run,
        ownership: Ownership::Merged,
        basis: if matches!(wanted, Wanted::By(_)) { Basis::Stored } else { Basis::Sent },
        form: Form::Working,
    };
    let owners = Owners::new(cx, served);
    let make = |old: &Value| -> Result<Value, Status> {
        let mut before = view(paths, old);
        if lacks_replicas(served, paths, old) {
            before["spec"]["replicas"] = NO_REPLICAS.into();
        }
        owners.show(old, &mut before)?;
        let scale = match &wanted {
            Wanted::By(patch) if patch.is_apply() => owners.apply(cx, &before, patch.config())?,
            Wanted::By(patch) => owners.note(cx, &before, patch.apply(cx, &schema, &before)?),
            Wanted::Whole(wanted) => owners.note(cx, &before, wanted.clone()),
        };
        prepare::check_namespace(cx, served, &scale)?;
        let mut new = old.clone();
        merge(cx, paths, &scale, &mut new)?;
        owners.take_over(old, &scale, &mut new)?;
        Ok(new)
    };
    match update::run(cx, served, &cx.info.name, &change, &make).await? {
        Object::Record(record) => served.stored_to_working(parse(&record)).await,
        Object::Tree(value) => Ok(value),
    }
}

/// Admission sees a `Scale` where it is told of one, as its kind says.
struct ScaleView<'a> {
    cx: &'a RequestContext,
    paths: &'a ScalePaths,
}

impl AdmissionView for ScaleView<'_> {
    fn show(&self, object: &Value) -> Value {
        view(self.paths, object)
    }
    fn take_over(&self, scale: &Value, object: &mut Value) -> Result<(), Status> {
        let version = object["metadata"]["resourceVersion"].take();
        merge(self.cx, self.paths, scale, object)?;
        object["metadata"]["resourceVersion"] = version;
        Ok(())
    }
}

/// Takes a `Scale` over into the object whose view it is.
fn merge(cx: &RequestContext, paths: &ScalePaths, scale: &Value, new: &mut Value) -> Result<(), Status> {
    prepare::check_name(cx, scale)?;
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    if replicas == NO_REPLICAS {
        let path = written(&paths.spec_replicas);
        return Err(Status::bad_request(format!("the spec replicas field {path:?} cannot be empty")));
    }
    if replicas < 0 {
        let mut errors = FieldErrors::new();
        let path = FieldPath::new("spec").child("replicas");
        errors.invalid(&path, replicas, "must be greater than or equal to 0");
        let kind = GroupKind { group: "autoscaling".into(), kind: "Scale".into() };
        return Err(Status::invalid(&kind, &cx.info.name, &errors));
    }
    let mut place = &mut *new;
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
    Ok(())
}
