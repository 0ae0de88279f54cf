//! The components, each of which can end and start again while the others continue.
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kelson_client::Client;
use kelson_controllers::{Authorities, Controllers};
use kelson_kubelet::Kubelet;
use kelson_kubelet::probes::{Handler, Outcome, ProbeRunner, Target};
use kelson_kubelet::volumes::mounts::Mounts;
use kelson_scheduler::Scheduler;
use kelson_simulation::{Api, FakeRuntime, Faults, Trace};
use kelson_tasks::Tasks;

/// The number of nodes.
pub const NODES: usize = 2;

/// A cluster with all its components.
pub struct Cluster {
    pub api: Api,
    pub faults: Faults,
    pub trace: Trace,
    pub nodes: Vec<Node>,
    controllers: Option<kelson_controllers::Running>,
    scheduler: Option<kelson_scheduler::Running>,
    seed: u64,
    dir: PathBuf,
}

/// A machine: its containers outlive its kubelet.
pub struct Node {
    pub name: String,
    pub runtime: Arc<FakeRuntime>,
    kubelet: Option<kelson_kubelet::Running>,
}

impl Cluster {
    /// Starts all components; faults are enabled later.
    pub async fn start(seed: u64, trace: Trace) -> Self {
        let faults = Faults::new(seed, trace.clone());
        let api = Api::faulty(|_| {}, faults.clone()).await;
        let clock = Arc::new(api.clock);
        let nodes = (0..NODES).map(|n| Node {
            name: format!("n{n}"),
            runtime: FakeRuntime::with(clock.clone(), [10, 42, u8::try_from(n).unwrap()], Some(faults.clone())),
            kubelet: None,
        });
        let nodes = nodes.collect();
        let dir = std::env::temp_dir().join(format!("kelson-simulation-{}", std::process::id()));
        let mut me = Self { api, faults, trace, nodes, controllers: None, scheduler: None, seed, dir };
        me.start_controllers();
        me.start_scheduler();
        for n in 0..NODES {
            me.start_kubelet(n).await;
        }
        me
    }

    fn client(&self, user: &str, component: &str) -> Client {
        Client::new(self.api.transport(user), component)
    }

    pub fn start_controllers(&mut self) {
        let api = self.api.clone();
        let factory = move |user: &str| Client::new(api.transport(user), "controller-manager");
        let config = kelson_controllers::Config {
            cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
            authorities: Authorities { root_ca: "PEM".into(), ..Authorities::default() }.fixed(),
            ..kelson_controllers::Config::default()
        };
        let tasks = Tasks::root("controllers");
        self.controllers = Some(Controllers::start(config, Box::new(factory), Arc::new(self.api.clock), tasks));
        self.trace.note("test", "controllers start");
    }

    pub async fn stop_controllers(&mut self) {
        if let Some(c) = self.controllers.take() {
            c.shutdown().await;
        }
        self.trace.note("test", "controllers ended");
    }

    pub fn start_scheduler(&mut self) {
        let config = kelson_scheduler::Config { seed: Some(self.seed), ..kelson_scheduler::Config::default() };
        let client = self.client("system:kube-scheduler", "scheduler");
        self.scheduler =
            Some(Scheduler::start(config, client, Arc::new(self.api.clock), None, &Tasks::root("scheduler")));
        self.trace.note("test", "scheduler starts");
    }

    pub async fn stop_scheduler(&mut self) {
        if let Some(s) = self.scheduler.take() {
            s.shutdown().await;
        }
        self.trace.note("test", "scheduler ended");
    }

    pub async fn start_kubelet(&mut self, n: usize) {
        let node = &self.nodes[n];
        let dir = self.dir.join(&node.name);
        std::fs::create_dir_all(&dir).expect("a directory for the kubelet");
        let mut config = kelson_kubelet::Config::new(&node.name, &dir);
        config.node_ips = vec![format!("192.0.2.{}", n + 1).parse().unwrap()];
        // Resources of the machine that runs the test are ignored.
        config.eviction.thresholds.clear();
        config.image_gc_high_percent = 100;
        let client = self.client(&format!("system:node:{}", node.name), &node.name);
        let deps = kelson_kubelet::Dependencies {
            tasks: Tasks::root("kubelet"),
            client,
            runtime: Arc::clone(&node.runtime) as _,
            clock: Arc::new(self.api.clock),
            mounts: Arc::new(NoMounts),
            prober: Some(Arc::new(Healthy)),
            on_pod_cidrs: None,
            certificate: None,
            network_gate: None,
        };
        let running = Kubelet::start(config, deps).await.unwrap_or_else(|e| panic!("kubelet {n}: {e}"));
        self.nodes[n].kubelet = Some(running);
        self.trace.note("test", format_args!("kubelet {n} starts"));
    }

    pub async fn stop_kubelet(&mut self, n: usize) {
        if let Some(k) = self.nodes[n].kubelet.take() {
            k.shutdown().await;
        }
        self.trace.note("test", format_args!("kubelet {n} ended"));
    }

    /// Reboots the machine of a node: its kubelet and all its containers end.
    pub async fn reboot(&mut self, n: usize) {
        self.stop_kubelet(n).await;
        self.nodes[n].runtime.reboot();
        self.trace.note("test", format_args!("node {n} reboots"));
    }

    /// Stops the API server, and starts it again after a pause with its store.
    pub async fn restart_api(&self, pause: Duration) {
        self.api.stop().await;
        self.trace.note("test", "the API server ended");
        tokio::time::sleep(pause).await;
        self.api.start_again().await;
        self.trace.note("test", "the API server starts");
    }
}

impl Cluster {
    /// Simulates a power failure of the server's machine, and starts a server after a pause with everything it had
    /// acknowledged. In half of the cases its last write was torn.
    pub async fn cut_power(&self, torn: Option<bool>, pause: Duration) {
        if let Some(reaches) = torn {
            self.api.tear_write(reaches);
            // Until a client has written and did not get the result.
            tokio::time::sleep(pause).await;
        }
        self.api.cut_power().await;
        self.trace.note("test", format_args!("the power is cut, torn: {torn:?}"));
        tokio::time::sleep(pause).await;
        self.api.start_again().await;
        self.trace.note("test", "the API server starts");
    }

    /// Fills the server's disk for a while.
    pub async fn fill_disk(&self, pause: Duration) {
        self.trace.note("test", "the disk is full");
        self.api.disk_full(true);
        tokio::time::sleep(pause).await;
        self.api.disk_full(false);
        self.trace.note("test", format_args!("the disk has room; {} writes were refused", self.api.refused_by_disk()));
    }

    /// Makes all wall clocks jump.
    pub fn jump(&self, seconds: i64) {
        self.trace.note("test", format_args!("the clock jumps by {seconds} s"));
        self.api.clock.jump(seconds);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The next run creates its own; leftovers are in the system's temporary directory.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Mounts that are only recorded.
struct NoMounts;

impl Mounts for NoMounts {
    fn tmpfs(&self, _: &Path, _: Option<u64>, _: u32) -> std::io::Result<()> {
        Ok(())
    }
    fn huge_pages(&self, _: &Path, _: u64) -> std::io::Result<()> {
        Ok(())
    }
    fn bind(&self, _: BorrowedFd<'_>, _: &Path) -> std::io::Result<()> {
        Ok(())
    }
    fn unmount(&self, _: &Path) -> std::io::Result<()> {
        Ok(())
    }
    fn below(&self, _: &Path) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// Every probe succeeds.
struct Healthy;

#[async_trait::async_trait]
impl ProbeRunner for Healthy {
    async fn run(&self, _: &Handler, _: &Target, _: Duration) -> Outcome {
        Outcome::Success
    }
}
