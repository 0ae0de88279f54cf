//! Cluster DNS: it listens on an address of this machine's node, and the `kube-dns` service refers to it.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::net::{IpAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use anyhow::Context as _;
use kelson_client::InformerHandle;
use kelson_dns::{EndpointSlice, Forwarder, Node, Published, Server, Service, Sources, Zone};
use kelson_metrics::Registry;
use kelson_tasks::{OnPanic, Tasks};

use crate::cluster::CLUSTER_DOMAIN;
use crate::control_plane::ControlPlane;
use crate::host::NodeIdentity;
use crate::rbac::DNS_USER;

/// The port of cluster DNS on the node's address, over UDP and TCP: a rule of a firewall can name it. Pods use port 53 of the service's
/// address, which the service proxy translates. It is below the ports of node services and of outgoing connections.
const DNS_PORT: u16 = 10053;

/// Running cluster DNS.
pub struct Dns {
    server: Server,
    tasks: Tasks,
    _watched: ((InformerHandle<Service>, InformerHandle<EndpointSlice>), InformerHandle<Node>),
}

impl Dns {
    /// Starts it on an address of this machine's node and points the `kube-dns` service to it.
    pub async fn start(control_plane: &ControlPlane, node: &NodeIdentity) -> anyhow::Result<Self> {
        let client = control_plane.client(DNS_USER, "dns");
        let tasks = control_plane.tasks().child("cluster-dns");
        let cluster = control_plane.cluster();
        let directory = Arc::default();
        let watched = kelson_dns::watch(&client, &directory);
        let zone = Zone::new(CLUSTER_DOMAIN, directory).map_err(anyhow::Error::msg)?;
        let resolvers = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let service_ip = cluster.dns;
        let forwarder = Forwarder::from_resolv_conf(&resolvers, &[service_ip]);
        let sources = Arc::new(Sources::new(vec![cluster.ranges.cluster, cluster.ranges.service]));
        sources.put_node(&node.name, [node.address]);
        let nodes = sources.watch(&client);
        let port = port_or_any(node.address, DNS_PORT);
        let server = Server::start(node.address, port, zone, forwarder, sources, &tasks);
        let server = server.await.context("start cluster DNS")?;
        let published = Published { service_ip, endpoint: server.address(), node_name: node.name.clone() };
        tasks.spawn("dns-publish", OnPanic::Contain, async move { kelson_dns::publish(&client, &published).await });
        Ok(Self { server, tasks, _watched: (watched, nodes) })
    }

    /// The server's metrics.
    pub fn registry(&self) -> &Registry {
        self.server.registry()
    }

    /// Ends the server and the tasks that feed it.
    pub fn shutdown(&self) {
        self.tasks.token().cancel();
        self.server.shutdown();
    }
}

/// Returns the port, or 0 (any) if another process uses it, for example another server of this machine.
fn port_or_any(ip: IpAddr, port: u16) -> u16 {
    match UdpSocket::bind((ip, port)).and_then(|_udp| TcpListener::bind((ip, port))) {
        Ok(_) => port,
        Err(error) => {
            tracing::warn!(port, %error, "port of cluster DNS is in use; selecting a free one, which rules of firewalls cannot name");
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn cluster_dns_has_its_port_unless_another_process_has_it() {
        let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
        let other = UdpSocket::bind((ip, 0)).unwrap();
        let port = other.local_addr().unwrap().port();
        assert_eq!(port_or_any(ip, port), 0);
        drop(other);
        let other = TcpListener::bind((ip, 0)).unwrap();
        assert_eq!(port_or_any(ip, other.local_addr().unwrap().port()), 0, "TCP as well");
    }
}
