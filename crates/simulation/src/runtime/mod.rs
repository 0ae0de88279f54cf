//! A container runtime in memory: sandboxes and containers are rows of a table, and stopping one takes no time. It
//! keeps the rules that kubelets rely on: names are reserved, filters apply, removing a sandbox removes its containers.
mod cri;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kelson_cri::proto;
use kelson_cri::{Code, CriError, CriResult};
use kelson_meta::Clock;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::{Failure, Faults};

/// The number of events that a slow reader may be behind.
const EVENTS_MAX: usize = 64;
/// The last bytes of pods' addresses.
const HOSTS: std::ops::RangeInclusive<u8> = 7..=250;

const RUNNING: i32 = proto::ContainerState::ContainerRunning as i32;
const EXITED: i32 = proto::ContainerState::ContainerExited as i32;
const READY: i32 = proto::PodSandboxState::SandboxReady as i32;
const NOT_READY: i32 = proto::PodSandboxState::SandboxNotready as i32;

struct Sandbox {
    listed: proto::PodSandbox,
    ip: String,
}

struct Container {
    status: proto::ContainerStatus,
    sandbox: String,
    /// The seconds for which it runs and its exit code, if its command sets them.
    life: Option<(u32, i32)>,
    /// When it was started, by the monotonic clock: a sleeping program ignores changes of the wall clock.
    begun: Option<Instant>,
}

impl Container {
    /// Parses `["exit-after", SECONDS, CODE]`, the only program that ends by itself; all others run until they are
    /// stopped.
    fn life(command: &[String]) -> Option<(u32, i32)> {
        match command {
            [program, seconds, code] if program == "exit-after" => Some((seconds.parse().ok()?, code.parse().ok()?)),
            _ => None,
        }
    }
}

#[derive(Default)]
struct RuntimeState {
    sandboxes: Vec<Sandbox>,
    containers: Vec<Container>,
    next: u32,
    last_host: u8,
}

impl RuntimeState {
    fn id(&mut self, kind: &str) -> String {
        self.next += 1;
        format!("{kind}-{}", self.next)
    }

    /// Returns an address that no sandbox has; the ones released longest ago come first.
    fn address(&mut self, [a, b, c]: [u8; 3]) -> Option<String> {
        let from = self.last_host + 1;
        let (host, ip) = HOSTS
            .filter(|host| *host >= from)
            .chain(HOSTS)
            .map(|host| (host, format!("{a}.{b}.{c}.{host}")))
            .find(|(_, ip)| self.sandboxes.iter().all(|s| s.ip != *ip))?;
        self.last_host = host;
        Some(ip)
    }

    /// Ends containers whose time is over; `now` is the wall clock in nanoseconds.
    fn pass(&mut self, now: i64) {
        for c in self.containers.iter_mut().filter(|c| c.status.state == RUNNING) {
            let (Some((seconds, code)), Some(begun)) = (c.life, c.begun) else { continue };
            let Some(since) = begun.elapsed().checked_sub(Duration::from_secs(seconds.into())) else { continue };
            let ended = now - i64::try_from(since.as_nanos()).expect("a test of less than a century");
            (c.status.state, c.status.exit_code, c.status.finished_at) = (EXITED, code, ended);
        }
    }

    fn end(&mut self, now: i64, code: i32, mut which: impl FnMut(&Container) -> bool) {
        for c in self.containers.iter_mut().filter(|c| c.status.state == RUNNING) {
            if which(c) {
                (c.status.state, c.status.exit_code, c.status.finished_at) = (EXITED, code, now);
            }
        }
    }
}

/// The runtime: the calls of a kubelet, and controls for the test.
pub struct FakeRuntime {
    clock: Arc<dyn Clock>,
    state: Mutex<RuntimeState>,
    /// Images that cannot be pulled.
    pub missing: Mutex<Vec<String>>,
    /// Called after each change.
    pub changed: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
    /// The grace period of each stop in seconds.
    pub stops: Mutex<Vec<u64>>,
    /// Resource updates of containers: names and limits. Like older runtimes, this one does not report them.
    pub resizes: Mutex<Vec<(String, proto::LinuxContainerResources)>>,
    /// The number of sandboxes requested while none could be created; `None` when they can be created.
    pub refused: Mutex<Option<u32>>,
    /// The number of next calls that panic, by name of the call.
    pub panics: Mutex<HashMap<&'static str, u32>>,
    /// The number of calls that may panic: `run_pod_sandbox`, `list_one_pod`, `list_all_pods`.
    pub calls: Mutex<HashMap<&'static str, u32>>,
    /// The configurations of created sandboxes.
    pub made: Mutex<Vec<proto::PodSandboxConfig>>,
    /// The first bytes of the pods' addresses.
    prefix: [u8; 3],
    /// The delay before calls have their effect, by name such as `StopContainer`.
    pub slow: Mutex<HashMap<&'static str, Duration>>,
    /// Decides which calls fail.
    faults: Option<Faults>,
    /// The sender of events; readers see its end when the runtime ends.
    events: Mutex<broadcast::Sender<()>>,
    /// Whether the runtime is down.
    down: AtomicBool,
}

impl FakeRuntime {
    /// Creates a runtime without containers, whose calls never fail by themselves and whose pods are in 10.0.0.0/24.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Self::with(clock, [10, 0, 0], None)
    }

    /// Creates a runtime whose pods have addresses that begin with `prefix`, and whose calls fail as `faults` say.
    pub fn with(clock: Arc<dyn Clock>, prefix: [u8; 3], faults: Option<Faults>) -> Arc<Self> {
        Arc::new(Self {
            prefix,
            faults,
            events: Mutex::new(broadcast::Sender::new(EVENTS_MAX)),
            down: AtomicBool::new(false),
            clock,
            state: Mutex::default(),
            missing: Mutex::default(),
            changed: Mutex::default(),
            stops: Mutex::default(),
            resizes: Mutex::default(),
            refused: Mutex::default(),
            panics: Mutex::default(),
            calls: Mutex::default(),
            made: Mutex::default(),
            slow: Mutex::default(),
        })
    }

    fn nanos(&self) -> i64 {
        i64::try_from(self.clock.now().as_nanosecond()).expect("this century")
    }

    /// Returns the current table.
    fn state(&self) -> MutexGuard<'_, RuntimeState> {
        let mut state = self.state.lock();
        state.pass(self.nanos());
        state
    }

    fn report(&self) {
        if let Some(f) = &*self.changed.lock() {
            f();
        }
        for _ in 0..self.faults.as_ref().map_or(1, Faults::times) {
            // There may be no reader.
            let _ = self.events.lock().send(());
        }
    }

    /// Counts a call, which panics if it should.
    fn called(&self, name: &'static str) {
        *self.calls.lock().entry(name).or_default() += 1;
        let panics = self.panics.lock().get_mut(name).is_some_and(|n| std::mem::replace(n, n.saturating_sub(1)) > 0);
        assert!(!panics, "{name} panics as it was told to");
    }

    /// Executes a call, unless it fails before; it may also fail after that, or be slow.
    async fn perform<T>(&self, call: &'static str, act: impl FnOnce(&Self) -> CriResult<T>) -> CriResult<T> {
        self.answers(call)?;
        let pause = self.slow.lock().get(call).copied();
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        let failed = || Err(CriError::new(call, Code::Unknown, "simulated: the runtime failed"));
        match self.faults.as_ref().and_then(Faults::call) {
            None => act(self),
            Some(Failure::Slow(pause)) => {
                tokio::time::sleep(pause).await;
                self.answers(call)?;
                act(self)
            }
            Some(Failure::LostAnswer) => act(self).and_then(|_| failed()),
            Some(_) => failed(),
        }
    }

    fn answers(&self, call: &'static str) -> CriResult<()> {
        match self.down.load(Ordering::Relaxed) {
            true => Err(CriError::new(call, Code::Unavailable, "simulated: nobody listens at the runtime's socket")),
            false => Ok(()),
        }
    }

    /// Kills the runtime's process: no call is answered and no event is sent until [`Self::revive`]. Containers
    /// continue to run.
    pub fn kill(&self) {
        self.down.store(true, Ordering::Relaxed);
        *self.events.lock() = broadcast::Sender::new(EVENTS_MAX);
    }

    /// Starts the runtime again, with everything that runs.
    pub fn revive(&self) {
        self.down.store(false, Ordering::Relaxed);
    }

    /// Returns namespace, pod and UID of each running container, in the order of creation.
    pub fn running_pods(&self) -> Vec<(String, String, String)> {
        let state = self.state();
        let label = |c: &Container, key: &str| {
            c.status.labels.get(&format!("io.kubernetes.{key}")).cloned().unwrap_or_default()
        };
        let running = state.containers.iter().filter(|c| c.status.state == RUNNING);
        running.map(|c| (label(c, "pod.namespace"), label(c, "pod.name"), label(c, "pod.uid"))).collect()
    }

    /// Ends the `n`th running container with this code.
    pub fn exit_nth(&self, n: usize, code: i32) {
        let now = self.nanos();
        let mut at = 0..=n;
        self.state().end(now, code, |_| at.next() == Some(n));
        self.report();
    }

    /// Ends the running container with this name.
    pub fn exit(&self, name: &str, code: i32) {
        let now = self.nanos();
        self.state().end(now, code, |c| container_name(&c.status) == name);
        self.report();
    }

    /// Ends the `n`th sandbox and its containers, as when the pause process is killed.
    pub fn end_sandbox(&self, n: usize) {
        let now = self.nanos();
        let mut state = self.state();
        if let Some(s) = state.sandboxes.iter_mut().filter(|s| s.listed.state == READY).nth(n) {
            s.listed.state = NOT_READY;
            let id = s.listed.id.clone();
            state.end(now, 137, |c| c.sandbox == id);
        }
        drop(state);
        self.report();
    }

    /// Simulates a reboot of the machine: nothing runs, and all records remain.
    pub fn reboot(&self) {
        let now = self.nanos();
        let mut state = self.state();
        for s in &mut state.sandboxes {
            s.listed.state = NOT_READY;
        }
        state.end(now, 255, |_| true);
        drop(state);
        self.report();
    }

    /// Returns the names of running containers.
    pub fn running(&self) -> Vec<String> {
        let state = self.state();
        let running = state.containers.iter().filter(|c| c.status.state == RUNNING);
        running.map(|c| container_name(&c.status).to_owned()).collect()
    }

    /// Returns the number of sandboxes and containers.
    pub fn counts(&self) -> (usize, usize) {
        let s = self.state();
        (s.sandboxes.len(), s.containers.len())
    }
}

fn container_name(c: &proto::ContainerStatus) -> &str {
    c.metadata.as_ref().map_or("", |m| m.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WallClock;
    use kelson_cri::Runtime as _;

    #[tokio::test(start_paused = true)]
    async fn a_program_sleeps_by_the_steady_clock() {
        let clock = WallClock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        let runtime = FakeRuntime::new(Arc::new(clock));
        let sandbox = runtime.run_pod_sandbox(proto::PodSandboxConfig::default(), "").await.unwrap();
        let config = proto::ContainerConfig {
            metadata: Some(proto::ContainerMetadata { name: "a".into(), attempt: 0 }),
            command: ["exit-after", "10", "0"].map(str::to_owned).into(),
            ..Default::default()
        };
        let id = runtime.create_container(&sandbox, config, proto::PodSandboxConfig::default()).await.unwrap();
        runtime.start_container(&id).await.unwrap();
        tokio::time::sleep(Duration::from_secs(9)).await;
        for jump in [-3600, 7200] {
            clock.jump(jump);
            assert_eq!(runtime.running(), ["a"], "the clock jumped by {jump} s");
        }
        clock.jump(-7200);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(runtime.running().is_empty());
    }
}
