//! Keeps manifests applied that the program reads from files: each file when it changes and at every start, by server-side apply. An
//! object stays when its file goes, unless it asks to be pruned. Rooms: `desired` (pure) ← `parent` ← `apply` ← this.
mod apply;
mod desired;
mod parent;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{Backoff, Client, EventRecorder, EventType, ObjectRef, WorkQueue};
use kelson_metrics::{IntCounterVec, IntGauge};
use parking_lot::Mutex;
use tokio::sync::watch;

use self::apply::{Applier, prune};
use self::desired::{DesiredObjects, MANAGER, ManifestKey, in_order, kept, pending};
use self::parent::Parent;
use crate::shared::context::{Context, SyncError};
use crate::shared::manifest_set::ManifestSet;

/// The delays between attempts of a failed operation.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));

/// Longest line of the status, in characters.
const LINE_CHARS_MAX: usize = 400;
/// Longest status, in characters: a ConfigMap holds 1 MiB.
const STATUS_CHARS_MAX: usize = 200_000;
/// Longest reason in an event, in characters: the API takes 1024 bytes with the words before it.
const MESSAGE_CHARS_MAX: usize = 700;

/// Truncates a string that is too long.
fn shortened(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The work: all of it at once, since an object of one file may need those of another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct AllManifests;

impl std::fmt::Display for AllManifests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("manifests")
    }
}

struct ManifestController {
    client: Client,
    recorder: EventRecorder,
    set: watch::Receiver<Arc<ManifestSet>>,
    objects: IntCounterVec,
    failing: IntGauge,
    state: Mutex<ManifestState>,
}

#[derive(Default)]
struct ManifestState {
    /// Files all of whose objects are applied, with what they contained.
    applied: BTreeMap<String, [u8; 32]>,
    /// The last report of each file that fails.
    reported: BTreeMap<String, Vec<String>>,
    /// The last written parent. `None` if it is missing or was not read yet.
    parent: Option<(Parent, ObjectRef)>,
    /// Whether the set was compared with what is pruned, since it last changed.
    pruned: Option<Arc<ManifestSet>>,
}

/// Starts the controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let metrics = &ctx.config.metrics;
    let queue: WorkQueue<AllManifests> = WorkQueue::new(RETRY);
    let me = Arc::new(ManifestController {
        recorder: ctx.recorder(&client, MANAGER),
        client,
        set: ctx.config.manifests.clone(),
        objects: metrics.counters(
            "kelson_manifest_objects_total",
            "Objects of manifests by result: applied, failed or pruned.",
            &["result"],
        ),
        failing: metrics.gauge("kelson_manifest_failing_files", "Number of manifest files with errors."),
        state: Mutex::default(),
    });
    let (changed, q) = (ctx.config.manifests.clone(), queue.clone());
    ctx.tasks.supervise("manifest changes", move || {
        let (mut changed, q) = (changed.clone(), q.clone());
        async move {
            while changed.changed().await.is_ok() {
                q.add(AllManifests);
            }
        }
    });
    queue.add(AllManifests);
    ctx.run_queue(&queue, 1, move |_| {
        let me = Arc::clone(&me);
        async move { me.sync().await }
    });
}

impl ManifestController {
    async fn sync(&self) -> Result<(), SyncError> {
        let set = Arc::clone(&self.set.borrow());
        self.state.lock().applied.retain(|name, _| set.files.iter().any(|file| file.name == *name));
        let kept = kept(&set);
        let Some(parent) = self.parent(&set, &kept).await? else { return Ok(()) };
        let failed = self.apply(&set).await;
        if failed.is_empty() && kept.is_whole {
            self.prune(&set, &parent, &kept).await?;
        }
        self.report(&set, &failed).await?;
        let retried: usize = failed.values().map(Vec::len).sum();
        let unreadable = set.files.iter().filter(|file| !file.skipped && file.objects.is_err()).count();
        self.failing.set(i64::try_from(failed.len() + unreadable).unwrap_or(i64::MAX));
        match retried {
            0 => Ok(()),
            n => Err(SyncError::Logged(format!("failed to apply {n} objects"))),
        }
    }

    /// The ConfigMap, written with the kinds of all that is about to be applied; `None` where there is nothing to do.
    async fn parent(&self, set: &ManifestSet, kept: &DesiredObjects) -> Result<Option<Parent>, SyncError> {
        let known = self.state.lock().parent.clone();
        let before = match known {
            Some((parent, _)) => Some(parent),
            None => Parent::read(&self.client).await?,
        };
        if before.is_none() && set.files.iter().all(|file| file.skipped) {
            return Ok(None);
        }
        let parent = before.unwrap_or_default().with(kept, false);
        self.write(parent.clone()).await?;
        Ok(Some(parent))
    }

    async fn write(&self, parent: Parent) -> Result<(), SyncError> {
        if self.state.lock().parent.as_ref().is_some_and(|(written, _)| *written == parent) {
            return Ok(());
        }
        let about = parent.write(&self.client).await?;
        self.state.lock().parent = Some((parent, about));
        Ok(())
    }

    /// Applies what changed; gives what failed, by file.
    async fn apply(&self, set: &ManifestSet) -> BTreeMap<String, Vec<String>> {
        let files = pending(set, &self.state.lock().applied.clone());
        let mut failed: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut applier = Applier::new(&self.client, set.prunes);
        for (file, object) in in_order(files.iter().copied()) {
            let done = applier.apply(&object).await;
            let result = if done.is_ok() { "applied" } else { "failed" };
            self.objects.with_label_values(&[result]).inc();
            if let Err(why) = done {
                let key = ManifestKey::of(&object).map(|key| format!("{key}: ")).unwrap_or_default();
                failed.entry(file.to_owned()).or_default().push(format!("{key}{why}"));
            }
        }
        let mut state = self.state.lock();
        for file in files.into_iter().filter(|file| !failed.contains_key(&file.name)) {
            state.applied.insert(file.name.clone(), file.digest);
            let objects = file.objects.as_ref().map_or(0, Vec::len);
            tracing::info!(file = file.name, objects, "applied a manifest");
            Self::event(
                &self.recorder,
                &state,
                EventType::Normal,
                "AppliedManifest",
                format!("Applied manifest {}", file.name),
            );
        }
        failed
    }

    fn event(recorder: &EventRecorder, state: &ManifestState, kind: EventType, reason: &str, message: String) {
        if let Some((_, about)) = &state.parent {
            recorder.event(about, kind, reason, message);
        }
    }

    async fn prune(&self, set: &Arc<ManifestSet>, parent: &Parent, kept: &DesiredObjects) -> Result<(), SyncError> {
        let is_done = self.state.lock().pruned.as_ref().is_some_and(|done| Arc::ptr_eq(done, set));
        if is_done || parent.group_kinds.is_empty() {
            return Ok(());
        }
        for key in prune(&self.client, &parent.group_kinds, kept).await? {
            self.objects.with_label_values(&["pruned"]).inc();
            tracing::info!(object = %key, "deleted an object that is no longer in any manifest");
            let message = format!("Deleted {key}, which is no longer in any manifest");
            Self::event(&self.recorder, &self.state.lock(), EventType::Normal, "PrunedObject", message);
        }
        self.state.lock().pruned = Some(Arc::clone(set));
        self.write(parent.with(kept, true)).await
    }

    /// Writes what became of each file, and an event for what fails since now.
    async fn report(&self, set: &ManifestSet, failed: &BTreeMap<String, Vec<String>>) -> Result<(), SyncError> {
        let mut lines = Vec::new();
        let mut now: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for file in &set.files {
            let name = &file.name;
            let line = match (&file.objects, failed.get(name)) {
                _ if file.skipped => format!("{name}: skipped"),
                (Err(why), _) => {
                    now.insert(name.clone(), vec![why.to_string()]);
                    format!("{name}: {why}")
                }
                (Ok(_), Some(why)) => {
                    now.insert(name.clone(), why.clone());
                    format!("{name}: {}", why.join("; "))
                }
                (Ok(objects), None) => format!("{name}: {} objects applied", objects.len()),
            };
            lines.push(shortened(&line, LINE_CHARS_MAX));
        }
        let parent = self.note(now, failed, shortened(&lines.join("\n"), STATUS_CHARS_MAX));
        match parent {
            Some(parent) => self.write(parent).await,
            None => Ok(()),
        }
    }

    /// Reports what fails since now; gives the ConfigMap with `status`.
    fn note(
        &self,
        now: BTreeMap<String, Vec<String>>,
        failed: &BTreeMap<String, Vec<String>>,
        status: String,
    ) -> Option<Parent> {
        let mut state = self.state.lock();
        for (name, why) in now.iter().filter(|(name, why)| state.reported.get(*name) != Some(*why)) {
            let is_parsed = failed.contains_key(name);
            let (reason, what) =
                if is_parsed { ("ApplyManifestFailed", "Applying") } else { ("ParseManifestFailed", "Reading") };
            let why = shortened(&why.join("; "), MESSAGE_CHARS_MAX);
            tracing::warn!(file = name, error = why, "manifest is not applied");
            Self::event(
                &self.recorder,
                &state,
                EventType::Warning,
                reason,
                format!("{what} manifest {name} failed: {why}"),
            );
        }
        state.reported = now;
        state.parent.as_ref().map(|(parent, _)| Parent { status, ..parent.clone() })
    }
}
