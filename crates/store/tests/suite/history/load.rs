//! Clients of a store that read, create, swap and delete a few registers at random and report each step as a line.
use std::collections::HashMap;
use std::sync::Arc;

use kelson_store::{
    Action, Body, Committed, EventKind, Key, Precondition, Record, RecordMeta, Resource, Store, StoreError, Write,
};
use rand::{Rng, rngs::StdRng};

use super::{Answer, Call, Line, Registers, Version};

/// The number of registers. It is small, so that clients use the same ones.
const REGISTERS: u64 = 6;

pub fn resource() -> Resource {
    Resource::parse("configmaps")
}

pub fn key(name: &str) -> Key {
    Key::new(resource(), "default", name)
}

/// A body with a value, of some size.
pub fn body(name: &str, value: &str) -> Body {
    let filling = "x".repeat(value.len() * 97 % 900);
    let json =
        format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":""}},"value":"{value}","filling":"{filling}"}}"#);
    Body::locate(json).unwrap()
}

fn version(record: &Record) -> Version {
    let bytes = record.bytes();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let value = text.split_once(r#""value":""#).unwrap().1.split('"').next().unwrap();
    (record.revision(), value.to_owned())
}

/// Reads all registers.
pub fn look(store: &Store) -> Registers {
    let all = store.list(resource(), None, None, None);
    all.iter().map(|record| (record.key().name.to_string(), version(record))).collect()
}

/// One client. Its caller numbers its operations, and a value contains the number of its operation, so no value is written twice.
pub struct Client<S> {
    pub store: Store,
    pub say: S,
    pub dice: StdRng,
    /// The revision of the client's last write.
    pub written: u64,
    /// The client's last knowledge of each register.
    known: HashMap<String, Option<u64>>,
}

impl<S: Fn(Line)> Client<S> {
    pub fn new(store: Store, say: S, dice: StdRng) -> Self {
        Self { store, say, dice, written: 0, known: HashMap::new() }
    }

    /// Performs one operation and reports its answer. Ends before the answer if the store has failed.
    pub async fn operate(&mut self, id: u64) {
        let name = format!("k{}", self.dice.random_range(0..REGISTERS));
        let known = self.known.get(&name).copied().flatten();
        let call = match self.dice.random_range(0..10) {
            0..3 => Call::Read,
            3..5 if known.is_some() => Call::Delete(known.unwrap()),
            _ => Call::Put(known, format!("v{id}")),
        };
        (self.say)(Line::Call { id, key: name.clone(), call: call.clone() });
        let write = match call {
            Call::Read => {
                let found = self.store.get(resource(), "default", &name).map(|record| version(&record));
                return self.answer(id, name, Answer::Found(found));
            }
            Call::Put(None, value) => Write::create(key(&name), body(&name, &value), RecordMeta::with_uid("u")),
            Call::Put(Some(at), value) => Write::update(key(&name), at, body(&name, &value), RecordMeta::with_uid("u")),
            Call::Delete(at) => Write::delete(key(&name), Precondition::AtRevision(at)),
        };
        let gone = matches!(write.action, Action::Delete { .. });
        match self.store.commit(write).await {
            Ok(Committed { revision, .. }) => {
                self.written = revision;
                self.answer(id, name.clone(), Answer::Written(revision));
                self.known.insert(name, (!gone).then_some(revision));
            }
            Err(StoreError::AlreadyExists { current } | StoreError::Conflict { current, .. }) => {
                self.answer(id, name, Answer::Found(Some(version(&current))));
            }
            Err(StoreError::NotFound) => self.answer(id, name, Answer::Found(None)),
            Err(error) => panic!("operation {id}: {error}"),
        }
    }

    fn answer(&mut self, id: u64, name: String, answer: Answer) {
        if let Answer::Found(found) = &answer {
            self.known.insert(name, found.as_ref().map(|v| v.0));
        }
        (self.say)(Line::Answer { id, answer });
    }
}

/// Watches from a revision while the store is open, and reports the events. If the store cannot continue from that revision, there is
/// no watch.
pub async fn watch(store: &Store, watcher: u64, from: u64, say: impl Fn(Line)) {
    let mut cursor = match store.watch(resource(), from) {
        Ok(cursor) => cursor,
        Err(StoreError::Compacted { .. }) => return,
        Err(error) => panic!("{error}"),
    };
    say(Line::Watch { watcher, from });
    loop {
        let events = match cursor.next().await {
            Ok(events) => events,
            Err(StoreError::Closed) => return,
            Err(error) => panic!("watcher {watcher}: {error}"),
        };
        for event in events {
            let value = (event.kind != EventKind::Deleted).then(|| version(&event.record).1);
            let key = event.record.key().name.to_string();
            say(Line::Event { watcher, revision: event.revision, key, value });
        }
    }
}

/// The lines that were reported in this process.
pub type Lines = Arc<parking_lot::Mutex<Vec<Line>>>;
