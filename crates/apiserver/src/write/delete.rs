//! Delete: one object or a collection. Grace, finalizers and propagation as upstream's generic registry: an object with
//! finalizers or grace left is marked, and goes when the last of them does.
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use kelson_admission::Operation;
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Status, format_seconds};
use kelson_resources::Deletion;
use kelson_store::Record;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::catalog::record::{Object, parse};
use crate::catalog::{ObjectSchema, Served};
use crate::custom::cleanup;
use crate::read::encode;
use crate::request::answer::{self, Answer};
use crate::request::body::RequestBody;
use crate::request::selectors::Selectors;
use crate::request::version_param::ListAt;
use crate::shared::Server;
use crate::shared::context::RequestContext;
use crate::write::admit::Admission;
use crate::write::commit::{Committer, Refused};
use crate::write::{decode, retry};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// `metav1.DeleteOptions`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeleteOptions {
    /// Seconds of grace.
    pub grace_period_seconds: Option<i64>,
    /// What must hold.
    pub preconditions: Option<Preconditions>,
    /// Old form of `propagation_policy`.
    pub orphan_dependents: Option<bool>,
    /// How dependents go.
    pub propagation_policy: Option<String>,
    /// `All`: nothing is stored.
    pub dry_run: Vec<String>,
}

/// What must hold for a delete.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Preconditions {
    /// The object's UID.
    pub uid: Option<String>,
    /// The object's version.
    pub resource_version: Option<String>,
}

impl DeleteOptions {
    /// From the body, or else the query.
    ///
    /// # Errors
    /// 400 and 422.
    pub fn new(cx: &RequestContext, body: &Bytes) -> Result<Self, Status> {
        let mut options = match decode::options(&cx.headers, "DeleteOptions", body)? {
            Some(value) => serde_json::from_value(value).map_err(|e| Status::bad_request(e.to_string()))?,
            None => Self {
                grace_period_seconds: cx.query.integer("gracePeriodSeconds")?,
                orphan_dependents: cx.query.get("orphanDependents").map(|v| v == "true"),
                propagation_policy: cx.query.get("propagationPolicy").map(str::to_owned),
                ..Self::default()
            },
        };
        if cx.dry_run()? {
            options.dry_run = vec!["All".to_owned()];
        }
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<(), Status> {
        let mut errors = FieldErrors::new();
        if let Some(policy) = &self.propagation_policy {
            let path = FieldPath::new("propagationPolicy");
            if self.orphan_dependents.is_some() {
                errors.invalid(&path, policy, "orphanDependents and deletionPropagation cannot be both set");
            }
            if !matches!(policy.as_str(), "Foreground" | "Background" | "Orphan") {
                errors.not_supported(&path, policy, &["Background", "Foreground", "Orphan", "nil"]);
            }
        }
        if self.dry_run.iter().any(|d| d != "All") {
            errors.not_supported(&FieldPath::new("dryRun"), &self.dry_run, &["All"]);
        }
        if errors.is_empty() {
            return Ok(());
        }
        Err(Status::invalid(&GroupKind { group: "meta.k8s.io".into(), kind: "DeleteOptions".into() }, "", &errors))
    }
    /// As an object of `meta.k8s.io/v1`.
    fn object(&self) -> Value {
        let mut out = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"});
        let preconditions = self.preconditions.as_ref().map(|p| {
            let mut set = serde_json::Map::new();
            set.extend(p.uid.as_deref().map(|uid| ("uid".to_owned(), uid.into())));
            set.extend(p.resource_version.as_deref().map(|v| ("resourceVersion".to_owned(), v.into())));
            Value::Object(set)
        });
        let dry_run = Some(&self.dry_run).filter(|d| !d.is_empty());
        for (field, value) in [
            ("gracePeriodSeconds", self.grace_period_seconds.map(Value::from)),
            ("preconditions", preconditions),
            ("orphanDependents", self.orphan_dependents.map(Value::from)),
            ("propagationPolicy", self.propagation_policy.as_deref().map(Value::from)),
            ("dryRun", dry_run.map(|d| json!(d))),
        ] {
            if let Some(value) = value {
                out[field] = value;
            }
        }
        out
    }
    /// Whether nothing is to be stored.
    pub fn is_dry_run(&self) -> bool {
        !self.dry_run.is_empty()
    }
}

/// Serves DELETE of one object.
///
/// # Errors
/// Whatever the steps refuse.
pub async fn delete(cx: &RequestContext, served: &Served, body: RequestBody) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let view = cx.view()?;
    let options = DeleteOptions::new(cx, &body.read().await?)?;
    let outcome = run(cx, served, &cx.info.name, &options, Admitted::Ask).await?;
    let code = match &outcome {
        // The old way to ask for cascading deletion is told that it is not over.
        Outcome::Marked(_) if options.orphan_dependents == Some(false) => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    match outcome {
        Outcome::Marked(object) => encode::object(code, &accepted, served, &view, object).await,
        Outcome::Gone(object) if served.options().delete_returns_object => {
            encode::object(code, &accepted, served, &view, object).await
        }
        Outcome::Gone(object) => {
            let uid = object.into_tree()["metadata"]["uid"].take();
            let mut details =
                json!({"name": cx.info.name, "group": served.gr.group, "kind": served.gr.resource, "uid": uid});
            if served.gr.group.is_empty()
                && let Some(d) = details.as_object_mut()
            {
                d.remove("group");
            }
            let status =
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
            let accepted = crate::request::negotiate::Accepted { view: Default::default(), ..accepted };
            answer::tree(code, &accepted, &ObjectSchema::status(), status)
        }
    }
}

/// What became of the object.
pub enum Outcome {
    /// It is still there, marked.
    Marked(Object),
    /// It is gone; its last state.
    Gone(Object),
}

/// Whether a delete still has to be admitted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// Admission is asked.
    Ask,
    /// It is part of a request that was admitted (an eviction).
    Already,
}

/// Deletes one object, by the rules of its kind.
///
/// # Errors
/// Whatever the steps refuse.
pub async fn run(
    cx: &RequestContext,
    served: &Served,
    name: &str,
    options: &DeleteOptions,
    admitted: Admitted,
) -> Result<Outcome, Status> {
    let tied = options.preconditions.as_ref().is_some_and(|p| p.resource_version.is_some());
    let attempt = |record: Arc<Record>| -> BoxFuture<'_, Result<Outcome, Refused>> {
        Box::pin(async move {
            check_preconditions(served, name, options, &record)?;
            let old = served.stored_to_working(parse(&record)).await?;
            if admitted == Admitted::Ask {
                let make = || options.object();
                let admission = Admission {
                    cx,
                    served,
                    kind: &served.gvk,
                    operation: Operation::Delete,
                    name,
                    dry_run: options.is_dry_run(),
                    options: Some(&make),
                };
                admission.mutate(None, Some(&old)).await?;
                admission.validate(None, Some(&old)).await?;
            }
            match once(&cx.server, served, name, options, &record, old).await {
                Err(Refused::Conflict) if tied => Err(Status::conflict(&served.gr, name, Status::MODIFIED).into()),
                outcome => outcome,
            }
        })
    };
    retry::on_newest(cx, served, name, attempt).await
}

/// Whether a record is what a delete is to be of.
///
/// # Errors
/// 409.
pub fn check_preconditions(
    served: &Served,
    name: &str,
    options: &DeleteOptions,
    record: &Record,
) -> Result<(), Status> {
    let Some(p) = &options.preconditions else { return Ok(()) };
    let found = record.meta().uid.to_string();
    if let Some(uid) = p.uid.as_ref().filter(|u| **u != found) {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}");
        return Err(Status::conflict(&served.gr, name, &why));
    }
    let found = record.revision().to_string();
    if let Some(version) = p.resource_version.as_ref().filter(|v| **v != found) {
        let why = format!(
            "Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {found}"
        );
        return Err(Status::conflict(&served.gr, name, &why));
    }
    Ok(())
}

/// What the kind says about grace.
enum Grace {
    /// Goes as soon as finalizers allow.
    None,
    /// Marked; may stay this many seconds.
    Seconds(i64),
    /// Marked before, and nothing new is asked.
    Pending,
}

/// What a delete that was admitted does.
///
/// # Errors
/// See [`Refused`].
pub async fn once(
    server: &Server,
    served: &Served,
    name: &str,
    options: &DeleteOptions,
    record: &Arc<Record>,
    old: Value,
) -> Result<Outcome, Refused> {
    let now = server.clock.now();
    let special = match served.options().deletion {
        Deletion::Namespace => namespace(server, served, name, options, record, &old, now).await?,
        Deletion::CustomResources => definition(server, served, options, record, &old, now).await?,
        Deletion::Immediate | Deletion::Graceful => None,
    };
    if let Some(outcome) = special {
        return Ok(outcome);
    }
    let finalizers = finalizers(&old, options);
    let grace = grace(served, &old, options);
    let mut new = old;
    match grace {
        Grace::Pending => return Ok(Outcome::Marked(Object::Record(Arc::clone(record)))),
        Grace::Seconds(seconds) => mark_grace(&mut new, seconds, now),
        Grace::None => {}
    }
    set_finalizers(&mut new, &finalizers);
    let ends_now = match grace {
        Grace::Seconds(seconds) => seconds == 0,
        _ => true,
    };
    if ends_now && finalizers.is_empty() {
        return gone(server, served, options, record, new).await;
    }
    if !matches!(grace, Grace::Seconds(_)) {
        mark(&mut new, now);
    }
    if options.is_dry_run() {
        return Ok(Outcome::Marked(Object::Tree(new)));
    }
    Ok(Outcome::Marked(Object::Record(Committer::of(server).update(served, record, new).await?)))
}

async fn gone(
    server: &Server,
    served: &Served,
    options: &DeleteOptions,
    record: &Arc<Record>,
    last: Value,
) -> Result<Outcome, Refused> {
    if options.is_dry_run() {
        return Ok(Outcome::Gone(Object::Tree(last)));
    }
    let deleted = Committer::of(server).delete(served, record, None).await?;
    server.services.after_delete(served, &last);
    Ok(Outcome::Gone(Object::Record(deleted)))
}

fn is_deleting(value: &Value) -> bool {
    value["metadata"]["deletionTimestamp"].is_string()
}

fn grace(served: &Served, old: &Value, options: &DeleteOptions) -> Grace {
    if served.options().deletion != Deletion::Graceful {
        return Grace::None;
    }
    if is_deleting(old) {
        let existing = old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        return match options.grace_period_seconds {
            _ if existing == 0 => Grace::None,
            Some(wanted) if wanted < existing => Grace::Seconds(if wanted < 0 { 1 } else { wanted }),
            _ => Grace::Pending,
        };
    }
    const DEFAULT_GRACE_SECONDS: i64 = 30;
    let spec = &old["spec"];
    let own = spec["terminationGracePeriodSeconds"].as_i64().unwrap_or(DEFAULT_GRACE_SECONDS);
    let period = options.grace_period_seconds.unwrap_or(own);
    let unscheduled = spec["nodeName"].as_str().unwrap_or("").is_empty();
    let finished = matches!(old["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    Grace::Seconds(match period {
        _ if unscheduled || finished => 0,
        p if p < 0 => 1,
        p => p,
    })
}

fn mark_grace(object: &mut Value, seconds: i64, now: Timestamp) {
    let begun_before = is_deleting(object);
    let meta = &mut object["metadata"];
    // A shortened grace counts from when deletion began.
    let begun = if begun_before {
        let at: Option<Timestamp> = meta["deletionTimestamp"].as_str().and_then(|s| s.parse().ok());
        let was = meta["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        // A time beyond the calendar's ends counts from now.
        at.and_then(|at| at.checked_sub(SignedDuration::from_secs(was)).ok()).unwrap_or(now)
    } else {
        bump_generation(meta);
        now
    };
    let ends = begun.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
    meta["deletionTimestamp"] = format_seconds(ends).into();
    meta["deletionGracePeriodSeconds"] = seconds.into();
}

fn mark(new: &mut Value, now: Timestamp) {
    let meta = &mut new["metadata"];
    if !meta["deletionTimestamp"].is_string() {
        bump_generation(meta);
        meta["deletionTimestamp"] = format_seconds(now).into();
    }
    meta["deletionGracePeriodSeconds"] = 0.into();
}

fn bump_generation(meta: &mut Value) {
    if let Some(g) = meta["generation"].as_i64().filter(|g| *g > 0) {
        meta["generation"] = (g + 1).into();
    }
}

fn set_finalizers(new: &mut Value, finalizers: &[String]) {
    let Some(meta) = new["metadata"].as_object_mut() else { return };
    if finalizers.is_empty() {
        meta.remove("finalizers");
    } else {
        meta.insert("finalizers".into(), json!(finalizers));
    }
}

/// The finalizers with those of the garbage collector as the options want them.
fn finalizers(old: &Value, options: &DeleteOptions) -> Vec<String> {
    let list = old["metadata"]["finalizers"].as_array().map_or(&[][..], Vec::as_slice);
    let has = |name: &str| list.iter().any(|f| f == name);
    let policy = options.propagation_policy.as_deref();
    let orphan = match (options.orphan_dependents, policy) {
        (Some(orphan), _) => orphan,
        (None, Some(policy)) => policy == "Orphan",
        (None, None) => has(ORPHAN),
    };
    let foreground = match (options.orphan_dependents, policy) {
        (Some(_), _) => false,
        (None, Some(policy)) => policy == "Foreground",
        (None, None) => has(FOREGROUND),
    };
    let mut out: Vec<String> = list
        .iter()
        .filter_map(Value::as_str)
        .filter(|f| (*f != ORPHAN || orphan) && (*f != FOREGROUND || foreground))
        .map(str::to_owned)
        .collect();
    for (wanted, name) in [(orphan, ORPHAN), (foreground, FOREGROUND)] {
        if wanted && !out.iter().any(|f| f == name) {
            out.push(name.to_owned());
        }
    }
    out
}

/// Whether an update took away the last thing that held a deleted object.
pub fn ends_with_update(served: &Served, new: &Value) -> bool {
    let meta = &new["metadata"];
    let empty = |v: &Value| v.as_array().is_none_or(Vec::is_empty);
    is_deleting(new)
        && empty(&meta["finalizers"])
        && meta["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && (served.options().deletion != Deletion::Namespace || empty(&new["spec"]["finalizers"]))
}

/// The first delete of a namespace marks it; later ones are refused until its content is gone, and the last removes it.
async fn namespace(
    server: &Server,
    served: &Served,
    name: &str,
    options: &DeleteOptions,
    record: &Arc<Record>,
    old: &Value,
    now: Timestamp,
) -> Result<Option<Outcome>, Refused> {
    let held = old["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    if !is_deleting(old) {
        let mut new = old.clone();
        mark(&mut new, now);
        if let Some(meta) = new["metadata"].as_object_mut() {
            meta.remove("deletionGracePeriodSeconds");
        }
        new["status"]["phase"] = "Terminating".into();
        set_finalizers(&mut new, &finalizers(old, options));
        if !held && new["metadata"]["finalizers"].is_null() {
            return Ok(None);
        }
        if options.is_dry_run() {
            return Ok(Some(Outcome::Marked(Object::Tree(new))));
        }
        let record = Committer::of(server).update(served, record, new).await?;
        return Ok(Some(Outcome::Marked(Object::Record(record))));
    }
    if held {
        let why = "The system is ensuring all content is removed from this namespace.  Upon completion, this namespace \
                   will automatically be purged by the system.";
        return Err(Status::conflict(&served.gr, name, why).into());
    }
    Ok(None)
}

/// The first delete of a definition marks it; it goes when the objects of its kind are gone.
async fn definition(
    server: &Server,
    served: &Served,
    options: &DeleteOptions,
    record: &Arc<Record>,
    old: &Value,
    now: Timestamp,
) -> Result<Option<Outcome>, Refused> {
    if is_deleting(old) {
        return Ok(None);
    }
    let mut new = old.clone();
    cleanup::mark(&mut new, now);
    if options.is_dry_run() {
        return Ok(Some(Outcome::Marked(Object::Tree(new))));
    }
    let record = Committer::of(server).update(served, record, new).await?;
    Ok(Some(Outcome::Marked(Object::Record(record))))
}

/// Serves DELETE of a collection; answers with the list of what was there.
///
/// # Errors
/// Whatever the steps refuse; what was deleted before stays so.
pub async fn collection(cx: &RequestContext, served: &Served, body: RequestBody) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let options = DeleteOptions::new(cx, &body.read().await?)?;
    let selectors = Selectors::new(served, &cx.selectors)?;
    let at = ListAt::new(&cx.query, cx.server.clock.now())?;
    let namespace = Some(cx.namespace(served)).filter(|n| !n.is_empty());
    let view = at.view(&cx.server.store, served, namespace).await?;
    let revision = view.revision();
    let limit = if at.limit == 0 { usize::MAX } else { at.limit };
    let records: Vec<Arc<Record>> = view.iter().filter(|r| selectors.matches(r)).take(limit).cloned().collect();
    drop(view);
    let mut items = Vec::with_capacity(records.len());
    for record in records {
        let key = record.key();
        let mut info = cx.info.clone();
        key.namespace.as_ref().clone_into(&mut info.namespace);
        key.name.as_ref().clone_into(&mut info.name);
        match run(&cx.derive(info), served, &key.name, &options, Admitted::Ask).await {
            Ok(Outcome::Marked(object) | Outcome::Gone(object)) => {
                items.push(object.into_tree());
            }
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(status),
        }
    }
    let items = served.to_served(items).await?;
    let list = json!({
        "kind": served.list_kind,
        "apiVersion": served.api_version,
        "metadata": {"resourceVersion": revision.to_string()},
        "items": items,
    });
    let accepted = crate::request::negotiate::Accepted { view: Default::default(), ..accepted };
    answer::tree(StatusCode::OK, &accepted, &served.list_schema, list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(existing: &[&str], orphan: Option<bool>, policy: Option<&str>) -> Vec<String> {
        let old = json!({"metadata": {"finalizers": existing}});
        let options = DeleteOptions {
            orphan_dependents: orphan,
            propagation_policy: policy.map(str::to_owned),
            ..DeleteOptions::default()
        };
        finalizers(&old, &options)
    }

    #[test]
    fn collector_finalizers() {
        assert_eq!(after(&["a/b"], None, None), ["a/b"]);
        assert_eq!(after(&["a/b"], None, Some("Foreground")), ["a/b", FOREGROUND]);
        assert_eq!(after(&[FOREGROUND], None, Some("Orphan")), [ORPHAN]);
        assert_eq!(after(&[FOREGROUND, ORPHAN], None, Some("Background")), Vec::<String>::new());
        assert_eq!(after(&[ORPHAN], None, None), [ORPHAN]);
        assert_eq!(after(&[], Some(true), None), [ORPHAN]);
        assert_eq!(after(&[ORPHAN], Some(false), None), Vec::<String>::new());
    }
}
