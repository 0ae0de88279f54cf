//! Options of the Table view.
use jiff::Timestamp;
use kelson_meta::Status;
use kelson_meta::url::Query;

use super::negotiate::View;

/// How much of its object each table row contains (`includeObject`).
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
    /// How much of its object each row contains.
    pub include: Include,
    /// The current time, for ages.
    pub now: Timestamp,
}

impl ViewOptions {
    /// Parses the query of a request whose response has this view. Other views than tables ignore the options.
    ///
    /// # Errors
    /// 400 for an unknown value.
    pub fn new(query: &Query, view: View, now: Timestamp) -> Result<Self, Status> {
        let include = match query.text("includeObject") {
            "" | "Metadata" => Include::Metadata,
            "None" => Include::None,
            "Object" => Include::Object,
            other if matches!(view, View::Table(_)) => {
                return Err(Status::bad_request(format!(
                    "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: \
                     must be 'Metadata', 'Object', 'None', or empty"
                )));
            }
            _ => Include::Metadata,
        };
        Ok(Self { include, now })
    }
}
