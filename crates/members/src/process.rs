//! One etcd process: it ends with this process in any case, and its log is read line by line.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use kelson_tasks::{Scoped, scoped};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::Child;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::error::MemberError;
use crate::layout::Layout;
use crate::local::client_url;
use crate::log::{Line, Sign, Tail};
use crate::options::host_and_port;
use crate::program::Program;
use crate::settings::{Phase, Settings};
use crate::system::{ask_to_end, end_with_parent};

/// The time that etcd may take to end after SIGTERM; a leader hands its leadership over first.
const STOP_MAX: Duration = Duration::from_secs(8);
/// The time that the log of an ended process may take to be read.
const LOG_END_MAX: Duration = Duration::from_secs(2);
/// Longer lines of the log are split.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Returns the command line of a member.
pub(crate) fn arguments(layout: &Layout, settings: &Settings, quota_bytes: u64) -> Vec<String> {
    let file = |name: &str| layout.pki_file(name).display().to_string();
    let (client, peer) = (client_url(settings.client_port), settings.peer_url.as_str());
    let listen = match host_and_port(peer) {
        // etcd listens on addresses only.
        Some((host, port)) if host.parse::<std::net::IpAddr>().is_err() => format!("https://0.0.0.0:{port}"),
        _ => peer.to_owned(),
    };
    let state = if settings.phase == Phase::New { "new" } else { "existing" };
    let timeouts = settings.timeouts;
    let flags: [(&str, String); 26] = [
        ("name", settings.name.clone()),
        ("data-dir", layout.data().display().to_string()),
        ("listen-client-urls", client.clone()),
        ("advertise-client-urls", client),
        ("listen-peer-urls", listen),
        ("initial-advertise-peer-urls", peer.to_owned()),
        ("initial-cluster", settings.initial_cluster.clone()),
        ("initial-cluster-state", state.to_owned()),
        ("initial-cluster-token", "kelson".to_owned()),
        ("strict-reconfig-check", "true".to_owned()),
        ("heartbeat-interval", timeouts.heartbeat_ms.to_string()),
        ("election-timeout", timeouts.election_ms.to_string()),
        ("quota-backend-bytes", quota_bytes.to_string()),
        ("client-cert-auth", "true".to_owned()),
        ("trusted-ca-file", file("ca.crt")),
        ("cert-file", file("server.crt")),
        ("key-file", file("server.key")),
        ("peer-client-cert-auth", "true".to_owned()),
        ("peer-trusted-ca-file", file("ca.crt")),
        ("peer-cert-file", file("peer.crt")),
        ("peer-key-file", file("peer.key")),
        ("tls-min-version", "TLS1.2".to_owned()),
        // Compaction is the API server's.
        ("auto-compaction-retention", "0".to_owned()),
        ("logger", "zap".to_owned()),
        ("log-outputs", "stderr".to_owned()),
        ("log-level", "info".to_owned()),
    ];
    flags.into_iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

/// A running etcd.
pub(crate) struct Process {
    child: Child,
    /// Keeps the thread that started the process: Linux kills it when that thread ends.
    _thread: std::sync::mpsc::Sender<()>,
    log: Scoped<()>,
    tail: Tail,
    sign: Arc<Mutex<Option<Sign>>>,
}

/// The end of a process that was not requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// The exit status, in words.
    pub how: String,
    /// Its last errors.
    pub tail: String,
    /// The reason for a restart in the log.
    pub sign: Option<Sign>,
}

impl Process {
    /// Starts etcd.
    ///
    /// # Errors
    /// The program cannot be started.
    pub async fn start(program: &Program, layout: &Layout, arguments: &[String]) -> Result<Self, MemberError> {
        let mut command = std::process::Command::new(&program.path);
        command.args(arguments).current_dir(layout.dir());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Settings of etcd come from its command line alone, and it must not notify our service manager.
        for (name, _) in std::env::vars_os() {
            let is_etcds = name.to_str().is_some_and(|name| name.starts_with("ETCD_"));
            if is_etcds || ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"].iter().any(|other| name == *other) {
                command.env_remove(name);
            }
        }
        end_with_parent(&mut command);
        let failed = |e: std::io::Error| MemberError::Ended {
            what: format!("{} cannot be started: {e}", program.path.display()),
            tail: String::new(),
        };
        let (mut child, thread) = spawn(command).await.map_err(failed)?;
        let (tail, sign) = (Tail::default(), Arc::new(Mutex::new(None)));
        let (kept, seen) = (tail.clone(), Arc::clone(&sign));
        let stderr = child.stderr.take();
        let log = scoped("etcd-log", async move {
            if let Some(stderr) = stderr {
                relay(stderr, &kept, &seen).await;
            }
        });
        Ok(Self { child, _thread: thread, log, tail, sign })
    }

    /// Returns the process ID; `None` after its end.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until the process ends.
    pub async fn ended(&mut self) -> End {
        let how = match self.child.wait().await {
            Ok(status) => shown(status),
            Err(e) => format!("ended ({e})"),
        };
        // Its last lines may still be in the pipe; they say why it ended.
        if tokio::time::timeout(LOG_END_MAX, &mut self.log).await.is_err() {
            tracing::warn!("etcd's log does not end; its last lines may be missing");
        }
        End { how, tail: self.tail.text(), sign: *self.sign.lock() }
    }

    /// Asks the process to end, and kills it if it does not in time.
    pub async fn stop(&mut self) {
        let asked = match self.pid() {
            // Its ID is not given to another process before the end was waited for, which happens in this task.
            Some(pid) => ask_to_end(pid),
            None => return,
        };
        if asked.is_ok() && tokio::time::timeout(STOP_MAX, self.child.wait()).await.is_ok() {
            return;
        }
        tracing::warn!("etcd did not end when it was asked to; killing it");
        if let Err(e) = self.child.kill().await {
            tracing::error!(error = %e, "killing etcd failed");
        }
    }
}

/// Starts the child on a thread that lives as long as the returned sender.
async fn spawn(command: std::process::Command) -> std::io::Result<(Child, std::sync::mpsc::Sender<()>)> {
    let (started, child) = oneshot::channel();
    let (keep, ends) = std::sync::mpsc::channel();
    let runtime = Handle::current();
    std::thread::Builder::new().name("etcd-parent".to_owned()).spawn(move || {
        let child = {
            let _runtime = runtime.enter();
            tokio::process::Command::from(command).kill_on_drop(true).spawn()
        };
        if started.send(child).is_ok() {
            // An error is the end of the sender, which is what is waited for.
            let _ = ends.recv();
        }
    })?;
    let child = child.await.map_err(|_| std::io::Error::other("the thread that starts it ended"))??;
    Ok((child, keep))
}

fn shown(status: ExitStatus) -> String {
    format!("ended ({status})")
}

/// Reads the log until its end.
async fn relay(stderr: impl AsyncRead + Unpin, tail: &Tail, sign: &Mutex<Option<Sign>>) {
    let mut reader = BufReader::new(stderr);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes).await {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => return tracing::warn!(%error, "reading etcd's log failed; its further lines are lost"),
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end();
        if text.is_empty() {
            continue;
        }
        let line = Line::parse(text);
        if let Some(found) = Sign::of(&line) {
            *sign.lock() = Some(found);
        }
        tail.note(&line);
        line.relay();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_follows_the_settings() {
        let layout = Layout::new(std::path::Path::new("/d"));
        let mut settings = Settings::first("a", "https://10.0.0.1:2380", 2379);
        let line = arguments(&layout, &settings, 0);
        for wanted in [
            "--name=a",
            "--data-dir=/d/etcd/data",
            "--listen-peer-urls=https://10.0.0.1:2380",
            "--initial-cluster=a=https://10.0.0.1:2380",
            "--initial-cluster-state=new",
            "--election-timeout=1000",
            "--client-cert-auth=true",
        ] {
            assert!(line.iter().any(|word| word == wanted), "{wanted}: {line:?}");
        }
        settings.phase = Phase::Joining;
        settings.peer_url = "https://a.example.com:2380".to_owned();
        let line = arguments(&layout, &settings, 0);
        for wanted in ["--initial-cluster-state=existing", "--listen-peer-urls=https://0.0.0.0:2380"] {
            assert!(line.iter().any(|word| word == wanted), "{wanted}: {line:?}");
        }
    }

    #[tokio::test]
    async fn a_long_log_is_read_to_its_end() {
        let (tail, sign) = (Tail::default(), Mutex::new(None));
        let long = "x".repeat(usize::try_from(LINE_BYTES_MAX).unwrap() + 10);
        let text = format!("{long}\n\n{{\"level\":\"fatal\",\"msg\":\"m\",\"error\":\"member count is unequal\"}}\n");
        relay(text.as_bytes(), &tail, &sign).await;
        assert_eq!(*sign.lock(), Some(Sign::StaleCluster));
        assert!(tail.text().ends_with("m: member count is unequal"));
    }
}
