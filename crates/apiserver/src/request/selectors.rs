//! Selectors of lists, watches and collection deletes. They are parsed from the query, checked against the kind's fields, and matched
//! against metadata that the store keeps for each record, so that no object is decoded to filter.
use kelson_meta::url::Query;
use kelson_meta::{FieldRequirement, FieldSelector, LabelSelector, Status};
use kelson_store::{Key, Labels, ListView, Record, RecordMeta, Store, WatchScope};

use crate::catalog::{Behaviour, Served};

/// A request's selectors, parsed once. Whether the kind has the selected fields is not checked yet.
#[derive(Debug, Clone)]
pub struct ParsedSelectors {
    labels: Result<LabelSelector, String>,
    fields: Result<FieldSelector, String>,
}

impl ParsedSelectors {
    /// Reads `labelSelector` and `fieldSelector`.
    pub fn parse(query: &Query) -> Self {
        Self {
            labels: LabelSelector::parse(query.text("labelSelector")).map_err(|e| e.to_string()),
            fields: FieldSelector::parse(query.text("fieldSelector")).map_err(|e| e.to_string()),
        }
    }
    /// The label selector, if it restricts anything.
    pub fn labels(&self) -> Option<&LabelSelector> {
        self.labels.as_ref().ok().filter(|s| !s.is_everything())
    }
    /// The field selector, if it restricts anything.
    pub fn fields(&self) -> Option<&FieldSelector> {
        self.fields.as_ref().ok().filter(|s| !s.is_everything())
    }
}

/// Both selectors of a list, watch or collection delete of one kind.
#[derive(Debug, Clone, Default)]
pub struct Selectors {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selectors {
    /// Checks a request's selectors against the fields of the kind.
    ///
    /// # Errors
    /// 400 for a selector that does not parse, or a field that the kind does not support.
    pub fn new(served: &Served, parsed: &ParsedSelectors) -> Result<Self, Status> {
        let labels = parsed.labels.clone().map_err(Status::bad_request)?;
        let mut fields = parsed.fields.clone().map_err(Status::bad_request)?;
        for r in fields.0.iter_mut().filter(|r| !IDENTITY.contains(&r.field.as_str())) {
            r.field =
                stored_field_name(served, &r.field).ok_or_else(|| Status::bad_request(unknown(served, &r.field)))?;
        }
        Ok(Self { labels, fields })
    }
    /// Whether every object matches.
    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }
    /// The current records that can match: of a namespace (or of all), after `after`. They are found by name or by an index where that is
    /// possible, and in all other cases are all records.
    pub fn candidates(
        &self,
        store: &Store,
        served: &Served,
        namespace: Option<&str>,
        after: Option<(&str, &str)>,
    ) -> ListView {
        let by_field = INDEXED.iter().find_map(|(resource, field)| {
            let value = self.fields.exact(field).filter(|value| !value.is_empty())?;
            (*resource == served.store.as_str()).then_some((*field, value))
        });
        let view = match by_field {
            Some(field) => store.list_by_field(served.store, field, namespace, after),
            None => store.list(served.store, namespace, after, None),
        };
        self.narrow(view, served, namespace)
    }
    /// The records of a view that can match by name. Like upstream, a name is looked up if the namespace is known.
    pub fn narrow(&self, view: ListView, served: &Served, namespace: Option<&str>) -> ListView {
        match self.fields.exact("metadata.name") {
            Some(name) if served.namespaced == namespace.is_some() => view.named(namespace.unwrap_or(""), name),
            _ => view,
        }
    }
    /// The smallest part of a resource with all objects that can match. `namespace` is empty for all namespaces.
    pub fn scope(&self, served: &Served, namespace: &str) -> WatchScope {
        if let Some(name) = self.fields.exact("metadata.name") {
            return WatchScope::Name { namespace: namespace.into(), name: name.into() };
        }
        // The records of a custom resource may have been stored with other fields.
        let fixed = |r: &&FieldRequirement| !r.negated && matches!(served.strategy, Behaviour::Builtin(_));
        match self.own_fields().find(fixed) {
            Some(r) => WatchScope::Field { name: r.field.as_str().into(), value: r.value.as_str().into() },
            None if !namespace.is_empty() => WatchScope::Namespace(namespace.into()),
            None => WatchScope::All,
        }
    }
    /// Matches many records of a view.
    pub fn matcher(&self) -> Matcher<'_> {
        Matcher { selectors: self, last: None }
    }
    /// The requirements on fields other than name and namespace.
    pub fn own_fields(&self) -> impl Iterator<Item = &FieldRequirement> {
        self.fields.0.iter().filter(|r| !IDENTITY.contains(&r.field.as_str()))
    }
    /// Whether a record matches by its labels, its name and its namespace.
    pub fn matches_identity(&self, record: &Record) -> bool {
        let (key, meta) = (record.key(), record.meta());
        let identity = |r: &FieldRequirement| match r.field.as_str() {
            "metadata.name" => (*key.name == *r.value) != r.negated,
            "metadata.namespace" => (*key.namespace == *r.value) != r.negated,
            _ => true,
        };
        (self.labels.is_everything() || self.labels.matches_with(|k| meta.labels.get(k)))
            && self.fields.0.iter().all(identity)
    }
    /// Whether a record matches both selectors.
    pub fn matches(&self, record: &Record) -> bool {
        self.matches_parts(record.key(), record.meta())
    }
    /// Whether a record with this key and metadata matches both selectors.
    pub fn matches_parts(&self, key: &Key, meta: &RecordMeta) -> bool {
        self.matches_labels(&meta.labels) && self.matches_fields(key, meta)
    }
    fn matches_labels(&self, labels: &Labels) -> bool {
        self.labels.is_everything() || self.labels.matches_with(|k| labels.get(k))
    }
    fn matches_fields(&self, key: &Key, meta: &RecordMeta) -> bool {
        self.fields.matches_with(|f| match f {
            "metadata.name" => Some(&*key.name),
            "metadata.namespace" => Some(&*key.namespace),
            other => meta.fields.get(other),
        })
    }
}

/// Matches records one after the other. The labels of objects that one controller made are the same, and are compared once.
pub struct Matcher<'s> {
    selectors: &'s Selectors,
    /// The labels that were compared last, and whether they match.
    last: Option<(&'s Labels, bool)>,
}

impl<'s> Matcher<'s> {
    /// Whether a record matches both selectors.
    pub fn matches(&mut self, record: &'s Record) -> bool {
        let (key, meta) = (record.key(), record.meta());
        if self.selectors.labels.is_everything() {
            return self.selectors.matches_fields(key, meta);
        }
        let labels_match = match self.last {
            Some((last, verdict)) if last.is_shared_with(&meta.labels) => verdict,
            _ => self.selectors.matches_labels(&meta.labels),
        };
        self.last = Some((&meta.labels, labels_match));
        labels_match && self.selectors.matches_fields(key, meta)
    }
}

/// Resources and fields by which records are indexed: those by which all node agents list.
const INDEXED: [(&str, &str); 1] = [("pods", "spec.nodeName")];

/// The fields that every kind supports; their values are in the record's key.
const IDENTITY: [&str; 2] = ["metadata.name", "metadata.namespace"];

/// The name under which records keep a selectable field. For custom resources, the requested version defines which fields there are.
fn stored_field_name(served: &Served, field: &str) -> Option<String> {
    let at = served.options().fields.iter().position(|f| **f == *field)?;
    match served.strategy {
        // The stored version has the same fields in the same order, possibly under other names.
        Behaviour::Builtin(_) => served.field_names.iter().nth(at).map(str::to_owned),
        Behaviour::Dynamic(_) => Some(field.to_owned()),
    }
}

/// The error for an unsupported field. Upstream's default conversion words it differently from that of kinds with own fields.
fn unknown(served: &Served, field: &str) -> String {
    if served.options().fields.is_empty() && matches!(served.strategy, Behaviour::Builtin(_)) {
        format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    } else {
        format!("field label not supported: {field}")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kelson_store::{Body, Fields, Precondition, RecordMeta, StoreOptions, Write};

    use super::*;
    use crate::catalog::Catalog;

    fn served(plural: &str) -> Arc<Served> {
        Catalog::builtin().find("", "v1", plural).unwrap()
    }

    fn selectors(served: &Served, labels: &str, fields: &str) -> Selectors {
        let query = Query::parse(Some(&format!("labelSelector={labels}&fieldSelector={fields}")));
        Selectors::new(served, &ParsedSelectors::parse(&query)).unwrap()
    }

    /// A store with pods `pod-N` in three namespaces, on a hundred nodes, each with one of ten labels.
    async fn store(served: &Served, pods: usize) -> Store {
        let store = Store::in_memory(StoreOptions::default());
        for i in 0..pods {
            let node = format!("node-{}", i % 100);
            let meta = RecordMeta {
                labels: Labels::new([("app", format!("a{}", i % 10).as_str()), ("n", i.to_string().as_str())]),
                fields: Fields::new(&served.field_names, [node.as_str()]),
                ..RecordMeta::default()
            };
            let body = Body::locate(r#"{"metadata":{"resourceVersion":""}}"#).unwrap();
            let key = Key::new(served.store, &format!("ns-{}", i % 3), &format!("pod-{i}"));
            store.commit(Write::put(key, Precondition::Any, body, meta)).await.unwrap();
        }
        store
    }

    #[tokio::test]
    async fn a_list_by_name_or_node_looks_at_the_records_that_can_match() {
        let pods = served("pods");
        // The number of records that are visited does not grow with the number of records.
        for count in [300, 600, 1200] {
            let store = store(&pods, count).await;
            let visited = |fields: &str, namespace| {
                let selectors = selectors(&pods, "", fields);
                let view = selectors.candidates(&store, &pods, namespace, None);
                let matching = view.iter().filter(|r| selectors.matches(r)).count();
                (view.len(), matching)
            };
            let of_node = count / 100;
            assert_eq!(visited("spec.nodeName%3Dnode-5", None), (of_node, of_node));
            assert_eq!(visited("metadata.name%3Dpod-7", Some("ns-1")), (1, 1));
            assert_eq!(visited("metadata.name%3Dpod-7", Some("ns-2")), (0, 0));
            assert_eq!(visited("metadata.name%3Dpod-5,spec.nodeName%3Dnode-5", Some("ns-2")), (1, 1));
            assert_eq!(visited("metadata.name%3Dpod-5,spec.nodeName%3Dnode-6", Some("ns-2")), (0, 0));
            assert_eq!(visited("metadata.name!%3Dpod-7", Some("ns-1")), (count / 3, count / 3 - 1));
            // As in upstream, a name in any namespace is looked for.
            assert_eq!(visited("metadata.name%3Dpod-7", None), (count, 1));
            assert_eq!(visited("spec.nodeName%3D", None), (count, 0));
        }
    }

    #[tokio::test]
    async fn a_matcher_agrees_with_each_record_alone() {
        let pods = served("pods");
        let store = store(&pods, 100).await;
        for (labels, fields, expected) in [
            ("app%3Da3", "", 10),
            ("app%20in%20(a3,a4)", "spec.nodeName%3Dnode-3", 1),
            ("!app", "", 0),
            ("app,n!%3D7", "", 99),
            ("", "spec.nodeName%3Dnode-3", 1),
            ("", "", 100),
        ] {
            let selectors = selectors(&pods, labels, fields);
            let view = store.list(pods.store, None, None, None);
            let mut matcher = selectors.matcher();
            // Twice, since the same labels are not compared again.
            let matched: Vec<bool> = view.iter().flat_map(|r| [r, r]).map(|r| matcher.matches(r)).collect();
            let alone: Vec<bool> = view.iter().flat_map(|r| [r, r]).map(|r| selectors.matches(r)).collect();
            assert_eq!(matched, alone, "{labels} {fields}");
            assert_eq!(matched.iter().filter(|m| **m).count(), 2 * expected, "{labels} {fields}");
        }
    }

    #[test]
    fn a_watch_is_of_the_smallest_part() {
        let (pods, nodes) = (served("pods"), served("nodes"));
        let name = |namespace: &str, name: &str| WatchScope::Name { namespace: namespace.into(), name: name.into() };
        for (served, namespace, fields, expected) in [
            (&pods, "", "", WatchScope::All),
            (&pods, "a", "", WatchScope::Namespace("a".into())),
            (&pods, "a", "metadata.name%3Dx", name("a", "x")),
            (&pods, "", "metadata.name%3Dx,spec.nodeName%3Dn", name("", "x")),
            (&nodes, "", "metadata.name%3Dx", name("", "x")),
            (&nodes, "", "metadata.name!%3Dx", WatchScope::All),
            (&pods, "a", "spec.nodeName%3Dn", WatchScope::Field { name: "spec.nodeName".into(), value: "n".into() }),
            (&pods, "a", "spec.nodeName!%3Dn", WatchScope::Namespace("a".into())),
        ] {
            assert_eq!(selectors(served, "", fields).scope(served, namespace), expected, "{namespace} {fields}");
        }
    }
}
