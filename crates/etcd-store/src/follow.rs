//! The watch: applies the events of etcd to the mirror in etcd's order. A watch that breaks continues at the revision
//! where it broke; when etcd has compacted that revision, the store lists everything again and watchers have to list as
//! well.

use std::sync::Arc;
use std::time::Duration;

use kelson_etcd::proto::{
    Event, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse, event, watch_request,
};
use kelson_store::{MirrorChange, SealError};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::metadata::MetadataValue;

use crate::connection::revision_of;
use crate::core::{Core, DECODE, Fault, Finder};
use crate::load::load;
use crate::reach::ask;

/// The pause between two attempts to start a watch.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The number of watches in which a store that starts reads the history, if each of them breaks.
const REPLAYS_MAX: usize = 10;
/// Requests on a watch's stream that etcd has not taken: one to begin with, and those for progress.
const REQUESTS_MAX: usize = 4;
/// Values up to this size in all are decoded where they arrive.
const INLINE_BYTES_MAX: usize = 64 << 10;
/// The prefix of values whose decryption may need a key service.
const BY_SERVICE: &[u8] = b"k8s:enc:kms:";

/// The reason why a watch ended.
enum Ended {
    /// The connection, or etcd's leader, is gone.
    Lost(String),
    /// Etcd has compacted the events that follow.
    Compacted,
    /// Values that could not be decrypted can be decrypted now.
    Unlocked,
    /// Everything up to the revision that was asked for is shown.
    Reached,
    /// Etcd is behind what it once said: another one, or a former state of this one.
    Back { revision: u64 },
}

/// Follows etcd for as long as it runs.
pub(crate) async fn run(core: &Arc<Core>) {
    let mut pause = PAUSE;
    loop {
        let begun_at = core.mirror.revision();
        match watch(core, None, &mut true).await {
            // Asked for no revision, it ends at none.
            Ended::Reached => {}
            Ended::Lost(why) => {
                tracing::warn!(why, "the watch on etcd failed; restarting it");
                report(core, Some(format!("watching etcd failed: {why}")));
            }
            Ended::Compacted => {
                tracing::warn!(
                    revision = begun_at,
                    "etcd compacted the revision of the watch; reading all objects again"
                );
                read_again(core).await;
            }
            Ended::Unlocked => {
                tracing::info!("the KMS plugin is available; reading all objects again");
                read_again(core).await;
            }
            Ended::Back { revision } => {
                let why = format!(
                    "etcd is at revision {revision}, but was at {begun_at} before: its data was replaced or restored"
                );
                report(core, Some(why.clone()));
                core.mirror.ended(&why);
                return;
            }
        }
        pause = if core.mirror.revision() > begun_at { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
        tokio::time::sleep(pause).await;
    }
}

async fn read_again(core: &Arc<Core>) {
    match load(core, None).await {
        Ok(loaded) => loaded.show(core),
        Err(error) => {
            tracing::error!(%error, "reading etcd failed; retrying");
            report(core, Some(format!("reading etcd failed: {error}")));
        }
    }
}

fn report(core: &Core, fault: Option<String>) {
    core.mirror.fault(core.faults.found(Finder::Watch, fault));
}

/// Shows the changes up to a revision. Returns whether all of them were shown; otherwise everything must be read again.
pub(crate) async fn replay(core: &Arc<Core>, until: u64) -> bool {
    tokio::select! {
        complete = replayed(core, until) => complete,
        never = ask(core, until) => match never {},
    }
}

/// Watches up to a revision. A watch that breaks continues where it broke, at another member if there is one.
async fn replayed(core: &Arc<Core>, until: u64) -> bool {
    let mut complete = true;
    for _ in 0..REPLAYS_MAX {
        match watch(core, Some(until), &mut complete).await {
            Ended::Reached => return complete,
            Ended::Lost(why) => tracing::warn!(why, "reading the history of etcd failed; continuing where it failed"),
            Ended::Compacted | Ended::Unlocked | Ended::Back { .. } => return false,
        }
        tokio::time::sleep(PAUSE).await;
    }
    false
}

/// One watch, from what is shown already until it ends, or shows the revision `until`. Sets `complete` to false if a value could
/// not be decoded.
async fn watch(core: &Arc<Core>, until: Option<u64>, complete: &mut bool) -> Ended {
    let (requests, stream) = mpsc::channel(REQUESTS_MAX);
    let shown = core.mirror.revision();
    if until.is_some_and(|until| shown >= until) {
        return Ended::Reached;
    }
    if requests.send(create(core, shown + 1)).await.is_err() {
        return Ended::Lost("the stream of requests ended".to_owned());
    }
    let (mut client, turn) = core.connection.client();
    let lost = |why: String| {
        core.connection.leave(turn);
        Ended::Lost(why)
    };
    let mut answers = match client.watch(with_leader(ReceiverStream::new(stream))).await {
        Ok(answers) => answers,
        Err(status) => return lost(status.message().to_owned()),
    };
    let mut events = Vec::new();
    // After a call has found that the member does not answer, the watch on it would stay silent.
    let left = core.connection.left(turn);
    let unlocked = core.unlocked();
    tokio::pin!(left, unlocked);
    loop {
        let answer = tokio::select! {
            answer = answers.message() => answer,
            () = &mut unlocked => return Ended::Unlocked,
            () = &mut left => return Ended::Lost("switched to another member".to_owned()),
            () = nudged(core) => {
                // A full queue has a question in it already.
                let _ = requests.try_send(progress());
                continue;
            }
        };
        let answer = match answer {
            Ok(Some(answer)) => answer,
            Ok(None) => return lost("etcd ended the stream".to_owned()),
            Err(status) => return lost(status.message().to_owned()),
        };
        match judged(&answer, shown) {
            Some(Ended::Lost(why)) => return lost(why),
            Some(Ended::Back { revision }) if lags_behind(core, shown).await => {
                return lost(format!("the member is at revision {revision}, behind {shown}"));
            }
            Some(ended) => return ended,
            None => {}
        }
        if answer.created {
            report(core, None);
            continue;
        }
        let revision = revision_of(answer.header.as_ref());
        let silent = answer.events.is_empty() && events.is_empty();
        events.extend(answer.events);
        if answer.fragment {
            continue;
        }
        if silent {
            // All events up to this revision have been applied before.
            core.mirror.apply(Vec::new(), revision);
        }
        match show(core, std::mem::take(&mut events)).await {
            Ok(all) => *complete &= all,
            Err(why) => return Ended::Lost(why),
        }
        if until.is_some_and(|until| core.mirror.revision() >= until) {
            return Ended::Reached;
        }
    }
}

/// Whether an answer ends the watch that began behind `shown`.
fn judged(answer: &WatchResponse, shown: u64) -> Option<Ended> {
    if answer.compact_revision != 0 {
        return Some(Ended::Compacted);
    }
    if answer.canceled {
        return Some(Ended::Lost(format!("etcd ended the watch: {}", answer.cancel_reason)));
    }
    let revision = revision_of(answer.header.as_ref());
    (answer.created && revision < shown).then_some(Ended::Back { revision })
}

/// Whether the cluster as a whole is as far as it once was, so that it is one member alone that is not. Where the
/// cluster cannot be asked it is taken to be, since the other answer ends the process.
async fn lags_behind(core: &Core, shown: u64) -> bool {
    core.connection.revision().await.map_or(true, |revision| revision >= shown)
}

/// Has the stream ended by a member that is cut off from the others, which would be silent else.
fn with_leader(requests: ReceiverStream<WatchRequest>) -> Request<ReceiverStream<WatchRequest>> {
    let mut request = Request::new(requests);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    request
}

async fn nudged(core: &Core) {
    match &core.nudge {
        Some(nudge) => nudge.notified().await,
        None => std::future::pending().await,
    }
}

fn create(core: &Core, from: u64) -> WatchRequest {
    let (key, range_end) = match core.nudge {
        Some(_) => core.keys.range(),
        // From the first key of all to the last.
        None => (vec![0], vec![0]),
    };
    let create = WatchCreateRequest {
        key: key.into(),
        range_end: range_end.into(),
        start_revision: i64::try_from(from).unwrap_or(i64::MAX),
        progress_notify: core.nudge.is_some(),
        fragment: true,
        ..Default::default()
    };
    WatchRequest { request_union: Some(watch_request::RequestUnion::CreateRequest(create)) }
}

fn progress() -> WatchRequest {
    WatchRequest { request_union: Some(watch_request::RequestUnion::ProgressRequest(WatchProgressRequest {})) }
}

/// Shows events, of whole revisions. Returns whether all of them could be decoded.
async fn show(core: &Arc<Core>, events: Vec<Event>) -> Result<bool, String> {
    if events.is_empty() {
        return Ok(true);
    }
    let bytes: usize = events.iter().filter_map(|event| Some(event.kv.as_ref()?.value.len())).sum();
    let by_service = |event: &Event| event.kv.as_ref().is_some_and(|kv| kv.value.starts_with(BY_SERVICE));
    if bytes <= INLINE_BYTES_MAX && !events.iter().any(by_service) {
        return Ok(applied(core, &events));
    }
    let decoder = Arc::clone(core);
    DECODE.run(move || applied(&decoder, &events)).await.map_err(|error| error.to_string())
}

fn applied(core: &Core, events: &[Event]) -> bool {
    let mut changes: Vec<MirrorChange> = Vec::with_capacity(events.len());
    let (mut revision, mut complete) = (0, true);
    for event in events {
        let Some(kv) = &event.kv else { continue };
        let at = u64::try_from(kv.mod_revision).unwrap_or(0);
        revision = revision.max(at);
        let deleted = |key| MirrorChange { key, revision: at, create_revision: at, value: None };
        if event.r#type == event::EventType::Delete as i32 {
            changes.extend(core.keys.parse(&kv.key).map(deleted));
            continue;
        }
        let resource = core.keys.parse(&kv.key).map(|key| key.resource);
        if resource.is_some_and(|resource| core.mirror.locked(resource).is_some()) {
            continue;
        }
        match core.read(kv) {
            Ok(seen) => changes.extend(seen),
            Err(unreadable) if unreadable.fault == Fault::Unavailable => {
                complete = false;
                tracing::error!(%unreadable, "the KMS plugin is unavailable; the resource is locked until it responds");
                core.mirror.lock(unreadable.key.resource, SealError::Unavailable(unreadable.why));
                core.locked.note(unreadable.key, kv.value.clone());
            }
            Err(unreadable) => {
                complete = false;
                // What was there before is not what is there now.
                tracing::error!(%unreadable, "stored object cannot be decoded; not serving it");
                changes.push(deleted(unreadable.key));
            }
        }
    }
    core.mirror.apply(changes, revision);
    complete
}

#[cfg(test)]
mod tests {
    use kelson_etcd::proto::ResponseHeader;

    use super::*;

    #[test]
    fn what_ends_a_watch() {
        let at = |revision| Some(ResponseHeader { revision, ..Default::default() });
        let answer = |header, created| WatchResponse { header, created, ..Default::default() };
        assert!(judged(&answer(at(7), true), 7).is_none());
        assert!(matches!(judged(&answer(at(6), true), 7), Some(Ended::Back { revision: 6 })));
        assert!(judged(&answer(at(6), false), 7).is_none(), "an event is older than what came after it");
        let compacted = WatchResponse { canceled: true, compact_revision: 9, ..Default::default() };
        assert!(matches!(judged(&compacted, 7), Some(Ended::Compacted)));
        let lost = WatchResponse { canceled: true, cancel_reason: "no leader".to_owned(), ..Default::default() };
        assert!(matches!(judged(&lost, 7), Some(Ended::Lost(why)) if why.contains("no leader")));
    }
}
