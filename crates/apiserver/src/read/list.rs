//! List: copies of stored bytes. A list is a header and a run of records, written in pieces as the client takes
//! them, so that memory does not grow with the list.
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{StreamExt as _, stream};
use http::StatusCode;
use kelson_codec::json::Indenter;
use kelson_codec::proto::ListEncoder;
use kelson_codec::{EncodeError, Encoding};
use kelson_meta::{Gvk, Status};
use kelson_store::Record;
use kelson_traces::{KeyValue, child};
use kelson_transport::TransportError;
use serde_json::{Value, json};

use crate::catalog::record;
use crate::catalog::{ObjectSchema, Served};
use crate::read::page::{PIECE_BYTES, Page, Records, page, page_by_object, pieces};
use crate::read::{choose, table};
use crate::request::answer::{self, Answer};
use crate::request::body::ApiBody;
use crate::request::negotiate::{Accepted, View};
use crate::request::selectors::Selectors;
use crate::request::version_param::ListAt;
use crate::request::view::ViewOptions;
use crate::shared::context::RequestContext;

/// Objects of a list that is built whole to be written as YAML.
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
    let found = child("cacher.GetList", || cx.traced_storage(served));
    let records = at.view(&cx.server.store, served, namespace).await?;
    found.event("watchCache fresh enough", Vec::new);
    found.event("Listed items from cache", || vec![KeyValue::number("count", records.len())]);
    let page = match choose::by_object(served, &selectors) {
        true => page_by_object((&at, namespace), records, served, &selectors).await?,
        false => page((&at, namespace), records, selectors),
    };
    // A list without a limit is filtered while it is sent.
    if let Records::Some(chosen) = &page.records {
        found.event("Filtered items", || vec![KeyValue::number("count", chosen.len())]);
    }
    drop(found);
    write(served, accepted, view, page).await
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
        Encoding::Json => {
            Ok(answer::answer(StatusCode::OK, content_type, json_stream(served, accepted, view, page).await?))
        }
        Encoding::Yaml => whole(served, accepted, view, &page).await,
    }
}

/// What stands before the first item of a list's JSON, and what behind the last, with fields in upstream's order.
fn around(served: &Served, view: View, page: &Page) -> (Vec<u8>, Vec<u8>) {
    let meta = page.metadata(is_open(served, view));
    let (mut list, items) = match view {
        View::Table(version) => (Value::Object(table::table_head(served, version, meta, true)), "rows"),
        _ => {
            let gvk = table::list_kind(served, view);
            (json!({"kind": gvk.kind, "apiVersion": gvk.api_version(), "metadata": meta}), "items")
        }
    };
    list[items] = json!([]);
    let mut head = answer::compact(&list);
    // Found nowhere but where it belongs: within a text no quote stands without a backslash.
    let empty = format!("\"{items}\":[]");
    let at = head.windows(empty.len()).position(|w| w == empty.as_bytes()).unwrap_or_default();
    let tail = head.split_off(at + empty.len() - 1);
    (head, tail)
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
    tail: Vec<u8>,
    /// Makes it indented.
    indenter: Option<Indenter>,
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
        } else if self.view == View::Whole
            && let Some(forms) = self.served.forms(&records).await?
        {
            for form in &forms {
                self.comma(&mut out);
                out.put_slice(form);
            }
        } else {
            let objects = self.served.working(&records).await?;
            for item in table::shown(&self.served, self.view, &self.options, objects).await? {
                self.comma(&mut out);
                let bytes = match self.view {
                    View::Table(_) => table::row_json(&item),
                    View::Whole | View::Partial(_) => kelson_codec::declared_json(&item),
                };
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
            out.extend_from_slice(&self.tail);
            self.done = true;
        }
        Ok(Some(match &mut self.indenter {
            Some(indenter) => {
                let mut indented = Vec::with_capacity(out.len() * 2);
                indenter.write(&out, &mut indented);
                indented.into()
            }
            None => out.freeze(),
        }))
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
async fn json_stream(
    served: &Arc<Served>,
    accepted: Accepted,
    options: ViewOptions,
    page: Page,
) -> Result<ApiBody, Status> {
    let view = accepted.view;
    let (pending, mut tail) = around(served, view, &page);
    if !accepted.pretty {
        tail.push(b'\n');
    }
    let said = if says_kind_once(served, view) { beginning(&served.gvk) } else { Vec::new() };
    let served = Arc::clone(served);
    let indenter = accepted.pretty.then(Indenter::default);
    let mut run = Run { served, view, options, page, next: 0, first: true, pending, said, tail, indenter, done: false };
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
            let each: Result<Vec<Bytes>, Status> =
                page.records.iter().map(|r| record::message(&served.storage_schema, r)).collect();
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
        let objects = served.working(piece).await?;
        for item in table::shown(served, view, options, objects).await? {
            let message = schema.message(&item).map_err(|e| match e {
                EncodeError::NoProtobuf => Status::not_acceptable(&["application/json", "application/yaml"]),
                other => Status::internal(other.to_string()),
            })?;
            messages.push(Bytes::from(message));
        }
    }
    Ok(messages)
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

/// A list built as one tree, to be written as YAML, which people read.
async fn whole(served: &Served, accepted: Accepted, view: ViewOptions, page: &Page) -> Result<Answer, Status> {
    let records: Vec<Arc<Record>> = page.records.iter().take(WHOLE_ITEMS_MAX + 1).cloned().collect();
    if records.len() > WHOLE_ITEMS_MAX {
        return Err(Status::bad_request(format!("more than {WHOLE_ITEMS_MAX} objects: ask for fewer with \"limit\"")));
    }
    let mut items = Vec::with_capacity(records.len());
    for piece in pieces(&records) {
        let objects = served.working(piece).await?;
        items.extend(table::shown(served, accepted.view, &view, objects).await?);
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
