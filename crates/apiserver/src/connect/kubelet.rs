//! Kubelet: the address of a node's kubelet, and a verified TLS connection to it with the server's client certificate.
//!
//! The node itself reports its address and port, so they are not trusted: the address must be allowed, and the kubelet must prove with
//! a certificate of the cluster's CA that it is this node. Otherwise a node could redirect the server to itself or to another node, with
//! the server's rights (CVE-2022-3294). Self-signed certificates, and those of other CAs, are trusted only if configured
//! (`--kubelet-certificate-authority`).
use std::net::IpAddr;
use std::time::Duration;

use kelson_meta::{GroupResource, Status};
use kelson_store::Resource;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::catalog::record::parse;
use crate::connect::address;
use crate::shared::Server;

/// Timeout of connecting to a kubelet, including the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_PORT: u16 = 10250;

/// The kubelet of a node.
pub struct Node {
    name: String,
    host: String,
    port: u16,
    verified: bool,
    /// Whether it accepts all WebSocket protocols of clients.
    translates: bool,
}

impl Node {
    /// The kubelet of a node, from its Node object.
    ///
    /// # Errors
    /// 404 without the node, 503 if connections are not configured or the node has no address.
    pub fn find(server: &Server, name: &str) -> Result<Self, Status> {
        let found = server.store.get(Resource::new("", "nodes"), "", name);
        let node = parse(&*found.ok_or_else(|| Status::not_found(&GroupResource::new("", "nodes"), name))?);
        let kubelets = server.kubelets.as_ref();
        let kubelets = kubelets.ok_or_else(|| Status::unavailable("connections to kubelets are not configured"))?;
        let addresses = node["status"]["addresses"].as_array().map_or(&[][..], Vec::as_slice);
        let of = |kind: &String| addresses.iter().find(|a| a["type"] == kind.as_str())?["address"].as_str();
        let host = kubelets.address_types.iter().find_map(of);
        let host = host.ok_or_else(|| {
            Status::unavailable(format!(
                "no preferred addresses found; known addresses: {}",
                Value::from(addresses.to_vec())
            ))
        })?;
        let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
        let port = port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0).unwrap_or(DEFAULT_PORT);
        let declared = node["status"]["declaredFeatures"].as_array();
        let translates = declared.is_some_and(|all| all.iter().any(|name| name == "ExtendWebSocketsToKubelet"));
        Ok(Self { name: name.to_owned(), host: host.to_owned(), port, verified: true, translates })
    }

    /// The same without verification of its certificate (`insecureSkipTLSVerifyBackend` of `PodLogOptions`).
    pub fn unverified(self) -> Self {
        Self { verified: false, ..self }
    }

    /// Whether WebSockets of any protocol can be passed through. Other kubelets get SPDY, because their runtimes may not support them.
    pub fn translates_websockets(&self) -> bool {
        self.translates
    }

    /// Address and port, `host:port`.
    pub fn authority(&self) -> String {
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V6(ip)) => format!("[{ip}]:{}", self.port),
            _ => format!("{}:{}", self.host, self.port),
        }
    }

    /// Connects, and verifies as configured that the kubelet is this node's.
    ///
    /// # Errors
    /// A message for the client.
    pub async fn connect(&self, server: &Server) -> Result<TlsStream<TcpStream>, String> {
        let kubelets = server.kubelets.as_ref().ok_or("connections to kubelets are not configured")?;
        let authority = self.authority();
        let name = ServerName::try_from(self.host.clone()).map_err(|e| format!("{authority}: {e}"))?;
        let loopback = kubelets.local_node.as_deref() == Some(self.name.as_str());
        let connect = async {
            let tcp = address::connect(&self.host, self.port, loopback).await?;
            tcp.set_nodelay(true)?;
            let stream = kubelets.connector(self.verified).connect(name.clone(), tcp).await?;
            if self.verified {
                let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
                kubelets.check(chain, &name, &self.name).map_err(std::io::Error::other)?;
            }
            Ok::<_, std::io::Error>(stream)
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(format!("error dialing backend: dial tcp {authority}: {error}")),
            Err(_) => Err(format!("error dialing backend: dial tcp {authority}: i/o timeout")),
        }
    }
}
