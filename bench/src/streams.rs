//! Throughput and CPU time of the output of one exec: a source like a runtime, the kubelet, and the API server, each
//! with TLS on loopback, and a client that discards the data. `streams [pipe|spdy] [MB] [BYTES AT A TIME]`

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use kelson_pki::AnyServerCertificate;
use kelson_streams::spdy::frame::{Frame, FrameDecoder, encode, put_data_header};
use kelson_streams::spdy::headers::{HeaderCompressor, Headers};
use kelson_streams::{
    ConnectionOptions, ExecOptions, ExecProtocol, ExecResult, ExecStreams, RemoteCommandVersion, copy_gathered, splice,
    translate_websocket_to_spdy,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const WANTED: ExecOptions = ExecOptions { stdin: false, stdout: true, stderr: false, tty: false };
const PROTOCOL: ExecProtocol = ExecProtocol::WebSocket { version: RemoteCommandVersion::V5, base64: false };

/// Prints rate and cost, and exits the process.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let how = args.first().map_or("pipe", String::as_str).to_owned();
    let mb: usize = args.get(1).map_or(512, |mb| mb.parse().expect("a number"));
    let piece: usize = args.get(2).map_or(32 * 1024, |bytes| bytes.parse().expect("a number"));
    let (server, client) = tls();
    let kubelet = TcpListener::bind("127.0.0.1:0").expect("a port");
    let api = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (kubelet_at, api_at) = (kubelet.local_addr().expect("bound"), api.local_addr().expect("bound"));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let connector = TlsConnector::from(Arc::clone(&client));
    let total = mb << 20;
    match how.as_str() {
        "pipe" => drop(runtime.spawn(kubelet_of_pipe(listener(kubelet, &runtime), acceptor.clone(), total, piece))),
        _ => drop(runtime.spawn(kubelet_of_spdy(listener(kubelet, &runtime), acceptor.clone(), total, piece))),
    }
    runtime.spawn(api_server(listener(api, &runtime), acceptor, connector, kubelet_at));
    let began = Instant::now();
    let reader = std::thread::spawn(move || read_all(client, api_at, total));
    let reader_ns = reader.join().expect("reads");
    let took = began.elapsed().as_secs_f64();
    let stat = std::fs::read_to_string("/proc/self/stat").expect("proc");
    let ticks: Vec<u64> = stat.split(' ').skip(13).take(2).map(|n| n.parse().expect("ticks")).collect();
    let all_ms = (ticks[0] + ticks[1]) * 10;
    println!(
        "{how} {mb} MB by {piece}: {:.0} MB/s; processor: {:.2} ms a MB (kubelet, API server and source), client {:.2}",
        mb as f64 / took,
        (all_ms as f64 - reader_ns as f64 / 1e6) / mb as f64,
        reader_ns as f64 / 1e6 / mb as f64
    );
    std::process::exit(0);
}

fn listener(from: TcpListener, runtime: &tokio::runtime::Runtime) -> tokio::net::TcpListener {
    let _in = runtime.enter();
    from.set_nonblocking(true).expect("set");
    tokio::net::TcpListener::from_std(from).expect("a listener")
}

fn tls() -> (ServerConfig, Arc<ClientConfig>) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "/dev/stdout"])
        .stderr(Stdio::null())
        .output()
        .expect("openssl makes a certificate");
    let certificate = CertificateDer::from_pem_slice(&made.stdout).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(&made.stdout).expect("a key");
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key).expect("fits");
    (server, Arc::new(AnyServerCertificate::client_config().expect("protocol versions")))
}

fn name() -> ServerName<'static> {
    ServerName::try_from("127.0.0.1").expect("an address")
}

/// Reads this number of bytes; returns the CPU time of its thread in nanoseconds.
fn read_all(client: Arc<ClientConfig>, at: SocketAddr, total: usize) -> u64 {
    let mut tcp = TcpStream::connect(at).expect("connects");
    let mut tls = rustls::ClientConnection::new(client, name()).expect("a session");
    let mut stream = rustls::Stream::new(&mut tls, &mut tcp);
    let (mut buffer, mut got) = (vec![0; 128 * 1024], 0);
    stream.flush().expect("greets");
    while got < total {
        match stream.read(&mut buffer).expect("reads") {
            0 => panic!("ended after {got}"),
            read => got += read,
        }
    }
    let used = std::fs::read_to_string("/proc/thread-self/schedstat").expect("proc");
    used.split(' ').next().and_then(|ns| ns.parse().ok()).expect("nanoseconds")
}

async fn api_server(listener: tokio::net::TcpListener, tls: TlsAcceptor, to: TlsConnector, kubelet: SocketAddr) {
    let (client, _) = listener.accept().await.expect("a client");
    let client = tls.accept(client).await.expect("TLS");
    let backend = tokio::net::TcpStream::connect(kubelet).await.expect("the kubelet");
    let backend = to.connect(name(), backend).await.expect("TLS");
    let _ = splice(client, backend).await;
}

async fn kubelet_of_pipe(listener: tokio::net::TcpListener, tls: TlsAcceptor, total: usize, piece: usize) {
    let (client, _) = listener.accept().await.expect("a client");
    let client = tls.accept(client).await.expect("TLS");
    let mut streams =
        ExecStreams::serve(client, PROTOCOL, WANTED, &ConnectionOptions::default()).await.expect("served");
    let (sender, mut receiver) = tokio::net::unix::pipe::pipe().expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&receiver, 1 << 20).expect("room");
    let mut sender = std::fs::File::from(sender.into_blocking_fd().expect("a file"));
    std::thread::spawn(move || {
        let data = vec![0; piece];
        (0..total / piece + 1).for_each(|_| sender.write_all(&data).expect("written"));
    });
    let mut stdout = streams.stdout.take().expect("stdout");
    copy_gathered(&mut receiver, &mut stdout, 1 << 20).await.expect("carried");
    streams.finish(&ExecResult::Success).await;
}

async fn kubelet_of_spdy(listener: tokio::net::TcpListener, tls: TlsAcceptor, total: usize, piece: usize) {
    let (client, _) = listener.accept().await.expect("a client");
    let client = tls.accept(client).await.expect("TLS");
    let source = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = source.local_addr().expect("bound");
    std::thread::spawn(move || runtime_of_spdy(&source, total, piece));
    let backend = async {
        let tcp = tokio::net::TcpStream::connect(at).await.map_err(ExecResult::internal_error)?;
        Ok((tcp, RemoteCommandVersion::V4))
    };
    let _ = translate_websocket_to_spdy(client, PROTOCOL, WANTED, backend, &ConnectionOptions::default()).await;
}

/// Runs a runtime's streaming server: answers each stream, and sends on the second, which is the output.
fn runtime_of_spdy(listener: &TcpListener, total: usize, piece: usize) {
    let (mut tcp, _) = listener.accept().expect("the kubelet");
    let (mut decoder, mut deflate) = (FrameDecoder::new(), HeaderCompressor::new().expect("zlib"));
    let (mut input, mut output, mut opened) = (BytesMut::new(), BytesMut::new(), 0);
    let mut buffer = [0; 4096];
    while opened < 2 {
        let read = tcp.read(&mut buffer).expect("reads");
        input.extend_from_slice(&buffer[..read]);
        while let Some(frame) = decoder.decode(&mut input).expect("decodes") {
            let Frame::SynStream { id, .. } = frame else { continue };
            opened += 1;
            let reply = Frame::SynReply { id, fin: false, headers: Headers::new() };
            encode(&reply, &mut deflate, &mut output).expect("encodes");
            tcp.write_all(&output.split()).expect("written");
            if opened == 2 {
                put_data_header(id, false, piece, &mut output);
                output.resize(output.len() + piece, 0);
            }
        }
    }
    (0..total / piece + 1).for_each(|_| tcp.write_all(&output).expect("written"));
    let _ = tcp.read(&mut buffer);
}
