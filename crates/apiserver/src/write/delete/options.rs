//! The options of a delete (`metav1.DeleteOptions`) and its preconditions.
use bytes::Bytes;
use kelson_meta::{FieldErrors, FieldPath, GroupKind, GroupResource, Status};
use kelson_store::Record;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::catalog::Served;
use crate::shared::context::RequestContext;
use crate::write::decode;

/// Warning for deleting a job without a propagation policy (upstream's message).
const PODS_STAY: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them \
                         or set propagationPolicy=Orphan to suppress this warning";

/// `metav1.DeleteOptions`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeleteOptions {
    /// Grace period in seconds.
    pub grace_period_seconds: Option<i64>,
    /// Conditions under which the object is deleted.
    pub preconditions: Option<Preconditions>,
    /// Deprecated form of `propagation_policy`.
    pub orphan_dependents: Option<bool>,
    /// Whether and how dependents are deleted.
    pub propagation_policy: Option<String>,
    /// `All`: nothing is stored.
    pub dry_run: Vec<String>,
}

/// Conditions that the object must meet.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Preconditions {
    /// The object's UID.
    pub uid: Option<String>,
    /// The object's resourceVersion.
    pub resource_version: Option<String>,
}

impl DeleteOptions {
    /// Parses the body or, if that is empty, the query.
    ///
    /// # Errors
    /// 400 for undecodable options, 422 for invalid ones.
    pub fn new(cx: &RequestContext, served: &Served, body: &Bytes) -> Result<Self, Status> {
        let mut options = match decode::options(&cx.headers, "DeleteOptions", body)? {
            Some(value) => serde_json::from_value(value).map_err(|e| Status::bad_request(e.to_string()))?,
            None => Self {
                grace_period_seconds: cx.query.integer("gracePeriodSeconds")?,
                orphan_dependents: cx.query.get("orphanDependents").map(|_| cx.query.flag("orphanDependents")),
                propagation_policy: cx.query.get("propagationPolicy").map(str::to_owned),
                ..Self::default()
            },
        };
        if cx.dry_run()? {
            options.dry_run = vec!["All".to_owned()];
        }
        options.check()?;
        if served.options().orphans_dependents
            && served.gr.resource == "jobs"
            && options.propagation_policy.is_none()
            && options.orphan_dependents.is_none()
        {
            cx.warn(PODS_STAY.to_owned());
        }
        Ok(options)
    }

    /// Validates the options.
    ///
    /// # Errors
    /// 422 for an invalid option.
    pub fn check(&self) -> Result<(), Status> {
        let mut errors = FieldErrors::new();
        if let Some(policy) = &self.propagation_policy {
            let path = FieldPath::new("propagationPolicy");
            if self.orphan_dependents.is_some() {
                errors.invalid(&path, policy, "orphanDependents and deletionPropagation cannot be both set");
            }
            if !matches!(policy.as_str(), "Foreground" | "Background" | "Orphan") {
                errors.not_supported(&path, policy, &["Foreground", "Background", "Orphan", "nil"]);
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
    /// The options as an object of `meta.k8s.io/v1`.
    pub(super) fn object(&self) -> Value {
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
    /// Whether nothing is stored.
    pub fn is_dry_run(&self) -> bool {
        !self.dry_run.is_empty()
    }
}

/// Checks the preconditions of a delete against the stored record.
///
/// # Errors
/// 409 if one does not hold.
pub fn check_preconditions(
    served: &Served,
    name: &str,
    options: &DeleteOptions,
    record: &Record,
) -> Result<(), Status> {
    let Some(p) = &options.preconditions else { return Ok(()) };
    // In these messages upstream uses the kind instead of the resource.
    let kind = GroupResource::new(&*served.gvk.group, &*served.gvk.kind);
    let found = record.meta().uid.to_string();
    if let Some(uid) = p.uid.as_ref().filter(|u| **u != found) {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({found}). The object might have been deleted and then recreated"
        );
        return Err(Status::conflict(&kind, name, &why));
    }
    let found = record.revision().to_string();
    if let Some(version) = p.resource_version.as_ref().filter(|v| **v != found) {
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({found}). The object might have been modified"
        );
        return Err(Status::conflict(&kind, name, &why));
    }
    Ok(())
}
