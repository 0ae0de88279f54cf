//! A cache of responses from upstream resolvers. It is pure data; the time is a parameter.
//!
//! A response is cached for the smallest TTL of its records. A negative one (the name or the record type does not
//! exist) is cached for the negative TTL in its SOA record, and not at all without one (RFC 2308, section 5).
//! Truncated responses, failures, and responses to queries with EDNS options, which may be for one client only, are
//! not cached.
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::wire::{self, RecordAt, Section};

/// The maximum time in the cache, as in the cluster DNS that kubeadm installs (`cache 30`).
const KEPT_MAX: Duration = Duration::from_secs(30);
/// The maximum memory of the cache in bytes.
pub const CACHE_BYTES_MAX: usize = 4 << 20;
/// The maximum size of a cached response in bytes. UDP responses are smaller.
const ANSWER_BYTES_MAX: usize = 4096;
/// The memory of an entry besides its key and its bytes: map entries, reference counts and positions.
const ENTRY_BYTES: usize = 256;
/// The flags of a question that its answer depends on: recursion desired, and in the second byte authentic data and checking
/// disabled.
const FLAGS: [u8; 2] = [0b0000_0001, 0b0011_0000];

/// The key of a response: flags, EDNS, and the question in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// Returns the key of a query, or `None` if its responses are not cached.
    pub fn of(question: &[u8]) -> Option<Self> {
        let asked = wire::question(question)?;
        let is_query = question[2] & 0b1111_1000 == 0;
        let records = wire::records(question)?;
        let edns = match records.as_slice() {
            [] => 0,
            // Version 0 without options. The only flag requests DNSSEC records.
            [opt] if is_plain_edns(question, opt) => 1 + (question[opt.ttl_at + 2] >> 7),
            _ => return None,
        };
        let mut key = vec![question[2] & FLAGS[0], question[3] & FLAGS[1], edns];
        key.extend(question[asked].iter().map(u8::to_ascii_lowercase));
        is_query.then(|| Self(key.into()))
    }
}

fn is_plain_edns(question: &[u8], record: &RecordAt) -> bool {
    record.section == Section::Additional
        && record.kind == wire::OPT
        && record.data.is_empty()
        && question[record.ttl_at + 1] == 0
}

/// Whether a response is positive or negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// The response has records of the type.
    Positive,
    /// The name or the type does not exist.
    Negative,
}

#[derive(Debug)]
struct CachedAnswer {
    message: Vec<u8>,
    /// The positions of the TTLs.
    ttls: Vec<usize>,
    kind: AnswerKind,
    received: Instant,
    expires: Instant,
}

/// A cache of responses with limited memory. It returns a response with the ID and the spelling of the query and with
/// its remaining TTLs. When it is full, the entries that expire first make room. It has no lock and no clock: callers
/// synchronize it and pass in the time.
#[derive(Debug)]
pub struct Cache {
    entries: HashMap<Key, CachedAnswer>,
    by_expiry: BTreeSet<(Instant, Key)>,
    bytes: usize,
    bytes_max: usize,
}

impl Cache {
    /// Creates a cache for at most `bytes_max` bytes. Entries that expire first are replaced.
    pub fn new(bytes_max: usize) -> Self {
        Self { entries: HashMap::new(), by_expiry: BTreeSet::new(), bytes: 0, bytes_max }
    }

    /// Returns the response to a query, with its ID, its spelling of the name, and the remaining TTLs.
    pub fn get(&self, key: &Key, question: &[u8], now: Instant) -> Option<(Vec<u8>, AnswerKind)> {
        let entry = self.entries.get(key).filter(|entry| entry.expires > now)?;
        let mut message = entry.message.clone();
        message[..2].copy_from_slice(question.get(..2)?);
        let asked = wire::question(question)?;
        // Keys are equal, so both have the same length.
        message.get_mut(asked.clone())?.copy_from_slice(&question[asked]);
        let age = u32::try_from((now - entry.received).as_secs()).unwrap_or(u32::MAX);
        for &at in &entry.ttls {
            let left = wire::u32_at(&message, at)?.saturating_sub(age);
            message[at..at + 4].copy_from_slice(&left.to_be_bytes());
        }
        Some((message, entry.kind))
    }

    /// Caches the response to the query with this key, if caching is allowed.
    pub fn put(&mut self, key: Key, answer: &[u8], now: Instant) {
        while self.by_expiry.first().is_some_and(|(expires, _)| *expires <= now) {
            self.remove_first();
        }
        let Some(entry) = entry(answer, now) else { return };
        self.remove(&key);
        let size = size(&key, &entry);
        while self.bytes + size > self.bytes_max && !self.by_expiry.is_empty() {
            self.remove_first();
        }
        if self.bytes + size > self.bytes_max {
            return;
        }
        self.bytes += size;
        self.by_expiry.insert((entry.expires, key.clone()));
        self.entries.insert(key, entry);
    }

    fn remove_first(&mut self) {
        if let Some((_, key)) = self.by_expiry.first().cloned() {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= size(key, &entry);
            self.by_expiry.remove(&(entry.expires, key.clone()));
        }
    }

    /// Returns the number of entries, including expired ones.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

fn size(key: &Key, entry: &CachedAnswer) -> usize {
    ENTRY_BYTES + key.0.len() + entry.message.len() + entry.ttls.len() * size_of::<usize>()
}

/// Returns the cache entry for a response, or `None` if it must not be cached.
fn entry(answer: &[u8], now: Instant) -> Option<CachedAnswer> {
    let asked = wire::question(answer)?;
    let is_truncated = answer[2] & 0b10 != 0;
    if answer.len() > ANSWER_BYTES_MAX || is_truncated {
        return None;
    }
    let mut records = wire::records(answer)?;
    let extended_code = records.iter().find(|r| r.kind == wire::OPT).map_or(0, |opt| answer[opt.ttl_at]);
    records.retain(|record| record.kind != wire::OPT);
    let asked_kind = wire::u16_at(answer, asked.end - 4)?;
    let answers = |record: &&RecordAt| {
        record.section == Section::Answer && (record.kind == asked_kind || asked_kind == wire::ANY)
    };
    let kind = match (answer[3] & 0b1111, extended_code) {
        (wire::NO_ERROR, 0) if records.iter().any(|record| answers(&record)) => AnswerKind::Positive,
        (wire::NO_ERROR | wire::NX_DOMAIN, 0) => AnswerKind::Negative,
        _ => return None,
    };
    let mut message = answer.to_vec();
    if kind == AnswerKind::Negative {
        let soa = records.iter().find(|r| r.section == Section::Authority && r.kind == wire::SOA)?;
        // The minimum TTL is the last of five numbers after two names.
        let negative = wire::u32_at(answer, soa.data.end.checked_sub(4).filter(|at| soa.data.contains(at))?)?;
        let ttl = wire::u32_at(answer, soa.ttl_at)?.min(negative);
        message[soa.ttl_at..soa.ttl_at + 4].copy_from_slice(&ttl.to_be_bytes());
    }
    let ttls: Vec<usize> = records.iter().map(|record| record.ttl_at).collect();
    let seconds = ttls.iter().filter_map(|&at| wire::u32_at(&message, at)).min()?;
    // A TTL with the highest bit set counts as zero (RFC 2181, section 8).
    let seconds = if seconds > i32::MAX.unsigned_abs() { 0 } else { seconds };
    let kept = Duration::from_secs(seconds.into()).min(KEPT_MAX);
    (!kept.is_zero()).then(|| CachedAnswer { message, ttls, kind, received: now, expires: now + kept })
}

#[cfg(test)]
mod tests;
