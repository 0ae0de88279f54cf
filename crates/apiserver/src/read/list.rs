//! List: copies of stored bytes. A list is a header and a run of records, written in pieces as the client takes
//! them, so that memory does not grow with the list.
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::stream;
use http::StatusCode;
use kelson_codec::Encoding;
use kelson_codec::proto::ListEncoder;
use kelson_meta::Status;
use kelson_schema::Schema;
use kelson_store::{ListView, Record};
use kelson_transport::TransportError;
use serde_json::{Map, Value, json};

use crate::catalog::Served;
use crate::catalog::record::{self, parse};
use crate::read::table;
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
    let selectors = Selectors::new(served, &cx.query)?;
    let at = ListAt::new(&cx.query, cx.server.clock.now())?;
    let namespace = Some(cx.namespace(served)).filter(|n| !n.is_empty());
    let records = at.view(&cx.server.store, served, namespace).await?;
    let page = page(&at, records, selectors);
    write(served, accepted, view, page)
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

fn page(at: &ListAt, view: ListView, selectors: Selectors) -> Page {
    let revision = view.revision();
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
    // An inconsistent rest goes on at the newest revision.
    let continue_token = match chosen.last().filter(|_| more) {
        Some(last) => {
            let key = last.key();
            Continue::after(revision as i64, &key.namespace, &key.name, at.begun_s()).token()
        }
        None => String::new(),
    };
    let remaining = (more && everything).then(|| view.len() - chosen.len());
    Page { revision, continue_token, remaining, records: Records::Some(chosen) }
}

impl Page {
    fn metadata(&self) -> Value {
        let mut meta = Map::new();
        meta.insert("resourceVersion".into(), self.revision.to_string().into());
        if !self.continue_token.is_empty() {
            meta.insert("continue".into(), self.continue_token.as_str().into());
        }
        if let Some(n) = self.remaining {
            meta.insert("remainingItemCount".into(), n.into());
        }
        meta.into()
    }
}

fn write(served: &Arc<Served>, accepted: Accepted, view: ViewOptions, page: Page) -> Result<Answer, Status> {
    let content_type = accepted.content_type(false);
    match accepted.encoding {
        Encoding::Protobuf if matches!(accepted.view, View::Table(_)) => {
            Err(Status::not_acceptable(&["application/json"]))
        }
        Encoding::Protobuf => {
            let body = protobuf(served, accepted.view, &page)?;
            Ok(answer::answer(StatusCode::OK, content_type, body))
        }
        Encoding::Json if !accepted.pretty => {
            Ok(answer::answer(StatusCode::OK, content_type, json_stream(served, accepted.view, view, page)))
        }
        _ => whole(served, accepted, view, &page),
    }
}

/// What stands before the first item.
fn head(served: &Served, view: View, page: &Page) -> (Vec<u8>, &'static str) {
    let meta = page.metadata();
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

/// One item as JSON, appended.
fn item(served: &Served, view: View, options: &ViewOptions, record: &Record, out: &mut BytesMut) {
    let value = match view {
        View::Whole if !served.converts => {
            out.extend_from_slice(record.bytes());
            return;
        }
        View::Whole => record::to_served(served, parse(record)),
        View::Partial(version) => Ok(table::partial(version, parse(record))),
        View::Table(version) => table::row(served, options, version, parse(record)),
    };
    match value {
        // Writing to memory cannot fail.
        Ok(value) => drop(serde_json::to_writer(out.writer(), &value)),
        Err(error) => {
            tracing::error!(key = %record.key(), %error, "list item cannot be converted");
            out.extend_from_slice(b"null");
        }
    }
}

fn json_stream(served: &Arc<Served>, view: View, options: ViewOptions, page: Page) -> ApiBody {
    let (head, tail) = head(served, view, &page);
    struct Run {
        served: Arc<Served>,
        page: Page,
        next: usize,
        first: bool,
        pending: BytesMut,
        done: bool,
    }
    let run =
        Run { served: Arc::clone(served), page, next: 0, first: true, pending: BytesMut::from(&head[..]), done: false };
    ApiBody::stream(stream::unfold(run, move |mut run| async move {
        if run.done {
            return None;
        }
        let mut out = std::mem::take(&mut run.pending);
        out.reserve(PIECE_BYTES);
        let mut next = run.next;
        let mut first = run.first;
        let mut ended = true;
        for (after, record) in run.page.records.from(run.next) {
            if !std::mem::take(&mut first) {
                out.put_u8(b',');
            }
            item(&run.served, view, &options, record, &mut out);
            next = after;
            if out.len() >= PIECE_BYTES {
                ended = false;
                break;
            }
        }
        (run.next, run.first) = (next, first);
        if ended {
            out.extend_from_slice(tail.as_bytes());
            run.done = true;
        }
        Some((Ok::<Bytes, TransportError>(out.freeze()), run))
    }))
}

fn protobuf(served: &Served, view: View, page: &Page) -> Result<ApiBody, Status> {
    let gvk = table::list_kind(served, view);
    let no_proto = || Status::not_acceptable(&["application/json", "application/yaml"]);
    let (ty, items) = match view {
        View::Whole if !served.converts => {
            let items: Result<Vec<Bytes>, Status> = page.records.iter().map(|r| record::message(served, r)).collect();
            (served.list_ty, items?)
        }
        View::Whole => {
            let ty = served.ty.ok_or_else(no_proto)?;
            (served.list_ty, messages(ty, page, |r| record::to_served(served, parse(r)))?)
        }
        View::Partial(version) | View::Table(version) => {
            let schema = Schema::builtin();
            let ty = schema.by_gvk("meta.k8s.io", version, "PartialObjectMetadata").ok_or_else(no_proto)?;
            let list = schema.by_gvk("meta.k8s.io", version, "PartialObjectMetadataList");
            (list, messages(ty, page, |r| Ok(table::partial(version, parse(r))))?)
        }
    };
    let ty = ty.ok_or_else(no_proto)?;
    let lengths = items.iter().map(Bytes::len);
    let encoder =
        ListEncoder::new(ty, &gvk.api_version(), &gvk.kind, &page.metadata(), lengths).map_err(|_| no_proto())?;
    let mut parts = Vec::with_capacity(items.len() * 2 + 2);
    parts.push(Bytes::copy_from_slice(encoder.header()));
    for message in items {
        parts.push(Bytes::from(encoder.item_prefix(message.len())));
        parts.push(message);
    }
    parts.push(Bytes::from_static(&ListEncoder::TRAILER));
    Ok(coalesce(parts))
}

fn messages(
    ty: kelson_schema::TypeId,
    page: &Page,
    make: impl Fn(&Record) -> Result<Value, Status>,
) -> Result<Vec<Bytes>, Status> {
    let each = |r: &Arc<Record>| {
        let message =
            kelson_codec::proto::encode_message(ty, &make(r)?).map_err(|e| Status::internal(e.to_string()))?;
        Ok(Bytes::from(message))
    };
    page.records.iter().map(each).collect()
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
fn whole(served: &Served, accepted: Accepted, view: ViewOptions, page: &Page) -> Result<Answer, Status> {
    let mut items = Vec::new();
    for record in page.records.iter() {
        if items.len() == WHOLE_ITEMS_MAX {
            return Err(Status::bad_request(format!(
                "more than {WHOLE_ITEMS_MAX} objects: ask for fewer with \"limit\""
            )));
        }
        items.push(match accepted.view {
            View::Whole => record::to_served(served, parse(record))?,
            View::Partial(version) => table::partial(version, parse(record)),
            View::Table(version) => table::row(served, &view, version, parse(record))?,
        });
    }
    let value = match accepted.view {
        View::Table(version) => {
            let mut table = table::table_head(served, version, page.metadata(), true);
            table.insert("rows".into(), items.into());
            Value::Object(table)
        }
        other => {
            let gvk = table::list_kind(served, other);
            json!({"kind": gvk.kind, "apiVersion": gvk.api_version(), "metadata": page.metadata(), "items": items})
        }
    };
    answer::tree(StatusCode::OK, &accepted, None, value)
}
