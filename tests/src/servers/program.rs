//! A process on a machine, with its host name: started, killed, paused, and started again with the same arguments.
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

/// A program with its arguments, and its process if it is running.
pub struct Program {
    netns: String,
    host: String,
    program: PathBuf,
    args: Vec<String>,
    variables: Vec<(String, String)>,
    log: PathBuf,
    child: Option<Child>,
}

impl Program {
    /// Describes a program on the machine with this network namespace and host name; `log` is appended to.
    pub fn new(netns: &str, host: &str, program: &Path, args: Vec<String>, log: PathBuf) -> Self {
        let (netns, host, program) = (netns.to_owned(), host.to_owned(), program.to_owned());
        Self { netns, host, program, args, variables: Vec::new(), log, child: None }
    }

    /// Adds an environment variable.
    pub fn variable(&mut self, name: &str, value: String) {
        self.variables.push((name.to_owned(), value));
    }

    /// Sets the arguments for later starts.
    pub fn set_args(&mut self, args: Vec<String>) {
        self.args = args;
    }

    /// Adds arguments for later starts.
    pub fn add_args(&mut self, more: &[&str]) {
        self.args.extend(more.iter().map(|arg| (*arg).to_owned()));
    }

    /// Starts it unless it is running.
    pub fn start(&mut self) -> anyhow::Result<()> {
        if self.is_running() {
            return Ok(());
        }
        let log = File::options().create(true).append(true).open(&self.log)?;
        // Neither program leaves a process between this one and the program, so its ID is the program's.
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.netns))
            .args(["unshare", "--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\"", &self.host, "env"])
            .args(self.variables.iter().map(|(name, value)| format!("{name}={value}")))
            .arg(&self.program)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.child = Some(command.spawn().with_context(|| format!("start {}", self.program.display()))?);
        Ok(())
    }

    /// Reports whether it is running; a paused one is.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Returns its process ID, if it is running.
    pub fn pid(&mut self) -> Option<u32> {
        if self.is_running() { self.child.as_ref().map(Child::id) } else { None }
    }

    /// Sends it a signal, if it is running.
    pub fn signal(&mut self, signal: Signal) {
        if let Some(pid) = self.pid().and_then(pid_of) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills it without a chance to clean up, and waits for its end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Returns the last lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        let text = std::fs::read(&self.log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

/// Returns a process ID as the kernel's calls take it.
pub fn pid_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}
