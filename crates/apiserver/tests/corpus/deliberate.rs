//! The table of accepted differences, and the limit of other differences.
use serde_json::Value;

use crate::compare::{Difference, field};

/// Limit of rows.
const ROWS_MAX: usize = 40;

/// A row: cases of a kind whose edited field matches the pattern and whose answers differ in this way.
#[derive(Debug)]
struct Row {
    kind: String,
    field: String,
    verdict: String,
    /// Pattern that all differing paths match, if the row has one.
    place: String,
}

impl Row {
    fn new(kind: &str, field: &str, verdict: &str) -> Self {
        let (verdict, place) = verdict.split_once(':').unwrap_or((verdict, "*"));
        let [kind, field, verdict, place] = [kind, field, verdict, place].map(ToOwned::to_owned);
        Self { kind, field, verdict, place }
    }

    fn covers(&self, kind: &str, edited: &str, difference: &Difference) -> bool {
        matches(&self.kind, kind)
            && matches(&self.field, edited)
            && matches(&self.verdict, &difference.verdict)
            && difference.places.iter().all(|place| matches(&self.place, place))
    }
}

/// The table of accepted differences.
pub struct Table {
    rows: Vec<Row>,
    /// Limit of differences outside the table over all cases; it only falls.
    pub all_max: usize,
    /// The same limit for the share of a usual run.
    pub share_max: usize,
}

impl Table {
    pub fn read() -> Self {
        let mut table = Self { rows: Vec::new(), all_max: 0, share_max: 0 };
        for line in include_str!("deliberate.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (columns, reason) = line.split_once(" # ").map_or((line, ""), |(columns, reason)| (columns, reason));
            let words: Vec<&str> = columns.split_whitespace().collect();
            match words.as_slice() {
                ["all_max", n] => table.all_max = n.parse().expect("a number"),
                ["share_max", n] => table.share_max = n.parse().expect("a number"),
                [kind, field, verdict] if !reason.trim().is_empty() => {
                    table.rows.push(Row::new(kind, field, verdict));
                }
                _ => panic!("deliberate.txt: a row is KIND FIELD VERDICT # reason, not {line:?}"),
            }
        }
        assert!(table.rows.len() <= ROWS_MAX, "deliberate.txt has {} rows, {ROWS_MAX} may be", table.rows.len());
        table
    }

    /// Removes accepted differences from a list, and returns the rows that matched none.
    pub fn take<'a>(
        &self,
        found: &mut Vec<(usize, Difference)>,
        case: impl Fn(usize) -> (&'a Value, &'a Value),
    ) -> Vec<String> {
        let mut used = vec![false; self.rows.len()];
        found.retain(|(i, difference)| {
            let (case, base) = case(*i);
            let kind = base["kind"].as_str().unwrap_or_default();
            let edited = field(case);
            let row = self.rows.iter().position(|row| row.covers(kind, &edited, difference));
            if let Some(row) = row {
                used[row] = true;
            }
            row.is_none()
        });
        self.rows.iter().zip(used).filter(|(_, used)| !used).map(|(row, _)| format!("{row:?}")).collect()
    }
}

/// Whether a string matches a pattern with `*` for anything and `|` between alternatives.
fn matches(pattern: &str, text: &str) -> bool {
    fn one(pattern: &str, text: &str) -> bool {
        match pattern.split_once('*') {
            None => pattern == text,
            Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
                rest.is_empty() || (0..=text.len()).any(|i| text.is_char_boundary(i) && one(rest, &text[i..]))
            }),
        }
    }
    pattern.split('|').any(|pattern| one(pattern, text))
}
