//! Watch: a cursor on the store's log, a filter, and frames. Plain frames are encoded once for all watchers. A watch has no task; its
//! connection drives it.
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::StatusCode;
use kelson_meta::Status;
use kelson_store::{Cursor, Event, ListView, StoreError};
use kelson_traces::{KeyValue, Span, child};
use kelson_transport::{TransportError, WatchItem, WatchItems};
use rand::Rng as _;
use tokio::time::Instant;

use crate::catalog::Served;
use crate::read::frames::{Framer, Piece};
use crate::read::page::VISITED_MAX;
use crate::read::{choose, websocket};
use crate::request::answer::{self, Answer};
use crate::request::body::ApiBody;
use crate::request::list_options::{self, ReadOperation};
use crate::request::negotiate::Accepted;
use crate::request::selectors::Selectors;
use crate::request::version_param;
use crate::shared::context::RequestContext;
use crate::shared::flow::LentPermit;
use crate::shared::metrics::WatchGuard;
use crate::shared::watches::OpenWatch;

/// Minimum default duration of a watch; the maximum is twice that (upstream `--min-request-timeout`).
const TIMEOUT_DEFAULT_S: u64 = 1800;
/// Interval of bookmarks; each watch adds up to a tenth, so that they are spread.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The time before its end at which a watch sends a last bookmark.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// Bytes of initial events per piece.
const PIECE_BYTES: usize = 64 * 1024;

/// The start of a watch.
enum Start {
    /// The watch begins after this revision.
    After(u64),
    /// The watch begins with the current objects as ADDED events, and a bookmark after them if requested (watch-list).
    State { announce_end: bool },
}

/// Serves a watch.
///
/// # Errors
/// 400, 406, 410, 422, 504.
pub async fn watch(cx: &RequestContext, served: &Arc<Served>) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let view = cx.view(&accepted)?;
    let selectors = selectors(cx, served)?;
    let start = start(cx)?;
    let namespace = cx.namespace(served).to_owned();
    let store = &cx.server.store;
    let found = child("cacher.Watch", || cx.storage_attributes(served));
    // A future version opens a watch that sends nothing before that version.
    let after = if let Start::After(revision) = start { revision } else { 0 };
    let scope = selectors.scope(served, &namespace);
    let (cursor, initial, announce_end) = match start {
        Start::After(revision) => {
            (store.watch_scope(served.store, scope, revision.min(store.current_revision())), None, false)
        }
        Start::State { announce_end } => {
            if let Some(revision) = version_param::parse(cx.query.text("resourceVersion"))?
                && let Err(status) = version_param::wait_for_revision(store, revision).await
            {
                return error_event_answer(cx, served, &status);
            }
            found.event("watchCache fresh enough", Vec::new);
            let of = Some(namespace.as_str()).filter(|n| !n.is_empty());
            let state = selectors.candidates(store, served, of, None);
            (store.watch_scope(served.store, scope, state.revision()), Some(state), announce_end)
        }
    };
    drop(found);
    let framer = Framer::new(Arc::clone(served), accepted, view).sharing(cx.takes_objects);
    let content_type = accepted.content_type(true);
    let cursor = match cursor {
        Ok(cursor) => cursor,
        Err(error @ StoreError::Compacted { .. }) => {
            return error_event_answer(cx, served, &version_param::store_error(&error));
        }
        Err(error) => return Err(version_param::store_error(&error)),
    };
    let (timeout, now) = (timeout(cx)?, Instant::now());
    let listing = announce_end.then(|| Listing::new(cx, content_type));
    let state = State {
        counted: CountedWatch::new(cx, served, initial.is_some()),
        cursor,
        after,
        initial,
        sent: 0,
        announce_end,
        listing,
        namespace,
        by_object: choose::needs_objects(served, &selectors),
        served: Arc::clone(served),
        selectors,
        framer,
        pending: VecDeque::new(),
        bookmarks: cx.query.flag("allowWatchBookmarks"),
        next_bookmark: now + jittered(BOOKMARK_EVERY),
        last_bookmark: 0,
        end: now + timeout,
        shutdown: cx.server.tasks.token().clone(),
        over: false,
        _metric: cx.server.metrics.watch_opened(&served.gr),
    };
    respond(cx, state, accepted)
}

/// The response whose body `state` produces: objects for a client in this process, else bytes, in a WebSocket if one is requested.
fn respond(cx: &RequestContext, state: State, accepted: Accepted) -> Result<Answer, Status> {
    let content_type = accepted.content_type(true);
    if cx.takes_objects.is_some() {
        let items = stream::unfold(state, |mut state| async move { Some((state.next_items().await?, state)) });
        let mut answer = answer::answer(StatusCode::OK, content_type, ApiBody::empty());
        answer.extensions_mut().insert(WatchItems::new(items));
        return Ok(answer);
    }
    let chunks = stream::unfold(state, |mut state| async move {
        let bytes = state.next_bytes().await?;
        Some((Ok::<Bytes, TransportError>(bytes), state))
    });
    let answer = answer::answer(StatusCode::OK, content_type, ApiBody::stream(chunks));
    if websocket::is_wanted(cx) {
        return websocket::watch(cx, answer, accepted.encoding == kelson_codec::Encoding::Protobuf);
    }
    Ok(answer)
}

/// The parts of flow control that a watch holds.
struct CountedWatch {
    /// The permit to read initial events; released when they were sent.
    initial_permit: Option<LentPermit>,
    /// Counts the watch for the cost of writes.
    _watched: Option<OpenWatch>,
}

impl CountedWatch {
    fn new(cx: &RequestContext, served: &Served, initial: bool) -> Self {
        let (tasks, limit) = (&cx.server.tasks, cx.server.config.request_timeout);
        let permit = cx.watch_permit.lock().take().filter(|_| initial);
        let open = || cx.server.watches.open(served.store, cx.namespace(served), &cx.info.name);
        Self { initial_permit: permit.map(|p| p.lend(tasks, limit)), _watched: cx.takes_objects.is_none().then(open) }
    }
}

/// The response to a watch that cannot begin where it was asked to: its only event is the error, as in upstream's cacher.
fn error_event_answer(cx: &RequestContext, served: &Arc<Served>, why: &Status) -> Result<Answer, Status> {
    let accepted = cx.accept()?;
    let frame = Framer::new(Arc::clone(served), accepted, cx.view(&accepted)?).sharing(cx.takes_objects).error(why)?;
    Ok(answer::answer(StatusCode::OK, accepted.content_type(true), ApiBody::full(frame)))
}

/// The spans of a watch that begins with a list. Both end with the list, because the watch may last for hours.
struct Listing {
    sending: Span,
    /// The span of the handler.
    _whole: Option<Span>,
}

impl Listing {
    fn new(cx: &RequestContext, media_type: &str) -> Self {
        let sending = child("WatchServer.HandleHTTP", || {
            vec![
                KeyValue::text("audit-id", cx.audit_id.to_str().unwrap_or("")),
                KeyValue::text("method", cx.method.as_str()),
                KeyValue::text("url", cx.uri.path()),
                KeyValue::text("mediaType", media_type),
            ]
        });
        sending.event("About to start writing response", Vec::new);
        Self { sending, _whole: cx.handler_span.lock().take() }
    }
}

/// The selectors of a watch. A watch of one object by its path selects by name.
fn selectors(cx: &RequestContext, served: &Served) -> Result<Selectors, Status> {
    let mut selectors = Selectors::new(served, &cx.selectors)?;
    if !cx.info.name.is_empty() && selectors.fields.exact("metadata.name").is_none() {
        selectors.fields.0.push(kelson_meta::FieldRequirement {
            field: "metadata.name".into(),
            value: cx.info.name.clone(),
            negated: false,
        });
    }
    Ok(selectors)
}

fn jittered(d: Duration) -> Duration {
    d + d.mul_f64(rand::rng().random_range(0.0..0.1))
}

fn timeout(cx: &RequestContext) -> Result<Duration, Status> {
    let asked = cx.query.integer("timeoutSeconds")?.and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0);
    let seconds = asked.unwrap_or_else(|| rand::rng().random_range(TIMEOUT_DEFAULT_S..TIMEOUT_DEFAULT_S * 2));
    Ok(Duration::from_secs(seconds))
}

fn start(cx: &RequestContext) -> Result<Start, Status> {
    list_options::check(
        &cx.query,
        ReadOperation::Watch { may_list: cx.server.config.feature_gates.enabled("WatchList") },
    )?;
    let revision = version_param::parse(cx.query.text("resourceVersion"))?;
    if let Some(send) = cx.query.get("sendInitialEvents").filter(|s| !s.is_empty()) {
        if send == "true" {
            return Ok(Start::State { announce_end: cx.query.flag("allowWatchBookmarks") });
        }
        return Ok(Start::After(revision.filter(|r| *r > 0).unwrap_or_else(|| cx.server.store.current_revision())));
    }
    Ok(match revision {
        None | Some(0) => Start::State { announce_end: false },
        Some(revision) => Start::After(revision),
    })
}

/// A running watch.
struct State {
    cursor: Cursor,
    /// Events up to this revision are not sent.
    after: u64,
    served: Arc<Served>,
    /// Whether objects must be decoded to select them.
    by_object: bool,
    initial: Option<ListView>,
    sent: usize,
    announce_end: bool,
    listing: Option<Listing>,
    namespace: String,
    selectors: Selectors,
    framer: Framer,
    /// Events that were taken from the log and not sent yet.
    pending: VecDeque<Piece>,
    bookmarks: bool,
    next_bookmark: Instant,
    last_bookmark: u64,
    end: Instant,
    shutdown: tokio_util::sync::CancellationToken,
    over: bool,
    counted: CountedWatch,
    _metric: WatchGuard,
}

impl State {
    /// The next bytes; `None` ends the watch.
    async fn next_bytes(&mut self) -> Option<Bytes> {
        loop {
            if self.pending.is_empty() {
                self.pending = self.next().await?.into();
            }
            match self.framer.chunk(&mut self.pending).await {
                // An event that cannot be encoded in protobuf is left out.
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => return Some(bytes),
                Err(error) => {
                    self.pending.clear();
                    return self.end_with_error(&error);
                }
            }
        }
    }

    /// The next items for a watcher in this process; `None` ends the watch.
    async fn next_items(&mut self) -> Option<Vec<WatchItem>> {
        let pieces = self.next().await?;
        match self.framer.items(pieces.into()).await {
            Ok(items) => Some(items),
            Err(error) => self.end_with_error(&error).map(|frame| vec![WatchItem::Frames(frame)]),
        }
    }

    /// Ends the watch with an error event after an event that cannot be encoded. The client must start again, because it missed a
    /// change.
    fn end_with_error(&mut self, error: &Status) -> Option<Bytes> {
        tracing::error!(%error, "cannot encode a watch event; ending the watch with an error");
        self.over = true;
        self.framer.error(error).ok()
    }

    /// The next events; `None` ends the watch.
    async fn next(&mut self) -> Option<Vec<Piece>> {
        if self.over {
            return None;
        }
        let frame = |bytes| vec![Piece::Frame(bytes)];
        while let Some(view) = self.initial.take() {
            match self.initial_events(view).await {
                // None of these records matches, and other requests have their turn before the next.
                Ok(pieces) if pieces.is_empty() && self.initial.is_some() => tokio::task::yield_now().await,
                Ok(pieces) => return Some(pieces),
                Err(error) => return self.end_with_error(&error).map(frame),
            }
        }
        self.counted.initial_permit = None;
        loop {
            let wake = if self.bookmarks { self.next_bookmark.min(self.end) } else { self.end };
            let batch = tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return None,
                batch = self.cursor.next() => batch,
                () = tokio::time::sleep_until(wake) => {
                    if let Some(bytes) = self.time() {
                        return Some(frame(bytes));
                    }
                    if self.over {
                        return None;
                    }
                    continue;
                }
            };
            let batch = match batch {
                Ok(batch) => batch,
                Err(StoreError::Closed) => return None,
                Err(error) => {
                    self.over = true;
                    return self.framer.error(&version_param::store_error(&error)).ok().map(frame);
                }
            };
            let here = |e: &&Arc<Event>| {
                let place = self.namespace.is_empty() || *e.record.key().namespace == *self.namespace;
                place && e.record.revision() > self.after
            };
            let seen = batch.iter().filter(here);
            let pieces: Vec<Piece> = if self.by_object {
                let seen: Vec<&Arc<Event>> = seen.collect();
                match self.selected_events(&seen).await {
                    Ok(pieces) => pieces,
                    Err(error) => return self.end_with_error(&error).map(frame),
                }
            } else {
                seen.filter_map(|e| self.framer.event(e, &self.selectors)).collect()
            };
            if !pieces.is_empty() {
                return Some(pieces);
            }
        }
    }

    /// The visible events, if objects must be decoded to select them.
    async fn selected_events(&self, events: &[&Arc<Event>]) -> Result<Vec<Piece>, Status> {
        let records = events.iter().flat_map(|e| e.previous.iter().chain([&e.record])).cloned().collect::<Vec<_>>();
        let mut verdicts = choose::select(&self.served, &self.selectors, &records).await?.into_iter();
        let mut next = || verdicts.next().unwrap_or(false);
        let pieces = events.iter().filter_map(|e| {
            let before = e.previous.is_some() && next();
            let now = next();
            self.framer.transition(e, before, now)
        });
        Ok(pieces.collect())
    }

    /// A bookmark if it is due. Also notices the end of the watch.
    fn time(&mut self) -> Option<Bytes> {
        let now = Instant::now();
        if now >= self.end {
            self.over = true;
            return None;
        }
        self.next_bookmark = if self.end - now > BOOKMARK_EVERY + BOOKMARK_BEFORE_END {
            now + jittered(BOOKMARK_EVERY)
        } else if self.end - now > BOOKMARK_BEFORE_END {
            self.end - BOOKMARK_BEFORE_END
        } else {
            self.end
        };
        let revision = self.cursor.progress().filter(|revision| *revision >= self.after)?;
        if revision == self.last_bookmark && self.next_bookmark < self.end {
            return None;
        }
        self.last_bookmark = revision;
        self.framer.bookmark(revision, false)
    }

    /// The next piece of initial events, with the bookmark after the last.
    async fn initial_events(&mut self, view: ListView) -> Result<Vec<Piece>, Status> {
        // If objects must be decoded, a batch is decoded together. Otherwise each record is selected by its metadata.
        let everything = self.selectors.is_everything() || self.by_object;
        let (mut records, mut bytes, mut taken) = (Vec::new(), 0, 0);
        let mut matcher = self.selectors.matcher();
        for record in view.iter_from(self.sent) {
            taken += 1;
            if everything || matcher.matches(record) {
                records.push(Arc::clone(record));
                bytes += record.len();
            }
            if bytes >= PIECE_BYTES || taken >= VISITED_MAX {
                break;
            }
        }
        if self.by_object {
            let mut verdicts = choose::select(&self.served, &self.selectors, &records).await?.into_iter();
            records.retain(|_| verdicts.next().unwrap_or(false));
        }
        let mut pieces: Vec<Piece> =
            records.iter().filter_map(|record| self.framer.record_event("ADDED", record)).collect();
        self.sent += taken;
        if self.sent < view.len() {
            self.initial = Some(view);
        } else if self.announce_end
            && let Some(frame) = self.framer.bookmark(view.revision(), true)
        {
            pieces.push(Piece::Frame(frame));
            if let Some(listing) = self.listing.take() {
                listing.sending.event("Writing initial events done", Vec::new);
            }
        }
        Ok(pieces)
    }
}
