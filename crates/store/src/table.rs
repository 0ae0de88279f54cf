//! The ordered table of one resource's records: sorted chunks behind shared pointers. A reader takes a consistent snapshot in constant
//! time, and a later write copies only the chunk that it changes. The table costs eight bytes per record.

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as Memory};

use crate::key::RecordName;
use crate::record::Record;

/// The most records in a chunk. A full chunk is split.
const CHUNK_MAX: usize = 128;
/// A chunk with fewer records than this is joined with a neighbour if both fit into one.
const CHUNK_MIN: usize = 32;

type Chunk = Arc<Vec<Arc<Record>>>;

/// A position between records: the number of the chunk and the index in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Position {
    chunk: usize,
    index: usize,
}

/// Records in the order of namespace and name. A clone is a snapshot and costs one reference count.
#[derive(Clone, Default)]
pub(crate) struct Table {
    chunks: Arc<Vec<Chunk>>,
    len: usize,
    version: u64,
}

/// Returns a version that no table of this process has had.
fn next_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Memory::Relaxed) + 1
}

impl Table {
    pub fn len(&self) -> usize {
        self.len
    }

    /// The table's version. Two tables of this process with the same version hold the same records; 0 is the version of a table that
    /// never held a record.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn get(&self, place: RecordName<'_>) -> Option<&Arc<Record>> {
        let at = self.partition(|record| record.key().cmp_place(place) == Ordering::Less);
        let record = self.chunks.get(at.chunk)?.get(at.index)?;
        (record.key().cmp_place(place) == Ordering::Equal).then_some(record)
    }

    /// The index at which a record is or would be, and whether it is there.
    pub fn find(&self, place: RecordName<'_>) -> (usize, bool) {
        let at = self.partition(|record| record.key().cmp_place(place) == Ordering::Less);
        (self.rank(at), self.get(place).is_some())
    }

    /// Stores a record under its key and returns the previous record.
    pub fn put(&mut self, record: Arc<Record>) -> Option<Arc<Record>> {
        let key = record.key();
        let place = RecordName { namespace: &key.namespace, name: &key.name };
        let at = self.partition(|r| r.key().cmp_place(place) == Ordering::Less);
        let same = self
            .chunks
            .get(at.chunk)
            .and_then(|chunk| chunk.get(at.index))
            .is_some_and(|found| found.key().cmp_place(place) == Ordering::Equal);
        self.version = next_version();
        let chunks = Arc::make_mut(&mut self.chunks);
        if same {
            let chunk = Arc::make_mut(&mut chunks[at.chunk]);
            return Some(std::mem::replace(&mut chunk[at.index], record));
        }
        self.len += 1;
        insert(chunks, at, record);
        None
    }

    /// Removes a record and returns it.
    pub fn remove(&mut self, place: RecordName<'_>) -> Option<Arc<Record>> {
        self.get(place)?;
        self.version = next_version();
        let at = self.partition(|record| record.key().cmp_place(place) == Ordering::Less);
        let chunks = Arc::make_mut(&mut self.chunks);
        let removed = Arc::make_mut(&mut chunks[at.chunk]).remove(at.index);
        self.len -= 1;
        shrink(chunks, at.chunk);
        Some(removed)
    }

    /// The range of indexes of the records in a namespace (or in all), after `after` if it is given.
    pub fn range(&self, namespace: Option<&str>, after: Option<RecordName<'_>>) -> std::ops::Range<usize> {
        let (mut start, mut end) = (0, self.len);
        if let Some(namespace) = namespace {
            let lowest = RecordName { namespace, name: "" };
            start = self.rank(self.partition(|r| r.key().cmp_place(lowest) == Ordering::Less));
            end = self.rank(
                self.partition(|r| r.key().cmp_place(lowest) == Ordering::Less || *r.key().namespace == *namespace),
            );
        }
        if let Some(after) = after {
            start = start.max(self.rank(self.partition(|r| r.key().cmp_place(after) != Ordering::Greater)));
        }
        start..end.max(start)
    }

    /// The records from the index `rank` on, in order.
    pub fn iter_from(&self, rank: usize) -> impl Iterator<Item = &Arc<Record>> {
        let at = self.at_rank(rank);
        let first = self.chunks.get(at.chunk).map_or(&[][..], |chunk| &chunk[at.index..]);
        let rest = self.chunks.get(at.chunk + 1..).unwrap_or_default();
        first.iter().chain(rest.iter().flat_map(|chunk| chunk.iter()))
    }

    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.iter_from(0)
    }

    /// The first position whose record does not satisfy `before`. The predicate must be true exactly for a prefix of the table.
    fn partition(&self, before: impl Fn(&Record) -> bool) -> Position {
        let chunk = self.chunks.partition_point(|chunk| chunk.last().is_some_and(|last| before(last)));
        let index = self.chunks.get(chunk).map_or(0, |chunk| chunk.partition_point(|record| before(record)));
        Position { chunk, index }
    }

    fn rank(&self, at: Position) -> usize {
        self.chunks[..at.chunk].iter().map(|chunk| chunk.len()).sum::<usize>() + at.index
    }

    fn at_rank(&self, mut rank: usize) -> Position {
        for (chunk, records) in self.chunks.iter().enumerate() {
            if rank < records.len() {
                return Position { chunk, index: rank };
            }
            rank -= records.len();
        }
        Position { chunk: self.chunks.len(), index: 0 }
    }
}

/// Inserts a record. Records that arrive in ascending order leave full chunks behind.
fn insert(chunks: &mut Vec<Chunk>, at: Position, record: Arc<Record>) {
    if at.chunk == chunks.len() {
        match chunks.last_mut() {
            Some(last) if last.len() < CHUNK_MAX => Arc::make_mut(last).push(record),
            _ => {
                let mut chunk = Vec::with_capacity(4);
                chunk.push(record);
                chunks.push(Arc::new(chunk));
            }
        }
        return;
    }
    let chunk = Arc::make_mut(&mut chunks[at.chunk]);
    chunk.insert(at.index, record);
    if chunk.len() > CHUNK_MAX {
        let upper = chunk.split_off(chunk.len() / 2);
        chunk.shrink_to_fit();
        chunks.insert(at.chunk + 1, Arc::new(upper));
    }
}

/// Removes an empty chunk, or joins a small one with its neighbour.
fn shrink(chunks: &mut Vec<Chunk>, at: usize) {
    let len = chunks[at].len();
    if len == 0 {
        chunks.remove(at);
        return;
    }
    if len >= CHUNK_MIN {
        return;
    }
    let left = if at + 1 < chunks.len() { at } else { at.saturating_sub(1) };
    if left + 1 < chunks.len() && chunks[left].len() + chunks[left + 1].len() <= CHUNK_MAX * 3 / 4 {
        let right = chunks.remove(left + 1);
        Arc::make_mut(&mut chunks[left]).extend(right.iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::key::{Key, Resource};
    use crate::meta::RecordMeta;

    fn record(namespace: &str, name: &str) -> Arc<Record> {
        let key = Key::new(Resource::parse("things"), namespace, name);
        Arc::new(Record::new(key, bytes::Bytes::from_static(b"1"), 0, 1, 1, RecordMeta::default()))
    }

    #[test]
    fn behaves_as_a_sorted_map() {
        let mut random = StdRng::seed_from_u64(7);
        let (mut table, mut model) = (Table::default(), BTreeMap::new());
        for round in 0..20_000 {
            let (ns, name) = (format!("n{}", random.random_range(0..4)), format!("o{}", random.random_range(0..900)));
            let grow = (round / 4000) % 2 == 0;
            if random.random_bool(if grow { 0.8 } else { 0.2 }) {
                let old = table.put(record(&ns, &name));
                assert_eq!(old.is_some(), model.insert(format!("{ns}/{name}"), ()).is_some());
            } else {
                let old = table.remove(RecordName { namespace: &ns, name: &name });
                assert_eq!(old.is_some(), model.remove(&format!("{ns}/{name}")).is_some());
            }
            if round % 500 == 0 {
                let ours: Vec<_> = table.iter().map(|r| format!("{}/{}", r.key().namespace, r.key().name)).collect();
                assert_eq!(ours, model.keys().cloned().collect::<Vec<_>>());
                assert_eq!(table.len(), model.len());
                let after = format!("n2/{name}");
                let range = table.range(Some("n2"), Some(RecordName { namespace: "n2", name: &name }));
                let expected = model.keys().filter(|k| k.starts_with("n2/") && **k > after).count();
                assert_eq!(range.len(), expected);
                let first = table.iter_from(range.start).next().map(|r| r.key().name.to_string());
                let expected = model.keys().find(|k| **k > after).map(|k| k[3..].to_owned());
                assert_eq!(first, expected);
            }
        }
    }

    #[test]
    fn a_snapshot_stays_as_it_was() {
        let mut table = Table::default();
        for i in 0..1000 {
            table.put(record("a", &format!("{i:04}")));
        }
        let snapshot = table.clone();
        for i in 0..1000 {
            table.remove(RecordName { namespace: "a", name: &format!("{i:04}") });
        }
        assert_eq!((table.len(), snapshot.len(), snapshot.iter().count()), (0, 1000, 1000));
        assert!(table.iter().next().is_none());
    }

    #[test]
    fn every_change_makes_a_new_version() {
        let (mut one, mut other) = (Table::default(), Table::default());
        assert_eq!(one.version(), other.version(), "both are empty");
        let mut seen = std::collections::BTreeSet::from([one.version()]);
        for table in [&mut one, &mut other] {
            table.put(record("a", "x"));
            assert!(seen.insert(table.version()), "made");
            table.put(record("a", "x"));
            assert!(seen.insert(table.version()), "replaced");
            let before = table.version();
            assert!(table.remove(RecordName { namespace: "a", name: "y" }).is_none());
            assert_eq!((table.version(), table.clone().version()), (before, before), "nothing has changed");
            table.remove(RecordName { namespace: "a", name: "x" });
            assert!(seen.insert(table.version()), "removed");
        }
    }
}
