//! What is said to one plugin: its registration, and the node's half of the container storage interface. Secrets are in the
//! requests, so requests are never printed.
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

/// How long a driver may take (upstream `csiTimeout`).
const DRIVER_MAX: Duration = Duration::from_secs(120);
/// How long a plugin may take to say what it is.
const REGISTRATION_MAX: Duration = Duration::from_secs(10);

/// A connection to one plugin's socket; cheap to clone.
#[derive(Clone)]
pub struct PluginClient {
    channel: Channel,
    /// Where its answers are counted, and under which name.
    counted: Option<(Arc<StorageMetrics>, String)>,
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($request:ty) -> $answer:ty = $call:literal at $path:literal in $limit:expr;)*) => {
        impl PluginClient {
            $($(#[$doc])*
            ///
            /// # Errors
            /// What the plugin says, or that it could not be reached in time.
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
    /// What kind of plugin it is, and where it listens.
    info(m::NoFields) -> PluginInfo = "GetInfo" at "/pluginregistration.Registration/GetInfo" in REGISTRATION_MAX;
    /// Tells it what became of its registration.
    notify(m::RegistrationStatus) -> m::NoFields
        = "NotifyRegistrationStatus" at "/pluginregistration.Registration/NotifyRegistrationStatus" in REGISTRATION_MAX;
    /// What the driver calls this node, and how many volumes it can have there.
    node_info(m::NoFields) -> NodeInfo = "NodeGetInfo" at "/csi.v1.Node/NodeGetInfo" in DRIVER_MAX;
    /// What the driver can do here.
    capabilities(m::NoFields) -> m::Capabilities = "NodeGetCapabilities" at "/csi.v1.Node/NodeGetCapabilities" in DRIVER_MAX;
    /// Makes a volume ready for all pods of the node.
    stage(Stage) -> m::NoFields = "NodeStageVolume" at "/csi.v1.Node/NodeStageVolume" in DRIVER_MAX;
    /// Takes that back.
    unstage(Unstage) -> m::NoFields = "NodeUnstageVolume" at "/csi.v1.Node/NodeUnstageVolume" in DRIVER_MAX;
    /// Mounts a volume for one pod.
    publish(Publish) -> m::NoFields = "NodePublishVolume" at "/csi.v1.Node/NodePublishVolume" in DRIVER_MAX;
    /// Grows what is on a volume.
    expand(Expand) -> m::NoFields = "NodeExpandVolume" at "/csi.v1.Node/NodeExpandVolume" in DRIVER_MAX;
    /// Takes that back.
    unpublish(Unpublish) -> m::NoFields = "NodeUnpublishVolume" at "/csi.v1.Node/NodeUnpublishVolume" in DRIVER_MAX;
}

impl PluginClient {
    /// To the plugin that listens on this socket; the connection is made with the first call.
    ///
    /// # Errors
    /// When the path is not absolute.
    pub fn new(socket: &Path) -> CriResult<Self> {
        let path = socket
            .to_str()
            .ok_or_else(|| CriError::new("Connect", Code::InvalidArgument, "the path of the socket is not UTF-8"))?;
        Ok(Self { channel: connect(&format!("unix://{path}"))?, counted: None })
    }

    /// The same, whose answers are counted as those of this driver.
    #[must_use]
    pub fn counted(self, metrics: Arc<StorageMetrics>, driver: &str) -> Self {
        Self { counted: Some((metrics, driver.to_owned())), ..self }
    }

    /// Asks what kind of plugin it is.
    ///
    /// # Errors
    /// As of every call.
    pub async fn who(&self) -> CriResult<PluginInfo> {
        self.info(m::NoFields {}).await
    }

    /// Tells it that it is registered, or why not.
    ///
    /// # Errors
    /// As of every call.
    pub async fn tell(&self, outcome: Result<(), &str>) -> CriResult<()> {
        let error = outcome.err().unwrap_or_default().to_owned();
        self.notify(m::RegistrationStatus { plugin_registered: outcome.is_ok(), error }).await.map(drop)
    }

    /// Asks what the driver calls this node.
    ///
    /// # Errors
    /// As of every call.
    pub async fn node(&self) -> CriResult<NodeInfo> {
        self.node_info(m::NoFields {}).await
    }

    /// The numbers of what the driver can do here.
    ///
    /// # Errors
    /// As of every call.
    pub async fn abilities(&self) -> CriResult<Vec<i32>> {
        let all = self.capabilities(m::NoFields {}).await?.capabilities;
        Ok(all.into_iter().filter_map(|c| c.rpc).map(|r| r.r#type).collect())
    }
}
