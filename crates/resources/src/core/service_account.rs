//! ServiceAccounts: metadata rules only.
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::Value;

use crate::column::{AGE, NAME};
use crate::options::{Options, columns};
use crate::strategy::{Context, Strategy, base_update};
use crate::table::{age, name};
use crate::tree::items_mut;

/// The strategy of serviceaccounts.
pub struct ServiceAccounts;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    columns: columns![NAME, AGE],
    delete_returns_object: true,
    ..Options::of("", "serviceaccounts")
});

impl Strategy for ServiceAccounts {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn prepare_create(&self, _cx: &Context<'_>, obj: &mut Value) {
        keep_names_alone(obj);
    }
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        base_update(&OPTIONS, new, old);
        keep_names_alone(new);
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(obj), age(obj, now)]
    }
    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let listed = crate::tree::len(&new["secrets"]) > 0
            && new["metadata"]["annotations"].get("kubernetes.io/enforce-mountable-secrets").is_some();
        if listed {
            vec!["metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets".to_owned()]
        } else {
            Vec::new()
        }
    }
}

/// Drops other fields of secret references: a secret of an account is in its namespace, so only its name matters
/// (upstream `cleanSecretReferences`).
fn keep_names_alone(obj: &mut Value) {
    for reference in items_mut(obj, "secrets") {
        if let Some(fields) = reference.as_object_mut() {
            fields.retain(|field, _| field == "name");
        }
    }
}
