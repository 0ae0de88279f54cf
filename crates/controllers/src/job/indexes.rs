//! Sets of completion indexes as sorted intervals, with their string form in a job's status and success policy:
//! `1,3-5,7`.
use std::fmt;

/// The first and the last index, inclusive.
type Interval = (u32, u32);

/// A set of indexes. Its intervals are sorted and neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes(Vec<Interval>);

impl Indexes {
    /// Parses the string form. Indexes from `completions` on are dropped, since a job that was scaled down no longer
    /// has them. Invalid parts are ignored.
    pub fn parse(text: &str, completions: u32) -> Self {
        let mut all = Self::default();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) else { continue };
            if first >= completions {
                break;
            }
            all.add((first, last.min(completions - 1)));
        }
        all
    }

    /// Returns the union with `sorted`, which must be in ascending order.
    pub fn with(&self, sorted: impl IntoIterator<Item = u32>) -> Self {
        self.merged(&sorted.into_iter().map(|i| (i, i)).collect::<Vec<_>>())
    }

    /// Returns the union of both sets.
    pub fn union(&self, other: &Self) -> Self {
        self.merged(&other.0)
    }

    fn merged(&self, other: &[Interval]) -> Self {
        let mut all: Vec<Interval> = self.0.iter().chain(other).copied().collect();
        all.sort_unstable();
        let mut union = Self::default();
        for interval in all {
            union.add(interval);
        }
        union
    }

    /// Adds an interval whose first index is at least that of the last interval.
    fn add(&mut self, (first, last): Interval) {
        if last < first {
            return;
        }
        match self.0.last_mut() {
            Some(end) if first <= end.1.saturating_add(1) => end.1 = end.1.max(last),
            _ => self.0.push((first, last)),
        }
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|(first, last)| (last - first) as usize + 1).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set contains `index`.
    pub fn has(&self, index: u32) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(at).is_some_and(|(first, _)| *first <= index)
    }

    /// Returns the number of indexes in both sets.
    pub fn common(&self, other: &Self) -> usize {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut n = 0;
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            let (from, to) = (x.0.max(y.0), x.1.min(y.1));
            if from <= to {
                n += (to - from) as usize + 1;
            }
            if x.1 < y.1 {
                a.next();
            } else {
                b.next();
            }
        }
        n
    }

    /// Returns the first `count` indexes below `completions` that are not in the set.
    pub fn first_missing(&self, count: usize, completions: u32) -> Vec<u32> {
        let mut missing = Vec::new();
        let mut candidate = 0;
        for (first, last) in self.0.iter().copied().chain([(completions, completions)]) {
            let end = first.min(completions);
            while candidate < end && missing.len() < count {
                missing.push(candidate);
                candidate += 1;
            }
            candidate = candidate.max(last.saturating_add(1));
        }
        missing
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            match last - first {
                0 => write!(f, "{first}")?,
                1 => write!(f, "{first},{last}")?,
                _ => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms() {
        for (text, completions, want, n) in [
            ("", 5, "", 0),
            ("0", 5, "0", 1),
            ("0,1", 5, "0,1", 2),
            ("0-2,4", 9, "0-2,4", 4),
            ("0,1,2,3", 9, "0-3", 4),
            ("1-7", 5, "1-4", 4),
            ("1,9", 5, "1", 1),
            ("x,2,3-y,4", 9, "2,4", 2),
            ("3", 0, "", 0),
        ] {
            let i = Indexes::parse(text, completions);
            assert_eq!((i.to_string().as_str(), i.len()), (want, n), "{text}");
        }
    }

    #[test]
    fn sets() {
        let a = Indexes::parse("1-3,7", 20);
        assert_eq!(a.with([0, 4, 9]).to_string(), "0-4,7,9");
        assert_eq!(a.with([2, 3]).to_string(), "1-3,7");
        assert_eq!(a.union(&Indexes::parse("5,6,19", 20)).to_string(), "1-3,5-7,19");
        let has: Vec<u32> = (0..9).filter(|i| a.has(*i)).collect();
        assert_eq!(has, [1, 2, 3, 7]);
        for (other, n) in [("1-3,7", 4), ("0", 0), ("2-9", 3), ("7", 1), ("3,8", 1)] {
            assert_eq!(a.common(&Indexes::parse(other, 20)), n, "{other}");
        }
        assert_eq!(a.first_missing(4, 20), [0, 4, 5, 6]);
        assert_eq!(a.first_missing(9, 6), [0, 4, 5]);
        assert_eq!(Indexes::default().first_missing(2, 5), [0, 1]);
        assert_eq!(Indexes::parse("0-4", 5).first_missing(2, 5), Vec::<u32>::new());
    }
}
