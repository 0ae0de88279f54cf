//! The record of results on an upstream cluster (`tests/reference.txt`): a test must hold for Kubernetes before it may
//! test Kelson, and allowed differences are recorded with their reason.
use std::collections::BTreeMap;

const RECORD: &str = include_str!("../reference.txt");

/// The recorded result of a test on the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceResult {
    /// It passed on an upstream cluster of this version.
    Seen(&'static str),
    /// It fails there, for this reason.
    Differs(&'static str),
}

/// The records, by the test's name.
pub struct Record(BTreeMap<&'static str, ReferenceResult>);

impl Record {
    /// Reads the record.
    ///
    /// # Errors
    /// The first invalid line.
    pub fn read() -> Result<Self, String> {
        parse(RECORD).map(Self)
    }

    /// Returns the record of a test; `None` when it has not been run on an upstream cluster.
    pub fn of(&self, name: &str) -> Option<ReferenceResult> {
        self.0.get(name).copied()
    }

    /// Returns recorded names that no test has.
    pub fn unknown(&self, names: &[&str]) -> Vec<&'static str> {
        self.0.keys().copied().filter(|n| !names.contains(n)).collect()
    }
}

fn parse(text: &'static str) -> Result<BTreeMap<&'static str, ReferenceResult>, String> {
    let mut record = BTreeMap::new();
    for line in text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
        let known = match line.split_once(' ').map(|(name, rest)| (name, rest.split_once(' '))) {
            Some((name, Some(("seen", version)))) => (name, ReferenceResult::Seen(version)),
            Some((name, Some(("differs", why)))) => (name, ReferenceResult::Differs(why)),
            _ => {
                return Err(format!(
                    "tests/reference.txt: {line:?} is neither NAME seen VERSION nor NAME differs REASON"
                ));
            }
        };
        record.insert(known.0, known.1);
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_record() {
        let record = parse("# text\na::b seen v1.36.2\n\nc::d differs the reference waits a minute\n");
        let want = [
            ("a::b", ReferenceResult::Seen("v1.36.2")),
            ("c::d", ReferenceResult::Differs("the reference waits a minute")),
        ];
        assert_eq!(record, Ok(BTreeMap::from(want)));
        assert!(parse("a::b passes").is_err());
        assert!(Record::read().is_ok());
    }
}
