//! Options of the Table view.
use jiff::Timestamp;
use kelson_meta::Status;
use kelson_meta::url::Query;

/// The part of its object that each table row contains (`includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    None,
    Metadata,
    /// The whole object.
    Object,
}

/// Options for tables.
#[derive(Debug, Clone, Copy)]
pub struct ViewOptions {
    /// The part of its object that each row contains.
    pub include: Include,
    /// The current time, for ages.
    pub now: Timestamp,
}

impl ViewOptions {
    /// The options of a query that has none.
    pub fn usual(now: Timestamp) -> Self {
        Self { include: Include::Metadata, now }
    }
    /// Parses the query.
    ///
    /// # Errors
    /// 400 for an unknown value.
    pub fn new(query: &Query, now: Timestamp) -> Result<Self, Status> {
        let include = match query.text("includeObject") {
            "" | "Metadata" => Include::Metadata,
            "None" => Include::None,
            "Object" => Include::Object,
            other => {
                return Err(Status::bad_request(format!(
                    "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: \
                     must be 'Metadata', 'Object', 'None', or empty"
                )));
            }
        };
        Ok(Self { include, now })
    }
}
