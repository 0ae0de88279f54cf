//! ServiceAccounts: metadata rules only.
use jiff::Timestamp;
use serde_json::Value;

use crate::strategy::{Options, Strategy};
use crate::table::{AGE, NAME, age, name};

/// The serviceaccounts resource.
pub struct ServiceAccounts;

static OPTIONS: Options = Options {
    short_names: &["sa"],
    columns: &[NAME, AGE],
    ..Options::namespaced("", "serviceaccounts", "ServiceAccount")
};

impl Strategy for ServiceAccounts {
    fn options(&self) -> &'static Options {
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
