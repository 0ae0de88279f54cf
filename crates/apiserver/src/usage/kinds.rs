//! The kinds of `metrics.k8s.io`: NodeMetrics and PodMetrics. Nothing of them is stored; they can be read and listed, not watched.
use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use kelson_meta::{Gvk, Gvr, Quantity};
use kelson_resources::{Column, Options, Strategy};
use serde_json::Value;

use super::{GROUP, VERSION};
use crate::catalog::{ObjectSchema, Served};

/// Plural name of NodeMetrics, that of the nodes.
pub const NODES: &str = "nodes";
/// Plural name of PodMetrics, that of the pods.
pub const PODS: &str = "pods";
/// Resources in columns of tables, in order.
const RESOURCES: [&str; 2] = ["cpu", "memory"];

/// The resources of the group version.
pub fn served() -> [Served; 2] {
    [(NODES, "NodeMetrics", false), (PODS, "PodMetrics", true)].map(|(plural, kind, namespaced)| {
        let gvk = Gvk::new(GROUP, VERSION, kind);
        let mut options = Options::of_kind(GROUP, plural, gvk.clone(), namespaced);
        options.stored = false;
        options.columns = Cow::Owned(columns());
        let strategy = Arc::new(UsageKind { options });
        let schema = |kind: &str| ObjectSchema::builtin(GROUP, VERSION, kind);
        let mut served = Served::dynamic(Gvr::new(GROUP, VERSION, plural), gvk, strategy, schema(kind));
        served.list_schema = schema(&served.list_kind);
        served.verbs = ["get", "list"].map(str::to_owned).to_vec();
        // As metrics-server lists them.
        served.singular = String::new();
        served.storage_version_hash = String::new();
        served
    })
}

fn columns() -> Vec<Column> {
    let column = |name: &'static str, format: &'static str, description: &'static str| Column {
        name: name.into(),
        kind: "string".into(),
        format: format.into(),
        description: description.into(),
        priority: 0,
    };
    let resources = RESOURCES.map(|name| column(name, "quantity", ""));
    let mut all = vec![column("Name", "name", "Name of the resource")];
    all.extend(resources);
    all.push(column("Window", "duration", ""));
    all
}

struct UsageKind {
    options: Options,
}

impl Strategy for UsageKind {
    fn options(&self) -> &Options {
        &self.options
    }
    fn row(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        let mut cells = vec![object["metadata"]["name"].clone()];
        for resource in RESOURCES {
            let own = object["usage"][resource].as_str();
            let containers = object["containers"].as_array().map_or(&[][..], Vec::as_slice);
            let parts = own.into_iter().chain(containers.iter().filter_map(|c| c["usage"][resource].as_str()));
            let sum = parts.filter_map(|text| text.parse::<Quantity>().ok()).reduce(Quantity::plus);
            cells.push(sum.unwrap_or_default().to_string().into());
        }
        cells.push(object["window"].clone());
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_have_sums_of_containers() {
        let [nodes, pods] = served();
        let node = json!({"metadata": {"name": "one"}, "window": "15s", "usage": {"cpu": "1500u", "memory": "2Ki"}});
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(nodes.strategy.row(&node, now), ["one", "1500u", "2Ki", "15s"]);
        let container = |cpu: &str| json!({"name": cpu, "usage": {"cpu": cpu, "memory": "1Mi"}});
        let pod =
            json!({"metadata": {"name": "p"}, "window": "1m0s", "containers": [container("1"), container("250m")]});
        assert_eq!(pods.strategy.row(&pod, now), ["p", "1250m", "2Mi", "1m0s"]);
        assert_eq!(nodes.options().columns.len(), 4);
        assert!(nodes.schema.type_id().is_some() && pods.list_schema.type_id().is_some(), "protobuf is served");
    }
}
