//! ServiceAccounts: metadata rules only.
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::Value;

use crate::column::{AGE, NAME};
use crate::options::{Options, columns};
use crate::strategy::Strategy;
use crate::table::{age, name};

/// The serviceaccounts resource.
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
