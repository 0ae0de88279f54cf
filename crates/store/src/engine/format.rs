//! The encoding of records and marks in the engine. A record's row is numbered by its creation revision and holds its key, its metadata
//! and its JSON as it is served. Marks hold the format, the store's identity, and bounds on revisions. Each row and each mark begins
//! with a checksum over its number or name and its bytes, so that damaged data is never served. Of an encrypted record only the key
//! and the revisions are unencrypted.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use kelson_meta::Interner;

use super::{EngineError, Entry, Op, UNNAMED};
use crate::at_rest::{AtRest, SealError, Writer};
use crate::key::{Key, Resource};
use crate::meta::{FieldNames, Fields, Labels, RecordMeta, Uid, pack, pack_number, take_bytes, take_number, take_text};
use crate::record::Record;

/// The format that this version writes. A version that changes it can read all formats down to [`FORMAT_UNCHECKED`], and rejects
/// newer ones.
pub const FORMAT: u64 = 2;
/// The oldest format that this version reads, which has no checksums. It rewrites the records of such a store.
pub const FORMAT_UNCHECKED: u64 = 1;

const DELETING: u8 = 1;
/// The flag of a record whose content after the revisions is encrypted.
const SEALED: u8 = 2;
/// The first byte of a value with a checksum. No value of the older format that is longer than one byte begins with it.
const CHECKED: u8 = 0;
const CHECKSUM_BYTES: usize = 4;

/// The checksum (CRC-32) of a value and its number or name.
fn checksum(name: &[u8], parts: &[&[u8]]) -> [u8; CHECKSUM_BYTES] {
    let mut crc = crc32fast::Hasher::new();
    crc.update(name);
    parts.iter().for_each(|part| crc.update(part));
    crc.finalize().to_le_bytes()
}

/// Returns the value after its checksum, or `None` if the checksum does not match. In the older format a value may have no checksum.
fn checked<'a>(name: &[u8], value: &'a [u8], format: u64) -> Option<&'a [u8]> {
    let rest = match value.split_first_chunk::<1>() {
        Some((&[CHECKED], rest)) if !rest.is_empty() => rest,
        _ => return (format == FORMAT_UNCHECKED).then_some(value),
    };
    let (sum, rest) = rest.split_first_chunk::<CHECKSUM_BYTES>()?;
    (*sum == checksum(name, &[rest])).then_some(rest)
}

/// An error for damaged content of an engine. The caller adds the file's path.
pub(crate) fn damaged(reason: String) -> EngineError {
    EngineError::Corrupt { path: PathBuf::from(UNNAMED), reason }
}

/// The named values that the store keeps beside the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The format of the files.
    Format(u64),
    /// The store's identity, assigned at its creation.
    Identity(String),
    /// The revision up to which revisions may have been assigned to writes that a power cut lost.
    Reserved(u64),
    /// The identifier of the boot in which the store is open, or empty after a clean close.
    Running(String),
    /// The revision of the last deletion in a resource.
    Deleted(Resource, u64),
}

/// One decoded entry.
pub(crate) enum Stored {
    Record(Arc<Record>, Writer),
    /// Name and revision of a record that cannot be decrypted now, and why.
    Locked(Key, u64, SealError),
    Mark(Mark),
}

/// The decodable part of an entry.
pub(crate) enum StoredHead {
    Whole(Stored),
    /// The key and the revision of an encrypted record, when there is no decryption.
    Encrypted(Key, u64),
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
        let mut whole = vec![CHECKED];
        whole.extend_from_slice(&checksum(name.as_bytes(), &[&value]));
        whole.append(&mut value);
        Op::Mark { name, value: whole }
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

/// The operation that stores a record, encrypted if its resource is configured so, and the writer of its bytes.
///
/// # Errors
/// Returns an error if the record must be encrypted and cannot be.
pub(crate) fn put(record: &Record, at_rest: Option<&dyn AtRest>) -> Result<(Op, Writer), SealError> {
    let meta = record.meta();
    let key = record.key();
    let mut about = Vec::with_capacity(160 + meta.labels.0.len() + meta.fields.values.len() * 3);
    beside(meta, &mut about);
    let sealed = match at_rest.filter(|at_rest| at_rest.writer(key.resource) != Some(Writer::CLEAR)) {
        Some(at_rest) => at_rest.seal(key, &[&about, &record.bytes()[..]].concat())?,
        None => None,
    };
    let mut head = Vec::with_capacity(160 + about.len());
    head.resize(1 + CHECKSUM_BYTES, CHECKED);
    pack(&mut head, key.resource.as_str());
    pack(&mut head, &key.namespace);
    pack(&mut head, &key.name);
    head.push(if meta.deleting { DELETING } else { 0 } | if sealed.is_some() { SEALED } else { 0 });
    pack_number(&mut head, record.create_revision());
    pack_number(&mut head, record.revision());
    pack_number(&mut head, u64::from(record.revision_at()));
    pack_number(&mut head, meta.expires_at_s);
    let (body, writer) = match sealed {
        None => {
            head.append(&mut about);
            (record.bytes(), Writer::CLEAR)
        }
        Some(sealed) => (Bytes::from(sealed.bytes), sealed.writer),
    };
    let id = record.create_revision();
    let sum = checksum(&id.to_le_bytes(), &[&head[1 + CHECKSUM_BYTES..], &body]);
    head[1..=CHECKSUM_BYTES].copy_from_slice(&sum);
    Ok((Op::Put { id, head, body }, writer))
}

/// Appends a record's metadata.
fn beside(meta: &RecordMeta, into: &mut Vec<u8>) {
    match &meta.uid {
        Uid::None => pack_number(into, 0),
        Uid::Uuid(bytes) => {
            pack_number(into, 1);
            into.extend_from_slice(bytes);
        }
        Uid::Other(text) => {
            pack_number(into, 2);
            pack(into, text);
        }
    }
    pack_number(into, meta.labels.0.len() as u64);
    into.extend_from_slice(&meta.labels.0);
    pack_number(into, meta.fields.names.len() as u64);
    for name in meta.fields.names.iter() {
        pack(into, name);
    }
    pack_number(into, meta.fields.values.len() as u64);
    into.extend_from_slice(&meta.fields.values);
}

/// The operation that removes a record.
pub(crate) fn delete(record: &Record) -> Op {
    Op::Remove { id: record.create_revision() }
}

/// Decodes entries. Values that neighbouring records have in common are shared.
pub(crate) struct Decoder<'a> {
    /// The format from the format mark, which is the first entry.
    format: u64,
    at_rest: Option<&'a dyn AtRest>,
    resource: Option<Resource>,
    namespace: Option<Arc<str>>,
    names: FieldNames,
    labels: Interner<[u8]>,
    /// Resources of which a record could not be decrypted for now.
    locked: HashMap<Resource, SealError>,
}

impl<'a> Decoder<'a> {
    pub fn new(at_rest: Option<&'a dyn AtRest>) -> Self {
        Self {
            format: FORMAT_UNCHECKED,
            at_rest,
            resource: None,
            namespace: None,
            names: FieldNames::default(),
            labels: Interner::default(),
            locked: HashMap::new(),
        }
    }

    /// A decoder of rows without the mark that says which format they have.
    pub fn of_format(at_rest: Option<&'a dyn AtRest>, format: u64) -> Self {
        Self { format, ..Self::new(at_rest) }
    }

    /// The resources of which a record could not be decrypted because a key service was not available. It is not asked for the others.
    pub fn into_locked(self) -> HashMap<Resource, SealError> {
        self.locked
    }

    /// Decodes an entry, decrypted where it is encrypted.
    pub fn decode(&mut self, entry: Entry<'_>) -> Result<Stored, EngineError> {
        match self.look(entry)? {
            StoredHead::Whole(stored) => Ok(stored),
            StoredHead::Encrypted(key, _) => Err(EngineError::Sealed {
                key: key.to_string(),
                reason: "it is encrypted, and no --encryption-provider-config is given".to_owned(),
            }),
        }
    }

    /// Decodes an entry as far as possible: of an encrypted record, without decryption, only the key and the revision.
    pub fn look(&mut self, entry: Entry<'_>) -> Result<StoredHead, EngineError> {
        match entry {
            Entry::Record { id, value } => {
                let unreadable = |why: &str| damaged(format!("record {id} {why}{}", name_of(value)));
                let value = checked(&id.to_le_bytes(), value, self.format)
                    .ok_or_else(|| unreadable("is damaged: checksum mismatch"))?;
                let mut from = value;
                let head = self.head(&mut from).ok_or_else(|| unreadable("cannot be decoded"))?;
                let Some(at_rest) = self.at_rest.filter(|_| head.flags & SEALED != 0) else {
                    if head.flags & SEALED != 0 {
                        return Ok(StoredHead::Encrypted(head.key, head.revision));
                    }
                    if self.at_rest.is_some_and(|at_rest| !at_rest.reads_clear(head.key.resource)) {
                        let reason = "it is not encrypted, and the configuration has no identity provider for it";
                        return Err(EngineError::Sealed { key: head.key.to_string(), reason: reason.to_owned() });
                    }
                    let record = self.plain(head, from).ok_or_else(|| unreadable("cannot be decoded"))?;
                    return Ok(StoredHead::Whole(Stored::Record(Arc::new(record), Writer::CLEAR)));
                };
                if let Some(why) = self.locked.get(&head.key.resource) {
                    let why = why.clone();
                    return Ok(StoredHead::Whole(Stored::Locked(head.key, head.revision, why)));
                }
                let opened = match at_rest.open(&head.key, from) {
                    Ok(opened) => opened,
                    Err(why @ SealError::Unavailable(_)) => {
                        self.locked.insert(head.key.resource, why.clone());
                        return Ok(StoredHead::Whole(Stored::Locked(head.key, head.revision, why)));
                    }
                    Err(SealError::Invalid(reason)) => {
                        return Err(EngineError::Sealed { key: head.key.to_string(), reason });
                    }
                };
                let record = self.plain(head, &opened.plain).ok_or_else(|| unreadable("cannot be read"))?;
                Ok(StoredHead::Whole(Stored::Record(Arc::new(record), opened.writer)))
            }
            Entry::Mark { name, value } => {
                let mark = checked(name.as_bytes(), value, self.format).and_then(|value| Mark::decode(name, value));
                if let Some(Mark::Format(format)) = mark {
                    self.format = format;
                }
                mark.map(|mark| StoredHead::Whole(Stored::Mark(mark)))
                    .ok_or_else(|| damaged(format!("{} cannot be decoded", name.escape_debug())))
            }
        }
    }

    /// Decodes the unencrypted part of a record.
    fn head(&mut self, from: &mut &[u8]) -> Option<Head> {
        let key = self.key(from)?;
        let (&flags, rest) = from.split_first()?;
        *from = rest;
        let create_revision = take_number(from)?;
        let revision = take_number(from)?;
        let revision_at = u32::try_from(take_number(from)?).ok()?;
        let expires_at_s = take_number(from)?;
        Some(Head { key, flags, create_revision, revision, revision_at, expires_at_s })
    }

    /// Decodes the rest of a record.
    fn plain(&mut self, head: Head, mut value: &[u8]) -> Option<Record> {
        let Head { key, flags, create_revision, revision, revision_at, expires_at_s } = head;
        let from = &mut value;
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
        let labels = match take_bytes(from)? {
            [] => Labels::default(),
            labels => Labels(self.labels.share(labels)),
        };
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

/// The part of a record that is never encrypted.
struct Head {
    key: Key,
    flags: u8,
    create_revision: u64,
    revision: u64,
    revision_at: u32,
    expires_at_s: u64,
}

/// The key in a row whose checksum does not match. It is used in error messages only.
fn name_of(value: &[u8]) -> String {
    let mut from =
        if value.first() == Some(&CHECKED) { value.get(1 + CHECKSUM_BYTES..).unwrap_or_default() } else { value };
    let mut part = || take_text(&mut from).filter(|text| text.len() <= 256).map(|text| text.escape_debug().to_string());
    match (part(), part(), part()) {
        (Some(resource), Some(namespace), Some(name)) => format!(", perhaps {resource} {namespace}/{name}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::Body;

    fn checked_only() -> Decoder<'static> {
        Decoder { format: FORMAT, ..Decoder::new(None) }
    }

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
            let Ok((Op::Put { id: 7, head, body }, Writer::CLEAR)) = put(&record, None) else {
                panic!("not a put of row 7")
            };
            let value = [head.as_slice(), &body].concat();
            fn decode(value: &[u8]) -> Result<Stored, EngineError> {
                checked_only().decode(Entry::Record { id: 7, value })
            }
            let Ok(Stored::Record(back, Writer::CLEAR)) = decode(&value) else { panic!("not a record") };
            assert_eq!((back.key(), back.meta(), back.bytes()), (&key, &meta, bytes.clone()));
            assert_eq!((back.revision(), back.create_revision()), (1234, 7));
            for cut in 1..value.len() {
                assert!(decode(&value[..cut]).is_err(), "cut at {cut}");
            }
            for bit in 0..value.len() * 8 {
                let mut flipped = value.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(decode(&flipped).is_err(), "bit {bit} flipped");
            }
            assert!(checked_only().decode(Entry::Record { id: 8, value: &value }).is_err(), "under another number");
            let older = &value[1 + CHECKSUM_BYTES..];
            assert!(decode(older).is_err());
            let older = Decoder::new(None).decode(Entry::Record { id: 7, value: older });
            assert!(matches!(older, Ok(Stored::Record(..))), "rows of format 1 have no checksum");
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
            let Ok(Stored::Mark(back)) = checked_only().decode(entry) else { panic!("not a mark") };
            assert_eq!(back, mark);
            for bit in 0..value.len() * 8 {
                let mut flipped = value.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(checked_only().decode(Entry::Mark { name: &name, value: &flipped }).is_err());
            }
            let older = Entry::Mark { name: &name, value: &value[1 + CHECKSUM_BYTES..] };
            let Ok(Stored::Mark(back)) = Decoder::new(None).decode(older) else { panic!("not a mark of format 1") };
            assert_eq!(back, mark);
        }
        assert!(Decoder::new(None).decode(Entry::Mark { name: "unknown", value: b"" }).is_err());
    }
}
