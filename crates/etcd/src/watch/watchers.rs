//! The watches of one stream, and the next answers for their client. Pure: the state is passed in.

use std::collections::{BTreeMap, VecDeque};

use prost::Message as _;

use crate::error::Error;
use crate::mvcc::{Change, KeyRange, Matcher, State, Version};
use crate::proto::event::EventType;
use crate::proto::watch_create_request::FilterType;
use crate::proto::{Event, KeyValue, ResponseHeader, WatchCreateRequest, WatchResponse};
use crate::store::NOTHING;

/// The ID of an answer that belongs to no watch.
pub(super) const NO_WATCH: i64 = -1;
/// The maximum number of watches of one stream.
const WATCHES_MAX: usize = 50_000;
/// The number of changes read under one lock; the changes of one revision are always sent together.
const CHANGES_AT_ONCE: usize = 4096;
const BYTES_AT_ONCE: usize = 1 << 20;

#[derive(Debug)]
struct Watcher {
    range: KeyRange,
    /// The first revision that was not sent, or, once it is level, the first one to send.
    from: i64,
    /// Whether it has caught up with the visible revision; new changes are then marked for its stream.
    level: bool,
    prev_kv: bool,
    puts: bool,
    deletes: bool,
    fragment: bool,
    /// Whether it wants progress notifications.
    progress: bool,
    /// Whether anything was sent since the last progress notification was due.
    reported: bool,
}

#[derive(Debug)]
pub(super) struct Watchers {
    header: ResponseHeader,
    by_id: BTreeMap<i64, Watcher>,
    /// Watches that are not level.
    behind: VecDeque<i64>,
    /// The first revision with something new for the others; [`NOTHING`] if there is none.
    unread: i64,
    /// Whether it is the turn of the watches that are behind.
    turn: bool,
    next_id: i64,
    /// Built again after a watch was added or removed.
    matcher: Option<Matcher<i64>>,
    progress_asked: bool,
    progress_due: bool,
    ended: Vec<i64>,
    response_bytes_max: usize,
    /// Answers to send.
    pub out: VecDeque<WatchResponse>,
}

impl Watchers {
    pub fn new(header: ResponseHeader, response_bytes_max: usize) -> Self {
        Self {
            header,
            by_id: BTreeMap::new(),
            behind: VecDeque::new(),
            unread: NOTHING,
            turn: false,
            next_id: 0,
            matcher: None,
            progress_asked: false,
            progress_due: false,
            ended: Vec::new(),
            response_bytes_max,
            out: VecDeque::new(),
        }
    }

    fn answer(&self, watch_id: i64, revision: i64) -> WatchResponse {
        let header = Some(ResponseHeader { revision, ..self.header });
        WatchResponse { header, watch_id, ..WatchResponse::default() }
    }

    /// Creates a watch and answers that; `register` is called with its ID and range before the visible revision is
    /// read, so that no change is missed.
    pub fn create(&mut self, r: WatchCreateRequest, mut register: impl FnMut(i64, &KeyRange), shown: impl Fn() -> i64) {
        let refuse = |watchers: &mut Self, reason: String| {
            let answer = watchers.answer(NO_WATCH, shown());
            let answer = WatchResponse { created: true, canceled: true, cancel_reason: reason, ..answer };
            watchers.out.push_back(answer);
        };
        if r.start_revision < 0 {
            return refuse(self, Error::Compacted.to_string());
        }
        // An empty key means every key from the smallest on.
        let key = if r.key.is_empty() { bytes::Bytes::from_static(&[0]) } else { r.key };
        let range = KeyRange::new(&key, &r.range_end);
        if range.is_empty() {
            return refuse(self, "mvcc: watcher range is empty".to_owned());
        }
        if r.watch_id != 0 && self.by_id.contains_key(&r.watch_id) {
            return refuse(self, "mvcc: duplicate watch ID provided on the WatchStream".to_owned());
        }
        if self.by_id.len() >= WATCHES_MAX {
            return refuse(self, Error::TooManyRequests.to_string());
        }
        let id = if r.watch_id == 0 { self.free_id() } else { r.watch_id };
        register(id, &range);
        let shown = shown();
        let from = if r.start_revision == 0 { shown.saturating_add(1) } else { r.start_revision };
        let has = |filter: FilterType| r.filters.contains(&(filter as i32));
        let watcher = Watcher {
            range,
            from,
            level: from > shown,
            prev_kv: r.prev_kv,
            puts: !has(FilterType::Noput),
            deletes: !has(FilterType::Nodelete),
            fragment: r.fragment,
            progress: r.progress_notify,
            reported: false,
        };
        if !watcher.level {
            self.behind.push_back(id);
        }
        self.by_id.insert(id, watcher);
        self.matcher = None;
        self.out.push_back(WatchResponse { created: true, ..self.answer(id, shown) });
    }

    fn free_id(&mut self) -> i64 {
        while self.by_id.contains_key(&self.next_id) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        id
    }

    /// Cancels a watch and answers that; there is no answer for an unknown watch.
    pub fn cancel(&mut self, id: i64, shown: i64) {
        if self.remove(id) {
            self.out.push_back(WatchResponse { canceled: true, ..self.answer(id, shown) });
        }
    }

    /// Returns the watches that ended since the last call.
    pub fn take_ended(&mut self) -> Vec<i64> {
        std::mem::take(&mut self.ended)
    }

    fn remove(&mut self, id: i64) -> bool {
        let there = self.by_id.remove(&id).is_some();
        if there {
            self.matcher = None;
            self.behind.retain(|behind| *behind != id);
            self.ended.push(id);
        }
        there
    }

    /// Handles a progress request of the client.
    pub fn ask_progress(&mut self) {
        self.progress_asked = true;
    }

    /// Makes idle watches send a progress notification.
    pub fn progress_is_due(&mut self) {
        self.progress_due = true;
    }

    /// Advances by one step; `unread` is the first revision marked since the last step. Returns whether there may be
    /// more to do before something is written.
    pub fn advance(&mut self, state: &State, unread: i64) -> bool {
        self.unread = self.unread.min(unread);
        let shown = state.revision();
        if self.by_id.is_empty() {
            self.unread = NOTHING;
            self.progress_asked = false;
            return false;
        }
        self.turn = !self.turn;
        if (self.turn || self.unread > shown)
            && let Some(id) = self.behind.pop_front()
        {
            if !self.catch_up(id, state) {
                // Watches that are behind take turns.
                self.behind.push_back(id);
            }
            return true;
        }
        if self.unread <= shown {
            self.follow(state);
            return true;
        }
        self.send_progress(shown);
        false
    }

    /// Sends a watch changes that it has missed; returns whether it is level now or ended.
    fn catch_up(&mut self, id: i64, state: &State) -> bool {
        let Some(watcher) = self.by_id.get(&id) else { return true };
        if watcher.from < state.compacted() {
            self.compacted(id, state);
            return true;
        }
        let from = watcher.from;
        let mut events = Vec::new();
        let reached = walk(state, from, |change, version| {
            let event = watcher.range.contains(&change.key).then(|| watcher.event(state, change, version)).flatten();
            let bytes = event.as_ref().map_or(0, |event| event.encoded_len());
            events.extend(event);
            bytes
        });
        self.report(id, events, reached);
        let level = reached >= state.revision();
        if let Some(watcher) = self.by_id.get_mut(&id) {
            watcher.from = reached.saturating_add(1);
            watcher.level = level;
        }
        level
    }

    /// Sends new changes to all other watches.
    fn follow(&mut self, state: &State) {
        if self.unread < state.compacted() {
            let late = |(id, w): (&i64, &Watcher)| (w.level && w.from < state.compacted()).then_some(*id);
            let late: Vec<i64> = self.by_id.iter().filter_map(late).collect();
            late.into_iter().for_each(|id| self.compacted(id, state));
            self.unread = state.compacted();
            return;
        }
        let by_id = &self.by_id;
        let matcher =
            self.matcher.get_or_insert_with(|| Matcher::new(by_id.iter().map(|(id, watcher)| (*id, &watcher.range))));
        let mut reported: BTreeMap<i64, Vec<Event>> = BTreeMap::new();
        let reached = walk(state, self.unread, |change, version| {
            let mut bytes = 0;
            matcher.find(&change.key, |id| {
                let hears = |watcher: &&Watcher| watcher.level && change.revision.main >= watcher.from;
                let Some(watcher) = by_id.get(id).filter(hears) else { return };
                if let Some(event) = watcher.event(state, change, version) {
                    bytes += event.encoded_len();
                    reported.entry(*id).or_default().push(event);
                }
            });
            bytes
        });
        self.unread = if reached >= state.revision() { NOTHING } else { reached.saturating_add(1) };
        reported.into_iter().for_each(|(id, events)| self.report(id, events, reached));
    }

    /// Sends events, in pieces if the client allows it.
    fn report(&mut self, id: i64, events: Vec<Event>, revision: i64) {
        if events.is_empty() {
            return;
        }
        let Some(watcher) = self.by_id.get_mut(&id) else { return };
        watcher.reported = true;
        let fragment = watcher.fragment;
        let answer = WatchResponse { events, ..self.answer(id, revision) };
        if !fragment || answer.encoded_len() < self.response_bytes_max {
            self.out.push_back(answer);
            return;
        }
        let WatchResponse { events, .. } = answer;
        let mut piece = WatchResponse { fragment: true, ..self.answer(id, revision) };
        let mut bytes = piece.encoded_len();
        for event in events {
            // A key and a length precede each event.
            let more = event.encoded_len() + 8;
            if !piece.events.is_empty() && bytes + more >= self.response_bytes_max {
                let next = WatchResponse { fragment: true, ..self.answer(id, revision) };
                bytes = next.encoded_len();
                self.out.push_back(std::mem::replace(&mut piece, next));
            }
            bytes += more;
            piece.events.push(event);
        }
        self.out.push_back(WatchResponse { fragment: false, ..piece });
    }

    /// Cancels a watch whose revisions are compacted.
    fn compacted(&mut self, id: i64, state: &State) {
        self.remove(id);
        // Such an answer does not name a revision in etcd either.
        let answer = self.answer(id, 0);
        self.out.push_back(WatchResponse { canceled: true, compact_revision: state.compacted(), ..answer });
    }

    /// Sends the progress of the watches, now that they have got everything.
    fn send_progress(&mut self, shown: i64) {
        let waits = |watcher: &Watcher| watcher.from > shown.saturating_add(1);
        if std::mem::take(&mut self.progress_asked) && !self.by_id.values().any(waits) {
            self.out.push_back(self.answer(NO_WATCH, shown));
        }
        if std::mem::take(&mut self.progress_due) {
            let mut quiet = Vec::new();
            for (id, watcher) in self.by_id.iter_mut().filter(|(_, watcher)| watcher.progress) {
                if !std::mem::take(&mut watcher.reported) && !waits(watcher) {
                    quiet.push(*id);
                }
            }
            for id in quiet {
                self.out.push_back(self.answer(id, shown));
            }
        }
    }
}

impl Watcher {
    /// Returns the event of a change for the watch, unless its filters exclude it.
    fn event(&self, state: &State, change: &Change, version: &Version) -> Option<Event> {
        let (key, main) = (&change.key, change.revision.main);
        let deleted = version.is_deletion();
        if if deleted { !self.deletes } else { !self.puts } {
            return None;
        }
        let (kind, kv) = if deleted {
            let kv = KeyValue { key: key.clone(), mod_revision: main, ..KeyValue::default() };
            (EventType::Delete, kv)
        } else {
            (EventType::Put, version.key_value(key))
        };
        let made = !deleted && version.created == main;
        let before = (self.prev_kv && !made).then(|| state.version_at(key, main - 1)).flatten();
        let prev_kv = before.map(|(_, version)| version.key_value(key));
        Some(Event { r#type: kind as i32, kv: Some(kv), prev_kv })
    }
}

/// Visits changes from a revision on, whole revisions, until there is enough for one step; `each` returns the bytes
/// that it used. Returns the last revision whose changes were all visited.
fn walk(state: &State, from: i64, mut each: impl FnMut(&Change, &Version) -> usize) -> i64 {
    let (mut changes, mut bytes) = (0, 0);
    let mut main = from;
    for (change, version) in state.changes_from(from) {
        if change.revision.main != main && (changes >= CHANGES_AT_ONCE || bytes >= BYTES_AT_ONCE) {
            return change.revision.main - 1;
        }
        main = change.revision.main;
        changes += 1;
        bytes += each(change, version);
    }
    state.revision()
}
