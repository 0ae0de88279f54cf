//! Port-forward. The client's streams end here, and this process connects in the pod's network namespace. The runtime is not used, because
//! containerd delays the end of each connection by a second: it waits that long for the client to close its side. Runtimes that do not
//! report the namespace (virtual machines) are still used.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kelson_cri::Runtime;
use kelson_cri::proto as cri;
use kelson_meta::url::Query;
use kelson_streams::{ConnectionOptions, PortForwardPair, PortForwardProtocol, PortForwardSession, negotiate};
use kelson_tasks::{FILES, OnPanic, Tasks};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::LinkNameSpaceType;
use serde::Deserialize;
use tokio::net::{TcpSocket, TcpStream};

use super::answer::{Body, not_found, refused, refused_by_runtime, text};
use super::endpoint::{Answer, Call};
use super::state::ServerState;
use super::translate;
use crate::pod;
use crate::probes::words::os_text;
use crate::runtime::labels;

/// Timeout of a connection to the pod's loopback address.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Serves `/portForward`: connections to ports of a pod.
pub fn serve(state: Arc<ServerState>, call: Call) -> Answer {
    Box::pin(async move {
        let below: Vec<&str> = call.below.iter().map(String::as_str).collect();
        let (namespace, pod) = match below.as_slice() {
            [namespace, pod] => (*namespace, (*pod, None)),
            [namespace, pod, uid] => (*namespace, (*pod, Some(*uid))),
            _ => return not_found(),
        };
        state.count_websocket("portforward", negotiate::is_tunnel_request(call.request.headers()));
        port_forward(&state, namespace, pod, &call.query, call.request).await
    })
}

async fn port_forward(
    state: &ServerState,
    namespace: &str,
    (pod, uid): (&str, Option<&str>),
    query: &Query,
    request: Request<Incoming>,
) -> Response<Body> {
    let Some(found) = state.find_pod(namespace, pod, uid) else {
        return text(StatusCode::NOT_FOUND, "pod does not exist");
    };
    let filter = cri::PodSandboxFilter {
        label_selector: [(labels::POD_UID.to_owned(), pod::uid(&found).to_owned())].into_iter().collect(),
        state: Some(cri::PodSandboxStateValue { state: cri::PodSandboxState::SandboxReady as i32 }),
        ..Default::default()
    };
    let sandboxes = match state.runtime.list_pod_sandbox(Some(filter)).await {
        Ok(s) => s,
        Err(e) => return refused_by_runtime(&e),
    };
    let Some(sandbox) = sandboxes.into_iter().max_by_key(|s| s.created_at) else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, format!("failed to find sandbox for pod {pod}_{namespace}"));
    };
    // A pod with a RuntimeClass may be a virtual machine, whose ports are not on the namespace's loopback.
    let plain = found.spec.as_ref().is_none_or(|s| s.runtime_class_name.as_deref().unwrap_or_default().is_empty());
    if plain && let Some(network) = network(&*state.runtime, &sandbox.id).await {
        let target = SessionTarget { network, pod: format!("{pod}_{namespace}"), uid: pod::uid(&found).to_owned() };
        let options = ConnectionOptions { idle_limit: Some(state.config.server.streaming_idle), ..Default::default() };
        return answer(state.tasks.child("port-forward"), request, target, options);
    }
    let ports = query.all("port").filter_map(|port| port.parse().ok()).collect();
    match state.runtime.port_forward(&sandbox.id, ports).await {
        Ok(url) => translate::port_forward(state, &url, request).await,
        Err(e) => refused_by_runtime(&e),
    }
}

/// Network of a sandbox.
#[derive(Debug, Clone)]
enum Network {
    /// The host network.
    Node,
    /// A network namespace, as an open file descriptor.
    Namespace(Arc<OwnedFd>),
}

/// The part of the verbose sandbox information that containerd and CRI-O have in common.
#[derive(Debug, Deserialize)]
struct Info {
    #[serde(rename = "runtimeSpec")]
    spec: Spec,
}

#[derive(Debug, Deserialize)]
struct Spec {
    linux: Linux,
}

#[derive(Debug, Deserialize)]
struct Linux {
    #[serde(default)]
    namespaces: Vec<Namespace>,
}

#[derive(Debug, Deserialize)]
struct Namespace {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    path: PathBuf,
}

/// Path of the network namespace in a sandbox's verbose information: `Some(None)` for the host network, `None` if there is no information.
fn namespace_path(info: &str) -> Option<Option<PathBuf>> {
    let info: Info = serde_json::from_str(info).ok()?;
    match info.spec.linux.namespaces.into_iter().find(|n| n.kind == "network") {
        None => Some(None),
        Some(n) if n.path.is_absolute() => Some(Some(n.path)),
        Some(_) => None,
    }
}

/// Returns the network of a sandbox, if the runtime reports it and this process can open it.
async fn network(runtime: &dyn Runtime, sandbox: &str) -> Option<Network> {
    let info = runtime.pod_sandbox_status(sandbox, true).await.ok()?.info;
    match namespace_path(info.get("info")?)? {
        None => Some(Network::Node),
        Some(path) => {
            let opened = FILES.run(move || File::open(path)).await.ok()?.ok()?;
            Some(Network::Namespace(Arc::new(opened.into())))
        }
    }
}

/// Why a port on the pod's loopback cannot be reached, in upstream's words.
#[derive(Debug, thiserror::Error)]
#[error("failed to connect to localhost:{port} inside the pod's network namespace, {}", faults.join(" "))]
struct UnreachablePort {
    port: u16,
    /// The failure for each address family.
    faults: Vec<String>,
}

/// Connects to a port on the pod's loopback, IPv4 first.
async fn connect(network: &Network, port: u16) -> Result<TcpStream, UnreachablePort> {
    let mut faults = Vec::new();
    for (words, at) in [
        ("IPv4: dial tcp4", SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        ("IPv6 dial tcp6", SocketAddr::from((Ipv6Addr::LOCALHOST, port))),
    ] {
        let attempt = async { socket(network, at.is_ipv4()).await?.connect(at).await };
        match tokio::time::timeout(CONNECT_MAX, attempt).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(e)) => faults.push(format!("{words} {at}: connect: {}", os_text(&e))),
            Err(_) => faults.push(format!("{words} {at}: i/o timeout")),
        }
    }
    Err(UnreachablePort { port, faults })
}

/// Creates a socket in the namespace. A socket stays in the namespace of the thread that created it, so a new thread is used, and no thread
/// of the pool ever changes its namespace.
async fn socket(network: &Network, v4: bool) -> io::Result<TcpSocket> {
    let make = move || {
        let family = if v4 { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        rustix::net::socket_with(family, SocketType::STREAM, flags, Some(rustix::net::ipproto::TCP))
    };
    let made = match network {
        Network::Node => make()?,
        Network::Namespace(fd) => {
            let fd = Arc::clone(fd);
            let (to, made) = tokio::sync::oneshot::channel();
            std::thread::Builder::new().name("port-forward".into()).spawn(move || {
                let entered = rustix::thread::move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Network));
                // The receiver is gone if the client disconnected.
                let _ = to.send(entered.and_then(|()| make()));
            })?;
            made.await.map_err(io::Error::other)??
        }
    };
    Ok(TcpSocket::from_std_stream(made.into()))
}

/// Target of a session.
struct SessionTarget {
    /// Network of the pod.
    network: Network,
    /// The pod as `name_namespace`, for messages.
    pod: String,
    /// UID of the pod, for messages.
    uid: String,
}

/// Accepts the client's upgrade and serves its connections until it disconnects. `tasks` is the session's own group.
fn answer(
    tasks: Tasks,
    request: Request<Incoming>,
    target: SessionTarget,
    options: ConnectionOptions,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let accepted = match kelson_streams::accept_port_forward(&parts) {
        Ok(a) => a,
        Err(refusal) => return refused(*refusal),
    };
    let upgraded = hyper::upgrade::on(Request::from_parts(parts, body));
    let own = tasks.clone();
    tasks.spawn("port-forward", OnPanic::Contain, async move {
        match upgraded.await {
            Ok(io) => session(&own, TokioIo::new(io), (accepted.protocol, options), target).await,
            Err(e) => tracing::debug!(error = %e, "upgrading a connection for a stream failed"),
        }
    });
    accepted.response.map(|()| Empty::new().boxed_unsync())
}

async fn session(
    tasks: &Tasks,
    io: TokioIo<hyper::upgrade::Upgraded>,
    (protocol, options): (PortForwardProtocol, ConnectionOptions),
    target: SessionTarget,
) {
    let mut session = match PortForwardSession::serve(io, protocol, &options) {
        Ok(s) => s,
        Err(e) => {
            tracing::debug!(error = %e, "cannot set up the streams of a port-forward");
            return;
        }
    };
    let target = Arc::new(target);
    while let Some(pair) = session.next_pair().await {
        tasks.spawn("port-forward-pair", OnPanic::Contain, carry(pair, Arc::clone(&target)));
    }
    // The client has disconnected, so no one reads what the connections still carry.
    tasks.token().cancel();
}

async fn carry(pair: PortForwardPair, target: Arc<SessionTarget>) {
    match connect(&target.network, pair.port).await {
        Ok(stream) => {
            // A failure only delays small writes.
            let _ = stream.set_nodelay(true);
            pair.relay(stream).await;
        }
        Err(why) => {
            let SessionTarget { pod, uid, .. } = &*target;
            let port = pair.port;
            pair.fail(&format!("error forwarding port {port} to pod {pod}, uid {uid}: {why}")).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn namespaces_of_verbose_information() {
        let info = |namespaces: &str| format!(r#"{{"pid":1,"runtimeSpec":{{"linux":{{"namespaces":{namespaces}}}}}}}"#);
        let pod = info(r#"[{"type":"pid"},{"type":"network","path":"/run/netns/x"}]"#);
        assert_eq!(namespace_path(&pod), Some(Some("/run/netns/x".into())));
        assert_eq!(namespace_path(&info(r#"[{"type":"pid"}]"#)), Some(None), "the node's");
        assert_eq!(namespace_path(&info(r#"[{"type":"network"}]"#)), None, "a new namespace of the runtime");
        for nothing in ["", "{}", r#"{"runtimeSpec":{}}"#] {
            assert_eq!(namespace_path(nothing), None, "{nothing}");
        }
    }

    #[tokio::test]
    async fn connections_to_the_pod_succeed_or_report_the_error() {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("listen");
        let port = listener.local_addr().expect("address").port();
        let (stream, accepted) = tokio::join!(connect(&Network::Node, port), listener.accept());
        let (mut ours, (mut theirs, _)) = (stream.expect("connected"), accepted.expect("accepted"));
        ours.write_all(b"x").await.expect("write");
        let mut got = [0; 1];
        theirs.read_exact(&mut got).await.expect("read");
        drop((listener, ours, theirs));
        let why = connect(&Network::Node, port).await.expect_err("no process listens").to_string();
        assert!(why.contains(&format!("dial tcp4 127.0.0.1:{port}: connect: connection refused")), "{why}");
    }
}
