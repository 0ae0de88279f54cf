//! Runs a plugin's executable: request on stdin, response from stdout, a bounded tail of stderr, with a time limit of a
//! minute. The process leads a process group, which is killed as a whole at the end in any case.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; at start before pods are")]

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use zeroize::Zeroizing;

use super::fault::{FaultReason, PluginFault};
use super::protocol::{self, Request, Response};
use super::scrub::scrub;
use crate::config::ProviderConfig;

/// Longest run of a plugin.
pub const RUN_MAX: Duration = Duration::from_secs(60);
/// Largest response, bytes.
pub const RESPONSE_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of stderr kept while the plugin runs.
pub const STDERR_BYTES_MAX: usize = 4096;
/// Bytes of stderr that are shown, after credentials were taken out.
pub const STDERR_SHOWN_BYTES_MAX: usize = 512;
/// The interval at which the answer is checked for completeness after the plug-in has ended, when a child of it holds
/// the pipes open.
const PIPE_GRACE: Duration = Duration::from_millis(250);
/// The time that a killed process may take to end before it is left to the system.
const REAP_MAX: Duration = Duration::from_secs(5);

/// Asks a plugin. The only effect of this crate that starts processes.
#[async_trait]
pub trait Executor: Send + Sync + 'static {
    /// Asks `provider` once. Cancel-safe: a dropped call leaves no process behind.
    async fn run(&self, provider: &ProviderConfig, request: &Request) -> Result<Response, PluginFault>;
}

/// Runs executables of one directory.
#[derive(Clone, Debug)]
pub struct ProcessExecutor {
    /// The directory of the plugins.
    pub bin_dir: PathBuf,
    /// The time limit after which the process and its children are killed.
    pub run_max: Duration,
}

impl ProcessExecutor {
    /// Plugins of this directory, a minute each.
    pub fn new(bin_dir: impl Into<PathBuf>) -> Self {
        Self { bin_dir: bin_dir.into(), run_max: RUN_MAX }
    }

    fn command(&self, provider: &ProviderConfig) -> Command {
        let mut command = Command::new(self.bin_dir.join(&provider.name));
        command
            .args(provider.args.iter().map(|a| a.reveal()))
            // The plugin has this process's environment as upstream's do, but not the token that the node joined with.
            .env_remove("KELSON_TOKEN")
            .envs(provider.env.iter().map(|(k, v)| (k, v.reveal())))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        command
    }
}

/// The output of a plugin.
#[derive(Default)]
struct Output {
    stdout: Zeroizing<Vec<u8>>,
    stderr: Zeroizing<Vec<u8>>,
}

#[async_trait]
impl Executor for ProcessExecutor {
    async fn run(&self, provider: &ProviderConfig, request: &Request) -> Result<Response, PluginFault> {
        let output = Mutex::new(Output::default());
        let ended = match tokio::time::timeout(self.run_max, self.process(provider, request, &output)).await {
            Ok(ended) => ended,
            Err(_) => Err((FaultReason::Timeout, format!("timed out after {:?}", self.run_max))),
        };
        let output = output.into_inner();
        let answer = ended.and_then(|()| {
            protocol::decode(provider.api_version, &output.stdout).map_err(|e| (FaultReason::of(&e), e.to_string()))
        });
        answer.map_err(|(reason, why)| {
            let shown = shown_stderr(provider, request, &output);
            PluginFault::new(reason, why, shown)
        })
    }
}

impl ProcessExecutor {
    async fn process(
        &self,
        provider: &ProviderConfig,
        request: &Request,
        output: &Mutex<Output>,
    ) -> Result<(), (FaultReason, String)> {
        let mut child =
            self.command(provider).spawn().map_err(|e| (FaultReason::Start, format!("cannot be started: {e}")))?;
        // Before the group is let go, the child is not reaped: its number cannot mean another group.
        let group = ProcessGroup::of(&child);
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let input = protocol::encode(provider.api_version, request);
        let write = async move {
            if let Some(mut pipe) = stdin {
                // A plugin need not read its input.
                let _ = pipe.write_all(&input).await;
                let _ = pipe.shutdown().await;
            }
            Ok(())
        };
        let streams =
            async { tokio::try_join!(write, read_stdout(stdout, output), read_stderr(stderr, output)).map(|_| ()) };
        tokio::pin!(streams);
        let mut open = true;
        loop {
            tokio::select! {
                done = &mut streams, if open => {
                    done?;
                    open = false;
                }
                () = exited(&mut child) => break,
            }
        }
        while open {
            // Children of the plugin may hold the pipes open for ever, or be those that answer: as upstream they have until the
            // plugin's time is over, but no longer than it takes to say all, and no time at all after a failure.
            if let Ok(done) = tokio::time::timeout(PIPE_GRACE, &mut streams).await {
                done?;
                open = false;
            }
            if failed(&child) || protocol::decode(provider.api_version, &output.lock().stdout).is_ok() {
                break;
            }
        }
        drop(group);
        let status = tokio::time::timeout(REAP_MAX, child.wait()).await;
        match status {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err((FaultReason::Exit, exit_words(status))),
            Ok(Err(e)) => Err((FaultReason::Exit, format!("waiting for it failed: {e}"))),
            Err(_) => Err((FaultReason::Exit, "did not exit".to_owned())),
        }
    }
}

fn exit_words(status: std::process::ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        _ => "exited with unknown status".to_owned(),
    }
}

/// A process group that is killed when this is dropped.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // Gone already is what is wanted.
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
    }
}

/// Whether a process that has ended did so with a failure; it stays unreaped.
fn failed(child: &Child) -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) else { return false };
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let found = waitid(WaitId::Pid(pid), look).ok().flatten();
    found.is_some_and(|status| status.exit_status() != Some(0))
}

/// Returns when the process has ended, and leaves it unreaped where the kernel has process handles (5.3 and later).
async fn exited(child: &mut Child) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let handle = pid.and_then(|p| rustix::process::pidfd_open(p, rustix::process::PidfdFlags::NONBLOCK).ok());
    let watched = handle.and_then(|fd| crate::readable::readable(fd).ok());
    match watched {
        Some(fd) => drop(fd.readable().await),
        None => drop(child.wait().await),
    }
}

async fn read_stdout(
    pipe: Option<impl AsyncRead + Unpin>,
    output: &Mutex<Output>,
) -> Result<(), (FaultReason, String)> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    let mut buffer = Zeroizing::new(vec![0; 16 * 1024]);
    loop {
        let n = pipe.read(&mut buffer).await.unwrap_or(0);
        if n == 0 {
            return Ok(());
        }
        let mut output = output.lock();
        if output.stdout.len() + n > RESPONSE_BYTES_MAX {
            return Err((FaultReason::TooLarge, format!("response is larger than {RESPONSE_BYTES_MAX} bytes")));
        }
        output.stdout.extend_from_slice(&buffer[..n]);
    }
}

/// Reads to the end and keeps the last [`STDERR_BYTES_MAX`] bytes, so that the plugin is never held up.
async fn read_stderr(
    pipe: Option<impl AsyncRead + Unpin>,
    output: &Mutex<Output>,
) -> Result<(), (FaultReason, String)> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    let mut buffer = Zeroizing::new(vec![0; STDERR_BYTES_MAX]);
    loop {
        let n = pipe.read(&mut buffer).await.unwrap_or(0);
        if n == 0 {
            return Ok(());
        }
        let mut output = output.lock();
        let excess = (output.stderr.len() + n).saturating_sub(STDERR_BYTES_MAX);
        output.stderr.drain(..excess);
        output.stderr.extend_from_slice(&buffer[..n]);
    }
}

/// The tail of stderr without anything secret that is known or looks so.
fn shown_stderr(provider: &ProviderConfig, request: &Request, output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    // The first line of a full buffer is cut: half of a secret would not be known again.
    let text = match output.stderr.len() >= STDERR_BYTES_MAX {
        true => stderr.split_once('\n').map_or("", |(_, rest)| rest),
        false => &stderr,
    };
    let mut known: Vec<String> = Vec::new();
    known.extend(request.token.iter().map(|t| t.reveal().to_owned()));
    known.extend(provider.env.iter().map(|(_, v)| v.reveal().to_owned()));
    known.extend(provider.args.iter().map(|v| v.reveal().to_owned()));
    for (name, value) in std::env::vars_os() {
        let name = name.to_string_lossy().to_ascii_uppercase();
        if ["SECRET", "TOKEN", "PASSWORD", "KEY", "CREDENTIAL"].iter().any(|n| name.contains(n)) {
            known.push(value.to_string_lossy().into_owned());
        }
    }
    match serde_json::from_slice::<serde_json::Value>(&output.stdout) {
        Ok(v) => leaves(v.get("auth").unwrap_or(&v), &mut known),
        // Whatever the plugin said on stdout may have been a credential.
        Err(_) => {
            known.extend(String::from_utf8_lossy(&output.stdout).split_whitespace().take(1000).map(str::to_owned))
        }
    }
    let known = known.into_iter().map(Zeroizing::new).collect::<Vec<_>>();
    let known: Vec<&str> = known.iter().map(|k| k.as_str()).collect();
    scrub(text, &known, STDERR_SHOWN_BYTES_MAX)
}

/// Returns all strings of a tree, without keys.
fn leaves(v: &serde_json::Value, into: &mut Vec<String>) {
    match v {
        serde_json::Value::String(s) => into.push(s.clone()),
        serde_json::Value::Array(a) => a.iter().for_each(|v| leaves(v, into)),
        serde_json::Value::Object(o) => o.values().for_each(|v| leaves(v, into)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ApiVersion;

    #[test]
    fn a_plugin_does_not_inherit_the_token_that_the_node_joined_with() {
        let provider = ProviderConfig {
            name: "p".into(),
            match_images: Vec::new(),
            default_cache_duration: Duration::ZERO,
            api_version: ApiVersion::V1,
            args: Vec::new(),
            env: Vec::new(),
            token_attributes: None,
        };
        let command = ProcessExecutor::new("/plugins").command(&provider);
        let changed: Vec<_> = command.as_std().get_envs().collect();
        assert_eq!(changed, [("KELSON_TOKEN".as_ref(), None)], "taken out of what is inherited");
    }
}
