//! List: copies of stored bytes. A list is a header and a run of records, written in pieces as the client takes
//! them, so that memory does not grow with the list.
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{StreamExt as _, stream};
use http::StatusCode;
use kelson_codec::proto::ListEncoder;
use kelson_codec::{EncodeError, Encoding};
use kelson_meta::{Gvk, Status};
use kelson_store::{ListView, Record};
use kelson_traces::{KeyValue, child};
use kelson_transport::TransportError;
use serde_json::{Map, Value, json};

use crate::catalog::record::{self, parse};
use crate::catalog::{ObjectSchema, Served};
use crate::read::{choose, table};
use crate::request::answer::{self, Answer};
use crate::request::body::ApiBody;
use crate::request::negotiate::{Accepted, View};
use crate::request::selectors::Selectors;
use crate::request::version_param::{Continue, ListAt};
use crate::request::view::ViewOptions;
use crate::shared::context::RequestContext;

/// Bytes gathered before a piece of a list is handed to the connection.
const PIECE_BYTES: usize = 64 * 1024;
/// Objects of a table that is built whole to be written as YAML.
const WHOLE_ITEMS_MAX: usize = 50_000;

/// Lists objects.
///
/// # Errors
/// 400, 406, 410, 504.
pub async fn list(cx: &RequestContext, served: &Arc<Served>) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let view = cx.view()?;
    let selectors = Selectors::new(served, &cx.selectors)?;
    let at = ListAt::new(&cx.query, cx.server.clock.now())?;
    let namespace = Some(cx.namespace(served)).filter(|n| !n.is_empty());
    let found = child("cacher.GetList", || vec![KeyValue::text("type", served.gr.to_string())]);
    let records = at.view(&cx.server.store, served, namespace).await?;
    let page = match choose::by_object(served, &selectors) {
        true => page_by_object((&at, namespace), records, served, &selectors).await?,
        false => page((&at, namespace), records, selectors),
    };
    drop(found);
    write(served, accepted, view, page).await
}

/// The records of one answer.
struct Page {
    revision: u64,
    continue_token: String,
    remaining: Option<usize>,
    records: Records,
}

enum Records {
    /// The chosen ones.
    Some(Vec<Arc<Record>>),
    /// A whole view, filtered on the way.
    All(ListView, Selectors),
}

impl Records {
    /// The records from position `from` of the underlying run on, and the position after each.
    fn from(&self, from: usize) -> Box<dyn Iterator<Item = (usize, &Arc<Record>)> + '_> {
        match self {
            Self::Some(list) => Box::new(list.iter().enumerate().skip(from).map(|(i, r)| (i + 1, r))),
            Self::All(view, selectors) => {
                let everything = selectors.is_everything();
                let run = view.iter_from(from).enumerate().map(move |(i, r)| (from + i + 1, r));
                Box::new(run.filter(move |(_, r)| everything || selectors.matches(r)))
            }
        }
    }
    fn iter(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.from(0).map(|(_, r)| r)
    }
}

/// What was asked for, and the namespace where it is one.
type PageRequest<'a> = (&'a ListAt, Option<&'a str>);

fn page(of: PageRequest<'_>, view: ListView, selectors: Selectors) -> Page {
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
    let mut more = false;
    for record in view.iter().filter(|r| everything || selectors.matches(r)) {
        if chosen.len() == at.limit {
            more = true;
            break;
        }
        chosen.push(Arc::clone(record));
    }
    let remaining = (more && everything).then(|| view.len() - chosen.len());
    cut(of, revision, chosen, more, remaining)
}

/// The same where objects must be looked at: a piece of them after the other.
async fn page_by_object(
    of: PageRequest<'_>,
    view: ListView,
    served: &Served,
    selectors: &Selectors,
) -> Result<Page, Status> {
    let limit = if of.0.limit == 0 { usize::MAX } else { of.0.limit };
    let records: Vec<Arc<Record>> = view.iter().cloned().collect();
    let mut chosen: Vec<Arc<Record>> = Vec::new();
    for piece in pieces(&records) {
        let verdicts = choose::chosen(served, selectors, piece).await?;
        for (record, _) in piece.iter().zip(verdicts).filter(|(_, chosen)| *chosen) {
            if chosen.len() == limit {
                return Ok(cut(of, view.revision(), chosen, true, None));
            }
            chosen.push(Arc::clone(record));
        }
    }
    Ok(cut(of, view.revision(), chosen, false, None))
}

/// A page of chosen records, behind which there may be more.
fn cut(
    (at, namespace): PageRequest<'_>,
    revision: u64,
    chosen: Vec<Arc<Record>>,
    more: bool,
    remaining: Option<usize>,
) -> Page {
    // An inconsistent rest goes on at the newest revision.
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
    /// `open`: lists of kinds that users define say that there is no more, upstream's as well.
    fn metadata(&self, open: bool) -> Value {
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

async fn write(served: &Arc<Served>, accepted: Accepted, view: ViewOptions, page: Page) -> Result<Answer, Status> {
    let content_type = accepted.content_type(false);
    match accepted.encoding {
        Encoding::Protobuf if matches!(accepted.view, View::Table(_)) => {
            Err(Status::not_acceptable(&["application/json"]))
        }
        Encoding::Protobuf => {
            let body = protobuf(served, accepted.view, &view, &page).await?;
            Ok(answer::answer(StatusCode::OK, content_type, body))
        }
        Encoding::Json if !accepted.pretty => {
            Ok(answer::answer(StatusCode::OK, content_type, json_stream(served, accepted.view, view, page).await?))
        }
        _ => whole(served, accepted, view, &page).await,
    }
}

/// What stands before the first item.
fn head(served: &Served, view: View, page: &Page) -> (Vec<u8>, &'static str) {
    let meta = page.metadata(is_open(served, view));
    if let View::Table(version) = view {
        let table = table::table_head(served, version, meta, true);
        let mut bytes = serde_json::to_vec(&Value::Object(table)).unwrap_or_default();
        bytes.pop();
        bytes.extend_from_slice(b",\"rows\":[");
        return (bytes, "]}\n");
    }
    let gvk = table::list_kind(served, view);
    let head =
        format!("{{\"kind\":{:?},\"apiVersion\":{:?},\"metadata\":{meta},\"items\":[", gvk.kind, gvk.api_version());
    (head.into_bytes(), "]}\n")
}

/// A list that is written in pieces: what is left to write, and how.
struct Run {
    served: Arc<Served>,
    view: View,
    options: ViewOptions,
    page: Page,
    /// Position in the page of the next record.
    next: usize,
    /// Nothing was written yet.
    first: bool,
    /// What stands before the next record.
    pending: Vec<u8>,
    /// What built-in objects begin with and say in lists no more, since the list says it: `{"kind":…,"apiVersion":…,`.
    said: Vec<u8>,
    tail: &'static str,
    done: bool,
}

impl Run {
    /// The records of the next piece, about [`PIECE_BYTES`] of them, and whether they are the last.
    fn records(&mut self) -> (Vec<Arc<Record>>, bool) {
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
        self.next = next;
        (records, ended)
    }

    /// The next piece as JSON; `None` behind the last.
    async fn piece(&mut self) -> Result<Option<Bytes>, Status> {
        if self.done {
            return Ok(None);
        }
        let (records, ended) = self.records();
        let mut out = BytesMut::from(&std::mem::take(&mut self.pending)[..]);
        out.reserve(PIECE_BYTES + PIECE_BYTES / 4);
        if self.view == View::Whole && records.iter().all(|r| self.served.is_plain(r)) {
            for record in &records {
                self.comma(&mut out);
                record.put_after(&self.said, b"{", &mut out);
            }
        } else {
            let objects = records.iter().map(|r| parse(r)).collect();
            for item in table::items(&self.served, self.view, &self.options, objects).await? {
                self.comma(&mut out);
                let bytes = kelson_codec::declared_json(&item);
                match bytes.strip_prefix(&self.said[..]).filter(|_| !self.said.is_empty()) {
                    Some(rest) => {
                        out.put_u8(b'{');
                        out.put_slice(rest);
                    }
                    None => out.put_slice(&bytes),
                }
            }
        }
        if ended {
            out.extend_from_slice(self.tail.as_bytes());
            self.done = true;
        }
        Ok(Some(out.freeze()))
    }

    fn comma(&mut self, out: &mut BytesMut) {
        if !std::mem::take(&mut self.first) {
            out.put_u8(b',');
        }
    }
}

/// Whether a list is one of objects that have no type here, as they are.
fn is_open(served: &Served, view: View) -> bool {
    view == View::Whole && served.schema.type_id().is_none()
}

/// Whether the objects of a list leave out what kind they are: those of built-in kinds as they are do, upstream as well.
fn says_kind_once(served: &Served, view: View) -> bool {
    view == View::Whole && served.schema.type_id().is_some()
}

/// The beginning of every built-in object of a kind.
fn beginning(gvk: &Gvk) -> Vec<u8> {
    format!("{{\"kind\":{:?},\"apiVersion\":{:?},", gvk.kind, gvk.api_version()).into_bytes()
}

/// The first piece is made before the answer begins, so that a kind that cannot be converted is a refusal. When a later
/// piece cannot be made, the body breaks off: no client takes what it has for the whole list.
async fn json_stream(served: &Arc<Served>, view: View, options: ViewOptions, page: Page) -> Result<ApiBody, Status> {
    let (pending, tail) = head(served, view, &page);
    let said = if says_kind_once(served, view) { beginning(&served.gvk) } else { Vec::new() };
    let served = Arc::clone(served);
    let mut run = Run { served, view, options, page, next: 0, first: true, pending, said, tail, done: false };
    let begin = run.piece().await?;
    if run.done {
        return Ok(ApiBody::parts(begin));
    }
    let rest = stream::unfold(run, |mut run| async move {
        match run.piece().await {
            Ok(piece) => piece.map(|piece| (Ok(piece), run)),
            Err(error) => {
                tracing::error!(resource = %run.served.gr, %error, "a list breaks off: an object cannot be converted");
                run.done = true;
                Some((Err(TransportError::new(error)), run))
            }
        }
    });
    Ok(ApiBody::stream(stream::iter(begin.map(Ok::<Bytes, TransportError>)).chain(rest)))
}

async fn protobuf(served: &Served, view: View, options: &ViewOptions, page: &Page) -> Result<ApiBody, Status> {
    let gvk = table::list_kind(served, view);
    let no_proto = || Status::not_acceptable(&["application/json", "application/yaml"]);
    let (list, messages) = match view {
        View::Whole if !served.converts() => {
            let each: Result<Vec<Bytes>, Status> = page.records.iter().map(|r| record::message(served, r)).collect();
            (served.list_schema.clone(), each?)
        }
        View::Whole => (served.list_schema.clone(), messages(served, &served.schema, view, options, page).await?),
        View::Partial(version) | View::Table(version) => {
            let one = ObjectSchema::partial(version, false);
            (ObjectSchema::partial(version, true), messages(served, &one, view, options, page).await?)
        }
    };
    let ty = list.type_id().ok_or_else(no_proto)?;
    let lengths = messages.iter().map(Bytes::len);
    let encoder =
        ListEncoder::new(ty, &gvk.api_version(), &gvk.kind, &page.metadata(false), lengths).map_err(|_| no_proto())?;
    let mut parts = Vec::with_capacity(messages.len() * 2 + 2);
    parts.push(Bytes::copy_from_slice(encoder.header()));
    for message in messages {
        parts.push(Bytes::from(encoder.item_prefix(message.len())));
        parts.push(message);
    }
    parts.push(Bytes::from_static(&ListEncoder::TRAILER));
    Ok(coalesce(parts))
}

/// The items as protobuf messages, converted a piece at a time.
async fn messages(
    served: &Served,
    schema: &ObjectSchema,
    view: View,
    options: &ViewOptions,
    page: &Page,
) -> Result<Vec<Bytes>, Status> {
    let records: Vec<Arc<Record>> = page.records.iter().cloned().collect();
    let mut messages = Vec::with_capacity(records.len());
    for piece in pieces(&records) {
        let objects = piece.iter().map(|r| parse(r)).collect();
        for item in table::items(served, view, options, objects).await? {
            let message = schema.message(&item).map_err(|e| match e {
                EncodeError::NoProtobuf => Status::not_acceptable(&["application/json", "application/yaml"]),
                other => Status::internal(other.to_string()),
            })?;
            messages.push(Bytes::from(message));
        }
    }
    Ok(messages)
}

/// Runs of records of about [`PIECE_BYTES`] each.
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

/// Gathers many small parts into pieces as they are taken.
fn coalesce(parts: Vec<Bytes>) -> ApiBody {
    ApiBody::stream(stream::unfold(parts.into_iter(), |mut parts| async move {
        let mut out = BytesMut::with_capacity(PIECE_BYTES + PIECE_BYTES / 4);
        while out.len() < PIECE_BYTES {
            match parts.next() {
                Some(part) => out.extend_from_slice(&part),
                None if out.is_empty() => return None,
                None => break,
            }
        }
        Some((Ok::<Bytes, TransportError>(out.freeze()), parts))
    }))
}

/// A list built as one tree: YAML and indented JSON, which people read.
async fn whole(served: &Served, accepted: Accepted, view: ViewOptions, page: &Page) -> Result<Answer, Status> {
    let records: Vec<Arc<Record>> = page.records.iter().take(WHOLE_ITEMS_MAX + 1).cloned().collect();
    if records.len() > WHOLE_ITEMS_MAX {
        return Err(Status::bad_request(format!("more than {WHOLE_ITEMS_MAX} objects: ask for fewer with \"limit\"")));
    }
    let mut items = Vec::with_capacity(records.len());
    for piece in pieces(&records) {
        let objects = piece.iter().map(|r| parse(r)).collect();
        items.extend(table::items(served, accepted.view, &view, objects).await?);
    }
    if says_kind_once(served, accepted.view) {
        for item in items.iter_mut().filter_map(Value::as_object_mut) {
            item.remove("kind");
            item.remove("apiVersion");
        }
    }
    let value = match accepted.view {
        View::Table(version) => {
            let mut table = table::table_head(served, version, page.metadata(false), true);
            table.insert("rows".into(), items.into());
            Value::Object(table)
        }
        other => {
            let (gvk, meta) = (table::list_kind(served, other), page.metadata(is_open(served, other)));
            json!({"kind": gvk.kind, "apiVersion": gvk.api_version(), "metadata": meta, "items": items})
        }
    };
    answer::tree(StatusCode::OK, &accepted, &ObjectSchema::Open, value)
}
