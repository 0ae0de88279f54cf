//! The subject under test. `SUBJECT=kelson` (default) starts the built binary with a new data directory;
//! `SUBJECT=kubeconfig:FILE` uses a running cluster, so that the suite can be verified with upstream.
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::{Kubectl, Needs};

/// Shorter intervals, so that a test of volume usage does not wait a minute.
const KUBELET: &str =
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nvolumeStatsAggPeriod: 5s\n";
/// The time limit for a cold debug build of the control plane to serve; a broken one must not hang the run.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Low thresholds, since a full disk of the test machine should not evict pods.
pub const EVICTION: &str = "--eviction-hard=memory.available<50Mi,nodefs.available<1%";
/// The time limit of a clean stop.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// The cluster under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectKind {
    /// The binary of this repository, started by the suite.
    Kelson,
    /// A running cluster.
    Kubeconfig(PathBuf),
}

/// A running subject.
pub struct Subject {
    /// The kind of cluster.
    pub kind: SubjectKind,
    /// A kubectl as cluster administrator.
    pub kubectl: Kubectl,
    /// The server, if the suite started it.
    pub server: Option<Process>,
    has_node: bool,
}

/// A `kelson server` of the suite, with its own data directory.
pub struct Process {
    /// The data directory, removed at the end.
    pub dir: PathBuf,
    /// The port of its API.
    pub port: u16,
    args: Vec<String>,
    child: Mutex<Option<Child>>,
    scratch: Mutex<Option<tempfile::TempDir>>,
}

impl Subject {
    /// Starts the subject that `SUBJECT` names, or connects to it. `node` says whether containers will run.
    pub fn start(node: bool) -> anyhow::Result<Self> {
        let chosen = std::env::var("SUBJECT").unwrap_or_else(|_| "kelson".into());
        if let Some(file) = chosen.strip_prefix("kubeconfig:") {
            let kubectl = Kubectl::new(file.into());
            let has_node = !kubectl.ok(&["get", "nodes", "-o", "name"])?.is_empty();
            return Ok(Self { kind: SubjectKind::Kubeconfig(file.into()), kubectl, server: None, has_node });
        }
        if chosen != "kelson" {
            bail!("SUBJECT={chosen}: expected kelson or kubeconfig:FILE");
        }
        let has_node = node && rustix::process::geteuid().is_root();
        let images = repo_root().join(".cache/images");
        let server = Process::start(if has_node { &[] } else { &["--disable-agent"] }, &images)?;
        let kubectl = server.kubectl();
        Ok(Self { kind: SubjectKind::Kelson, kubectl, server: Some(server), has_node })
    }

    /// Returns why this subject cannot run a test with these needs.
    pub fn lacks(&self, needs: Needs) -> Option<&'static str> {
        match needs {
            Needs::Node if !self.has_node => Some("no node: run as root, or name a cluster with nodes"),
            Needs::Reference if reference().is_none() => Some("KELSON_REFERENCE names no kube-apiserver"),
            Needs::OwnServer | Needs::OwnNode | Needs::Reference if self.kind != SubjectKind::Kelson => {
                Some("the subject is not ours to start and kill")
            }
            Needs::Operators if std::env::var_os("KELSON_OPERATORS").is_none() => {
                Some("KELSON_OPERATORS names no directory of published definitions")
            }
            Needs::Clients if std::env::var_os("KELSON_CLIENTS").is_none() => {
                Some("other people's programs: make test-clients")
            }
            Needs::Installation if std::env::var_os("KELSON_INSTALLATIONS").is_none() => {
                Some("it fetches a Debian: make test-install")
            }
            Needs::VirtualMachine if std::env::var_os("KELSON_VM").is_none() => {
                Some("it starts virtual machines: make test-vm")
            }
            Needs::OwnNode | Needs::OwnAgent if !rustix::process::geteuid().is_root() => Some("no node: run as root"),
            _ => None,
        }
    }

    /// Returns the subject's version.
    pub fn version(&self) -> String {
        let said = self.kubectl.ok(&["get", "--raw", "/version"]).unwrap_or_default();
        let said: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
        said["gitVersion"].as_str().unwrap_or("unknown").to_owned()
    }

    /// Stops what was started; `keep` leaves the directory for debugging.
    pub fn stop(self, keep: bool) -> anyhow::Result<()> {
        self.server.map_or(Ok(()), |s| s.finish(keep))
    }
}

impl Process {
    /// Starts a server on a free port in a new directory; `images` (a directory of archives) is linked into it.
    pub fn start(args: &[&str], images: &Path) -> anyhow::Result<Self> {
        let scratch = tempfile::Builder::new().prefix("kelson-test-").tempdir()?;
        let dir = scratch.path().join("data");
        std::fs::create_dir_all(&dir)?;
        if images.is_dir() {
            std::os::unix::fs::symlink(images.canonicalize()?, dir.join("images"))?;
        }
        let port = free_port()?;
        let name = format!("node-{port}");
        let mut all: Vec<String> = ["server", "--data-dir"].map(String::from).into();
        all.push(dir.display().to_string());
        // A node's pods reach the API by the machine's address; a control plane alone only listens on loopback.
        let bind = if args.contains(&"--disable-agent") { "127.0.0.1" } else { "0.0.0.0" };
        if !args.contains(&"--bind-address") {
            all.extend(["--bind-address", bind].map(String::from));
        }
        all.push("--secure-port".into());
        all.extend([port.to_string(), "--node-name".into(), name, "--kubelet-port".into(), "0".into()]);
        if !args.contains(&"--disable-agent") {
            all.push(EVICTION.into());
            if !args.contains(&"--kubelet-config") {
                let file = scratch.path().join("kubelet.yaml");
                std::fs::write(&file, KUBELET)?;
                all.extend(["--kubelet-config".into(), file.display().to_string()]);
            }
        }
        all.extend(args.iter().map(|a| (*a).to_owned()));
        let process = Self { dir, port, args: all, child: Mutex::new(None), scratch: Mutex::new(Some(scratch)) };
        process.launch()?;
        Ok(process)
    }

    /// Starts the process (again) and waits until it is ready to serve.
    pub fn launch(&self) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let child = Command::new(binary())
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}", binary().display()))?;
        *self.child.lock().expect("no test panics while it holds this") = Some(child);
        let started = Instant::now();
        let kubectl = self.kubectl();
        while started.elapsed() < START_LIMIT {
            if self.dir.join("admin.kubeconfig").exists()
                && kubectl.run(&["get", "--raw", "/readyz"]).is_ok_and(|o| o.stdout == "ok")
            {
                return Ok(());
            }
            if let Some(status) = self.exited()? {
                bail!("the server ended with {status}\n{}", self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("not ready within {START_LIMIT:?}\n{}", self.log_tail())
    }

    /// Returns a kubectl as this server's administrator.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(self.dir.join("admin.kubeconfig"))
    }

    /// Returns its process, if it is running.
    pub fn pid(&self) -> anyhow::Result<u32> {
        let child = self.child.lock().expect("no test panics while it holds this");
        Ok(child.as_ref().context("not running")?.id())
    }

    fn exited(&self) -> anyhow::Result<Option<std::process::ExitStatus>> {
        let mut child = self.child.lock().expect("no test panics while it holds this");
        Ok(child.as_mut().context("not running")?.try_wait()?)
    }

    /// Kills the subject's process.
    pub fn kill(&self) -> anyhow::Result<()> {
        let mut child = self.child.lock().expect("no test panics while it holds this").take().context("not running")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Sends SIGTERM; returns the time it took to end. A wrong exit code or a hang is an error.
    pub fn terminate(&self) -> anyhow::Result<Duration> {
        let mut child = self.child.lock().expect("no test panics while it holds this").take().context("not running")?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("pid")?;
        let started = Instant::now();
        kill_process(pid, Signal::TERM)?;
        while started.elapsed() < STOP_LIMIT {
            if let Some(status) = child.try_wait()? {
                if !status.success() {
                    bail!("SIGTERM ended the server with {status}\n{}", self.log_tail());
                }
                return Ok(started.elapsed());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill()?;
        child.wait()?;
        bail!("did not end within {STOP_LIMIT:?} of SIGTERM\n{}", self.log_tail())
    }

    /// Returns its log.
    pub fn log(&self) -> String {
        std::fs::read(self.log_path()).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
    }

    /// Returns the last lines of its log.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.with_file_name("server.log")
    }

    /// Stops the server and removes what it created on the host.
    pub fn finish(&self, keep: bool) -> anyhow::Result<()> {
        if self.pid().is_ok() {
            self.terminate()?;
        }
        let scratch = self.scratch.lock().expect("no test panics while it holds this").take();
        if keep && let Some(scratch) = scratch {
            println!("kept for a look: {}", scratch.keep().display());
            return Ok(());
        }
        let out = Command::new(binary()).arg("cleanup").arg("--data-dir").arg(&self.dir).output()?;
        if !out.status.success() {
            bail!("kelson cleanup: {}", String::from_utf8_lossy(&out.stderr));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(mut child) = self.child.lock()
            && let Some(c) = child.as_mut()
        {
            // The test failed half-way; nothing of it may outlive the run.
            let _ = c.kill();
            let _ = c.wait();
        }
        // Nor may its containers, whose directory is removed too.
        let scratch = self.scratch.lock().is_ok_and(|s| s.is_some());
        if scratch && self.dir.exists() {
            let _ = Command::new(binary()).args(["cleanup", "--data-dir"]).arg(&self.dir).output();
        }
    }
}

/// Returns the binary under test.
pub fn binary() -> PathBuf {
    std::env::var_os("KELSON_BIN").map_or_else(|| target_dir().join("debug/kelson"), PathBuf::from)
}

/// Returns upstream's kube-apiserver, if there is one (`KELSON_REFERENCE`).
pub fn reference() -> Option<PathBuf> {
    std::env::var_os("KELSON_REFERENCE").map(PathBuf::from).filter(|file| file.is_file())
}

/// Returns a program that `make clients` built: Helm, or a test program with another client library.
///
/// # Errors
/// It was not built.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let built = [target_dir().join("clients").join(name), target_dir().join("kube/debug").join(name)];
    built.into_iter().find(|path| path.is_file()).with_context(|| format!("{name} is not built: make clients"))
}

fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repo_root().join("target"), PathBuf::from)
}

/// Returns the workspace's root.
pub fn repo_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Returns a port that is currently unused.
pub fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
