//! The eviction manager on the paused clock, with recorded effects.
use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde_json::json;

use super::rank::{ContainerUsage, PodUsage};
use super::tracker::Observation;
use super::*;
use crate::config::thresholds::Signal;

#[derive(Default)]
struct World {
    seen: Mutex<Observations>,
    pods: Mutex<Vec<Arc<Pod>>>,
    usages: Mutex<Usages>,
    log: Mutex<Vec<String>>,
    /// Free bytes after reclaiming disk space.
    reclaims_to: Mutex<Option<u64>>,
}

#[async_trait]
impl Effects for Arc<World> {
    async fn observe(&self) -> Observations {
        self.seen.lock().clone()
    }
    fn active(&self) -> Vec<Arc<Pod>> {
        self.pods.lock().clone()
    }
    async fn usages(&self, _: &[Arc<Pod>]) -> Usages {
        self.usages.lock().clone()
    }
    async fn reclaim_disk(&self) {
        self.log.lock().push("reclaim".into());
        if let Some(available) = *self.reclaims_to.lock() {
            self.seen.lock().values_mut().for_each(|o| o.available = available);
        }
    }
    fn attempting(&self, resource: &str) {
        self.log.lock().push(format!("attempting {resource}"));
    }
    fn evict(&self, pod: &Arc<Pod>, _signal: &'static str, message: String, grace: Duration) {
        self.log.lock().push(format!("evict {} {}s {message}", pod::name(pod), grace.as_secs()));
        self.pods.lock().retain(|p| pod::uid(p) != pod::uid(pod));
    }
}

fn pod(name: &str, priority: i32) -> Arc<Pod> {
    Arc::new(
        serde_json::from_value(json!({"metadata":{"name":name,"uid":name},
            "spec":{"priority":priority,"containers":[{"name":"c"}]}}))
        .expect("pod"),
    )
}

fn start(world: &Arc<World>) -> watch::Receiver<Pressure> {
    let (to, pressure) = watch::channel(Pressure::default());
    let manager = EvictionManager::new(EvictionConfig::default(), Arc::clone(world), to);
    kelson_tasks::Tasks::root("test").spawn("evictions", kelson_tasks::OnPanic::Contain, manager.run());
    pressure
}

fn sees(world: &World, signal: Signal, available: u64) {
    *world.seen.lock() = Observations::from([(signal, Observation { available, capacity: 1 << 30 })]);
}

#[tokio::test(start_paused = true)]
async fn memory_pressure_evicts_one_pod_per_period_and_no_critical_pod() {
    let world = Arc::new(World::default());
    *world.pods.lock() = vec![pod("critical", 2_000_000_000), pod("small", 0), pod("big", 0)];
    let uses = |memory: u64| PodUsage {
        containers: BTreeMap::from([("c".into(), ContainerUsage { memory, ..Default::default() })]),
        ..Default::default()
    };
    *world.usages.lock() =
        [("critical".into(), uses(9 << 20)), ("small".into(), uses(1 << 20)), ("big".into(), uses(4 << 20))].into();
    sees(&world, Signal::MemoryAvailable, 500 << 20);
    let pressure = start(&world);
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert!(world.log.lock().is_empty() && !pressure.borrow().memory);

    sees(&world, Signal::MemoryAvailable, 50 << 20);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(pressure.borrow().memory);
    let text = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container c was using 4Mi, request is 0, has larger consumption of memory. ";
    assert_eq!(*world.log.lock(), ["attempting memory".to_owned(), format!("evict big 1s {text}")]);
    tokio::time::sleep(Duration::from_secs(20)).await;
    let evicted: Vec<String> = world.log.lock().iter().filter(|l| l.starts_with("evict")).cloned().collect();
    assert!(evicted.len() == 2 && evicted[1].starts_with("evict small 1s "), "{evicted:?}");

    sees(&world, Signal::MemoryAvailable, 500 << 20);
    tokio::time::sleep(Duration::from_secs(280)).await;
    assert!(pressure.borrow().memory, "the condition outlasts its cause by the transition period");
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert!(!pressure.borrow().memory);
}

#[tokio::test(start_paused = true)]
async fn disk_is_reclaimed_before_a_pod_goes() {
    let world = Arc::new(World::default());
    *world.pods.lock() = vec![pod("a", 0)];
    *world.reclaims_to.lock() = Some(900 << 20);
    sees(&world, Signal::NodeFsAvailable, 1 << 20);
    let pressure = start(&world);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(*world.log.lock(), ["attempting ephemeral-storage", "reclaim"]);
    assert!(pressure.borrow().disk);

    *world.reclaims_to.lock() = None;
    sees(&world, Signal::NodeFsAvailable, 1 << 20);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let last = world.log.lock().last().cloned().expect("evicted");
    assert!(last.starts_with("evict a 1s The node was low on resource: ephemeral-storage. "), "{last}");
}

#[tokio::test(start_paused = true)]
async fn a_full_empty_dir_ends_its_pod_on_a_healthy_node() {
    let world = Arc::new(World::default());
    let sized: Pod = serde_json::from_value(json!({"metadata":{"name":"full","uid":"full"},"spec":{
        "containers":[{"name":"c"}],"volumes":[{"name":"v","emptyDir":{"sizeLimit":"1Mi"}}]}}))
    .expect("pod");
    *world.pods.lock() = vec![Arc::new(sized), pod("other", 0)];
    let full = PodUsage { empty_dirs: BTreeMap::from([("v".into(), 2 << 20)]), ..Default::default() };
    *world.usages.lock() = [("full".into(), full)].into();
    start(&world);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(*world.log.lock(), ["evict full 1s Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "]);
}
