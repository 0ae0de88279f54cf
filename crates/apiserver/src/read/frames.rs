//! Frames: encodes the events of a watch. Plain JSON and protobuf frames are cached in the event, so that they are encoded once for all
//! watchers. Tables, partial metadata and converted versions are encoded for each watcher.
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use kelson_codec::Encoding;
use kelson_codec::proto;
use kelson_meta::Status;
use kelson_store::{Event, EventKind, Frame, Record};
use kelson_transport::{SharedObject, TakesObjects, WatchItem};
use serde_json::{Value, json};

use crate::catalog::record;
use crate::catalog::{ObjectSchema, Served};
use crate::read::partial::PartialMessages;
use crate::read::table;
use crate::request::answer;
use crate::request::negotiate::{Accepted, View};
use crate::request::selectors::Selectors;
use crate::request::view::ViewOptions;

/// Annotation of the bookmark that ends a watch's initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Approximate bytes of a frame around its object.
const FRAME_BYTES: usize = 40;

/// Bytes of frames that are copied into one chunk for one watcher. A larger frame is a chunk by itself, which all watchers share, so that
/// many watchers that are behind hold little each.
const CHUNK_BYTES: usize = 8 * 1024;

/// One event before it is encoded.
pub enum Piece {
    /// An encoded frame.
    Frame(Bytes),
    /// An event whose frame is the same for all watchers, and is made when it is sent.
    Event(&'static str, Arc<Event>, Frame),
    /// A record whose stored bytes go into the frame unchanged.
    Plain(&'static str, Arc<Record>),
    /// A record to be converted to the watcher's view, and the revision of the event if it differs from the record's.
    Viewed(&'static str, Arc<Record>, Option<u64>),
    /// An event type and an object that watchers in this process share.
    Shared(&'static str, SharedObject),
}

fn event_type(event: &Event) -> &'static str {
    match event.kind {
        EventKind::Added => "ADDED",
        EventKind::Modified => "MODIFIED",
        EventKind::Deleted => "DELETED",
    }
}

/// A DELETED event for an object that no longer matches: its old state at the revision of the change.
fn left_view(event: &Event) -> Option<Piece> {
    Some(Piece::Viewed("DELETED", Arc::clone(event.previous.as_ref()?), Some(event.revision)))
}

/// Makes the frames of one watch in the encoding and view that its client accepts. It turns events of the store into [`Piece`]s, which
/// it encodes in batches, so that objects that must be converted are converted together. Frames that are the same for all watchers come
/// from the cache in the event.
pub struct Framer {
    served: Arc<Served>,
    accepted: Accepted,
    view: ViewOptions,
    columns_sent: bool,
    /// Set for a watcher in this process that takes objects instead of frames.
    shares: Option<TakesObjects>,
}

impl Framer {
    /// Creates the framer of one watch.
    pub fn new(served: Arc<Served>, accepted: Accepted, view: ViewOptions) -> Self {
        Self { served, accepted, view, columns_sent: false, shares: None }
    }

    /// Passes objects instead of frames to a watcher in this process, if it gets whole objects as they are stored, or metadata.
    pub fn sharing(mut self, wanted: Option<TakesObjects>) -> Self {
        let shown = matches!(self.accepted.view, View::Whole | View::Partial(_));
        let shares = shown && self.accepted.encoding == Encoding::Json && !self.served.converts();
        self.shares = wanted.filter(|_| shares);
        self
    }

    fn is_plain(&self, record: &Record) -> bool {
        self.accepted.view == View::Whole && self.served.is_plain(record)
    }

    /// The piece of a change as the selectors see it; `None` if they hide it.
    pub fn event(&self, event: &Arc<Event>, selectors: &Selectors) -> Option<Piece> {
        if selectors.is_everything() {
            return self.unfiltered(event, event_type(event));
        }
        let now = selectors.matches(&event.record);
        let before = event.previous.as_ref().is_some_and(|p| selectors.matches(p));
        self.transition(event, before, now)
    }

    /// The piece of a change of an object that matched `before` and matches `now`; `None` if it is hidden.
    pub fn transition(&self, event: &Arc<Event>, before: bool, now: bool) -> Option<Piece> {
        let kind = event_type(event);
        match (event.kind, before, now) {
            (EventKind::Added, _, true) | (EventKind::Modified, true, true) | (EventKind::Deleted, true, _) => {
                self.unfiltered(event, kind)
            }
            (EventKind::Modified, false, true) => self.record_event("ADDED", &event.record),
            (EventKind::Modified, true, false) => left_view(event),
            (EventKind::Deleted, false, true) if event.previous.is_none() => self.unfiltered(event, kind),
            _ => None,
        }
    }

    /// The event as it happened. Plain frames are cached for all watchers.
    fn unfiltered(&self, event: &Arc<Event>, kind: &'static str) -> Option<Piece> {
        if self.shares.is_some() {
            return self.record_event(kind, &event.record);
        }
        let slot = match self.accepted.encoding {
            Encoding::Json if self.is_plain(&event.record) => Frame::Json,
            Encoding::Protobuf if self.is_plain(&event.record) => Frame::Protobuf,
            _ => return self.record_event(kind, &event.record),
        };
        Some(Piece::Event(kind, Arc::clone(event), slot))
    }

    /// The frame of an event that is the same for all watchers. It is made once and cached. Empty if it cannot be encoded.
    fn shared_frame(&self, kind: &str, event: &Arc<Event>, slot: Frame) -> Bytes {
        event.frame(slot, |event| match slot {
            Frame::Json => json_record_frame(kind, &event.record),
            _ => proto_record(&self.served, kind, &event.record).unwrap_or_default(),
        })
    }

    /// An event that only this watcher gets: an initial event, or one whose type the selectors changed.
    pub fn record_event(&self, kind: &'static str, record: &Arc<Record>) -> Option<Piece> {
        if let Some(shared) = self.shared(record) {
            return Some(Piece::Shared(kind, shared));
        }
        match self.accepted.encoding {
            Encoding::Json if self.is_plain(record) => Some(Piece::Plain(kind, Arc::clone(record))),
            Encoding::Protobuf if self.is_plain(record) => proto_record(&self.served, kind, record).map(Piece::Frame),
            Encoding::Json
                if let View::Partial(version) = self.accepted.view
                    && self.served.has_metadata_of(record) =>
            {
                match partial_json_frame(kind, version, record) {
                    Some(frame) => Some(Piece::Frame(frame)),
                    None => Some(Piece::Viewed(kind, Arc::clone(record), None)),
                }
            }
            Encoding::Protobuf
                if let View::Partial(version) = self.accepted.view
                    && self.served.has_metadata_of(record) =>
            {
                match partial_proto_frame(&self.served, kind, version, record) {
                    Ok(frame) => Some(Piece::Frame(frame)),
                    Err(_) => Some(Piece::Viewed(kind, Arc::clone(record), None)),
                }
            }
            _ => Some(Piece::Viewed(kind, Arc::clone(record), None)),
        }
    }

    /// The record for a watcher that takes objects; `None` for others.
    fn shared(&self, record: &Record) -> Option<SharedObject> {
        let wanted = self.shares?;
        let (bytes, metadata) = match self.accepted.view {
            View::Whole if wanted.managed_fields => (record.bytes(), None),
            View::Whole => record.bytes_with_metadata(),
            View::Partial(version) => {
                let mut out = BytesMut::new();
                let metadata = table::put_partial_json(version, record, &mut out)?;
                (out.freeze(), Some(metadata))
            }
            View::Table(_) => return None,
        };
        Some(SharedObject::new(match wanted.managed_fields {
            true => bytes,
            false => record::without_managed_fields(bytes, metadata),
        }))
    }

    /// The items of some events for a watcher that takes objects.
    ///
    /// # Errors
    /// See [`Framer::chunk`].
    pub async fn items(&mut self, mut pieces: VecDeque<Piece>) -> Result<Vec<WatchItem>, Status> {
        let mut items = Vec::with_capacity(pieces.len());
        while let Some(piece) = pieces.pop_front() {
            match piece {
                Piece::Shared(kind, object) => items.push(WatchItem::Object { kind, object }),
                other => {
                    pieces.push_front(other);
                    items.push(WatchItem::Frames(self.chunk(&mut pieces).await?));
                }
            }
        }
        Ok(items)
    }

    /// Takes the pieces of the next chunk and returns its bytes: one large frame, which is not copied, or small ones up to
    /// [`CHUNK_BYTES`]. Objects are converted together.
    ///
    /// # Errors
    /// An object cannot be converted or encoded.
    pub async fn chunk(&mut self, pieces: &mut VecDeque<Piece>) -> Result<Bytes, Status> {
        self.convert(pieces).await?;
        let mut out = BytesMut::new();
        while let Some(piece) = pieces.pop_front() {
            let frame = match piece {
                Piece::Frame(frame) => frame,
                Piece::Event(kind, event, slot) => self.shared_frame(kind, &event, slot),
                Piece::Plain(kind, record) => json_record_frame(kind, &record),
                // `convert` replaced the former, and only `items` gets the latter.
                Piece::Viewed(..) | Piece::Shared(..) => continue,
            };
            let is_last = pieces.is_empty() || matches!(pieces.front(), Some(Piece::Shared(..)));
            if out.is_empty() && (is_last && !frame.is_empty() || frame.len() >= CHUNK_BYTES) {
                return Ok(frame);
            }
            if !out.is_empty() && out.len() + frame.len() > CHUNK_BYTES {
                pieces.push_front(Piece::Frame(frame));
                break;
            }
            out.extend_from_slice(&frame);
            if is_last {
                break;
            }
        }
        Ok(out.freeze())
    }

    /// Replaces the records that must be converted to the watcher's view by their frames.
    async fn convert(&mut self, pieces: &mut VecDeque<Piece>) -> Result<(), Status> {
        let mut frames = self.viewed_frames(pieces).await?.into_iter();
        for piece in pieces.iter_mut().filter(|piece| matches!(piece, Piece::Viewed(..))) {
            *piece = Piece::Frame(frames.next().unwrap_or_default());
        }
        Ok(())
    }

    /// The frames of the records that must be converted to the watcher's view.
    async fn viewed_frames(&mut self, pieces: &VecDeque<Piece>) -> Result<Vec<Bytes>, Status> {
        let viewed = pieces.iter().filter_map(|piece| match piece {
            Piece::Viewed(kind, record, revision) => Some((*kind, record, *revision)),
            Piece::Frame(_) | Piece::Event(..) | Piece::Plain(..) | Piece::Shared(..) => None,
        });
        let viewed: Vec<_> = viewed.collect();
        if viewed.is_empty() {
            return Ok(Vec::new());
        }
        let records: Vec<Arc<Record>> = viewed.iter().map(|(_, record, _)| Arc::clone(record)).collect();
        let as_kept = self.accepted.view == View::Whole && self.accepted.encoding == Encoding::Json;
        if as_kept
            && viewed.iter().all(|(.., revision)| revision.is_none())
            && let Some(forms) = self.served.forms(&records).await?
        {
            return Ok(viewed.iter().zip(&forms).map(|((kind, ..), form)| json_frame(kind, form)).collect());
        }
        let mut objects = self.served.working(&records).await?;
        for ((.., revision), object) in viewed.iter().zip(&mut objects) {
            if let Some(revision) = revision {
                object["metadata"]["resourceVersion"] = revision.to_string().into();
            }
        }
        let versions: Vec<Value> = objects.iter().map(|o| o["metadata"]["resourceVersion"].clone()).collect();
        let items = table::working_items(&self.served, self.accepted.view, &self.view, objects).await?;
        let mut frames = Vec::with_capacity(items.len());
        for (((kind, ..), item), version) in viewed.iter().zip(items).zip(versions) {
            let value = self.viewed(item, version);
            frames.push(self.frame(kind, &value)?);
        }
        Ok(frames)
    }

    /// The object of an event. A row is wrapped in a table; only the first table has column definitions.
    fn viewed(&mut self, item: Value, version: Value) -> Value {
        let View::Table(table_version) = self.accepted.view else { return item };
        let columns = !std::mem::replace(&mut self.columns_sent, true);
        let mut table = table::table_head(&self.served, table_version, json!({"resourceVersion": version}), columns);
        table.insert("rows".into(), Value::Array(vec![item]));
        Value::Object(table)
    }

    /// A frame with a tree.
    fn frame(&self, kind: &str, value: &Value) -> Result<Bytes, Status> {
        match self.accepted.encoding {
            Encoding::Json => Ok(json_frame(kind, &answer::compact(value))),
            // Negotiation does not offer YAML for watches.
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
                table.insert("rows".into(), Value::Array(vec![row]));
                Value::Object(table)
            }
            _ => value,
        };
        self.frame("BOOKMARK", &value).ok()
    }

    /// A frame with an error event.
    ///
    /// # Errors
    /// 500 if the error cannot be encoded.
    pub fn error(&self, status: &Status) -> Result<Bytes, Status> {
        let value = serde_json::to_value(status).map_err(|e| Status::internal(e.to_string()))?;
        self.frame("ERROR", &value)
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

/// A frame with metadata that is cut from the object's JSON, so that nothing is decoded for watchers of metadata. `None` for bytes
/// that are no object.
fn partial_json_frame(kind: &str, version: &str, record: &Record) -> Option<Bytes> {
    let (mut out, mut found) = (BytesMut::new(), false);
    put_json_frame(kind, &mut out, |out| found = table::put_partial_json(version, record, out).is_some());
    found.then(|| out.freeze())
}

/// A frame with metadata that is cut from the object's bytes, as [`partial_json_frame`].
fn partial_proto_frame(served: &Served, kind: &str, version: &str, record: &Record) -> Result<Bytes, Status> {
    let mut message = BytesMut::new();
    PartialMessages::new(served, version)?.put(record, &mut message)?;
    let document = proto::wrap(&format!("meta.k8s.io/{version}"), "PartialObjectMetadata", &message);
    Ok(proto::watch_frame(kind, &document).into())
}

fn proto_record(served: &Served, kind: &str, record: &Record) -> Option<Bytes> {
    match record::message(&served.storage_schema, record) {
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
        let frame = partial_json_frame("ADDED", "v1", &record).unwrap();
        let expected = json!({"type": "ADDED", "object": table::partial("v1", record::parse(&record))});
        assert_eq!(serde_json::from_slice::<Value>(&frame).unwrap(), expected);
        assert!(frame.ends_with(b"}\n"));
        let served = crate::catalog::Catalog::builtin().find("", "v1", "pods").unwrap();
        let frame = partial_proto_frame(&served, "ADDED", "v1", &record).unwrap();
        let object = table::partial("v1", record::parse(&record));
        let document = proto::encode(ObjectSchema::of_object(&object).type_id().unwrap(), &object).unwrap();
        assert_eq!(frame, proto::watch_frame("ADDED", &document));
        // What follows the metadata is not looked at: here it is no JSON.
        let broken = Body::locate([&json[..json.find(",\"spec\"").unwrap()], "]]"].concat()).unwrap();
        let key = Key::new(Resource::new("", "pods"), "n", "b");
        let write = Write::create(key, broken, RecordMeta::default());
        let record = store.commit(write).await.unwrap().record;
        let frame = partial_json_frame("ADDED", "v1", &record).unwrap();
        let seen: Value = serde_json::from_slice(&frame).unwrap();
        assert_eq!(seen["object"]["metadata"]["resourceVersion"], record.revision().to_string());
    }
}
