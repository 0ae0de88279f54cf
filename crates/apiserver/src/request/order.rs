//! The order of fields in documents that people and scripts read. Trees are sorted by name, while upstream's encoders write fields in
//! the order of their Go types.
use serde::ser::{Error as _, SerializeMap as _, SerializeSeq as _};
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// For each key, the field order of the objects below it (for items: the key of their list; empty: the document).
pub type Order = &'static [(&'static str, &'static [&'static str])];

const GROUP: &[&str] = &["kind", "apiVersion", "name", "versions", "preferredVersion", "serverAddressByClientCIDRs"];
const RESOURCE: &[&str] = &[
    "name",
    "singularName",
    "namespaced",
    "group",
    "version",
    "kind",
    "verbs",
    "shortNames",
    "categories",
    "storageVersionHash",
];
const TABLE: Order = &[
    ("", &["kind", "apiVersion", "metadata", "columnDefinitions", ROWS]),
    ("metadata", &["resourceVersion", "continue", "remainingItemCount"]),
    ("columnDefinitions", &["name", "type", "format", "description", "priority"]),
    (ROWS, &["cells", CONDITIONS, OBJECT]),
    (CONDITIONS, &["type", "status", "reason", "message"]),
];
const VERSION: Order = &[(
    "",
    &[
        "major",
        "minor",
        "emulationMajor",
        "emulationMinor",
        "minCompatibilityMajor",
        "minCompatibilityMinor",
        "gitVersion",
        "gitCommit",
        "gitTreeState",
        "buildDate",
        "goVersion",
        "compiler",
        "platform",
    ],
)];
const ROWS: &str = "rows";
const CONDITIONS: &str = "conditions";
/// The object of a table row; it contains its own kind.
const OBJECT: &str = "object";
const RESPONSE_KIND: (&str, &[&str]) = ("responseKind", &["group", "version", "kind"]);

/// The order of fields of a document that is not a stored object; `None` for others.
pub fn document_order(document: &Value) -> Option<Order> {
    let text = |member: &str| document[member].as_str();
    // The version document has no kind.
    let Some(kind) = text("kind") else { return document.get("gitVersion").map(|_| VERSION) };
    match kind {
        // Users may name their own kinds "Table".
        "Table" => text("apiVersion")?.starts_with("meta.k8s.io/").then_some(TABLE),
        kind => kind_order(kind),
    }
}

/// The order of fields of discovery kinds and `Status`; `None` for others.
pub fn kind_order(kind: &str) -> Option<Order> {
    Some(match kind {
        "APIVersions" => &[
            ("", &["kind", "versions", "serverAddressByClientCIDRs"]),
            ("serverAddressByClientCIDRs", &["clientCIDR", "serverAddress"]),
        ],
        "APIGroup" | "APIGroupList" => &[
            ("", GROUP),
            ("groups", GROUP),
            ("versions", &["groupVersion", "version"]),
            ("preferredVersion", &["groupVersion", "version"]),
        ],
        "APIResourceList" => &[("", &["kind", "apiVersion", "groupVersion", "resources"]), ("resources", RESOURCE)],
        "APIGroupDiscoveryList" => &[
            ("", &["kind", "apiVersion", "metadata", "items"]),
            ("items", &["metadata", "versions"]),
            ("versions", &["version", "resources", "freshness"]),
            (
                "resources",
                &[
                    "resource",
                    "responseKind",
                    "scope",
                    "singularResource",
                    "verbs",
                    "shortNames",
                    "categories",
                    "subresources",
                ],
            ),
            ("subresources", &["subresource", "responseKind", "acceptedTypes", "verbs"]),
            RESPONSE_KIND,
        ],
        "Status" => &[
            ("", &["kind", "apiVersion", "metadata", "status", "message", "reason", "details", "code"]),
            ("details", &["name", "group", "kind", "uid", "causes", "retryAfterSeconds"]),
            ("causes", &["reason", "message", "field"]),
        ],
        _ => return None,
    })
}

/// Serializes a tree with its fields in order. Fields that the order does not contain come last, sorted by name.
pub struct Ordered<'a> {
    value: &'a Value,
    below: &'a str,
    order: Order,
}

impl<'a> Ordered<'a> {
    /// A document with this order of fields.
    pub fn new(value: &'a Value, order: Order) -> Self {
        Self { value, below: "", order }
    }

    /// A row of a table.
    pub fn row(value: &'a Value) -> Self {
        Self { value, below: ROWS, order: TABLE }
    }

    /// The conditions of a row of a table.
    pub fn row_conditions(value: &'a Value) -> Self {
        Self { value, below: CONDITIONS, order: TABLE }
    }
}

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Value::Array(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for value in items {
                    list.serialize_element(&Self { value, ..*self })?;
                }
                list.end()
            }
            object @ Value::Object(_) if self.below == OBJECT => {
                let text = String::from_utf8(kelson_codec::declared_json(object)).map_err(S::Error::custom)?;
                RawValue::from_string(text).map_err(S::Error::custom)?.serialize(serializer)
            }
            Value::Object(fields) => {
                let names = self.order.iter().find(|(key, _)| *key == self.below).map_or(&[][..], |(_, names)| names);
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                let first = names.iter().filter_map(|name| fields.get_key_value(*name));
                let rest = fields.iter().filter(|(key, _)| !names.contains(&key.as_str()));
                for (below, value) in first.chain(rest) {
                    map.serialize_entry(below, &Self { value, below, ..*self })?;
                }
                map.end()
            }
            plain => plain.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_in_declared_order() {
        let list = json!({"apiVersion": "v1", "groupVersion": "apps/v1", "kind": "APIResourceList", "zz": {"b": 1, "a": 2},
            "resources": [{"kind": "Deployment", "name": "deployments", "verbs": ["get"], "namespaced": true}]});
        let order = kind_order("APIResourceList").unwrap_or_default();
        let text = serde_json::to_string(&Ordered::new(&list, order)).expect("text");
        assert_eq!(
            text,
            r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"apps/v1","resources":[{"name":"deployments","namespaced":true,"kind":"Deployment","verbs":["get"]}],"zz":{"a":2,"b":1}}"#
        );
    }

    #[test]
    fn tables_and_the_objects_of_their_rows_are_in_declared_order() {
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "spec": {"nodeName": "x", "containers": []}, "metadata": {"uid": "u", "name": "a"}});
        let condition = json!({"message": "m", "reason": "r", "status": "True", "type": "Completed"});
        let table = json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"continue": "c", "resourceVersion": "1"},
            "columnDefinitions": [{"name": "n", "type": "string", "format": "", "description": "", "priority": 0}],
            "rows": [{"cells": ["a", 1], "conditions": [condition], "object": pod}]});
        let order = document_order(&table).expect("known");
        let text = serde_json::to_string(&Ordered::new(&table, order)).expect("text");
        let row = r#"{"cells":["a",1],"conditions":[{"type":"Completed","status":"True","reason":"r","message":"m"}],"object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","uid":"u"},"spec":{"containers":[],"nodeName":"x"}}}"#;
        assert_eq!(serde_json::to_string(&Ordered::row(&table["rows"][0])).expect("text"), row);
        let head = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1","continue":"c"},"columnDefinitions":[{"name":"n","type":"string","format":"","description":"","priority":0}],"rows":["#;
        assert_eq!(text, [head, row, "]}"].concat());
        assert!(
            document_order(&json!({"kind": "Table", "apiVersion": "furniture.example.com/v1"})).is_none(),
            "a user's own kind"
        );
    }
}
