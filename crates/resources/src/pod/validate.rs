//! Rules of pods and pod templates on creation.
use serde_json::Value;

use crate::path::{Errors, Path};

/// A new pod.
pub fn pod_create(obj: &Value, e: &mut Errors) {
    pod_spec(&obj["spec"], &obj["metadata"], &Path::new("spec"), true, e);
}

/// Any pod spec.
pub fn pod_spec(spec: &Value, meta: &Value, p: &Path<'_>, is_pod: bool, e: &mut Errors) {
    let _ = (meta, is_pod);
    if crate::tree::items(&spec["containers"]).is_empty() {
        e.required(&p.child("containers"), "");
    }
}

/// A pod template: labels, annotations and spec.
pub fn template(t: &Value, p: &Path<'_>, e: &mut Errors) {
    let meta = p.child("metadata");
    crate::metadata::labels(&t["metadata"]["labels"], &meta.child("labels"), e);
    crate::metadata::annotations(&t["metadata"]["annotations"], &meta.child("annotations"), e);
    pod_spec(&t["spec"], &t["metadata"], &p.child("spec"), false, e);
}
