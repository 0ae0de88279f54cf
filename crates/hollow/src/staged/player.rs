//! Objects of one kind, each from stage to stage.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kelson_client::{Change, ClientError, Informer, InformerConfig, InformerHandle, WorkQueue};
use kelson_meta::ObjectKey;
use kelson_stages::{Lifecycle, Stage};
use kelson_tasks::{OnPanic, Tasks};
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::kinds::Kind;
use super::leases::Holder as _;
use super::nodes::StagedNodes;
use super::whole::Whole;
use super::write::{Writer, meta};

/// Writes for objects of a kind under way at once.
const WORKERS: usize = 16;

/// The state of one object.
struct Job {
    /// The object that was looked at.
    object: Arc<Value>,
    /// The stage that it is in, until that was played.
    next: Option<Next>,
}

#[derive(Clone)]
struct Next {
    stage: Arc<Stage>,
    due: Instant,
    /// The step to continue with after an error that may be temporary.
    step: usize,
}

/// Plays the stages of one kind.
pub struct Player {
    kind: Kind,
    lifecycle: RwLock<Lifecycle>,
    nodes: Arc<StagedNodes>,
    writer: Arc<Writer>,
    objects: InformerHandle<Whole>,
    jobs: Mutex<HashMap<ObjectKey, Job>>,
    queue: WorkQueue<ObjectKey>,
    /// Objects by the node that is not driven here yet.
    waiting: Mutex<HashMap<String, HashSet<ObjectKey>>>,
}

impl Player {
    /// Follows the objects of a kind.
    pub fn start(
        kind: Kind,
        lifecycle: Lifecycle,
        nodes: Arc<StagedNodes>,
        writer: Arc<Writer>,
        tasks: &Tasks,
    ) -> Arc<Self> {
        let queue: WorkQueue<ObjectKey> = WorkQueue::default();
        let config = match &kind {
            k if k.is_core("Pod") => {
                InformerConfig { fields: "spec.nodeName!=".to_owned(), ..InformerConfig::default() }
            }
            k if k.is_core("Node") => StagedNodes::watched(nodes.settings()),
            _ => InformerConfig::default(),
        };
        let (q, pods) = (queue.clone(), kind.is_core("Pod").then(|| Arc::clone(&nodes)));
        let informer = Informer::<Whole>::new(writer.client.clone(), config).whole_at(kind.path(""));
        let informer = informer.on_change(move |change: &Change<Whole>| {
            let object = change.object();
            if let Some(nodes) = &pods {
                nodes.note_pod(&object.object(), matches!(change, Change::Deleted(_)));
            }
            q.add(object.metadata.key());
        });
        let me = Arc::new(Self {
            kind,
            lifecycle: RwLock::new(lifecycle),
            nodes,
            objects: informer.start_in(tasks),
            writer,
            jobs: Mutex::default(),
            queue,
            waiting: Mutex::default(),
        });
        let weak = Arc::downgrade(&me);
        me.nodes.listen(move |node| {
            let Some(me) = weak.upgrade() else { return };
            let keys = me.waiting.lock().remove(node).unwrap_or_default();
            keys.into_iter().for_each(|key| me.queue.add(key));
        });
        me.run(tasks);
        me
    }

    fn run(self: &Arc<Self>, tasks: &Tasks) {
        let (me, group) = (Arc::clone(self), tasks.clone());
        tasks.spawn("stages-objects", OnPanic::EndProcess, async move {
            // Addresses of pods that are there must be known before others are handed out.
            me.objects.synced().await;
            for _ in 0..WORKERS {
                let me = Arc::clone(&me);
                group.supervise("stages-objects", move || {
                    let (me, queue) = (Arc::clone(&me), me.queue.clone());
                    async move {
                        let work = move |key: ObjectKey| {
                            let me = Arc::clone(&me);
                            async move { me.sync(&key).await }
                        };
                        queue
                            .work(
                                "stages",
                                work,
                                |key, error| tracing::info!(%key, %error, "playing a stage failed; retrying"),
                            )
                            .await;
                    }
                });
            }
        });
    }

    /// Has other stages played from now on; all objects are looked at again.
    pub fn set(&self, lifecycle: Lifecycle) {
        *self.lifecycle.write() = lifecycle;
        self.jobs.lock().clear();
        self.objects.list().iter().for_each(|object| self.queue.add(object.metadata.key()));
    }

    async fn sync(&self, key: &ObjectKey) -> Result<(), ClientError> {
        let Some(whole) = self.objects.get(key) else {
            self.jobs.lock().remove(key);
            return Ok(());
        };
        let known = self.jobs.lock().get(key).map(|job| Arc::clone(&job.object));
        if known.is_none_or(|known| is_newer(&whole, &known)) {
            let mut object = whole.object();
            // Items of lists do not say what they are.
            object["apiVersion"] = json!(self.kind.of.api_version);
            object["kind"] = json!(self.kind.of.kind);
            if !self.is_driven(key, &object) {
                self.jobs.lock().remove(key);
                return Ok(());
            }
            self.look(key, Arc::new(object));
        }
        self.play(key).await
    }

    /// Whether its node is driven here; if not, it is looked at again when it is.
    fn is_driven(&self, key: &ObjectKey, object: &Value) -> bool {
        let node = match &self.kind {
            k if k.is_core("Pod") => object["spec"]["nodeName"].as_str().unwrap_or_default(),
            k if k.is_core("Node") => &*key.name,
            _ => return true,
        };
        if self.nodes.has(node) {
            return true;
        }
        self.waiting.lock().entry(node.to_owned()).or_default().insert(key.clone());
        // The node may have become managed in the meantime, without a notification.
        self.nodes.has(node)
    }

    /// Finds the stage that an object is in, and when it leaves it.
    fn look(&self, key: &ObjectKey, object: Arc<Value>) {
        let mut chance = rand::rng();
        let chosen = self.lifecycle.read().choose(&object, &mut chance).map(|stage| stage.cloned());
        let next = match chosen {
            Ok(Some(stage)) => {
                let delay = stage.delay(&object, self.nodes.clock().now(), &mut chance).unwrap_or_else(|error| {
                    tracing::warn!(%key, %error, "reading the stage's delay failed; continuing without one");
                    std::time::Duration::ZERO
                });
                Some(Next { stage, due: Instant::now() + delay, step: 0 })
            }
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(kind = self.kind.of.kind, %key, %error, "matching the object to stages failed");
                None
            }
        };
        self.jobs.lock().insert(key.clone(), Job { object, next });
    }

    async fn play(&self, key: &ObjectKey) -> Result<(), ClientError> {
        let Some((object, next)) =
            self.jobs.lock().get(key).and_then(|j| Some((Arc::clone(&j.object), j.next.clone()?)))
        else {
            return Ok(());
        };
        let left = next.due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            self.queue.add_after(key.clone(), left);
            return Ok(());
        }
        let written = self.steps(key, &object, &next).await?;
        self.continued(key, &object);
        let changed = |written: &Value| meta(written, "resourceVersion") != meta(&object, "resourceVersion");
        if let Some(written) = written.filter(|w| next.stage.is_immediate() && changed(w)) {
            self.look(key, Arc::new(written));
            self.queue.add(key.clone());
        }
        Ok(())
    }

    /// All steps of a stage, from the one on where it was left.
    async fn steps(&self, key: &ObjectKey, object: &Arc<Value>, next: &Next) -> Result<Option<Value>, ClientError> {
        let mut written = None;
        for step in next.step..next.stage.steps() {
            let effects = match next.stage.effects(step, object) {
                Ok(effects) => effects,
                Err(error) => {
                    tracing::warn!(%key, %error, "playing a stage failed");
                    return Ok(None);
                }
            };
            for effect in effects {
                match self.writer.carry_out(&self.kind, object, effect).await {
                    Ok(now) => written = now.or(written),
                    Err(e) if e.is_retryable() => {
                        self.left_at(key, object, step);
                        return Err(e);
                    }
                    Err(e) if e.is_not_found() => return Ok(None),
                    Err(error) => {
                        tracing::warn!(%key, stage = next.stage.name(), %error, "playing a stage failed");
                        return Ok(None);
                    }
                }
            }
        }
        Ok(written)
    }

    /// The stage of this object was played.
    fn continued(&self, key: &ObjectKey, object: &Arc<Value>) {
        if let Some(job) = self.jobs.lock().get_mut(key).filter(|job| Arc::ptr_eq(&job.object, object)) {
            job.next = None;
        }
    }

    /// Continues with this step of the object's stage later.
    fn left_at(&self, key: &ObjectKey, object: &Arc<Value>, step: usize) {
        if let Some(job) = self.jobs.lock().get_mut(key).filter(|job| Arc::ptr_eq(&job.object, object)) {
            job.next.iter_mut().for_each(|next| next.step = step);
        }
    }
}

/// Whether what was heard of an object is newer than what is known of it, which may be what a write gave back.
fn is_newer(heard: &Whole, known: &Value) -> bool {
    let revision = |text: &str| text.parse::<u64>().unwrap_or(0);
    heard.metadata.uid != meta(known, "uid")
        || revision(&heard.metadata.resource_version) > revision(meta(known, "resourceVersion"))
}
