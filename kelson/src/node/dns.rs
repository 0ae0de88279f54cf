//! Cluster DNS: it listens on an address of this machine's node, and the `kube-dns` service refers to it.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::sync::Arc;

use anyhow::Context as _;
use kelson_client::InformerHandle;
use kelson_dns::{EndpointSlice, Forwarder, Node, Published, Server, Service, Sources, Zone};
use kelson_metrics::Registry;
use kelson_tasks::{OnPanic, Tasks};

use crate::control_plane::{CLUSTER_DOMAIN, ControlPlane};
use crate::host::NodeIdentity;
use crate::rbac::DNS_USER;

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
        let server = Server::start(node.address, 0, zone, forwarder, sources, &tasks);
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
