//! Finds which of many ranges contain a key, without looking at each: they are sorted by their starts, each with the
//! maximum end up to it.

use bytes::Bytes;

use super::range::KeyRange;

/// Ranges, each with a value.
#[derive(Debug)]
pub struct Matcher<T> {
    rows: Vec<Row<T>>,
}

#[derive(Debug)]
struct Row<T> {
    range: KeyRange,
    of: T,
    /// No range up to this row contains a key from here on; `None` if one has no end.
    reach: Option<Bytes>,
}

impl<T> Matcher<T> {
    /// Creates a matcher of these ranges, in any order.
    pub fn new<'a>(ranges: impl Iterator<Item = (T, &'a KeyRange)>) -> Self {
        let row = |(of, range): (T, &KeyRange)| Row { range: range.clone(), of, reach: end(range) };
        let mut rows: Vec<Row<T>> = ranges.map(row).collect();
        rows.sort_by(|a, b| a.range.start().cmp(b.range.start()));
        for i in 1..rows.len() {
            let (before, row) = rows.split_at_mut(i);
            let (before, row) = (&before[i - 1].reach, &mut row[0].reach);
            // `None` is the farthest, though it sorts first.
            if before.is_none() || (row.is_some() && *row < *before) {
                row.clone_from(before);
            }
        }
        Self { rows }
    }

    /// Calls `found` for each range that contains the key.
    pub fn find(&self, key: &[u8], mut found: impl FnMut(&T)) {
        let to = self.rows.partition_point(|row| row.range.start().as_ref() <= key);
        for row in self.rows[..to].iter().rev() {
            if row.reach.as_ref().is_some_and(|reach| reach.as_ref() <= key) {
                return;
            }
            if row.range.contains(key) {
                found(&row.of);
            }
        }
    }
}

/// Returns the first key after a range.
fn end(range: &KeyRange) -> Option<Bytes> {
    match range {
        KeyRange::One(key) => Some([key.as_ref(), &[0]].concat().into()),
        KeyRange::Until(_, end) => Some(end.clone()),
        KeyRange::From(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_each_range_says() {
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        let until = |a, b| KeyRange::Until(bytes(a), bytes(b));
        let ranges = [
            until("/a/", "/a0"),
            until("/b/", "/b0"),
            KeyRange::One(bytes("/b/x")),
            until("/b/x", "/b/y"),
            until("/", "0"),
            KeyRange::From(bytes("/c")),
            until("/z", "/b"),
            until("/a/", "/a0"),
        ];
        for count in 0..=ranges.len() {
            let ranges = &ranges[..count];
            let matcher = Matcher::new((0_i64..).zip(ranges));
            for key in ["", "/", "/a", "/a/", "/a/k", "/a0", "/b/w", "/b/x", "/b/x1", "/b0", "/c", "/d", "/z", "1"] {
                let mut found = Vec::new();
                matcher.find(key.as_bytes(), |id| found.push(*id));
                found.sort_unstable();
                let holds = |(_, range): &(i64, &KeyRange)| range.contains(key.as_bytes());
                let wanted: Vec<i64> = (0..).zip(ranges).filter(holds).map(|(id, _)| id).collect();
                assert_eq!(found, wanted, "{key} in {ranges:?}");
            }
        }
    }
}
