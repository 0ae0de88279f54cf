//! Exec with a fake shim behind containerd's task API: all combinations of streams, protocols, and ways in which the command or the client
//! ends.
use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use kelson_streams::{ExecClient, RemoteCommandVersion, exec_client};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::io::AsyncReadExt as _;

use super::*;

#[path = "../../tests/suite/grpc.rs"]
mod grpc;

use grpc::{Frames, ended, framed};

/// The used fields of `ExecProcessRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct Exec {
    #[prost(string, tag = "2")]
    stdin: String,
    #[prost(string, tag = "3")]
    stdout: String,
    #[prost(string, tag = "4")]
    stderr: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Waited {
    #[prost(uint32, tag = "1")]
    exit_status: u32,
}

/// The end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndedBy {
    /// The command writes to both outputs and ends.
    Command,
    /// The command ends at the end of its input.
    Input,
    /// The client disconnects while the command runs.
    Client,
    /// The runtime cannot start the command.
    NoStart,
}

/// A shim that opens its pipes like containerd's: outputs for writing, which fails for an empty path.
#[derive(Default)]
struct Shim {
    created: Mutex<HashMap<String, Exec>>,
    /// Received calls, by the last part of their path.
    calls: Mutex<Vec<String>>,
    input: Mutex<Vec<u8>>,
}

fn answered(message: Vec<u8>) -> Frames {
    stream::iter([http_body(message), ended("0")]).boxed()
}

fn http_body(message: Vec<u8>) -> hyper::body::Frame<bytes::Bytes> {
    hyper::body::Frame::data(framed(&message))
}

fn refused_with(text: &str) -> Frames {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("2"));
    trailers.insert("grpc-message", http::HeaderValue::from_str(text).expect("a header"));
    stream::iter([hyper::body::Frame::trailers(trailers)]).boxed()
}

impl Shim {
    fn answer(self: &Arc<Self>, ending: EndedBy, path: &str, message: &[u8]) -> Frames {
        let call = path.rsplit('/').next().unwrap_or_default().to_owned();
        self.calls.lock().push(call.clone());
        match call.as_str() {
            "Exec" => {
                let exec = Exec::decode(message).expect("a request");
                self.created.lock().insert(String::new(), exec);
                answered(Vec::new())
            }
            "Start" => match self.start(ending) {
                Ok(()) => answered(Vec::new()),
                Err(why) => refused_with(&why),
            },
            "Wait" => {
                let me = Arc::clone(self);
                let wait = async move {
                    me.run(ending).await;
                    http_body(Waited { exit_status: 3 }.encode_to_vec())
                };
                stream::once(wait).chain(stream::iter([ended("0")])).boxed()
            }
            _ => answered(Vec::new()),
        }
    }

    fn start(&self, ending: EndedBy) -> Result<(), String> {
        if ending == EndedBy::NoStart {
            return Err("no such program".into());
        }
        let exec = self.created.lock().get("").cloned().expect("created");
        match [&exec.stdout, &exec.stderr].into_iter().find(|path| path.is_empty()) {
            Some(path) => Err(format!("containerd-shim: opening file {path:?} failed")),
            None => Ok(()),
        }
    }

    /// The command: reads its input if its end depends on it, and writes to both outputs.
    async fn run(&self, ending: EndedBy) {
        let exec = self.created.lock().get("").cloned().expect("created");
        if ending == EndedBy::Client {
            // Wait until the kubelet closes the input after the client disconnected.
            while !self.calls.lock().iter().any(|c| c == "CloseIO") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            return;
        }
        if ending == EndedBy::Input && !exec.stdin.is_empty() {
            let mut pipe = pipe::OpenOptions::new().open_receiver(&exec.stdin).expect("the input");
            let mut all = Vec::new();
            // A named pipe reports its end as long as the other side is not open.
            while all.is_empty() {
                pipe.read_to_end(&mut all).await.expect("reads");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            *self.input.lock() = all;
        }
        // Enough to fill the pipe of an unread output; needed only once per combination of streams.
        let size = if ending == EndedBy::Command { 400_000 } else { 10 };
        let outputs = move || {
            for (path, text) in [(exec.stdout, "out"), (exec.stderr, "err")] {
                let mut file = std::fs::File::options().write(true).open(path).expect("an output");
                // More than a pipe holds, so an unwanted output must be read as well.
                file.write_all(text.repeat(size).as_bytes()).expect("written");
            }
        };
        kelson_tasks::FILES.run(outputs).await.expect("ran");
    }
}

async fn session(wanted: ExecOptions, protocol: ExecProtocol, ending: EndedBy) -> (Arc<Shim>, ExecClient) {
    let dir = tempfile::tempdir().expect("a directory").keep();
    let (shim, socket) = (Arc::new(Shim::default()), dir.join("containerd.sock"));
    let answering = Arc::clone(&shim);
    grpc::listen(&socket, move |path, message| answering.answer(ending, path, message));
    let process = Process::new(&socket.display().to_string(), "c", "p").await.expect("connects");
    let (options, tasks) = (ConnectionOptions::default(), Tasks::root("test"));
    let command = Command { process, spec: Vec::new(), dir: dir.join("pipes"), wanted, options, tasks };
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    Tasks::root("session").spawn("command", OnPanic::Contain, async move {
        command.session(ours, protocol).await;
        let _ = std::fs::remove_dir_all(dir);
    });
    let client = exec_client(theirs, protocol, wanted, &ConnectionOptions::default()).await.expect("connects");
    (shim, client)
}

async fn read(from: Option<Stream>) -> Option<String> {
    let mut text = String::new();
    from?.read_to_string(&mut text).await.expect("reads");
    Some(text)
}

fn check_result(result: &ExecResult, protocol: ExecProtocol, what: &str) {
    let version = match protocol {
        ExecProtocol::Spdy(version) | ExecProtocol::WebSocket { version, .. } => version,
    };
    if version >= RemoteCommandVersion::V4 {
        assert_eq!(*result, ExecResult::ExitCode(3), "{what}");
    } else {
        assert!(result.message().contains("exit code 3"), "{what}: {result:?}");
    }
}

async fn check(wanted: ExecOptions, protocol: ExecProtocol, ending: EndedBy) {
    let what = format!("{wanted:?} {protocol:?} {ending:?}");
    let (shim, mut client) = session(wanted, protocol, ending).await;
    if ending == EndedBy::Client {
        drop(client);
        let left = async {
            while !shim.calls.lock().iter().any(|c| c == "DeleteProcess") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), left)
            .await
            .unwrap_or_else(|_| panic!("{what}: the end was not noticed"));
        return;
    }
    let (stdin, stdout, stderr) = (client.stdin.take(), client.stdout.take(), client.stderr.take());
    let input = async {
        if let Some(mut stdin) = stdin
            && ending == EndedBy::Input
        {
            stdin.write_all(b"in").await.expect("writes");
            stdin.shutdown().await.expect("ends");
        }
    };
    let all = async { tokio::join!(read(stdout), read(stderr), client.result(), input) };
    let (stdout, stderr, result, ()) =
        tokio::time::timeout(Duration::from_secs(20), all).await.unwrap_or_else(|_| panic!("{what}: no end"));
    let result = result.expect("a result");
    if ending == EndedBy::NoStart {
        assert!(result.message().contains("no such program"), "{what}: {result:?}");
        return;
    }
    check_result(&result, protocol, &what);
    let size = if ending == EndedBy::Command { 1_200_000 } else { 30 };
    assert_eq!(stdout.map(|t| t.len()), wanted.stdout.then_some(size), "{what}");
    assert_eq!(stderr.map(|t| t.len()), wanted.stderr.then_some(size), "{what}");
    if ending == EndedBy::Input && wanted.stdin {
        assert_eq!(*shim.input.lock(), b"in", "{what}");
    }
}

#[tokio::test]
async fn exec_works_for_all_streams_protocols_and_endings() {
    use RemoteCommandVersion::{V1, V2, V3, V4, V5};
    let spdy = [V1, V2, V3, V4].map(ExecProtocol::Spdy);
    let channels = [(V1, false), (V1, true), (V4, false), (V4, true), (V5, false)];
    let channels = channels.map(|(version, base64)| ExecProtocol::WebSocket { version, base64 });
    for protocol in spdy.into_iter().chain(channels) {
        let ends_input = matches!(protocol, ExecProtocol::Spdy(_) | ExecProtocol::WebSocket { version: V5, .. });
        for streams in 1..8 {
            let (stdin, stdout, stderr) = (streams & 1 > 0, streams & 2 > 0, streams & 4 > 0);
            let wanted = ExecOptions { stdin, stdout, stderr, tty: false };
            for ending in [EndedBy::Command, EndedBy::Input, EndedBy::Client, EndedBy::NoStart] {
                // A channel client cannot end its input before version 5.
                if ending != EndedBy::Input || !stdin || ends_input {
                    check(wanted, protocol, ending).await;
                }
            }
        }
    }
}
