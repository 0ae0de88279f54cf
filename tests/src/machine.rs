//! A second machine, simulated with one kernel: a network namespace with a cable to this one, and a `kelson agent` in
//! it. Files, processes and cgroups are shared, so all names must be unique.
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::binary;
use crate::subject::EVICTION;

/// The time limit of a clean stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A network namespace with an address and a default route through this machine.
pub struct Machine {
    /// Its address in the network of the machines.
    pub address: String,
    netns: String,
    cable: String,
}

impl Machine {
    /// Creates it; `number` (one per test) separates cables of one run, the process ID those of several runs.
    pub fn start(number: u32) -> anyhow::Result<Self> {
        let pid = std::process::id();
        // RFC 2544's range for tests of network devices, which is not a real network.
        let (third, fourth) = ((pid / 32 + number * 101) % 256, pid % 32 * 8);
        let (here, there) = (format!("198.18.{third}.{}", fourth + 1), format!("198.18.{third}.{}", fourth + 2));
        let machine = Self { address: there, netns: format!("kb{pid}-{number}"), cable: format!("kb{pid}-{number}") };
        sh(&format!(
            "ip netns add {n} && ip link add {c} type veth peer name up0 netns {n} &&
             ip addr add {here}/30 dev {c} && ip link set {c} up &&
             ip -n {n} link set lo up && ip -n {n} addr add {there}/30 dev up0 && ip -n {n} link set up0 up &&
             ip -n {n} route add default via {here}",
            n = machine.netns,
            c = machine.cable,
            there = machine.address,
        ))?;
        Ok(machine)
    }

    /// Returns a command that runs there.
    pub fn command(&self, program: &Path) -> Command {
        let mut c = Command::new("nsenter");
        c.arg(format!("--net=/run/netns/{}", self.netns)).arg(program);
        c
    }

    /// Unplugs the cable, without a notification to either side.
    pub fn unplug(&self) -> anyhow::Result<()> {
        sh(&format!("ip link set {} down", self.cable)).map(drop)
    }

    /// Ends the effect of [`Machine::unplug`].
    pub fn plug_in(&self) -> anyhow::Result<()> {
        let n = &self.netns;
        let here = self.gateway()?;
        // The kernel removes routes of a link that is down.
        sh(&format!("ip link set {} up && ip -n {n} route replace default via {here}", self.cable)).map(drop)
    }

    /// Returns the address of the other end of its cable, at which it reaches this machine.
    pub fn gateway(&self) -> anyhow::Result<String> {
        let (net, last) = self.address.rsplit_once('.').context("an IPv4 address")?;
        Ok(format!("{net}.{}", last.parse::<u8>().context("an IPv4 address")? - 1))
    }

    /// Returns the output of a shell script there.
    pub fn sh(&self, script: &str) -> anyhow::Result<String> {
        output(self.command(Path::new("sh")).args(["-ec", script]))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for args in [["link", "del", &self.cable], ["netns", "del", &self.netns]] {
            // Leftovers of a failed test; a second error would hide the first.
            let _ = Command::new("ip").args(args).stderr(Stdio::null()).status();
        }
    }
}

/// Runs a shell script on this machine; returns its output.
pub fn sh(script: &str) -> anyhow::Result<String> {
    output(Command::new("sh").args(["-ec", script]))
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let out = command.stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        bail!("{command:?}: {}\n{text}{}", out.status, String::from_utf8_lossy(&out.stderr));
    }
    Ok(text)
}

/// A `kelson agent` with its own data directory.
pub struct Agent {
    /// The data directory, removed at the end.
    pub dir: PathBuf,
    args: Vec<String>,
    netns: Option<String>,
    child: Option<Child>,
    scratch: tempfile::TempDir,
}

impl Agent {
    /// Creates an agent on `machine` (or on this one), without starting it; `args` are those after `kelson agent`.
    pub fn new(machine: Option<&Machine>, args: &[&str], images: &Path) -> anyhow::Result<Self> {
        Self::within(machine.map(|machine| machine.netns.as_str()), args, images)
    }

    /// Creates an agent in a network namespace (or in this process's), as [`Agent::new`] does.
    pub fn within(netns: Option<&str>, args: &[&str], images: &Path) -> anyhow::Result<Self> {
        let scratch = tempfile::Builder::new().prefix("kelson-test-").tempdir()?;
        let dir = scratch.path().join("agent");
        std::fs::create_dir_all(&dir)?;
        if images.is_dir() {
            std::os::unix::fs::symlink(images.canonicalize()?, dir.join("images"))?;
        }
        let mut all: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        all.extend(["--data-dir".into(), dir.display().to_string()]);
        Ok(Self { dir, args: all, netns: netns.map(str::to_owned), child: None, scratch })
    }

    /// Sets the arguments for later starts.
    pub fn report(&mut self, args: &[&str]) {
        self.args = args.iter().map(|a| (*a).to_owned()).collect();
        self.args.extend(["--data-dir".into(), self.dir.display().to_string()]);
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut c = match &self.netns {
            Some(n) => {
                let mut c = Command::new("nsenter");
                c.arg(format!("--net=/run/netns/{n}")).arg(binary());
                c
            }
            None => Command::new(binary()),
        };
        c.args(words);
        c
    }

    /// Starts it (again).
    pub fn launch(&mut self) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let mut command = self.command(&["agent", EVICTION]);
        command.args(&self.args).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(command.spawn().with_context(|| format!("start {}", binary().display()))?);
        Ok(())
    }

    /// Returns its exit code when it ends by itself within `limit`; `None` when it continues.
    pub fn ends_within(&mut self, limit: Duration) -> anyhow::Result<Option<i32>> {
        let child = self.child.as_mut().context("not running")?;
        let started = Instant::now();
        while started.elapsed() < limit {
            if let Some(status) = child.try_wait()? {
                self.child = None;
                return Ok(Some(status.code().unwrap_or(-1)));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(None)
    }

    /// Kills the process.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let mut child = self.child.take().context("not running")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Sends SIGTERM; returns the time it took to end. A wrong exit code or a hang is an error.
    pub fn terminate(&mut self) -> anyhow::Result<Duration> {
        let child = self.child.as_mut().context("not running")?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("pid")?;
        let started = Instant::now();
        kill_process(pid, Signal::TERM)?;
        match self.ends_within(STOP_LIMIT)? {
            Some(0) => Ok(started.elapsed()),
            Some(code) => bail!("SIGTERM ended the agent with {code}\n{}", self.log()),
            None => bail!("did not end within {STOP_LIMIT:?} of SIGTERM\n{}", self.log()),
        }
    }

    /// Removes what it created on the host.
    pub fn cleanup(&self) -> anyhow::Result<()> {
        output(self.command(&["cleanup", "--data-dir"]).arg(&self.dir)).map(|_| ())
    }

    /// Returns its log.
    pub fn log(&self) -> String {
        std::fs::read(self.log_path()).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.scratch.path().join("agent.log")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Mounts and containers of a failed test must not outlive the run.
        let _ = self.cleanup();
    }
}
