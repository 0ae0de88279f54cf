//! The state of a list that is being sent, common to all encodings.
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use kelson_meta::Status;
use kelson_store::Record;
use serde_json::{Map, Value};

use crate::catalog::Served;
use crate::read::page::{PIECE_BYTES, Page};
use crate::read::table;
use crate::request::negotiate::View;
use crate::request::view::ViewOptions;
use crate::shared::HEAVY_BYTES_MIN;

/// The part of a piece's bytes after which a piece ends whose items are computed.
const COMPUTED_PART: usize = 4;

/// Encodes a list piece by piece.
pub trait ListPieces: HasRun {
    /// The next piece; `None` after the last one.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, Status>>;
}

/// A list that is prepared or sent.
pub trait HasRun: Send + Sized + 'static {
    /// The state of the list.
    fn run(&self) -> &Run;
}

/// The remaining records of a list, and the view of them.
pub struct Run {
    pub served: Arc<Served>,
    pub view: View,
    pub options: ViewOptions,
    pub page: Page,
    /// Items are computed instead of copied from the records' bytes.
    pub computed: bool,
    /// Items are rows, of which the cells are computed from a few fields and the rest is copied.
    pub cuts_rows: bool,
    /// Position of the next record in the page.
    pub next: usize,
    /// No records remain.
    pub ended: bool,
}

impl Run {
    /// The records of the next piece, about [`PIECE_BYTES`]; fewer if whole items are computed, which takes some ten times as long as to
    /// copy them.
    pub fn records(&mut self) -> Vec<Arc<Record>> {
        let enough = if self.computed && !self.cuts_rows { PIECE_BYTES / COMPUTED_PART } else { PIECE_BYTES };
        let (records, next) = self.page.records.batch(self.next, enough);
        self.ended = next.is_none();
        self.next = next.unwrap_or(self.next);
        records
    }

    /// Whether the next piece computes for long.
    pub fn is_heavy(&self) -> bool {
        self.computed && self.page.records.peek(self.next).is_some_and(|record| record.len() >= HEAVY_BYTES_MIN)
    }

    /// Starts again with the first record.
    pub fn rewind(&mut self) {
        (self.next, self.ended) = (0, false);
    }

    /// Whether the metadata in a record's bytes is that of the served version.
    pub fn metadata_is_plain(&self, record: &Record) -> bool {
        !self.served.works_as_served() || self.served.is_plain(record)
    }

    /// Records as items of the list.
    pub async fn items(&self, records: &[Arc<Record>]) -> Result<Vec<Value>, Status> {
        let objects = self.served.working(records).await?;
        table::working_items(&self.served, self.view, &self.options, objects).await
    }

    /// The list without items, and the name of its field for items.
    pub fn frame(&self) -> (Map<String, Value>, &'static str) {
        let meta = self.page.metadata(self.is_open());
        match self.view {
            View::Table(version) => (table::table_head(&self.served, version, meta, true), "rows"),
            View::Whole | View::Partial(_) => {
                let gvk = table::list_kind(&self.served, self.view);
                let mut list = Map::new();
                list.insert("kind".into(), gvk.kind.clone().into());
                list.insert("apiVersion".into(), gvk.api_version().into());
                list.insert("metadata".into(), meta);
                (list, "items")
            }
        }
    }

    /// Whether it is a list of whole custom resources.
    pub fn is_open(&self) -> bool {
        self.view == View::Whole && self.served.schema.type_id().is_none()
    }

    /// Whether items omit kind and version. Whole objects of built-in kinds do, as in upstream.
    pub fn omits_kind_in_items(&self) -> bool {
        self.view == View::Whole && self.served.schema.type_id().is_some()
    }
}
