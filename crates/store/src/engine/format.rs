//! The bytes in the engine: a record's row is numbered by its creation revision and holds its key, what is kept beside
//! the object, then the object's JSON as it is served. Marks hold the format, the store's identity, and what revisions need.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::{EngineError, Entry, Op};
use crate::key::{Key, Resource};
use crate::meta::{FieldNames, Fields, Labels, RecordMeta, Uid, pack, pack_number, take_bytes, take_number, take_text};
use crate::record::Record;

/// The format this version writes and reads.
pub(crate) const FORMAT: u64 = 1;

const DELETING: u8 = 1;

/// What the store remembers beside records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Format of the files.
    Format(u64),
    /// Made once, when the store is created.
    Identity(String),
    /// Revisions up to this one may have been given out by writes that a power cut took away.
    Reserved(u64),
    /// Where the store runs: the boot's identifier, or empty after a clean end.
    Running(String),
    /// Revision of the last deletion in a resource.
    Deleted(Resource, u64),
}

/// One stored key and value, decoded.
pub(crate) enum Stored {
    Record(Arc<Record>),
    Mark(Mark),
}

impl Mark {
    pub fn op(&self) -> Op {
        let mut value = Vec::new();
        let name = match self {
            Self::Format(format) => {
                pack_number(&mut value, *format);
                "format".to_owned()
            }
            Self::Identity(identity) => {
                pack(&mut value, identity);
                "identity".to_owned()
            }
            Self::Reserved(revision) => {
                pack_number(&mut value, *revision);
                "reserved".to_owned()
            }
            Self::Running(boot) => {
                pack(&mut value, boot);
                "running".to_owned()
            }
            Self::Deleted(resource, revision) => {
                pack_number(&mut value, *revision);
                format!("deleted/{resource}")
            }
        };
        Op::Mark { name, value }
    }

    fn decode(name: &str, mut value: &[u8]) -> Option<Self> {
        Some(match name {
            "format" => Self::Format(take_number(&mut value)?),
            "identity" => Self::Identity(take_text(&mut value)?.to_owned()),
            "reserved" => Self::Reserved(take_number(&mut value)?),
            "running" => Self::Running(take_text(&mut value)?.to_owned()),
            _ => Self::Deleted(Resource::parse(name.strip_prefix("deleted/")?), take_number(&mut value)?),
        })
    }
}

/// The change that stores a record.
pub(crate) fn put(record: &Record) -> Op {
    let meta = record.meta();
    let mut head = Vec::with_capacity(160 + meta.labels.0.len() + meta.fields.values.len() * 3);
    let key = record.key();
    pack(&mut head, key.resource.as_str());
    pack(&mut head, &key.namespace);
    pack(&mut head, &key.name);
    head.push(if meta.deleting { DELETING } else { 0 });
    pack_number(&mut head, record.create_revision());
    pack_number(&mut head, record.revision());
    pack_number(&mut head, u64::from(record.revision_at()));
    pack_number(&mut head, meta.expires_at_s);
    match &meta.uid {
        Uid::None => pack_number(&mut head, 0),
        Uid::Uuid(bytes) => {
            pack_number(&mut head, 1);
            head.extend_from_slice(bytes);
        }
        Uid::Other(text) => {
            pack_number(&mut head, 2);
            pack(&mut head, text);
        }
    }
    pack_number(&mut head, meta.labels.0.len() as u64);
    head.extend_from_slice(&meta.labels.0);
    pack_number(&mut head, meta.fields.names.len() as u64);
    for name in meta.fields.names.iter() {
        pack(&mut head, name);
    }
    pack_number(&mut head, meta.fields.values.len() as u64);
    head.extend_from_slice(&meta.fields.values);
    Op::Put { id: record.create_revision(), head, body: record.bytes().clone() }
}

/// The change that removes a record.
pub(crate) fn delete(record: &Record) -> Op {
    Op::Remove { id: record.create_revision() }
}

/// Decodes stored entries; keeps the last field names, which neighbouring records share.
#[derive(Default)]
pub(crate) struct Decoder {
    resource: Option<Resource>,
    namespace: Option<Arc<str>>,
    names: FieldNames,
}

impl Decoder {
    pub fn decode(&mut self, entry: Entry<'_>) -> Result<Stored, EngineError> {
        let (decoded, what) = match entry {
            Entry::Record { value } => (self.record(value).map(|record| Stored::Record(Arc::new(record))), "a record"),
            Entry::Mark { name, value } => (Mark::decode(name, value).map(Stored::Mark), name),
        };
        decoded.ok_or_else(|| EngineError::Corrupt {
            path: PathBuf::from("the store"),
            reason: format!("{} cannot be read", what.escape_debug()),
        })
    }

    fn record(&mut self, mut value: &[u8]) -> Option<Record> {
        let from = &mut value;
        let key = self.key(from)?;
        let (&flags, rest) = from.split_first()?;
        *from = rest;
        let create_revision = take_number(from)?;
        let revision = take_number(from)?;
        let revision_at = u32::try_from(take_number(from)?).ok()?;
        let expires_at_s = take_number(from)?;
        let uid = match take_number(from)? {
            0 => Uid::None,
            1 => {
                let (bytes, rest) = from.split_first_chunk::<16>()?;
                *from = rest;
                Uid::Uuid(*bytes)
            }
            2 => Uid::Other(take_text(from)?.into()),
            _ => return None,
        };
        let labels = Labels(take_bytes(from)?.into());
        let names = self.names(from)?;
        let fields = Fields { names, values: take_bytes(from)?.into() };
        let digits = revision.checked_ilog10().unwrap_or(0) as usize + 1;
        if (revision_at as usize).checked_add(digits)? > from.len() {
            return None;
        }
        let meta = RecordMeta { uid, labels, fields, deleting: flags & DELETING != 0, expires_at_s };
        Some(Record::new(key, Bytes::copy_from_slice(from), revision_at, revision, create_revision, meta))
    }

    fn key(&mut self, from: &mut &[u8]) -> Option<Key> {
        let (resource, namespace, name) = (take_text(from)?, take_text(from)?, take_text(from)?);
        let resource = match self.resource {
            Some(last) if last.as_str() == resource => last,
            _ => *self.resource.insert(Resource::parse(resource)),
        };
        let namespace = match &self.namespace {
            Some(last) if **last == *namespace => Arc::clone(last),
            _ => Arc::clone(self.namespace.insert(namespace.into())),
        };
        Some(Key { resource, namespace, name: name.into() })
    }

    fn names(&mut self, from: &mut &[u8]) -> Option<FieldNames> {
        let count = usize::try_from(take_number(from)?).ok()?;
        let mut texts = Vec::with_capacity(count.min(64));
        for _ in 0..count {
            texts.push(take_text(from)?);
        }
        if !self.names.iter().eq(texts.iter().copied()) {
            self.names = FieldNames::new(texts);
        }
        Some(self.names.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::Body;

    #[test]
    fn records_round_trip() {
        let names = FieldNames::new(["spec.nodeName", "status.phase"]);
        let meta = RecordMeta {
            uid: Uid::new("8f2c1f0e-6c1e-4b8a-9d8e-0123456789ab"),
            labels: Labels::new([("app", "web"), ("tier", "")]),
            fields: Fields::new(&names, ["n1", "Running"]),
            deleting: true,
            expires_at_s: 1_800_000_000,
        };
        let (bytes, at) = Body::locate(r#"{"metadata":{"resourceVersion":""}}"#).expect("body").splice(1234);
        for (namespace, uid) in [("default", meta.uid.clone()), ("", Uid::None), ("x", Uid::new("odd"))] {
            let key = Key::new(Resource::new("apps", "deployments"), namespace, "web");
            let meta = RecordMeta { uid, ..meta.clone() };
            let record = Record::new(key.clone(), bytes.clone(), at, 1234, 7, meta.clone());
            let Op::Put { id: 7, head, body } = put(&record) else { panic!("not a put of row 7") };
            let value = [head.as_slice(), &body].concat();
            let decode = |value| Decoder::default().decode(Entry::Record { value });
            let Ok(Stored::Record(back)) = decode(&value) else { panic!("not a record") };
            assert_eq!((back.key(), back.meta(), back.bytes()), (&key, &meta, &bytes));
            assert_eq!((back.revision(), back.create_revision()), (1234, 7));
            for cut in 0..head.len() {
                assert!(decode(&value[..cut]).is_err(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn marks_round_trip() {
        let marks = [
            Mark::Format(FORMAT),
            Mark::Identity("abc".into()),
            Mark::Reserved(u64::MAX),
            Mark::Running(String::new()),
            Mark::Deleted(Resource::new("apps", "deployments"), 300),
        ];
        for mark in marks {
            let Op::Mark { name, value } = mark.op() else { panic!("not a mark") };
            let entry = Entry::Mark { name: &name, value: &value };
            let Ok(Stored::Mark(back)) = Decoder::default().decode(entry) else { panic!("not a mark") };
            assert_eq!(back, mark);
        }
        assert!(Decoder::default().decode(Entry::Mark { name: "unknown", value: b"" }).is_err());
    }
}
