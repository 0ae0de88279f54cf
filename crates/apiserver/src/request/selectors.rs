//! Selectors of lists, watches and collection deletes. They are parsed from the query, checked against the kind's fields, and matched
//! against metadata that the store keeps for each record, so that no object is decoded to filter.
use kelson_meta::url::Query;
use kelson_meta::{FieldRequirement, FieldSelector, LabelSelector, Status};
use kelson_store::{Key, Record, RecordMeta};

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
        (self.labels.is_everything() || self.labels.matches_with(|k| meta.labels.get(k)))
            && self.fields.matches_with(|f| match f {
                "metadata.name" => Some(&*key.name),
                "metadata.namespace" => Some(&*key.namespace),
                other => meta.fields.get(other),
            })
    }
}

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
