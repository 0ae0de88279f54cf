//! The ends of streams: every combination of streams and protocol with every kind of end, and port-forwards over
//! channels, which have no half-close.

use std::time::Duration;

use kelson_streams::negotiate::{ExecOptions, ExecProtocol, PortForwardProtocol, RemoteCommandVersion};
use kelson_streams::ws::Role;
use kelson_streams::ws::frame::{Decoder, Event, Opcode, put_frame};
use kelson_streams::{
    ConnectionOptions, ExecResult, ExecStreams, PortForwardSession, Stream, exec_client, translate_websocket_to_spdy,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::Instant;

const PIPE_BYTES: usize = 64 * 1024;

/// The kind of end of an exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The command ends by itself.
    Command,
    /// The command ends when its input has ended.
    Input,
    /// The client disconnects.
    Client,
    /// The command could not be run.
    Error,
}

fn options() -> ConnectionOptions {
    ConnectionOptions::default()
}

async fn serve(io: DuplexStream, protocol: ExecProtocol, wanted: ExecOptions, ending: Ending) -> Vec<u8> {
    let mut streams = ExecStreams::serve(io, protocol, wanted, &options()).await.expect("serves");
    let mut input = Vec::new();
    match ending {
        Ending::Client => {
            streams.closed().await;
            return input;
        }
        Ending::Error => {
            streams.finish(&ExecResult::internal_error("no such program")).await;
            return input;
        }
        Ending::Input if wanted.stdin => {
            streams.stdin.as_mut().expect("stdin").read_to_end(&mut input).await.expect("reads");
        }
        Ending::Input | Ending::Command => {}
    }
    for (stream, text) in [(&mut streams.stdout, "out"), (&mut streams.stderr, "err")] {
        if let Some(stream) = stream {
            stream.write_all(text.as_bytes()).await.expect("writes");
        }
    }
    streams.finish(&ExecResult::ExitCode(3)).await;
    input
}

async fn read(from: Option<Stream>) -> Option<String> {
    let mut text = String::new();
    from?.read_to_string(&mut text).await.expect("reads");
    Some(text)
}

/// The client's part. It gives up after a minute of the paused clock.
async fn exec(io: DuplexStream, protocol: ExecProtocol, wanted: ExecOptions, ending: Ending, what: &str) {
    let mut client = exec_client(io, protocol, wanted, &options()).await.expect("connects");
    if ending == Ending::Client {
        return;
    }
    let (stdin, stdout, stderr) = (client.stdin.take(), client.stdout.take(), client.stderr.take());
    let input = async {
        if let Some(mut stdin) = stdin
            && ending == Ending::Input
        {
            stdin.write_all(b"in").await.expect("writes");
            stdin.shutdown().await.expect("ends");
        }
    };
    let all = async { tokio::join!(read(stdout), read(stderr), client.result(), input) };
    let all = tokio::time::timeout(Duration::from_secs(60), all).await;
    let (stdout, stderr, result, ()) = all.unwrap_or_else(|_| panic!("{what}: no end"));
    let message = result.expect("a result").message();
    if ending == Ending::Error {
        assert!(message.contains("no such program"), "{what}: {message}");
        return;
    }
    assert!(message.contains("exit code 3"), "{what}: {message}");
    let seen = |wanted: bool, text: &str| wanted.then(|| text.to_owned());
    assert_eq!((stdout, stderr), (seen(wanted.stdout, "out"), seen(wanted.stderr, "err")), "{what}");
}

fn protocols() -> impl Iterator<Item = ExecProtocol> {
    use RemoteCommandVersion::{V1, V2, V3, V4, V5};
    let channels = [(V1, false), (V1, true), (V4, false), (V4, true), (V5, false)];
    let channels = channels.map(|(version, base64)| ExecProtocol::WebSocket { version, base64 });
    [V1, V2, V3, V4].map(ExecProtocol::Spdy).into_iter().chain(channels)
}

/// Every set of streams that a request may ask for.
fn streams() -> impl Iterator<Item = ExecOptions> {
    let all = (1..16).map(|bits| ExecOptions {
        stdin: bits & 1 > 0,
        stdout: bits & 2 > 0,
        stderr: bits & 4 > 0,
        tty: bits & 8 > 0,
    });
    all.filter(|o| (o.stdin || o.stdout || o.stderr) && !(o.tty && o.stderr))
}

/// Returns whether a client can end its input and continue to read.
fn ends_input(protocol: ExecProtocol) -> bool {
    matches!(protocol, ExecProtocol::Spdy(_) | ExecProtocol::WebSocket { version: RemoteCommandVersion::V5, .. })
}

#[tokio::test(start_paused = true)]
async fn every_combination_of_streams_over_every_protocol_to_every_end() {
    for (protocol, wanted) in protocols().flat_map(|p| streams().map(move |w| (p, w))) {
        for ending in [Ending::Command, Ending::Input, Ending::Client, Ending::Error] {
            if ending == Ending::Input && wanted.stdin && !ends_input(protocol) {
                continue;
            }
            let what = format!("{protocol:?} {wanted:?} {ending:?}");
            let (near, far) = duplex(PIPE_BYTES);
            let server = tokio::spawn(serve(near, protocol, wanted, ending));
            exec(far, protocol, wanted, ending, &what).await;
            let input = server.await.expect("server");
            assert_eq!(input == b"in", ending == Ending::Input && wanted.stdin, "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_websocket_is_translated_to_spdy_with_the_same_ends() {
    let spdy = ExecProtocol::Spdy(RemoteCommandVersion::V4);
    let websockets = protocols().filter(|p| matches!(p, ExecProtocol::WebSocket { .. }));
    for (protocol, wanted) in websockets.flat_map(|p| streams().map(move |w| (p, w))) {
        for ending in [Ending::Command, Ending::Input, Ending::Client, Ending::Error] {
            if ending == Ending::Input && wanted.stdin && !ends_input(protocol) {
                continue;
            }
            let what = format!("{protocol:?} {wanted:?} {ending:?}");
            let (client, client_near) = duplex(PIPE_BYTES);
            let (runtime_near, runtime) = duplex(PIPE_BYTES);
            let server = tokio::spawn(serve(runtime, spdy, wanted, ending));
            let dial = async { Ok((runtime_near, RemoteCommandVersion::V4)) };
            let proxy = tokio::spawn(async move {
                let _ = translate_websocket_to_spdy(client_near, protocol, wanted, dial, &options()).await;
            });
            exec(client, protocol, wanted, ending, &what).await;
            proxy.await.expect("proxy");
            if ending != Ending::Client {
                let input = server.await.expect("server");
                assert_eq!(input == b"in", ending == Ending::Input && wanted.stdin, "{what}");
            }
        }
    }
}

/// A client of WebSocket channels, which sees messages and the end of the connection.
struct Channels {
    io: DuplexStream,
    decoder: Decoder,
    input: bytes::BytesMut,
}

impl Channels {
    async fn send(&mut self, channel: u8, data: &[u8]) {
        let mut out = bytes::BytesMut::new();
        put_frame(Role::Client, Opcode::Binary, &[&[channel], data], &mut out);
        self.io.write_all(&out).await.expect("sent");
    }

    /// Returns all messages up to the close message, joined by channel.
    async fn rest(&mut self, channels: usize) -> Vec<Vec<u8>> {
        let mut received = vec![Vec::new(); channels];
        let mut at = None;
        loop {
            while let Some(event) = self.decoder.decode(&mut self.input).expect("frames") {
                match event {
                    Event::Message { data, last, .. } => {
                        let mut data = &data[..];
                        let channel = *at.get_or_insert_with(|| {
                            let (first, rest) = data.split_first().expect("a channel");
                            data = rest;
                            usize::from(*first)
                        });
                        received[channel].extend_from_slice(data);
                        if last {
                            at = None;
                        }
                    }
                    Event::Close(_) => return received,
                    Event::Ping(_) | Event::Pong(_) => {}
                }
            }
            let read = self.io.read_buf(&mut self.input).await.expect("reads");
            assert!(read > 0, "the connection broke off without a farewell");
        }
    }
}

/// The behaviour of the port of the pod.
#[derive(Clone, Copy, Debug)]
enum Behind {
    /// The port answers one byte and closes.
    Answers,
    /// Nothing listens on the port.
    Nothing,
    /// The port sends nothing until its input has ended.
    Waits,
}

fn forward(ports: Vec<(u16, Behind)>) -> Channels {
    let (near, far) = duplex(PIPE_BYTES);
    let numbers = ports.iter().map(|(port, _)| *port).collect();
    let protocol = PortForwardProtocol::Channels { ports: numbers, base64: false };
    let mut session = PortForwardSession::serve(near, protocol, &options()).expect("serves");
    tokio::spawn(async move {
        while let Some(pair) = session.next_pair().await {
            let behind = ports.iter().find(|(port, _)| *port == pair.port).expect("a port").1;
            tokio::spawn(async move {
                if matches!(behind, Behind::Nothing) {
                    return pair.fail("nothing listens").await;
                }
                let (near, mut pod) = duplex(1_000);
                let served = async {
                    match behind {
                        Behind::Answers => {
                            let byte = pod.read_u8().await.expect("a request");
                            pod.write_all(&[byte + 1]).await.expect("an answer");
                            drop(pod);
                        }
                        _ => {
                            let mut all = Vec::new();
                            let _ = pod.read_to_end(&mut all).await;
                        }
                    }
                };
                tokio::join!(pair.relay(near), served);
            });
        }
    });
    Channels { io: far, decoder: Decoder::new(Role::Client), input: bytes::BytesMut::new() }
}

#[tokio::test(start_paused = true)]
async fn a_forward_over_channels_ends_with_its_connections() {
    let begun = Instant::now();
    let mut client = forward(vec![(80, Behind::Answers)]);
    client.send(0, b"a").await;
    let ended = tokio::time::timeout(Duration::from_secs(60), client.rest(2)).await.expect("the end of the connection");
    assert_eq!(ended, [&b"\x50\0b"[..], b"\x50\0"], "the port and the answer, and no failure");
    assert!(begun.elapsed() <= Duration::from_secs(1), "{:?}", begun.elapsed());

    let begun = Instant::now();
    let mut client = forward(vec![(81, Behind::Nothing)]);
    let ended = tokio::time::timeout(Duration::from_secs(60), client.rest(2)).await.expect("the end of the connection");
    assert_eq!(ended, [&b"\x51\0"[..], b"\x51\0nothing listens"]);
    assert_eq!(begun.elapsed(), Duration::ZERO, "a failure ends it at once");
}

#[tokio::test(start_paused = true)]
async fn a_forward_over_channels_lasts_as_long_as_one_of_its_connections() {
    let mut client = forward(vec![(80, Behind::Answers), (81, Behind::Nothing), (82, Behind::Waits)]);
    client.send(0, b"a").await;
    assert!(tokio::time::timeout(Duration::from_secs(600), client.rest(6)).await.is_err(), "one still waits");
    // The client's own end releases the last pair.
    let mut client = forward(vec![(82, Behind::Waits)]);
    client.io.shutdown().await.expect("ends");
    let mut rest = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(60), client.io.read_to_end(&mut rest)).await;
    read.expect("the other side ends too").expect("reads");
}
