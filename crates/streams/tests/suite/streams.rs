//! Both ends of every protocol against each other over pipes in memory: exec, port-forward, tunnel and translation.

use std::time::Duration;

use kelson_streams::negotiate::{ExecOptions, ExecProtocol, PortForwardProtocol, RemoteCommandVersion};
use kelson_streams::{
    ConnectionOptions, ExecResult, ExecStreams, PortForwardClient, PortForwardSession, StreamError, TerminalSize,
    exec_client, splice, splice_until_idle, translate_websocket_to_spdy, tunnel_websocket_to_spdy,
};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

const ALL: ExecOptions = ExecOptions { stdin: true, stdout: true, stderr: true, tty: false };
const TERMINAL: ExecOptions = ExecOptions { stdin: true, stdout: true, stderr: false, tty: true };
const PIPE_BYTES: usize = 64 * 1024;

fn protocols() -> Vec<ExecProtocol> {
    use RemoteCommandVersion::{V4, V5};
    vec![
        ExecProtocol::Spdy(V4),
        ExecProtocol::WebSocket { version: V5, base64: false },
        ExecProtocol::WebSocket { version: V4, base64: false },
        ExecProtocol::WebSocket { version: V4, base64: true },
    ]
}

fn options() -> ConnectionOptions {
    ConnectionOptions::default()
}

/// Returns a block of bytes that is different for every index.
fn block(index: u64, bytes: usize) -> Vec<u8> {
    let mut state = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(next).collect()
}

#[tokio::test]
async fn fifty_megabytes_and_the_exit_code_arrive_whole() {
    for protocol in protocols() {
        let (ours, theirs) = duplex(PIPE_BYTES);
        let server = tokio::spawn(async move {
            let mut streams = ExecStreams::serve(ours, protocol, ALL, &options()).await.expect("serves");
            let mut stdout = streams.stdout.take().expect("stdout");
            let mut digest = Sha256::new();
            for index in 0..50u64 {
                let data = block(index, 1 << 20);
                digest.update(&data);
                stdout.write_all(&data).await.expect("writes");
            }
            streams.stderr.as_mut().expect("stderr").write_all(b"last words").await.expect("writes");
            drop(stdout);
            streams.finish(&ExecResult::ExitCode(42)).await;
            digest.finalize()
        });
        let mut client = exec_client(theirs, protocol, ALL, &options()).await.expect("connects");
        let mut stdout = client.stdout.take().expect("stdout");
        let mut stderr = client.stderr.take().expect("stderr");
        let output = async {
            let (mut digest, mut buffer, mut total) = (Sha256::new(), vec![0; 100_000], 0usize);
            loop {
                match stdout.read(&mut buffer).await.expect("reads") {
                    0 => return (digest.finalize(), total),
                    read => {
                        total += read;
                        digest.update(&buffer[..read]);
                    }
                }
            }
        };
        let mut words = String::new();
        let (output, words_read, result) = tokio::join!(output, stderr.read_to_string(&mut words), client.result());
        words_read.expect("reads");
        let (digest, total) = output;
        assert_eq!(total, 50 << 20, "{protocol:?}");
        assert_eq!(digest, server.await.expect("server"), "{protocol:?}");
        assert_eq!(words, "last words");
        assert_eq!(result.expect("result"), ExecResult::ExitCode(42));
    }
}

#[tokio::test]
async fn stdin_ends_and_the_output_continues() {
    use RemoteCommandVersion::{V4, V5};
    for protocol in [ExecProtocol::Spdy(V4), ExecProtocol::WebSocket { version: V5, base64: false }] {
        let (ours, theirs) = duplex(PIPE_BYTES);
        let server = tokio::spawn(async move {
            let mut streams = ExecStreams::serve(ours, protocol, ALL, &options()).await.expect("serves");
            let mut input = Vec::new();
            // This ends only when the client's end of input arrives.
            streams.stdin.as_mut().expect("stdin").read_to_end(&mut input).await.expect("reads");
            input.reverse();
            streams.stdout.as_mut().expect("stdout").write_all(&input).await.expect("writes");
            streams.finish(&ExecResult::Success).await;
        });
        let mut client = exec_client(theirs, protocol, ALL, &options()).await.expect("connects");
        let sent = block(7, 300_000);
        let mut stdin = client.stdin.take().expect("stdin");
        let mut stdout = client.stdout.take().expect("stdout");
        let write = async {
            stdin.write_all(&sent).await.expect("writes");
            stdin.shutdown().await.expect("ends");
        };
        let mut received = Vec::new();
        let ((), read, result) = tokio::join!(write, stdout.read_to_end(&mut received), client.result());
        read.expect("reads");
        received.reverse();
        assert!(received == sent, "{protocol:?}");
        assert_eq!(result.expect("result"), ExecResult::Success);
        server.await.expect("server");
    }
}

#[tokio::test]
async fn terminal_sizes_arrive_in_order() {
    for protocol in protocols() {
        let (ours, theirs) = duplex(PIPE_BYTES);
        let server = tokio::spawn(async move {
            let mut streams = ExecStreams::serve(ours, protocol, TERMINAL, &options()).await.expect("serves");
            assert!(streams.stderr.is_none());
            let resize = streams.resize.as_mut().expect("resize");
            let sizes = [resize.next().await, resize.next().await, resize.next().await];
            streams.finish(&ExecResult::Success).await;
            sizes
        });
        let mut client = exec_client(theirs, protocol, TERMINAL, &options()).await.expect("connects");
        let mut resize = client.take_resize().expect("resize");
        let sizes = [(80, 24), (132, 50), (1, 1)].map(|(width, height)| TerminalSize { width, height });
        for size in sizes {
            resize.send(size).await.expect("sends");
        }
        assert_eq!(client.result().await.expect("result"), ExecResult::Success);
        assert_eq!(server.await.expect("server"), sizes.map(Some));
    }
}

#[tokio::test]
async fn older_versions_send_failures_as_plain_messages() {
    for (version, failure) in [
        (RemoteCommandVersion::V1, "error executing remote command: boom"),
        (RemoteCommandVersion::V3, "error executing remote command: boom"),
        (RemoteCommandVersion::V4, "boom"),
    ] {
        let (ours, theirs) = duplex(PIPE_BYTES);
        let protocol = ExecProtocol::Spdy(version);
        tokio::spawn(async move {
            let streams = ExecStreams::serve(ours, protocol, ALL, &options()).await.expect("serves");
            streams.finish(&ExecResult::Failed("boom".into())).await;
        });
        let mut client = exec_client(theirs, protocol, ALL, &options()).await.expect("connects");
        assert_eq!(client.result().await.expect("result").message(), failure);
    }
}

#[tokio::test(start_paused = true)]
async fn streams_that_never_come_are_given_up() {
    let (ours, _theirs) = duplex(PIPE_BYTES);
    let protocol = ExecProtocol::Spdy(RemoteCommandVersion::V4);
    let error = ExecStreams::serve(ours, protocol, ALL, &options()).await.expect_err("nobody creates streams");
    assert!(matches!(error, StreamError::StreamCreation), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn pings_do_not_count_as_activity_and_silence_can_be_limited() {
    let protocol = ExecProtocol::WebSocket { version: RemoteCommandVersion::V5, base64: false };
    let idle = ConnectionOptions {
        keep_alive: Some(Duration::from_secs(1)),
        keep_alive_timeout: Some(Duration::from_secs(5)),
        idle_limit: Some(Duration::from_secs(60)),
        ..options()
    };
    // A peer that answers pings lives until the idle limit.
    let (ours, theirs) = duplex(PIPE_BYTES);
    let start = tokio::time::Instant::now();
    let server = ExecStreams::serve(ours, protocol, ALL, &idle).await.expect("serves");
    let client = exec_client(theirs, protocol, ALL, &options()).await.expect("connects");
    assert!(matches!(server.closed().await, Some(StreamError::Idle)));
    assert!(start.elapsed() >= Duration::from_secs(60) && start.elapsed() < Duration::from_secs(62));
    drop(client);
    // A peer that does not answer is disconnected long before.
    let (ours, _theirs) = duplex(PIPE_BYTES);
    let start = tokio::time::Instant::now();
    let server = ExecStreams::serve(ours, protocol, ALL, &idle).await.expect("serves");
    assert!(matches!(server.closed().await, Some(StreamError::KeepAlive)));
    assert!(start.elapsed() < Duration::from_secs(7));
}

#[tokio::test]
async fn a_connection_cut_in_the_middle_is_an_error_not_an_end() {
    for protocol in protocols() {
        let (ours, relay_server) = duplex(PIPE_BYTES);
        let (relay_client, theirs) = duplex(PIPE_BYTES);
        let relay = tokio::spawn(async move { splice(relay_server, relay_client).await });
        let server = tokio::spawn(async move {
            let mut streams = ExecStreams::serve(ours, protocol, ALL, &options()).await.expect("serves");
            streams.stdout.as_mut().expect("stdout").write_all(b"half of it").await.expect("writes");
            streams.closed().await
        });
        let mut client = exec_client(theirs, protocol, ALL, &options()).await.expect("connects");
        let mut stdout = client.stdout.take().expect("stdout");
        let mut half = [0; 10];
        stdout.read_exact(&mut half).await.expect("reads");
        relay.abort();
        let error = stdout.read(&mut half).await.expect_err("the rest is missing");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted, "{protocol:?}");
        assert!(server.await.expect("server").is_some());
    }
}

/// Echoes every pair until its input ends, but resets port 13.
async fn echo_ports(mut session: PortForwardSession) -> usize {
    let mut served = 0;
    while let Some(mut pair) = session.next_pair().await {
        served += 1;
        tokio::spawn(async move {
            match pair.port {
                13 => {
                    let _ = pair.data.read_u8().await;
                    pair.data.reset();
                }
                99 => pair.fail("error forwarding port 99 to pod p, uid u: refused").await,
                _ => {
                    let (near, far) = duplex(1_000);
                    let echo = tokio::spawn(async move {
                        let (mut read, mut write) = tokio::io::split(far);
                        let copied = tokio::io::copy(&mut read, &mut write).await;
                        let _ = write.shutdown().await;
                        copied
                    });
                    pair.relay(near).await;
                    let _ = echo.await;
                }
            }
        });
    }
    served
}

async fn use_ports(client: PortForwardClient) {
    let client = std::sync::Arc::new(client);
    let victim = {
        let client = client.clone();
        tokio::spawn(async move {
            let mut connection = client.open(13).await.expect("opens");
            connection.data.write_all(b"x").await.expect("writes");
            let mut rest = Vec::new();
            connection.data.read_to_end(&mut rest).await.expect("ends");
            assert!(connection.data.was_reset());
            assert_eq!(connection.failure().await, None);
        })
    };
    let tasks: Vec<_> = (0..20u64)
        .map(|index| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut connection = client.open(8_000 + index as u16).await.expect("opens");
                let sent = block(index, 400_000);
                let (mut read, mut write) = tokio::io::split(&mut connection.data);
                let mut received = Vec::new();
                let write = async {
                    write.write_all(&sent).await.expect("writes");
                    write.shutdown().await.expect("ends");
                };
                let ((), read) = tokio::join!(write, read.read_to_end(&mut received));
                read.expect("reads");
                assert!(received == sent, "pair {index}");
                assert_eq!(connection.failure().await, None);
            })
        })
        .collect();
    victim.await.expect("victim");
    for task in tasks {
        task.await.expect("pair");
    }
    let mut refused = client.open(99).await.expect("opens");
    let failure = refused.failure().await.expect("tells why");
    assert_eq!(failure, "error forwarding port 99 to pod p, uid u: refused");
    // The connection still works after a failure.
    let mut again = client.open(1).await.expect("opens");
    again.data.shutdown().await.expect("ends");
    let mut rest = Vec::new();
    assert_eq!(again.data.read_to_end(&mut rest).await.expect("ends"), 0);
}

#[tokio::test]
async fn twenty_pairs_and_one_reset_over_spdy() {
    let (ours, theirs) = duplex(PIPE_BYTES);
    let session = PortForwardSession::serve(ours, PortForwardProtocol::Spdy, &options()).expect("serves");
    let server = tokio::spawn(echo_ports(session));
    use_ports(PortForwardClient::spdy(theirs, &options()).expect("connects")).await;
    assert_eq!(server.await.expect("server"), 23);
}

#[tokio::test]
async fn twenty_pairs_and_one_reset_through_the_tunnel() {
    let (ours, theirs) = duplex(PIPE_BYTES);
    let session = PortForwardSession::serve(ours, PortForwardProtocol::Tunnel, &options()).expect("serves");
    let server = tokio::spawn(echo_ports(session));
    use_ports(PortForwardClient::tunnel(theirs, &options()).expect("connects")).await;
    assert_eq!(server.await.expect("server"), 23);
}

#[tokio::test]
async fn the_tunnel_is_taken_off_between_client_and_kubelet() {
    let (client_far, client_near) = duplex(PIPE_BYTES);
    let (kubelet_near, kubelet_far) = duplex(PIPE_BYTES);
    let session = PortForwardSession::serve(kubelet_far, PortForwardProtocol::Spdy, &options()).expect("serves");
    let server = tokio::spawn(echo_ports(session));
    let proxy = tokio::spawn(tunnel_websocket_to_spdy(client_near, kubelet_near));
    use_ports(PortForwardClient::tunnel(client_far, &options()).expect("connects")).await;
    assert_eq!(server.await.expect("server"), 23);
    proxy.await.expect("proxy").expect("ends in order");
}

#[tokio::test(start_paused = true)]
async fn half_a_pair_is_given_up_alone() {
    let (ours, theirs) = duplex(PIPE_BYTES);
    let session = PortForwardSession::serve(ours, PortForwardProtocol::Spdy, &options()).expect("serves");
    let server = tokio::spawn(echo_ports(session));
    let client = PortForwardClient::spdy(theirs, &options()).expect("connects");
    let headers =
        kelson_streams::spdy::Headers::new().with("streamType", "error").with("port", "80").with("requestID", "lonely");
    let mut lonely = client.connection().open_stream(headers).await.expect("opens");
    let mut text = String::new();
    lonely.read_to_string(&mut text).await.expect("reads");
    assert!(text.ends_with("timed out waiting for streams"), "{text}");
    let without_port = kelson_streams::spdy::Headers::new().with("streamType", "data");
    assert!(matches!(client.connection().open_stream(without_port).await, Err(StreamError::Reset)));
    let mut good = client.open(1).await.expect("still works");
    good.data.shutdown().await.expect("ends");
    drop((lonely, good, client));
    assert_eq!(server.await.expect("server"), 1);
}

#[tokio::test]
async fn translation_is_exact_both_ways() {
    let websocket = ExecProtocol::WebSocket { version: RemoteCommandVersion::V5, base64: false };
    let spdy = ExecProtocol::Spdy(RemoteCommandVersion::V4);
    let (client_far, client_near) = duplex(PIPE_BYTES);
    let (kubelet_near, kubelet_far) = duplex(PIPE_BYTES);
    let kubelet = tokio::spawn(async move {
        let mut streams = ExecStreams::serve(kubelet_far, spdy, ALL, &options()).await.expect("serves");
        let (mut stdin, mut stdout) = (streams.stdin.take().expect("stdin"), streams.stdout.take().expect("stdout"));
        tokio::io::copy(&mut stdin, &mut stdout).await.expect("copies");
        drop(stdout);
        streams.finish(&ExecResult::ExitCode(3)).await;
    });
    let dial = async { Ok((kubelet_near, RemoteCommandVersion::V4)) };
    let proxy =
        tokio::spawn(async move { translate_websocket_to_spdy(client_near, websocket, ALL, dial, &options()).await });
    let mut client = exec_client(client_far, websocket, ALL, &options()).await.expect("connects");
    let sent = block(3, 5 << 20);
    let (mut stdin, mut stdout) = (client.stdin.take().expect("stdin"), client.stdout.take().expect("stdout"));
    let write = async {
        stdin.write_all(&sent).await.expect("writes");
        stdin.shutdown().await.expect("ends");
    };
    let mut received = Vec::new();
    let ((), read, result) = tokio::join!(write, stdout.read_to_end(&mut received), client.result());
    read.expect("reads");
    assert!(received == sent);
    assert_eq!(result.expect("result"), ExecResult::ExitCode(3));
    kubelet.await.expect("kubelet");
    proxy.await.expect("proxy").expect("translates");
}

#[tokio::test]
async fn a_failed_dial_is_the_result_of_the_exec() {
    let websocket = ExecProtocol::WebSocket { version: RemoteCommandVersion::V5, base64: false };
    let (client_far, client_near) = duplex(PIPE_BYTES);
    let proxy = tokio::spawn(async move {
        let dial = async { Err::<(tokio::io::DuplexStream, _), _>(ExecResult::internal_error("no route")) };
        translate_websocket_to_spdy(client_near, websocket, ALL, dial, &options()).await
    });
    let mut client = exec_client(client_far, websocket, ALL, &options()).await.expect("connects");
    let result = client.result().await.expect("result");
    assert_eq!(result.message(), "Internal error occurred: no route");
    proxy.await.expect("proxy").expect("told the client");
}

#[tokio::test]
async fn splice_passes_each_end_on() {
    let (mut a, a_near) = duplex(100);
    let (b_near, mut b) = duplex(100);
    let proxy = tokio::spawn(splice(a_near, b_near));
    a.write_all(b"question").await.expect("writes");
    a.shutdown().await.expect("ends");
    let mut question = String::new();
    b.read_to_string(&mut question).await.expect("reads to the end");
    let answer = block(1, 10_000);
    let mut received = Vec::new();
    let write = async {
        b.write_all(&answer).await.expect("writes");
        b.shutdown().await.expect("ends");
    };
    let ((), read) = tokio::join!(write, a.read_to_end(&mut received));
    read.expect("reads");
    assert_eq!(question, "question");
    assert!(received == answer);
    assert_eq!(proxy.await.expect("proxy").expect("splices"), (8, 10_000));
}

#[tokio::test(start_paused = true)]
async fn a_splice_that_carries_nothing_for_long_is_let_go() {
    let limit = Duration::from_secs(60);
    let (mut a, a_near) = duplex(100);
    let (b_near, mut b) = duplex(100);
    let begun = tokio::time::Instant::now();
    let proxy = tokio::spawn(splice_until_idle(a_near, b_near, limit));
    // A byte in either direction counts as activity.
    let mut byte = [0];
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(50)).await;
        a.write_all(b"x").await.expect("writes");
        b.read_exact(&mut byte).await.expect("reads");
        tokio::time::sleep(Duration::from_secs(50)).await;
        b.write_all(b"y").await.expect("writes");
        a.read_exact(&mut byte).await.expect("reads");
    }
    let error = proxy.await.expect("proxy").expect_err("silence");
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
    assert_eq!(begun.elapsed().as_secs(), 360);
    let mut rest = Vec::new();
    assert_eq!(a.read_to_end(&mut rest).await.expect("both ends are let go"), 0);
    assert_eq!(b.read_to_end(&mut rest).await.expect("both ends are let go"), 0);
}
