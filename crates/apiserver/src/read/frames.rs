//! Frames: the events of a watch as bytes. The plain JSON and protobuf frames are kept with the event, so they are made
//! once whatever the number of watchers; tables, partial metadata and converted versions are each watcher's own.
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use kelson_codec::Encoding;
use kelson_codec::proto;
use kelson_meta::Status;
use kelson_store::{Event, EventKind, Frame, Record};
use kelson_transport::{SharedObject, TakesObjects, WatchItem};
use serde_json::{Value, json};

use crate::catalog::record::{self, parse};
use crate::catalog::{ObjectSchema, Served};
use crate::read::table;
use crate::request::answer;
use crate::request::negotiate::{Accepted, View};
use crate::request::selectors::Selectors;
use crate::request::view::ViewOptions;

/// Marks the bookmark that ends a watch's initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// What stands in a frame around its object, about.
const FRAME_BYTES: usize = 40;

/// One event on its way to bytes.
pub enum Piece {
    /// Bytes that go out as they are.
    Frame(Bytes),
    /// A record whose bytes stand in the frame as they are stored.
    Plain(&'static str, Arc<Record>),
    /// A kind of event and an object in the stored form, still to be brought into the watcher's view.
    Object(&'static str, Value),
    /// A kind of event and an object that a watcher in this process shares with others.
    Shared(&'static str, SharedObject),
}

fn kind_of(event: &Event) -> &'static str {
    match event.kind {
        EventKind::Added => "ADDED",
        EventKind::Modified => "MODIFIED",
        EventKind::Deleted => "DELETED",
    }
}

/// The object as it was, at the revision that took it out of the watcher's sight.
fn left_view(event: &Event) -> Piece {
    let mut value = event.previous.as_ref().map(|p| parse(p)).unwrap_or_default();
    value["metadata"]["resourceVersion"] = event.revision.to_string().into();
    Piece::Object("DELETED", value)
}

/// Makes frames in one form.
pub struct Framer {
    served: Arc<Served>,
    accepted: Accepted,
    view: ViewOptions,
    columns_sent: bool,
    /// The watcher takes objects.
    shares: Option<TakesObjects>,
}

impl Framer {
    /// For one watch.
    pub fn new(served: Arc<Served>, accepted: Accepted, view: ViewOptions) -> Self {
        Self { served, accepted, view, columns_sent: false, shares: None }
    }

    /// For a watch of this process: objects that stand as they are stored, or of which metadata is shown, go as they are.
    pub fn sharing(mut self, wanted: Option<TakesObjects>) -> Self {
        let shown = matches!(self.accepted.view, View::Whole | View::Partial(_));
        let shares = shown && self.accepted.encoding == Encoding::Json && !self.served.converts();
        self.shares = wanted.filter(|_| shares);
        self
    }

    fn is_plain(&self, record: &Record) -> bool {
        self.accepted.view == View::Whole && self.served.is_plain(record)
    }

    /// A change, seen through the selectors; `None` when they hide it.
    pub fn event(&self, event: &Arc<Event>, selectors: &Selectors) -> Option<Piece> {
        if selectors.is_everything() {
            return self.as_it_is(event, kind_of(event));
        }
        let now = selectors.matches(&event.record);
        let before = event.previous.as_ref().is_some_and(|p| selectors.matches(p));
        self.seen(event, before, now)
    }

    /// A change of an object that was chosen `before`, and is chosen `now`; `None` when it is hidden.
    pub fn seen(&self, event: &Arc<Event>, before: bool, now: bool) -> Option<Piece> {
        let kind = kind_of(event);
        match (event.kind, before, now) {
            (EventKind::Added, _, true) | (EventKind::Modified, true, true) | (EventKind::Deleted, true, _) => {
                self.as_it_is(event, kind)
            }
            (EventKind::Modified, false, true) => self.of_record("ADDED", &event.record),
            (EventKind::Modified, true, false) => Some(left_view(event)),
            (EventKind::Deleted, false, true) if event.previous.is_none() => self.as_it_is(event, kind),
            _ => None,
        }
    }

    /// The event as it happened: in the plain forms its frame is made once for all watchers.
    fn as_it_is(&self, event: &Arc<Event>, kind: &'static str) -> Option<Piece> {
        if self.shares.is_some() {
            return self.of_record(kind, &event.record);
        }
        let slot = match self.accepted.encoding {
            Encoding::Json if self.is_plain(&event.record) => Frame::Json,
            Encoding::Protobuf if self.is_plain(&event.record) => Frame::Protobuf,
            _ => return self.of_record(kind, &event.record),
        };
        let served = &self.served;
        let frame = event.frame(slot, |event| match slot {
            Frame::Json => json_record_frame(kind, &event.record),
            _ => proto_record(served, kind, &event.record).unwrap_or_default(),
        });
        Some(Piece::Frame(frame)).filter(|f| !matches!(f, Piece::Frame(f) if f.is_empty()))
    }

    /// An event about a record that this watcher alone sees so: an initial one, or one that its selectors changed.
    pub fn of_record(&self, kind: &'static str, record: &Arc<Record>) -> Option<Piece> {
        if let Some(shared) = self.shared(record) {
            return Some(Piece::Shared(kind, shared));
        }
        match self.accepted.encoding {
            Encoding::Json if self.is_plain(record) => Some(Piece::Plain(kind, Arc::clone(record))),
            Encoding::Protobuf if self.is_plain(record) => proto_record(&self.served, kind, record).map(Piece::Frame),
            Encoding::Json
                if let View::Partial(version) = self.accepted.view
                    && (!self.served.works_as_served() || self.served.is_plain(record)) =>
            {
                match record::metadata(&record.bytes()) {
                    Some(metadata) => Some(Piece::Frame(partial_json_frame(kind, version, metadata))),
                    None => Some(Piece::Object(kind, parse(record))),
                }
            }
            _ => Some(Piece::Object(kind, parse(record))),
        }
    }

    /// The record for a watcher that takes objects; `None` for all others.
    fn shared(&self, record: &Record) -> Option<SharedObject> {
        let wanted = self.shares?;
        let bytes = if wanted.managed_fields { record.bytes() } else { record::without_managed_fields(record.bytes()) };
        match self.accepted.view {
            View::Whole => Some(SharedObject::new(bytes)),
            View::Partial(version) => {
                record::metadata(&bytes).map(|metadata| SharedObject::new(partial_json(version, metadata)))
            }
            _ => None,
        }
    }

    /// Some events for a watcher that takes objects.
    ///
    /// # Errors
    /// As [`Framer::bytes`].
    pub async fn items(&mut self, pieces: Vec<Piece>) -> Result<Vec<WatchItem>, Status> {
        let mut items = Vec::with_capacity(pieces.len());
        for piece in pieces {
            items.push(match piece {
                Piece::Shared(kind, object) => WatchItem::Object { kind, object },
                other => WatchItem::Frames(self.bytes(vec![other]).await?),
            });
        }
        Ok(items)
    }

    /// The bytes of some events. Objects that need it are converted together.
    ///
    /// # Errors
    /// For what cannot be converted or encoded.
    pub async fn bytes(&mut self, mut pieces: Vec<Piece>) -> Result<Bytes, Status> {
        if let [Piece::Frame(only)] = &mut pieces[..] {
            return Ok(std::mem::take(only));
        }
        let objects = pieces.iter_mut().filter_map(|p| match p {
            Piece::Object(_, value) => Some(value.take()),
            Piece::Frame(_) | Piece::Plain(..) | Piece::Shared(..) => None,
        });
        let objects: Vec<Value> = objects.collect();
        let versions: Vec<Value> = objects.iter().map(|o| o["metadata"]["resourceVersion"].clone()).collect();
        let items = match objects.is_empty() {
            true => Vec::new(),
            false => table::items(&self.served, self.accepted.view, &self.view, objects).await?,
        };
        let mut items = items.into_iter().zip(versions);
        let mut out = BytesMut::new();
        for piece in pieces {
            match piece {
                Piece::Frame(frame) => out.extend_from_slice(&frame),
                Piece::Plain(kind, record) => put_json_frame(kind, &mut out, |out| record.put(out)),
                // Only `items` has these.
                Piece::Shared(..) => {}
                Piece::Object(kind, _) => {
                    let Some((item, version)) = items.next() else { continue };
                    let value = self.viewed(item, version);
                    out.extend_from_slice(&self.value(kind, &value)?);
                }
            }
        }
        Ok(out.freeze())
    }

    /// An item as it stands in an event: a row is wrapped in a table, the first of which has the columns.
    fn viewed(&mut self, item: Value, version: Value) -> Value {
        let View::Table(table_version) = self.accepted.view else { return item };
        let columns = !std::mem::replace(&mut self.columns_sent, true);
        let mut table = table::table_head(&self.served, table_version, json!({"resourceVersion": version}), columns);
        table.insert("rows".into(), json!([item]));
        Value::Object(table)
    }

    /// A frame around a finished tree.
    fn value(&self, kind: &str, value: &Value) -> Result<Bytes, Status> {
        match self.accepted.encoding {
            Encoding::Json => Ok(json_frame(kind, &answer::compact(value))),
            // Negotiation gives no watch in it.
            Encoding::Yaml => Err(Status::not_acceptable(&["application/json"])),
            Encoding::Protobuf => {
                let ty = ObjectSchema::of_object(value).type_id();
                let ty = ty.ok_or_else(|| Status::not_acceptable(&["application/json"]))?;
                let document = proto::encode(ty, value).map_err(|e| Status::internal(e.to_string()))?;
                Ok(proto::watch_frame(kind, &document).into())
            }
        }
    }

    /// A bookmark at a revision.
    pub fn bookmark(&self, revision: u64, initial_end: bool) -> Option<Bytes> {
        let (kind, api_version) = match self.accepted.view {
            View::Partial(v) => ("PartialObjectMetadata", format!("meta.k8s.io/{v}")),
            _ => (self.served.gvk.kind.as_str(), self.served.api_version.clone()),
        };
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if initial_end {
            metadata["annotations"] = json!({INITIAL_EVENTS_END: "true"});
        }
        let value = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        let value = match self.accepted.view {
            View::Table(version) => {
                let row = json!({"cells": null, "object": value});
                let mut table =
                    table::table_head(&self.served, version, json!({"resourceVersion": revision.to_string()}), false);
                table.insert("rows".into(), json!([row]));
                Value::Object(table)
            }
            _ => value,
        };
        self.value("BOOKMARK", &value).ok()
    }

    /// An error event.
    ///
    /// # Errors
    /// 500 when even that cannot be encoded.
    pub fn error(&self, status: &Status) -> Result<Bytes, Status> {
        let value = serde_json::to_value(status).map_err(|e| Status::internal(e.to_string()))?;
        self.value("ERROR", &value)
    }
}

fn json_frame(kind: &str, object: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(object.len() + FRAME_BYTES);
    put_json_frame(kind, &mut out, |out| out.put_slice(object));
    out.freeze()
}

fn json_record_frame(kind: &str, record: &Record) -> Bytes {
    let mut out = BytesMut::with_capacity(record.len() + FRAME_BYTES);
    put_json_frame(kind, &mut out, |out| record.put(out));
    out.freeze()
}

fn put_json_frame(kind: &str, out: &mut BytesMut, object: impl FnOnce(&mut BytesMut)) {
    out.put_slice(b"{\"type\":\"");
    out.put_slice(kind.as_bytes());
    out.put_slice(b"\",\"object\":");
    object(out);
    out.put_slice(b"}\n");
}

/// Metadata alone, cut out of the object's JSON: no tree is made for those who watch nothing else.
fn partial_json_frame(kind: &str, version: &str, metadata: &str) -> Bytes {
    json_frame(kind, partial_json(version, metadata).as_bytes())
}

/// A `PartialObjectMetadata` with the JSON of an object's metadata.
pub fn partial_json(version: &str, metadata: &str) -> String {
    let head = r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/"#;
    [head, version, r#"","metadata":"#, metadata, "}"].concat()
}

fn proto_record(served: &Served, kind: &str, record: &Record) -> Option<Bytes> {
    match record::message(served, record) {
        Ok(message) => {
            let document = proto::wrap(&served.api_version, &served.gvk.kind, &message);
            Some(proto::watch_frame(kind, &document).into())
        }
        Err(error) => {
            tracing::error!(key = %record.key(), %error, "watch event cannot be encoded");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_store::{Body, Fields, Key, Labels, RecordMeta, Resource, Store, StoreOptions, Uid, Write};

    #[tokio::test]
    async fn metadata_cut_out_of_a_record_is_the_metadata_of_its_tree() {
        let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"metadata":"}\""},"name":"a","resourceVersion":""},"spec":{"template":{"metadata":{"name":"b"}}}}"#;
        let labels: [(&str, &str); 0] = [];
        let meta = RecordMeta {
            uid: Uid::new("u"),
            labels: Labels::new(labels),
            fields: Fields::default(),
            deleting: false,
            expires_at_s: 0,
        };
        let store = Store::in_memory(StoreOptions::default());
        let key = Key::new(Resource::new("", "pods"), "n", "a");
        let write = Write::create(key, Body::locate(json).unwrap(), meta);
        let record = store.commit(write).await.unwrap().record;
        let frame = partial_json_frame("ADDED", "v1", record::metadata(&record.bytes()).unwrap());
        let expected = json!({"type": "ADDED", "object": table::partial("v1", parse(&record))});
        assert_eq!(serde_json::from_slice::<Value>(&frame).unwrap(), expected);
        assert!(frame.ends_with(b"}\n"));
    }
}
