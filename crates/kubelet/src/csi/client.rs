//! Client of one plugin's socket: plugin registration and the CSI node service. Requests contain secrets, so they are never logged.
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kelson_cri::channel::{connect, unary};
use kelson_cri::{Code, CriError, CriResult};
use tokio::time::Instant;
use tonic::Request;
use tonic::transport::Channel;

use super::messages as m;
pub use super::messages::{
    AccessMode, BlockVolume, EXPAND_VOLUME, Expand, MountVolume, NodeInfo, PluginInfo, Publish,
    SINGLE_NODE_MULTI_WRITER, STAGE_UNSTAGE_VOLUME, SizeRange, Stage, Unpublish, Unstage, VOLUME_MOUNT_GROUP,
    VolumeCapability,
};
use crate::metrics::StorageMetrics;

/// Timeout of calls to a driver (upstream: `csiTimeout`).
const DRIVER_MAX: Duration = Duration::from_secs(120);
/// Timeout of registration calls.
const REGISTRATION_MAX: Duration = Duration::from_secs(10);

/// A connection to one plugin's socket. Clones share the connection.
#[derive(Clone)]
pub struct PluginClient {
    channel: Channel,
    /// Metrics of calls, and the driver's name in them.
    counted: Option<(Arc<StorageMetrics>, String)>,
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($request:ty) -> $answer:ty = $call:literal at $path:literal in $limit:expr;)*) => {
        impl PluginClient {
            $($(#[$doc])*
            ///
            /// # Errors
            /// The plugin's error, or that it was not reached in time.
            pub async fn $name(&self, request: $request) -> CriResult<$answer> {
                let began = Instant::now();
                let answer = unary(&self.channel, $call, $path, Some($limit), Request::new(request)).await;
                if let Some((metrics, driver)) = &self.counted {
                    metrics.called(driver, $path, answer.as_ref().err(), began.elapsed());
                }
                answer
            })*
        }
    };
}

calls! {
    /// Calls `GetInfo`: type, name and endpoint of the plugin.
    info(m::NoFields) -> PluginInfo = "GetInfo" at "/pluginregistration.Registration/GetInfo" in REGISTRATION_MAX;
    /// Calls `NotifyRegistrationStatus`: the result of the registration.
    notify(m::RegistrationStatus) -> m::NoFields
        = "NotifyRegistrationStatus" at "/pluginregistration.Registration/NotifyRegistrationStatus" in REGISTRATION_MAX;
    /// Calls `NodeGetInfo`: the driver's ID of this node and the maximum number of volumes.
    node_info(m::NoFields) -> NodeInfo = "NodeGetInfo" at "/csi.v1.Node/NodeGetInfo" in DRIVER_MAX;
    /// Calls `NodeGetCapabilities`: optional features of the driver on nodes.
    capabilities(m::NoFields) -> m::Capabilities = "NodeGetCapabilities" at "/csi.v1.Node/NodeGetCapabilities" in DRIVER_MAX;
    /// Calls `NodeStageVolume`: prepares a volume for all pods of the node.
    stage(Stage) -> m::NoFields = "NodeStageVolume" at "/csi.v1.Node/NodeStageVolume" in DRIVER_MAX;
    /// Calls `NodeUnstageVolume`: reverts staging.
    unstage(Unstage) -> m::NoFields = "NodeUnstageVolume" at "/csi.v1.Node/NodeUnstageVolume" in DRIVER_MAX;
    /// Calls `NodePublishVolume`: mounts a volume for one pod.
    publish(Publish) -> m::NoFields = "NodePublishVolume" at "/csi.v1.Node/NodePublishVolume" in DRIVER_MAX;
    /// Calls `NodeExpandVolume`: expands the file system of a volume.
    expand(Expand) -> m::NoFields = "NodeExpandVolume" at "/csi.v1.Node/NodeExpandVolume" in DRIVER_MAX;
    /// Calls `NodeUnpublishVolume`: reverts publishing.
    unpublish(Unpublish) -> m::NoFields = "NodeUnpublishVolume" at "/csi.v1.Node/NodeUnpublishVolume" in DRIVER_MAX;
}

impl PluginClient {
    /// Creates a client of the plugin that listens on this socket. It connects with the first call.
    ///
    /// # Errors
    /// The path is not absolute or not UTF-8.
    pub fn new(socket: &Path) -> CriResult<Self> {
        let path = socket
            .to_str()
            .ok_or_else(|| CriError::new("Connect", Code::InvalidArgument, "the path of the socket is not UTF-8"))?;
        Ok(Self { channel: connect(&format!("unix://{path}"))?, counted: None })
    }

    /// Counts the calls as those of this driver.
    #[must_use]
    pub fn counted(self, metrics: Arc<StorageMetrics>, driver: &str) -> Self {
        Self { counted: Some((metrics, driver.to_owned())), ..self }
    }

    /// Asks the plugin for its type, name and endpoint.
    ///
    /// # Errors
    /// As for every call.
    pub async fn plugin_info(&self) -> CriResult<PluginInfo> {
        self.info(m::NoFields {}).await
    }

    /// Notifies the plugin whether its registration succeeded.
    ///
    /// # Errors
    /// As for every call.
    pub async fn notify_outcome(&self, outcome: Result<(), &str>) -> CriResult<()> {
        let error = outcome.err().unwrap_or_default().to_owned();
        self.notify(m::RegistrationStatus { plugin_registered: outcome.is_ok(), error }).await.map(drop)
    }

    /// Asks the driver for its ID of this node.
    ///
    /// # Errors
    /// As for every call.
    pub async fn node(&self) -> CriResult<NodeInfo> {
        self.node_info(m::NoFields {}).await
    }

    /// Returns the numbers of the driver's node capabilities.
    ///
    /// # Errors
    /// As for every call.
    pub async fn node_capabilities(&self) -> CriResult<Vec<i32>> {
        let all = self.capabilities(m::NoFields {}).await?.capabilities;
        Ok(all.into_iter().filter_map(|c| c.rpc).map(|r| r.r#type).collect())
    }
}
