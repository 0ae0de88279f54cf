//! Exec without a terminal for containerd. The client's streams end here and are connected to named pipes. Thus a command that closes its
//! output (`sh -c 'cat > file'`) still gets all its input, and output is not copied by a further process in small writes. See
//! [`crate::runtime::tasks`]. All other commands use the runtime's streaming server through `splice`.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

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

/// Number of input bytes per read.
const COPY_BYTES: usize = 64 * 1024;
/// Requested size of an output pipe in bytes, so that containerd's shim can write while the output is copied; the maximum for unprivileged
/// processes in Linux.
const OUTPUT_PIPE_BYTES: usize = 1 << 20;
/// Delay between attempts to open a pipe that the other side has not opened yet.
const READER_WAIT: Duration = Duration::from_millis(2);

/// A command that is ready to run in a container.
pub struct Command {
    process: Process,
    spec: Vec<u8>,
    dir: PathBuf,
    wanted: ExecOptions,
    options: ConnectionOptions,
    tasks: Tasks,
}

/// Directory of the named pipes, below the kubelet's root directory.
pub fn directory(root: &Path) -> PathBuf {
    root.join("exec")
}

/// Prepares a command; `None` if the runtime must run it because it is not containerd or a terminal is requested.
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

/// Returns the OCI process of a container with another command, from the container's verbose information.
fn process_spec(info: &str, command: &[String]) -> Option<Vec<u8>> {
    let mut info: Value = serde_json::from_str(info).ok()?;
    let process = info["runtimeSpec"]["process"].as_object_mut()?;
    process.insert("args".into(), command.into());
    process.insert("terminal".into(), false.into());
    process.remove("commandLine");
    serde_json::to_vec(process).ok()
}

impl Command {
    /// Accepts the client's upgrade and runs the command.
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
                Err(e) => tracing::debug!(error = %e, "upgrading a connection for a stream failed"),
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
                tracing::debug!(error = %e, "cannot set up the streams of an exec");
                return;
            }
        };
        let result = match self.run(&mut streams).await {
            Ok(Some(code)) => ExecResult::ExitCode(code),
            // The client has disconnected.
            Ok(None) => ExecResult::Success,
            Err(e) => ExecResult::internal_error(format!("error executing command in container: {e}")),
        };
        streams.finish(&result).await;
        let dir = self.dir.clone();
        if let Ok(Err(e)) = FILES.run(move || std::fs::remove_dir_all(dir)).await {
            tracing::debug!(dir = %self.dir.display(), error = %e, "cannot remove the pipes of an exec");
        }
    }

    /// Runs the command to its end; `None` if the client disconnected before.
    async fn run(&self, streams: &mut ExecStreams) -> Result<Option<i32>, String> {
        let failed =
            |e: String| format!("failed to exec in container: failed to start exec {:?}: {e}", self.process.id);
        let (dir, wanted) = (self.dir.clone(), self.wanted);
        let paths = FILES.run(move || make_pipes(&dir, wanted)).await;
        let paths = paths.map_err(|e| failed(e.to_string()))?.map_err(|e| failed(e.to_string()))?;
        let open = OpenPipes::new(paths).map_err(|e| failed(e.to_string()))?;
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
            // The client disconnected: the command's input ends and its output has no reader. It may continue to run.
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
            tracing::debug!(error = e, "cannot delete the process of an exec");
        }
        Ok(Some(code?.try_into().unwrap_or(i32::MAX)))
    }
}

/// Creates the named pipes in `dir`. There is always a pipe for each output, because containerd's shim opens both and fails for an empty
/// path; unwanted output is read and dropped. Only an unwanted stdin has no pipe (containerd: `pkg/cri/io/helpers.go`).
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

struct OpenPipes {
    paths: Pipes,
    stdout: Output,
    stderr: Output,
}

/// The read end of an output pipe.
struct Output {
    pipe: pipe::Receiver,
    /// Capacity of the pipe in bytes.
    held: usize,
}

impl Output {
    fn open(path: &str) -> std::io::Result<Self> {
        let pipe = pipe::OpenOptions::new().open_receiver(path)?;
        // If a larger pipe is not permitted, the default size only makes it slower.
        let held = fcntl_setpipe_size(&pipe, OUTPUT_PIPE_BYTES).or_else(|_| fcntl_getpipe_size(&pipe))?;
        Ok(Self { pipe, held })
    }
}

impl OpenPipes {
    /// Opens the read ends, which does not wait for the other side.
    fn new(paths: Pipes) -> std::io::Result<Self> {
        Ok(Self { stdout: Output::open(&paths.stdout)?, stderr: Output::open(&paths.stderr)?, paths })
    }
}

/// Opens the write end when the other side reads: data written and closed before would be lost, and its end never noticed. The caller stops
/// waiting when the process has ended.
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
            // A client that disconnects has ended its input as well.
            let _ = tokio::io::copy_buf(&mut BufReader::with_capacity(COPY_BYTES, from), &mut to).await;
        }
        Err(e) => tracing::debug!(error = %e, "cannot open the input pipe of an exec"),
    }
    if let Err(e) = process.close_stdin().await {
        tracing::debug!(error = e, "cannot close the input of an exec");
    }
}

/// Copies an output to the client. Reads and drops it if the client did not request it, so that the command does not block on a full pipe.
async fn output(mut from: Output, to: Option<Stream>) {
    match to {
        Some(mut to) => {
            // A client that stops reading is detected by its connection.
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
    async fn input_waits_until_the_process_opens_its_pipe() {
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
