//! Commands without a terminal, where the runtime is a containerd: the client's streams end here and are carried through
//! named pipes, so that a command that closes its output (`sh -c 'cat > file'`) still gets all its input, and its output is
//! not carried through one more process by pieces of what the command happened to write. See [`crate::runtime::tasks`].
//! Everything else is spliced to the runtime's streaming server by `splice`.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, removals in one of their own")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kelson_streams::{ConnectionOptions, ExecOptions, ExecProtocol, ExecResult, ExecStreams, Stream};
use kelson_tasks::{FILES, OnPanic, Tasks};
use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe;

use super::answer::{Body, refused};
use super::state::ServerState;
use crate::runtime::tasks::{Pipes, Process};

/// Bytes of input carried at a time.
const COPY_BYTES: usize = 64 * 1024;
/// What a pipe of output may hold, so that the runtime's shim goes on while what it wrote is carried; the most that Linux
/// gives without asking.
const OUTPUT_PIPE_BYTES: usize = 1 << 20;
/// Between attempts to open a pipe that the other side has not opened yet; it is about to.
const READER_WAIT: Duration = Duration::from_millis(2);

/// A command ready to be run in a container.
pub struct Command {
    process: Process,
    spec: Vec<u8>,
    dir: PathBuf,
    wanted: ExecOptions,
    options: ConnectionOptions,
    tasks: Tasks,
}

/// Where the named pipes of commands lie, below the kubelet's root directory.
pub fn directory(root: &Path) -> PathBuf {
    root.join("exec")
}

/// Prepares a command; `None` where the runtime must do it: another runtime, a terminal.
pub async fn prepare(state: &ServerState, container: &str, command: &[String], wanted: ExecOptions) -> Option<Command> {
    let endpoint = &state.config.runtime_endpoint;
    if wanted.tty || state.runtime_name != "containerd" || endpoint.is_empty() {
        return None;
    }
    let status = state.runtime.container_status(container, true).await.ok()?;
    let spec = process_spec(status.info.get("info")?, command)?;
    let id = format!("{:032x}", rand::random::<u128>());
    let process = Process::new(endpoint, container, &id).await.ok()?;
    let options = ConnectionOptions { idle_limit: Some(state.config.server.streaming_idle), ..Default::default() };
    Some(Command { process, spec, dir: state.pipes_dir.join(id), wanted, options, tasks: state.tasks.clone() })
}

/// The container's own process with another command, from a container's verbose information.
fn process_spec(info: &str, command: &[String]) -> Option<Vec<u8>> {
    let mut info: Value = serde_json::from_str(info).ok()?;
    let process = info["runtimeSpec"]["process"].as_object_mut()?;
    process.insert("args".into(), command.into());
    process.insert("terminal".into(), false.into());
    process.remove("commandLine");
    serde_json::to_vec(process).ok()
}

impl Command {
    /// Answers the client's upgrade and runs the command.
    pub fn serve(self, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let accepted = match kelson_streams::accept_exec(&parts) {
            Ok(a) => a,
            Err(refusal) => return refused(*refusal),
        };
        let upgraded = hyper::upgrade::on(Request::from_parts(parts, body));
        let protocol = accepted.protocol;
        let tasks = self.tasks.clone();
        tasks.spawn("exec", OnPanic::Contain, async move {
            match upgraded.await {
                Ok(io) => self.session(TokioIo::new(io), protocol).await,
                Err(e) => tracing::debug!(error = %e, "upgrade failed"),
            }
        });
        accepted.response.map(|()| Empty::new().boxed_unsync())
    }

    async fn session<T>(self, io: T, protocol: ExecProtocol)
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let mut streams = match ExecStreams::serve(io, protocol, self.wanted, &self.options).await {
            Ok(s) => s,
            Err(e) => {
                tracing::debug!(error = %e, "exec not served");
                return;
            }
        };
        let result = match self.run(&mut streams).await {
            Ok(Some(code)) => ExecResult::ExitCode(code),
            // The client is gone.
            Ok(None) => ExecResult::Success,
            Err(e) => ExecResult::internal_error(format!("error executing command in container: {e}")),
        };
        streams.finish(&result).await;
        let dir = self.dir.clone();
        if let Ok(Err(e)) = FILES.run(move || std::fs::remove_dir_all(dir)).await {
            tracing::debug!(dir = %self.dir.display(), error = %e, "pipes not removed");
        }
    }

    /// Runs the command to its end; `None` when the client left before.
    async fn run(&self, streams: &mut ExecStreams) -> Result<Option<i32>, String> {
        let failed =
            |e: String| format!("failed to exec in container: failed to start exec {:?}: {e}", self.process.id);
        let (dir, wanted) = (self.dir.clone(), self.wanted);
        let paths = FILES.run(move || make_pipes(&dir, wanted)).await;
        let paths = paths.map_err(|e| failed(e.to_string()))?.map_err(|e| failed(e.to_string()))?;
        let open = Open::new(paths).map_err(|e| failed(e.to_string()))?;
        let process = &self.process;
        process.create(self.spec.clone(), &open.paths).await.map_err(failed)?;
        if let Err(e) = process.start().await {
            let _ = process.delete().await;
            return Err(failed(e));
        }
        let stdin = streams.stdin.take();
        let input = stdin.map(|from| self.tasks.scoped("exec-input", input(from, open.paths.stdin, process.clone())));
        let outputs = (output(open.stdout, streams.stdout.take()), output(open.stderr, streams.stderr.take()));
        let ended = async { tokio::join!(process.wait(), outputs.0, outputs.1).0 };
        let code = tokio::select! {
            code = ended => Some(code),
            // The client left: the command's input ends and its output has no reader. It notices, or runs on.
            _ = streams.closed() => None,
        };
        drop(input);
        let Some(code) = code else {
            let left = process.clone();
            self.tasks.spawn("exec-left", OnPanic::Contain, async move {
                let _ = left.close_stdin().await;
                if left.wait().await.is_ok() {
                    let _ = left.delete().await;
                }
            });
            return Ok(None);
        };
        if let Err(e) = process.delete().await {
            tracing::debug!(error = e, "process of an exec not removed");
        }
        Ok(Some(code?.try_into().unwrap_or(i32::MAX)))
    }
}

/// Makes the named pipes in `dir`. Outputs have one whether the client wants them or not: containerd's shim opens both, and
/// fails on an empty path; what is not wanted is read and dropped. Only an unwanted stdin is left out (containerd:
/// `pkg/cri/io/helpers.go`).
fn make_pipes(dir: &Path, wanted: ExecOptions) -> std::io::Result<Pipes> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let make = |wanted: bool, name: &str| -> std::io::Result<String> {
        if !wanted {
            return Ok(String::new());
        }
        let path = dir.join(name);
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        Ok(path.display().to_string())
    };
    Ok(Pipes { stdin: make(wanted.stdin, "stdin")?, stdout: make(true, "stdout")?, stderr: make(true, "stderr")? })
}

struct Open {
    paths: Pipes,
    stdout: Output,
    stderr: Output,
}

/// The end of a pipe that is read here.
struct Output {
    pipe: pipe::Receiver,
    /// What it holds while nobody reads.
    held: usize,
}

impl Output {
    fn open(path: &str) -> std::io::Result<Self> {
        let pipe = pipe::OpenOptions::new().open_receiver(path)?;
        // Where more is not allowed it stays as it is, which only makes it slower.
        let held = fcntl_setpipe_size(&pipe, OUTPUT_PIPE_BYTES).or_else(|_| fcntl_getpipe_size(&pipe))?;
        Ok(Self { pipe, held })
    }
}

impl Open {
    /// Opens the ends that are read here, which does not wait for the other side.
    fn new(paths: Pipes) -> std::io::Result<Self> {
        Ok(Self { stdout: Output::open(&paths.stdout)?, stderr: Output::open(&paths.stderr)?, paths })
    }
}

/// Opens the writing end once the other side reads: what is written and closed before that would be lost, and its end
/// never seen. The caller gives up when the process has ended.
async fn writer(path: &str) -> std::io::Result<pipe::Sender> {
    loop {
        match pipe::OpenOptions::new().open_sender(path) {
            Err(e) if e.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => tokio::time::sleep(READER_WAIT).await,
            other => return other,
        }
    }
}

async fn input(from: Stream, path: String, process: Process) {
    match writer(&path).await {
        Ok(mut to) => {
            // A client that breaks off has ended its input too.
            let _ = tokio::io::copy_buf(&mut BufReader::with_capacity(COPY_BYTES, from), &mut to).await;
        }
        Err(e) => tracing::debug!(error = %e, "input of an exec not opened"),
    }
    if let Err(e) = process.close_stdin().await {
        tracing::debug!(error = e, "input of an exec not closed");
    }
}

/// Carries an output to the client, or reads and drops it where the client did not ask for it, so that the command does
/// not stand still on a full pipe.
async fn output(mut from: Output, to: Option<Stream>) {
    match to {
        Some(mut to) => {
            // A client that reads no more is noticed by its connection.
            let _ = kelson_streams::copy_gathered(&mut from.pipe, &mut to, from.held).await;
            let _ = to.shutdown().await;
        }
        None => {
            let _ = tokio::io::copy(&mut from.pipe, &mut tokio::io::sink()).await;
        }
    }
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod command_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn input_waits_for_its_reader() {
        use tokio::io::AsyncReadExt as _;
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("stdin");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a pipe");
        let at = path.display().to_string();
        let writing = kelson_tasks::scoped("writer", async move {
            let mut to = writer(&at).await.expect("opened");
            to.write_all(b"x").await.expect("written");
        });
        tokio::time::sleep(READER_WAIT * 5).await;
        assert!(!writing.is_finished());
        let mut from = pipe::OpenOptions::new().open_receiver(&path).expect("reader");
        writing.await.expect("done");
        let mut got = Vec::new();
        from.read_to_end(&mut got).await.expect("read");
        assert_eq!(got, b"x");
    }

    #[test]
    fn the_containers_process_with_another_command() {
        let info =
            json!({"runtimeSpec": {"process": {"args": ["sh"], "terminal": true, "cwd": "/", "user": {"uid": 5}}}});
        let spec = process_spec(&info.to_string(), &["cat".into(), "x".into()]).expect("a process");
        let spec: Value = serde_json::from_slice(&spec).expect("json");
        assert_eq!(spec, json!({"args": ["cat", "x"], "terminal": false, "cwd": "/", "user": {"uid": 5}}));
        assert_eq!(process_spec("{}", &[]), None);
    }
}
