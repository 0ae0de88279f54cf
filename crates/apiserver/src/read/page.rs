//! Page: the records of a list's response, and the metadata about the remaining ones.
use std::sync::Arc;

use kelson_meta::Status;
use kelson_store::{ListView, Record};
use serde_json::{Map, Value};

use crate::catalog::Served;
use crate::read::choose;
use crate::request::selectors::Selectors;
use crate::request::version_param::{Continue, ListParams};

/// Bytes collected before a piece of a list is passed to the connection.
pub(crate) const PIECE_BYTES: usize = 64 * 1024;

/// The most records that one piece of a list visits. A selector may match few of many, and other requests have their turn between pieces.
pub(crate) const VISITED_MAX: usize = 4096;

/// The records of one response.
pub(crate) struct Page {
    pub revision: u64,
    continue_token: String,
    remaining: Option<usize>,
    pub records: Records,
}

pub(crate) enum Records {
    /// The matching records.
    Some(Vec<Arc<Record>>),
    /// A whole view; records are filtered while they are sent.
    All(ListView, Selectors),
}

impl Records {
    /// The records from position `from`, each with the position after it.
    fn from(&self, from: usize) -> Box<dyn Iterator<Item = (usize, &Arc<Record>)> + '_> {
        match self {
            Self::Some(list) => Box::new(list.iter().enumerate().skip(from).map(|(i, r)| (i + 1, r))),
            Self::All(view, selectors) => {
                let everything = selectors.is_everything();
                let run = view.iter_from(from).enumerate().map(move |(i, r)| (from + i + 1, r));
                let mut matcher = selectors.matcher();
                Box::new(run.filter(move |(_, r)| everything || matcher.matches(r)))
            }
        }
    }

    /// The next records from position `from`, about `bytes` of them, among at most [`VISITED_MAX`] that are visited. Returns them with
    /// the position after them, or `None` after the last.
    pub fn batch(&self, from: usize, bytes: usize) -> (Vec<Arc<Record>>, Option<usize>) {
        let end = from + VISITED_MAX;
        let (mut records, mut sum) = (Vec::new(), 0);
        let mut visit = |after: usize, record: &Arc<Record>| {
            records.push(Arc::clone(record));
            sum += record.len();
            (sum >= bytes).then_some(after)
        };
        let (next, len) = match self {
            Self::Some(list) => (self.from(from).find_map(|(after, record)| visit(after, record)), list.len()),
            Self::All(view, selectors) => {
                let everything = selectors.is_everything();
                let mut matcher = selectors.matcher();
                let run = view.iter_from(from).take(VISITED_MAX).enumerate();
                let mut matching = run.filter(|(_, record)| everything || matcher.matches(record));
                (matching.find_map(|(i, record)| visit(from + i + 1, record)), view.len())
            }
        };
        let is_bounded = matches!(self, Self::All(..)) && end < len;
        (records, next.or(is_bounded.then_some(end)))
    }

    /// The next record from position `from`, if it is among the next [`VISITED_MAX`].
    pub fn peek(&self, from: usize) -> Option<Arc<Record>> {
        self.batch(from, 1).0.pop()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.from(0).map(|(_, r)| r)
    }
}

/// The list parameters, and the namespace of a list of one namespace.
pub(crate) type PageRequest<'a> = (&'a ListParams, Option<&'a str>);

/// The requested page, selected by the records' metadata.
pub(crate) async fn page(of: PageRequest<'_>, view: ListView, selectors: Selectors) -> Page {
    let (at, revision) = (of.0, view.revision());
    if at.limit == 0 {
        return Page {
            revision,
            continue_token: String::new(),
            remaining: None,
            records: Records::All(view, selectors),
        };
    }
    let everything = selectors.is_everything();
    let mut chosen: Vec<Arc<Record>> = Vec::with_capacity(at.limit.min(view.len()));
    let (mut more, mut visited) = (false, 0);
    while !more && visited < view.len() {
        {
            let mut matcher = selectors.matcher();
            let run = view.iter_from(visited).take(VISITED_MAX);
            for record in run.filter(|r| everything || matcher.matches(r)) {
                if chosen.len() == at.limit {
                    more = true;
                    break;
                }
                chosen.push(Arc::clone(record));
            }
        }
        visited += VISITED_MAX;
        if !more && visited < view.len() {
            tokio::task::yield_now().await;
        }
    }
    let remaining = (more && everything).then(|| view.len() - chosen.len());
    cut(of, revision, chosen, more, remaining)
}

/// As [`page`], if objects must be decoded. They are selected in batches.
pub(crate) async fn page_by_object(
    of: PageRequest<'_>,
    view: ListView,
    served: &Served,
    selectors: &Selectors,
) -> Result<Page, Status> {
    let limit = if of.0.limit == 0 { usize::MAX } else { of.0.limit };
    let records: Vec<Arc<Record>> = view.iter().cloned().collect();
    let mut chosen: Vec<Arc<Record>> = Vec::new();
    for piece in pieces(&records) {
        let verdicts = choose::select(served, selectors, piece).await?;
        for (record, _) in piece.iter().zip(verdicts).filter(|(_, chosen)| *chosen) {
            if chosen.len() == limit {
                return Ok(cut(of, view.revision(), chosen, true, None));
            }
            chosen.push(Arc::clone(record));
        }
        tokio::task::yield_now().await;
    }
    Ok(cut(of, view.revision(), chosen, false, None))
}

/// A page of matching records. `more`: there are further records after them.
fn cut(
    (at, namespace): PageRequest<'_>,
    revision: u64,
    chosen: Vec<Arc<Record>>,
    more: bool,
    remaining: Option<usize>,
) -> Page {
    // An inconsistent remainder continues at the newest revision.
    let continue_token = match chosen.last().filter(|_| more) {
        Some(last) => {
            let key = last.key();
            let of = if namespace.is_some() { "" } else { &*key.namespace };
            Continue::after(revision as i64, of, &key.name, at.begun_s()).token()
        }
        None => String::new(),
    };
    Page { revision, continue_token, remaining, records: Records::Some(chosen) }
}

impl Page {
    /// The list's metadata. `open`: an empty `continue` is written, as upstream does for custom resources.
    pub fn metadata(&self, open: bool) -> Value {
        let mut meta = Map::new();
        meta.insert("resourceVersion".into(), self.revision.to_string().into());
        if open || !self.continue_token.is_empty() {
            meta.insert("continue".into(), self.continue_token.as_str().into());
        }
        if let Some(n) = self.remaining {
            meta.insert("remainingItemCount".into(), n.into());
        }
        meta.into()
    }
}

/// Splits records into batches of about [`PIECE_BYTES`].
fn pieces(mut records: &[Arc<Record>]) -> impl Iterator<Item = &[Arc<Record>]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let full = records.iter().position(|r| {
            bytes += r.len();
            bytes >= PIECE_BYTES
        });
        let (piece, rest) = records.split_at(full.map_or(records.len(), |at| at + 1));
        records = rest;
        Some(piece).filter(|p| !p.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use kelson_store::{Body, Key, RecordMeta, Resource, Store, StoreOptions, Write};

    use super::*;

    #[tokio::test]
    async fn a_piece_visits_a_bounded_number_of_records() {
        const COUNT: usize = VISITED_MAX + 10;
        let (store, resource) = (Store::in_memory(StoreOptions::default()), Resource::new("", "configmaps"));
        for n in 0..COUNT {
            let body = Body::locate(r#"{"metadata":{"resourceVersion":""}}"#).unwrap();
            store
                .commit(Write::create(Key::new(resource, "n", &format!("{n:06}")), body, RecordMeta::default()))
                .await
                .unwrap();
        }
        let all = |selectors| Records::All(store.list(resource, None, None, None), selectors);
        let mut none = Selectors::default();
        none.fields.0.push(kelson_meta::FieldRequirement {
            field: "metadata.name".into(),
            value: "none".into(),
            negated: false,
        });
        let few = all(none);
        let (records, next) = few.batch(0, PIECE_BYTES);
        assert_eq!((records.len(), next), (0, Some(VISITED_MAX)), "none of them matches");
        assert!(few.peek(0).is_none());
        let (records, next) = few.batch(VISITED_MAX, PIECE_BYTES);
        assert_eq!((records.len(), next), (0, None));
        // All records come once, whatever the size of the batches.
        let everything = all(Selectors::default());
        let (mut names, mut at) = (Vec::new(), Some(0));
        while let Some(from) = at {
            let (records, next) = everything.batch(from, 1000);
            names.extend(records.iter().map(|record| record.key().name.to_string()));
            at = next;
        }
        assert_eq!(names.len(), COUNT);
        assert!(names.is_sorted());
    }
}
