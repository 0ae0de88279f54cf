//! What happened in a round, in the order of time: calls, answers and events for the check, and notes for the reader.
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kelson_history::{Answer, Call, Line};

enum Entry {
    Line(Line),
    Note(String),
}

/// The record of one round, to which all its threads write.
pub struct Recorder {
    begun: Instant,
    entries: Mutex<Vec<(Duration, Entry)>>,
    /// The violations that were found.
    faults: Mutex<Vec<String>>,
    next: AtomicU64,
    ended: AtomicBool,
}

/// The faults of a round that its error names. Its history has all of them.
const FAULTS_MAX: usize = 10;
const NO_PANIC: &str = "no thread panics while it holds this";

impl Recorder {
    /// Starts a record.
    pub fn new() -> Self {
        Self {
            begun: Instant::now(),
            entries: Mutex::default(),
            faults: Mutex::default(),
            next: AtomicU64::new(1),
            ended: AtomicBool::new(false),
        }
    }

    fn push(&self, entry: Entry) {
        let mut entries = self.entries.lock().expect(NO_PANIC);
        let at = self.begun.elapsed();
        entries.push((at, entry));
    }

    /// Adds a line of the history.
    pub fn line(&self, line: Line) {
        self.push(Entry::Line(line));
    }

    /// Adds a note.
    pub fn note(&self, note: String) {
        self.push(Entry::Note(note));
    }

    /// Adds something that must not happen.
    pub fn fault(&self, what: String) {
        self.push(Entry::Note(format!("FAULT {what}")));
        let mut faults = self.faults.lock().expect(NO_PANIC);
        if faults.len() < FAULTS_MAX {
            faults.push(what);
        }
    }

    /// Returns what must not happen and did.
    pub fn faults(&self) -> Vec<String> {
        self.faults.lock().expect(NO_PANIC).clone()
    }

    /// Returns a number that no other operation has.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Has the load end.
    pub fn end_load(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// Reports whether the load must end.
    pub fn load_ends(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Returns the history. The answer to a delete has no revision, so each one gets that of the first delete of
    /// its register after the revision that it expected, as watchers saw it.
    ///
    /// # Errors
    /// No watcher saw a delete that was acknowledged.
    pub fn history(&self) -> anyhow::Result<Vec<Line>> {
        let entries = self.entries.lock().expect(NO_PANIC);
        let lines = entries
            .iter()
            .filter_map(|(_, entry)| if let Entry::Line(line) = entry { Some(line.clone()) } else { None });
        let mut lines: Vec<Line> = lines.collect();
        let (mut deletes, mut calls) = (BTreeMap::<String, Vec<u64>>::new(), BTreeMap::new());
        for line in &lines {
            match line {
                Line::Event { revision, key, value: None, .. } => {
                    deletes.entry(key.clone()).or_default().push(*revision)
                }
                Line::Call { id, key, call: Call::Delete(from) } => drop(calls.insert(*id, (key.clone(), *from))),
                _ => {}
            }
        }
        for line in &mut lines {
            if let Line::Answer { id, answer: Answer::Written(at) } = line
                && let Some((key, from)) = calls.get(id)
            {
                let of_key = deletes.get(key).into_iter().flatten().copied();
                let seen = of_key.filter(|revision| revision > from).min();
                *at = seen.ok_or_else(|| {
                    anyhow::anyhow!("delete {id} of {key} at {from} was acknowledged, and no watcher saw it")
                })?;
            }
        }
        Ok(lines)
    }

    /// Writes everything to a file, one entry a line.
    pub fn save(&self, file: &Path) -> anyhow::Result<()> {
        let mut out = std::io::BufWriter::new(std::fs::File::create(file)?);
        for (at, entry) in self.entries.lock().expect(NO_PANIC).iter() {
            let text = match entry {
                Entry::Line(line) => line.text(),
                Entry::Note(note) => format!("# {note}"),
            };
            writeln!(out, "{:>8.3} {text}", at.as_secs_f64())?;
        }
        Ok(out.flush()?)
    }
}
