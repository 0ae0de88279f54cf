//! A list on its way out: what is left to write, whatever the encoding.
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use kelson_meta::Status;
use kelson_store::Record;
use serde_json::{Map, Value};

use crate::catalog::Served;
use crate::catalog::record::parse;
use crate::read::page::{PIECE_BYTES, Page};
use crate::read::table;
use crate::request::negotiate::View;
use crate::request::view::ViewOptions;
use crate::shared::HEAVY_BYTES_MIN;

/// Makes a list piece by piece.
pub trait ListPieces: Send + Sized + 'static {
    /// The next piece; `None` behind the last.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, Status>>;
    /// Where the list is.
    fn run(&self) -> &Run;
}

/// The records of a list that are still to be written, and what is shown of them.
pub struct Run {
    pub served: Arc<Served>,
    pub view: View,
    pub options: ViewOptions,
    pub page: Page,
    /// Objects are shown in another way than the bytes of their records.
    pub computed: bool,
    /// Position in the page of the next record.
    pub next: usize,
    /// All records were taken.
    pub ended: bool,
}

impl Run {
    /// The records of the next piece, about [`PIECE_BYTES`] of them.
    pub fn records(&mut self) -> Vec<Arc<Record>> {
        let (mut records, mut bytes, mut next) = (Vec::new(), 0, self.next);
        let mut ended = true;
        for (after, record) in self.page.records.from(self.next) {
            records.push(Arc::clone(record));
            (next, bytes) = (after, bytes + record.len());
            if bytes >= PIECE_BYTES {
                ended = false;
                break;
            }
        }
        (self.next, self.ended) = (next, ended);
        records
    }

    /// Whether the next piece takes a core for long.
    pub fn is_heavy(&self) -> bool {
        let next = || self.page.records.from(self.next).next();
        self.computed && next().is_some_and(|(_, record)| record.len() >= HEAVY_BYTES_MIN)
    }

    /// Begins again with the first record.
    pub fn rewind(&mut self) {
        (self.next, self.ended) = (0, false);
    }

    /// Whether the metadata of a record's bytes is what the served version shows.
    pub fn metadata_is_plain(&self, record: &Record) -> bool {
        !self.served.works_as_served() || self.served.is_plain(record)
    }

    /// Some records as the items of the list.
    pub async fn items(&self, records: &[Arc<Record>]) -> Result<Vec<Value>, Status> {
        let objects = records.iter().map(|r| parse(r)).collect();
        table::items(&self.served, self.view, &self.options, objects).await
    }

    /// The list without its items, and the name of the field that has them.
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

    /// Whether a list is one of objects that have no type here, as they are.
    pub fn is_open(&self) -> bool {
        self.view == View::Whole && self.served.schema.type_id().is_none()
    }

    /// Whether the objects of a list leave out what kind they are: those of built-in kinds as they are do, upstream as well.
    pub fn says_kind_once(&self) -> bool {
        self.view == View::Whole && self.served.schema.type_id().is_some()
    }
}
