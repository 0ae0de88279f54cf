//! An etcd process on the data of a stopped member. Its sockets are in a private directory, so neither other members
//! nor API servers can reach it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use kelson_etcd::client::Client;
use kelson_etcd::proto::{MemberListRequest, RangeRequest, StatusResponse};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tonic::transport::{Channel, Endpoint};

use super::{MoveError, io_at};

/// The time that etcd may take to read its data and answer.
const START_MAX: Duration = Duration::from_secs(120);
/// The pause between two questions whether it answers.
const PAUSE: Duration = Duration::from_millis(50);
/// The largest answer that is read here: a list of members.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// The number of characters of etcd's last log lines in an error.
const LOG_CHARS_MAX: usize = 1000;
/// The sockets for clients and members. They are relative to the directory, as etcd wants a port in each.
const SOCKETS: [&str; 2] = ["c:1", "p:1"];
const LOG: &str = "log";

/// The list of members that the process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members {
    /// It uses the list in the data.
    Kept,
    /// Only itself: all others are removed (`--force-new-cluster`).
    Alone,
}

/// The process. It is killed when this value is dropped; etcd has synced what it answered.
pub struct OfflineMember {
    child: Child,
    dir: TempDir,
}

impl OfflineMember {
    /// Starts `binary` on `data`, etcd's data directory, and waits until it answers.
    ///
    /// # Errors
    /// The program cannot be started, or it ends. The error has its last log lines.
    pub async fn start(binary: &Path, data: &Path, members: Members) -> Result<Self, MoveError> {
        let dir = TempDir::new().map_err(io_at(std::env::temp_dir()))?;
        let log = std::fs::File::create(dir.path().join(LOG)).map_err(io_at(dir.path()))?;
        let [client, peer] = SOCKETS.map(|socket| format!("unix://{socket}"));
        let mut command = Command::new(binary);
        command.current_dir(dir.path()).args(["--name", "offline", "--log-level", "warn", "--data-dir"]).arg(data);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("offline={peer}")]);
        if members == Members::Alone {
            command.arg("--force-new-cluster");
        }
        // Variables of etcd would add flags.
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
        let child = command.spawn().map_err(io_at(binary))?;
        let mut member = Self { child, dir };
        match tokio::time::timeout(START_MAX, member.answers()).await {
            Ok(result) => result?,
            Err(_) => return Err(member.failed("it does not answer")),
        }
        Ok(member)
    }

    async fn answers(&mut self) -> Result<(), MoveError> {
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.failed(&format!("it ended: {status}")));
            }
            // Without a leader it does not answer reads yet.
            if self.status().await.is_ok_and(|status| status.leader != 0) {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn failed(&self, why: &str) -> MoveError {
        let log = std::fs::read_to_string(self.dir.path().join(LOG)).unwrap_or_default();
        let from = log.char_indices().nth_back(LOG_CHARS_MAX).map_or(0, |(at, _)| at);
        MoveError::Member { why: why.to_owned(), log: log[from..].trim().to_owned() }
    }

    /// Returns the value of `--etcd-servers` for this process.
    #[must_use]
    pub fn server(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join(SOCKETS[0])
    }

    fn client(&self) -> Result<Client<Channel>, MoveError> {
        let endpoint = Endpoint::from_shared(self.server()).map_err(|error| self.failed(&error.to_string()))?;
        Ok(Client::new(endpoint.connect_lazy(), ANSWER_BYTES_MAX))
    }

    /// Returns what the member says of itself.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn status(&self) -> Result<StatusResponse, MoveError> {
        self.client()?.status().await.map_err(|status| self.failed(status.message()))
    }

    /// Checks that the member is a voter and the only one.
    ///
    /// # Errors
    /// There are other members, or it is a learner.
    pub async fn check_alone(&self) -> Result<(), MoveError> {
        let answer = self.client()?.member_list(MemberListRequest { linearizable: false }).await;
        let members = answer.map_err(|status| self.failed(status.message()))?.members;
        match members.as_slice() {
            [one] if !one.is_learner => Ok(()),
            [_] => Err(MoveError::Learner),
            all => Err(MoveError::Members(all.len())),
        }
    }

    /// Returns the number of keys.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn count_keys(&self) -> Result<usize, MoveError> {
        let all = bytes::Bytes::from_static(&[0]);
        let request = RangeRequest { key: all.clone(), range_end: all, count_only: true, ..RangeRequest::default() };
        let answer = self.client()?.range(request).await.map_err(|status| self.failed(status.message()))?;
        Ok(usize::try_from(answer.count).unwrap_or(0))
    }

    /// Ends the process.
    ///
    /// # Errors
    /// It cannot be ended.
    pub async fn stop(mut self) -> Result<(), MoveError> {
        self.child.kill().await.map_err(io_at(self.dir.path()))
    }
}
