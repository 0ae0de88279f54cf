//! One pod's worker and its environment.
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kelson_kubelet::pods::event::{WorkerInbox, WorkerStart};
use kelson_kubelet::pods::resize::Granted;
use kelson_kubelet::pods::worker::Worker;
use kelson_tasks::{Scoped, scoped};
use serde_json::{Value, json};

use super::{World, world};

pub fn pod(spec: Value) -> Value {
    json!({"metadata":{"name":"p","namespace":"n","uid":"u"},"spec":spec})
}

pub struct Life {
    pub world: World,
    pub inbox: WorkerInbox,
    pub task: Scoped<()>,
}

pub fn live(object: Value) -> Life {
    let world = world();
    begin(world, object)
}

pub fn begin(world: World, object: Value) -> Life {
    let inbox = WorkerInbox::default();
    let pod: Pod = serde_json::from_value(object).expect("pod");
    let events = inbox.clone();
    *world.runtime.changed.lock() = Some(Box::new(move || events.runtime()));
    let worker = Worker::new(Arc::clone(&world.parts), WorkerStart::of(Arc::new(pod)), inbox.clone());
    Life { task: scoped("worker", worker.run()), world, inbox }
}

impl Life {
    pub fn update(&self, object: Value) {
        let pod: Pod = serde_json::from_value(object).expect("pod");
        self.inbox.pod(Granted { pod: Arc::new(pod), deferred: None });
    }
    /// Lets time pass until `done` is true. Returns the number of seconds.
    pub async fn until(&self, limit: u64, done: impl Fn(&World) -> bool) -> u64 {
        let began = tokio::time::Instant::now();
        while !done(&self.world) {
            assert!(
                began.elapsed() < Duration::from_secs(limit),
                "not within {limit} s: {:?}",
                self.world.api.status.lock()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        began.elapsed().as_secs()
    }
}

pub fn condition(w: &World, kind: &str) -> String {
    let status = w.api.status.lock();
    let list = status.get("conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    list.iter()
        .find(|c| c["type"] == kind)
        .map(|c| c["status"].as_str().unwrap_or_default().to_owned())
        .unwrap_or_default()
}
