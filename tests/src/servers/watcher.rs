//! Watches that must have no gap: each event comes once and in order, whichever server sends it.
use std::time::{Duration, Instant};

use serde_json::Value;

use super::cluster::Cluster;
use super::https::Https;
use super::load::revision;
use super::record::Recorder;

/// The time for which a watcher waits for an event before it looks whether it must end.
const PATIENCE: Duration = Duration::from_millis(200);
/// The pause after a watch that could not be started.
const PAUSE: Duration = Duration::from_millis(100);
/// The time after which a watcher that roams goes to the next server.
const STAY: Duration = Duration::from_millis(1500);

/// A watcher of one resource.
pub struct Watcher<'a> {
    record: &'a Recorder,
    /// The clients of the servers that it uses in turn.
    servers: Vec<Https>,
    path: &'static str,
    name: String,
    /// The revision up to which it has seen everything.
    at: u64,
    /// It was answered 410, so it must list again, which no fault of a server may cause.
    expired: bool,
    /// The handler of an event: its type and object.
    seen: Box<dyn FnMut(&str, &Value) + Send + 'a>,
}

impl<'a> Watcher<'a> {
    /// Creates a watcher that begins after a revision. With one server, it waits for that one; with several it goes to the next
    /// one soon, and whenever a watch ends.
    pub fn new(
        cluster: &Cluster,
        record: &'a Recorder,
        path: &'static str,
        servers: &[usize],
        from: u64,
        seen: impl FnMut(&str, &Value) + Send + 'a,
    ) -> Self {
        let name = format!("watcher of {path} at {servers:?}");
        let servers = servers.iter().map(|n| cluster.client(*n)).collect();
        Self { record, servers, path, name, at: from, expired: false, seen: Box::new(seen) }
    }

    /// Watches until it has seen everything up to the revision that `until` returns; returns an error if that takes longer than
    /// `limit` after it is known.
    pub fn run(&mut self, until: impl Fn() -> Option<u64>, limit: Duration) {
        let mut known: Option<Instant> = None;
        let mut ends = |at: u64, record: &Recorder, name: &str| match until() {
            Some(last) if at >= last => true,
            Some(last) if known.get_or_insert_with(Instant::now).elapsed() > limit => {
                record.fault(format!("{name} is at {at} and has not seen {last} within {limit:?}"));
                true
            }
            _ => false,
        };
        while !self.expired && !ends(self.at, self.record, &self.name) {
            let query = format!("{}?watch=1&allowWatchBookmarks=true&resourceVersion={}", self.path, self.at);
            let begun = Instant::now();
            match self.servers[0].watch(&query, PATIENCE) {
                Ok(mut lines) => {
                    while !self.expired && !ends(self.at, self.record, &self.name) {
                        match lines.next() {
                            Ok(Some(event)) => self.event(&event),
                            Ok(None) => {}
                            Err(_) => break,
                        }
                        if self.servers.len() > 1 && begun.elapsed() > STAY {
                            break;
                        }
                    }
                }
                Err(why) => {
                    let why = format!("{why:#}");
                    if why.starts_with("410") {
                        self.expired = true;
                        self.record.fault(format!("{} at {}: {why}", self.name, self.at));
                    }
                    self.record.note(format!("{} at {}: {why}", self.name, self.at));
                    std::thread::sleep(PAUSE);
                }
            }
            self.servers.rotate_left(1);
        }
    }

    fn event(&mut self, event: &Value) {
        let (kind, object) = (event["type"].as_str().unwrap_or_default(), &event["object"]);
        if kind == "ERROR" {
            let text = format!("{} at {}: {object}", self.name, self.at);
            self.expired = object["code"] == 410;
            return if self.expired { self.record.fault(text) } else { self.record.note(text) };
        }
        let Some(revision) = revision(object) else {
            return self.record.fault(format!("{}: an event without a revision: {event}", self.name));
        };
        let bookmark = kind == "BOOKMARK";
        if revision < self.at || (revision == self.at && !bookmark) {
            self.record.fault(format!("{} was at {} and got {kind} at {revision}", self.name, self.at));
        }
        self.at = self.at.max(revision);
        if !bookmark {
            (self.seen)(kind, object);
        }
    }
}
