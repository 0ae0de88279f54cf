//! Objects whose lifecycle is defined by `Stage` objects (`kwok.x-k8s.io/v1alpha1`): nodes that users create, pods on
//! them, and any other kind that a stage names. Stages are read from files or watched in the API.
//!
//! Rooms: `settings`, `whole` (an object with all its fields) → `kinds` (the resources that are served) → `nodes` (the
//! managed nodes, addresses) → `leases` (the holder of each node), `write` (the effects of a stage) → `player` (moves
//! objects of one kind from stage to stage) → this face.

mod kinds;
mod leases;
mod nodes;
mod player;
mod settings;
mod whole;
mod write;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{Client, EventRecorder, Informer, InformerConfig, InformerHandle, WorkQueue};
use kelson_meta::Clock;
use kelson_stages::{Document, Lifecycle, Reference, Stage, StageError, Surroundings, Templates};
use kelson_tasks::{OnPanic, Tasks};
use parking_lot::Mutex;
use serde::Deserialize as _;

pub use settings::{Manage, Settings};

use self::kinds::Kinds;
use self::nodes::StagedNodes;
use self::player::Player;
use self::whole::Whole;
use self::write::Writer;

/// The longest time that a shutdown waits for requests in progress.
const END_MAX: Duration = Duration::from_secs(10);
/// The path of stages, with the definitions that kwok installs.
const STAGES: &str = "/apis/kwok.x-k8s.io/v1alpha1/stages";

/// The tasks of all kinds.
struct Drivers {
    tasks: Tasks,
    client: Client,
    nodes: Arc<StagedNodes>,
    writer: Arc<Writer>,
    templates: Templates,
    kinds: Arc<Kinds>,
    players: Mutex<BTreeMap<Reference, Arc<Player>>>,
}

/// Objects that are driven.
pub struct Driven(Tasks);

impl Driven {
    /// Ends it; the objects stay as they are.
    pub async fn shutdown(self) {
        self.0.shutdown(END_MAX).await;
    }
}

/// Starts to drive what `settings` say.
///
/// # Errors
/// When a stage that was given with the settings cannot be used.
pub fn start(settings: Settings, client: &Client, clock: &Arc<dyn Clock>, tasks: &Tasks) -> Result<Driven, StageError> {
    let tasks = tasks.child("stages");
    let (stages, follow) = (settings.stages.clone(), settings.follow_stages);
    let nodes = StagedNodes::start(settings, client, clock, &tasks);
    let around: Arc<dyn Surroundings> = Arc::<StagedNodes>::clone(&nodes);
    let events = EventRecorder::start_in(&tasks, client.clone(), Arc::clone(clock), "kwok_controller", "");
    let kinds = Arc::new(Kinds::new(client.clone()));
    let writer = Arc::new(Writer { client: client.clone(), events, kinds: Arc::clone(&kinds) });
    let drivers = Arc::new(Drivers {
        tasks: tasks.clone(),
        client: client.clone(),
        nodes,
        writer,
        templates: Templates::new(&around),
        kinds,
        players: Mutex::default(),
    });
    if follow {
        drivers.follow();
    } else {
        let lifecycles = drivers.compiled(&stages, Err)?;
        let me = Arc::clone(&drivers);
        tasks.spawn("stages", OnPanic::EndProcess, async move { me.play(lifecycles).await });
    }
    Ok(Driven(tasks))
}

impl Drivers {
    /// The stages by the kinds that they are of. What cannot be used goes to `fault`.
    fn compiled(
        &self,
        documents: &[Document],
        fault: impl Fn(StageError) -> Result<(), StageError>,
    ) -> Result<BTreeMap<Reference, Lifecycle>, StageError> {
        let mut lifecycles: BTreeMap<Reference, Lifecycle> = BTreeMap::new();
        for document in documents {
            match Stage::compile(document, &self.templates) {
                Ok(Some(stage)) => lifecycles.entry(stage.of().clone()).or_default().0.push(Arc::new(stage)),
                Ok(None) => {}
                Err(e) => fault(e)?,
            }
        }
        Ok(lifecycles)
    }

    /// Has these stages played, and no others from now on.
    async fn play(self: &Arc<Self>, mut lifecycles: BTreeMap<Reference, Lifecycle>) {
        let known: Vec<_> = self.players.lock().iter().map(|(of, p)| (of.clone(), Arc::clone(p))).collect();
        for (of, player) in known {
            player.set(lifecycles.remove(&of).unwrap_or_default());
        }
        for (of, lifecycle) in lifecycles {
            let kind = self.kinds.found(&of).await;
            let (nodes, writer) = (Arc::clone(&self.nodes), Arc::clone(&self.writer));
            let player = Player::start(kind, lifecycle, nodes, writer, &self.tasks);
            self.players.lock().insert(of, player);
        }
    }

    /// Follows the stages in the API.
    fn follow(self: &Arc<Self>) {
        let queue: WorkQueue<&'static str> = WorkQueue::default();
        let q = queue.clone();
        let informer = Informer::<Whole>::new(self.client.clone(), InformerConfig::default()).whole_at(STAGES);
        let stages = informer.on_change(move |_| q.add("stages")).start_in(&self.tasks);
        let me = Arc::clone(self);
        self.tasks.supervise("stages", move || {
            let (me, queue, stages) = (Arc::clone(&me), queue.clone(), stages.clone());
            async move {
                let work = move |_| {
                    let (me, stages) = (Arc::clone(&me), stages.clone());
                    async move { me.taken_up(&stages).await }
                };
                queue
                    .work(
                        "stages",
                        work,
                        |_, error: &StageError| tracing::warn!(%error, "starting the stages failed; retrying"),
                    )
                    .await;
            }
        });
    }

    async fn taken_up(self: &Arc<Self>, stages: &InformerHandle<Whole>) -> Result<(), StageError> {
        stages.synced().await;
        let mut all = stages.list();
        all.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let read = |stage: &Arc<Whole>| match Document::deserialize(&stage.object()) {
            Ok(document) => Some(document),
            Err(error) => {
                tracing::warn!(stage = stage.metadata.name, %error, "decoding a stage failed; ignoring it");
                None
            }
        };
        let documents: Vec<_> = all.iter().filter_map(read).collect();
        let lifecycles = self.compiled(&documents, |error| {
            tracing::warn!(%error, "stage is invalid; ignoring it");
            Ok(())
        })?;
        self.play(lifecycles).await;
        Ok(())
    }
}
