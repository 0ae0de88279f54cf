//! Several servers, of which some do not answer.
use futures::StreamExt as _;
use hyper_util::rt::TokioExecutor;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, watch};

use super::*;
use crate::servers::Servers;

/// A server that says its name. Its answer to `/watch` never ends.
async fn named(authority: &Authority, name: &'static str) -> String {
    observed(authority, name, Arc::default()).await
}

/// The same, which notes that its readiness was asked for.
async fn observed(authority: &Authority, name: &'static str, asked: Arc<Notify>) -> String {
    let serve = move |stream: TlsStream<TcpStream>| {
        let asked = Arc::clone(&asked);
        async move { serve(stream, name, asked).await }
    };
    listen(authority, b"h2", serve).await
}

async fn serve(stream: TlsStream<TcpStream>, name: &'static str, asked: Arc<Notify>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let first = futures::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from(name)))]);
        if request.uri().path() == "/readyz" {
            asked.notify_one();
        }
        let rest = match request.uri().path() {
            "/watch" => futures::stream::pending().boxed(),
            _ => futures::stream::empty().boxed(),
        };
        std::future::ready(Ok::<_, Infallible>(Response::new(StreamBody::new(first.chain(rest)))))
    });
    let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

/// A machine in front of a server. While it is gone, its packets and those to it are lost.
async fn machine(server: &str) -> (String, watch::Sender<bool>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("its address"));
    let (gone, to) = (watch::Sender::new(false), server.trim_start_matches("https://").to_owned());
    let heard = gone.subscribe();
    tokio::spawn(async move {
        while let Ok((from, _)) = listener.accept().await {
            let (from, to) = (from.into_split(), TcpStream::connect(&to).await.expect("connected").into_split());
            tokio::spawn(carry(from.0, to.1, heard.clone()));
            tokio::spawn(carry(to.0, from.1, heard.clone()));
        }
    });
    (url, gone)
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut gone: watch::Receiver<bool>) {
    let mut piece = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        if gone.wait_for(|gone| !gone).await.is_err() || to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}

fn config(authority: &Authority, urls: &[String]) -> Config {
    let servers = Arc::new(Servers::new(urls, "node-1").expect("URLs"));
    Config { server: urls[0].clone(), servers: Some(servers), ca_pem: authority.cert_pem().into(), ..Config::default() }
}

#[tokio::test]
async fn a_server_that_does_not_complete_a_connection_is_passed_over() {
    let authority = authority();
    let alive = named(&authority, "alive").await;
    let dead = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let refuses = format!("https://{}", dead.local_addr().expect("its address"));
    drop(dead);
    // The kernel accepts connections, and no process continues them.
    let silent = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let half_open = format!("https://{}", silent.local_addr().expect("its address"));
    let foreign = named(&Authority::create("other", Timestamp::now()).expect("a CA"), "foreign").await;
    for bad in [&refuses, &half_open, &foreign] {
        let config = config(&authority, &[bad.clone(), alive.clone()]);
        let servers = config.servers.clone().expect("servers");
        servers.switch(&crate::servers::server_url(bad).expect("a URL"), crate::servers::Previous::Drain);
        let remote = Remote::new(config).expect("a transport");
        assert_eq!(ask(&remote).await, (200, "alive".to_owned()), "{bad}");
    }
    let request = Request::get("/x").body(Bytes::new()).expect("a request");
    let remote = Remote::new(config(&authority, &[refuses, foreign])).expect("a transport");
    let why = remote.send(request).await.expect_err("no server").to_string();
    assert!(why.contains("invalid peer certificate"), "the certificate is named, whichever is tried first: {why}");
}

#[tokio::test]
async fn watches_and_requests_leave_a_machine_that_is_gone() {
    let authority = authority();
    let asked = [Arc::new(Notify::new()), Arc::new(Notify::new())];
    let mut machines = Vec::new();
    for (name, asked) in ["a", "b"].into_iter().zip(&asked) {
        machines.push(machine(&observed(&authority, name, Arc::clone(asked)).await).await);
    }
    let config = config(&authority, &[machines[0].0.clone(), machines[1].0.clone()]);
    let servers = config.servers.clone().expect("servers");
    let is_current = |machine: usize| servers.current().0.to_string().starts_with(&machines[machine].0);
    let (used, other) = if is_current(0) { (0, 1) } else { (1, 0) };
    let remote = Remote::new(config.clone()).expect("a transport");
    tokio::spawn(choose_server(config));
    let request = Request::get("/watch").body(Bytes::new()).expect("a request");
    let mut watch = remote.send(request).await.expect("answered").into_body();
    assert!(watch.frame().await.is_some_and(|frame| frame.is_ok()), "it has begun");
    assert_eq!(ask(&remote).await.1, ["a", "b"][used]);
    asked[used].notified().await;
    machines[used].1.send_replace(true);
    let ended = tokio::time::timeout(Duration::from_secs(30), watch.frame()).await.expect("the watch ends");
    assert!(ended.is_some_and(|frame| frame.is_err()), "it does not seem complete");
    assert_eq!(ask(&remote).await.1, ["a", "b"][other]);
    // The other one fails too, and the first is there again.
    machines[used].1.send_replace(false);
    machines[other].1.send_replace(true);
    while is_current(other) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(ask(&remote).await.1, ["a", "b"][used]);
}
