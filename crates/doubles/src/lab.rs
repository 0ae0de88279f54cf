//! Network namespaces as machines: a node, a machine outside the cluster and pods, for tests of the kernel's packet
//! handling. They require root and iproute2. The machine's own network is not changed.
#![allow(clippy::disallowed_methods, reason = "blocking: the threads of tests and measurements wait for it")]

use std::fs::File;
use std::process::Command;
use std::sync::mpsc as blocking;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// The timeout for the kernel and components. It is reached only when a test fails.
const PATIENCE: Duration = Duration::from_secs(20);
/// The namespace of the node.
pub const NODE: &str = "h";
/// The namespace of a machine outside the cluster.
pub const OUTSIDE: &str = "x";
/// The address of the node on the link to the outside machine.
pub const NODE_IP: &str = "192.0.2.2";
/// The address of the outside machine.
pub const OUTSIDE_IP: &str = "192.0.2.1";
/// The node's address on the pod network.
pub const GATEWAY_IP: &str = "10.42.0.254";

/// Moves the calling thread into a network namespace. The caller supplies this system call.
pub type Enter = fn(&File);

/// A network of namespaces: a node ([`NODE`]), an outside machine ([`OUTSIDE`]) and pods. They are deleted when this
/// value is dropped.
///
/// Pod `n` has the address 10.42.0.n in a namespace named by its number. The node routes all of its packets.
pub struct Lab {
    prefix: String,
    enter: Enter,
    names: Vec<String>,
}

/// A component on a thread inside a namespace. It ends when this value is dropped.
pub struct Hosted {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Hosted {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The thread has already reported a panic of the component.
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Runs a script and returns its output.
///
/// # Panics
/// Panics with the script's output if the script fails.
pub fn run(script: &str) -> String {
    let out = Command::new("sh").args(["-ec", script]).output().expect("sh runs");
    assert!(out.status.success(), "{script}\n{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

impl Lab {
    /// Creates the namespaces. `prefix` distinguishes the labs of one process. Returns `None` and prints a line with
    /// SKIPPED if the process is not root.
    ///
    /// # Panics
    /// Panics if the kernel or iproute2 lacks a feature.
    pub fn new(prefix: &str, pods: impl IntoIterator<Item = u8>, enter: Enter) -> Option<Self> {
        if run("id -u").trim() != "0" {
            eprintln!("SKIPPED: needs root");
            return None;
        }
        let mut lab = Self { prefix: format!("{prefix}{}-", std::process::id()), enter, names: Vec::new() };
        for name in [NODE, OUTSIDE] {
            lab.add(name);
        }
        let (h, x) = (lab.namespace(NODE), lab.namespace(OUTSIDE));
        run(&format!(
            "ip link add u0 netns {h} type veth peer name u1 netns {x}
             ip -n {h} addr add {NODE_IP}/24 dev u0; ip -n {h} link set u0 up
             ip -n {x} addr add {OUTSIDE_IP}/24 dev u1; ip -n {x} link set u1 up
             ip -n {h} route add default via {OUTSIDE_IP}
             ip -n {x} route add 10.42.0.0/16 via {NODE_IP}; ip -n {x} route add 10.43.0.0/16 via {NODE_IP}
             ip netns exec {h} sysctl -qw net.ipv4.ip_forward=1"
        ));
        for n in pods {
            lab.add_pod(n);
        }
        Some(lab)
    }

    fn add(&mut self, name: &str) {
        let ns = self.namespace(name);
        self.names.push(name.to_owned());
        run(&format!("ip netns add {ns} && ip -n {ns} link set lo up"));
    }

    fn add_pod(&mut self, n: u8) {
        self.add(&n.to_string());
        let (h, p) = (self.namespace(NODE), self.namespace(&n.to_string()));
        run(&format!(
            "ip link add v{n} netns {h} type veth peer name eth0 netns {p}
             ip -n {p} addr add 10.42.0.{n}/32 dev eth0; ip -n {p} link set eth0 up
             ip -n {p} route add {GATEWAY_IP} dev eth0 scope link; ip -n {p} route add default via {GATEWAY_IP}
             ip -n {h} addr add {GATEWAY_IP}/32 dev v{n}; ip -n {h} link set v{n} up
             ip -n {h} route add 10.42.0.{n}/32 dev v{n}"
        ));
    }

    /// Returns the name of a namespace for `ip netns`.
    pub fn namespace(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Runs a script in a namespace.
    ///
    /// # Panics
    /// Panics if the script fails.
    pub fn run(&self, name: &str, script: &str) -> String {
        run(&format!("ip netns exec {} sh -ec '{script}'", self.namespace(name)))
    }

    /// Runs work on a thread inside a namespace and waits for it. Sockets that it opens stay in the namespace.
    ///
    /// # Panics
    /// Panics if the work panics.
    pub fn inside<T: Send + 'static>(&self, name: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = self.thread(name, work);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Starts a thread inside a namespace.
    ///
    /// # Panics
    /// Panics if the namespace does not exist.
    pub fn thread<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let file = File::open(format!("/run/netns/{}", self.namespace(name))).expect("a namespace");
        let enter = self.enter;
        let thread = std::thread::Builder::new().name(format!("lab-{name}"));
        let within = move || {
            enter(&file);
            work()
        };
        thread.spawn(within).expect("a thread")
    }

    /// Runs a component inside a namespace on a single-threaded runtime. `start` sends a value to the test once the
    /// component is ready, and returns when its second argument completes.
    ///
    /// # Panics
    /// Panics if the component is not ready in time.
    pub fn host<T, F>(
        &self,
        name: &str,
        start: impl FnOnce(blocking::Sender<T>, oneshot::Receiver<()>) -> F + Send + 'static,
    ) -> (T, Hosted)
    where
        T: Send + 'static,
        F: Future<Output = ()>,
    {
        let (started, ready) = blocking::channel();
        let hosted = self.start(name, move |stopped| start(started, stopped));
        (ready.recv_timeout(PATIENCE).expect("the component is not ready"), hosted)
    }

    /// Runs a component like [`host`](Self::host), without waiting until it is ready.
    ///
    /// # Panics
    /// Panics if the namespace does not exist.
    pub fn start<F: Future<Output = ()>>(
        &self,
        name: &str,
        run: impl FnOnce(oneshot::Receiver<()>) -> F + Send + 'static,
    ) -> Hosted {
        let (stop, stopped) = oneshot::channel();
        let thread = self.thread(name, move || {
            // All threads of this runtime start on this thread, and so in the namespace.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(run(stopped));
        });
        Hosted { stop: Some(stop), thread: Some(thread) }
    }

    /// Returns the node's rules as nft lists them.
    ///
    /// # Panics
    /// Panics if nft cannot run.
    pub fn rules(&self) -> String {
        self.run(NODE, "nft list ruleset")
    }

    /// Waits until a condition holds.
    ///
    /// # Panics
    /// Panics with `what` and the node's rules after the timeout.
    pub fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !holds() {
            assert!(begin.elapsed() < PATIENCE, "never: {what}\n{}", self.rules());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", &self.namespace(name)]).status();
        }
    }
}
