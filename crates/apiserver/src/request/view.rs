//! What a client chooses of tables.
use jiff::Timestamp;
use kelson_meta::Status;
use kelson_meta::url::Query;

/// What each row of a table carries of its object (`includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    None,
    Metadata,
    /// All of it.
    Object,
}

/// Choices for tables.
#[derive(Debug, Clone, Copy)]
pub struct ViewOptions {
    /// How much of each object a Table's rows carry.
    pub include: Include,
    /// The server's clock, for ages.
    pub now: Timestamp,
}

impl ViewOptions {
    /// From the query.
    ///
    /// # Errors
    /// 400 for an unknown word.
    pub fn new(query: &Query, now: Timestamp) -> Result<Self, Status> {
        let include = match query.text("includeObject") {
            "" | "Metadata" => Include::Metadata,
            "None" => Include::None,
            "Object" => Include::Object,
            other => return Err(Status::bad_request(format!("unrecognized includeObject value: {other:?}"))),
        };
        Ok(Self { include, now })
    }
}
