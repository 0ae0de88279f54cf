//! Port-forward: the client's streams are ended here, and each connection is made by this process inside the pod's
//! network namespace. Asking the runtime to do it costs a second per connection with containerd, which waits that long
//! for the client to end its side before it passes the pod's end on. Runtimes that do not tell the namespace (virtual
//! machines) are still asked.
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kelson_cri::Runtime;
use kelson_streams::{ConnectionOptions, PortForwardPair, PortForwardProtocol, PortForwardSession};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::LinkNameSpaceType;
use serde::Deserialize;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::routes::{Body, text};
use crate::probes::handlers::os_text;

/// How long a connection inside the pod may take; it is one to a loopback address.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The network a sandbox is on.
#[derive(Debug, Clone)]
pub enum Network {
    /// The node's own.
    Node,
    /// The namespace behind this path, held open.
    Namespace(Arc<OwnedFd>),
}

/// The part of a runtime's verbose sandbox information that containerd and CRI-O share.
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

/// The path of the network namespace in a sandbox's verbose information: `Some(None)` where it is the node's,
/// `None` where nothing is said.
fn namespace_path(info: &str) -> Option<Option<PathBuf>> {
    let info: Info = serde_json::from_str(info).ok()?;
    match info.spec.linux.namespaces.into_iter().find(|n| n.kind == "network") {
        None => Some(None),
        Some(n) if n.path.is_absolute() => Some(Some(n.path)),
        Some(_) => None,
    }
}

/// Which network a sandbox is on, if the runtime tells and this process can reach it.
pub async fn network(runtime: &dyn Runtime, sandbox: &str) -> Option<Network> {
    let info = runtime.pod_sandbox_status(sandbox, true).await.ok()?.info;
    match namespace_path(info.get("info")?)? {
        None => Some(Network::Node),
        Some(path) => File::open(path).ok().map(|f| Network::Namespace(Arc::new(f.into()))),
    }
}

/// Connects to a port of the pod's loopback, IPv4 first.
async fn connect(network: &Network, port: u16) -> Result<TcpStream, String> {
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
    Err(format!("failed to connect to localhost:{port} inside the pod's network namespace, {}", faults.join(" ")))
}

/// A socket belongs to the namespace it was made in, whichever thread uses it: one is made on a thread that lives no
/// longer, so that no thread of the pool is ever somewhere else.
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
                // Nobody waits any more where the client has gone.
                let _ = to.send(entered.and_then(|()| make()));
            })?;
            made.await.map_err(io::Error::other)??
        }
    };
    Ok(TcpSocket::from_std_stream(made.into()))
}

/// What a session needs to know.
pub struct Target {
    /// Where the pod's ports are.
    pub network: Network,
    /// `name_namespace`, for messages.
    pub pod: String,
    /// For messages.
    pub uid: String,
}

/// Answers the client's upgrade and serves its connections until it leaves.
pub fn serve(request: Request<Incoming>, target: Target) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let accepted = match kelson_streams::accept_port_forward(&parts) {
        Ok(a) => a,
        Err(refusal) => {
            let (head, message) = refusal.into_parts();
            let mut response = text(head.status, message);
            response.headers_mut().extend(head.headers);
            return response;
        }
    };
    let upgraded = hyper::upgrade::on(Request::from_parts(parts, body));
    tokio::spawn(async move {
        match upgraded.await {
            Ok(io) => session(TokioIo::new(io), accepted.protocol, target).await,
            Err(e) => tracing::debug!(error = %e, "upgrade failed"),
        }
    });
    accepted.response.map(|()| Empty::new().boxed_unsync())
}

async fn session(io: TokioIo<hyper::upgrade::Upgraded>, protocol: PortForwardProtocol, target: Target) {
    let mut session = match PortForwardSession::serve(io, protocol, &ConnectionOptions::default()) {
        Ok(s) => s,
        Err(e) => {
            tracing::debug!(error = %e, "port-forward not served");
            return;
        }
    };
    let target = Arc::new(target);
    let mut pairs = JoinSet::new();
    while let Some(pair) = session.next_pair().await {
        while pairs.try_join_next().is_some() {}
        pairs.spawn(carry(pair, Arc::clone(&target)));
    }
    // The client is gone; what it has not read reaches nobody.
    pairs.shutdown().await;
}

async fn carry(pair: PortForwardPair, target: Arc<Target>) {
    match connect(&target.network, pair.port).await {
        Ok(stream) => {
            // Not fatal: it only delays small writes.
            let _ = stream.set_nodelay(true);
            pair.relay(stream).await;
        }
        Err(why) => {
            let Target { pod, uid, .. } = &*target;
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
        assert_eq!(namespace_path(&info(r#"[{"type":"network"}]"#)), None, "one of its own, made by the runtime");
        for nothing in ["", "{}", r#"{"runtimeSpec":{}}"#] {
            assert_eq!(namespace_path(nothing), None, "{nothing}");
        }
    }

    #[tokio::test]
    async fn connects_and_says_why_not() {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("listen");
        let port = listener.local_addr().expect("address").port();
        let (stream, accepted) = tokio::join!(connect(&Network::Node, port), listener.accept());
        let (mut ours, (mut theirs, _)) = (stream.expect("connected"), accepted.expect("accepted"));
        ours.write_all(b"x").await.expect("write");
        let mut got = [0; 1];
        theirs.read_exact(&mut got).await.expect("read");
        drop((listener, ours, theirs));
        let why = connect(&Network::Node, port).await.expect_err("nobody listens");
        assert!(why.contains(&format!("dial tcp4 127.0.0.1:{port}: connect: connection refused")), "{why}");
    }
}
