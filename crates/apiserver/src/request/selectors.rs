//! Selectors of lists, watches and collection deletes: read from the query, checked against the kind's fields, matched
//! against what the store keeps beside each record, so that nothing is decoded to filter.
use kelson_meta::{FieldSelector, LabelSelector, Status};
use kelson_store::{Key, Record, RecordMeta};

use crate::catalog::Served;
use crate::request::query::Query;

/// Both selectors of a request.
#[derive(Debug, Clone, Default)]
pub struct Selectors {
    /// By labels.
    pub labels: LabelSelector,
    /// By fields.
    pub fields: FieldSelector,
}

impl Selectors {
    /// Reads `labelSelector` and `fieldSelector`.
    ///
    /// # Errors
    /// 400 for what does not parse, or a field the kind does not select by.
    pub fn new(served: &Served, query: &Query) -> Result<Self, Status> {
        let labels = LabelSelector::parse(query.text("labelSelector"))
            .map_err(|e| Status::bad_request(format!("unable to parse requirement: {}", strip(&e.to_string()))))?;
        let fields =
            FieldSelector::parse(query.text("fieldSelector")).map_err(|e| Status::bad_request(e.to_string()))?;
        for r in &fields.0 {
            let known = matches!(r.field.as_str(), "metadata.name" | "metadata.namespace")
                || served.options().fields.iter().any(|f| *f == r.field);
            if !known {
                return Err(Status::bad_request(unknown(served, &r.field)));
            }
        }
        Ok(Self { labels, fields })
    }
    /// Whether every object matches.
    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }
    /// Whether a record matches.
    pub fn matches(&self, record: &Record) -> bool {
        self.matches_parts(record.key(), record.meta())
    }
    /// The same, from a record's parts.
    pub fn matches_parts(&self, key: &Key, meta: &RecordMeta) -> bool {
        (self.labels.is_everything() || self.labels.matches_with(|k| meta.labels.get(k)))
            && self.fields.matches_with(|f| match f {
                "metadata.name" => Some(&*key.name),
                "metadata.namespace" => Some(&*key.namespace),
                other => meta.fields.get(other),
            })
    }
}

fn strip(message: &str) -> &str {
    message.strip_prefix("unable to parse requirement: ").unwrap_or(message)
}

/// Upstream's default conversion speaks of known selectors; kinds with fields of their own do not.
fn unknown(served: &Served, field: &str) -> String {
    if served.options().fields.is_empty() {
        format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    } else {
        format!("field label not supported: {field}")
    }
}
