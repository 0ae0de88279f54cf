//! What is said to one device plugin.
use std::path::Path;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kelson_cri::channel::{connect, stream, unary};
use kelson_cri::{Code, CriError, CriResult};
use tonic::Request;
use tonic::transport::Channel;

use super::messages::{
    AllocateResponse, ContainerAllocation, Device, DeviceIds, DeviceIdsOfContainers, DeviceList, Empty,
    PreferredForContainer, PreferredRequest,
};

/// How long a plugin may take to prepare devices for a container that starts (upstream's).
const PRE_START_MAX: Duration = Duration::from_secs(30);
/// How long it may take to say which devices go together, or how a container gets them. Upstream waits for ever; then a plugin
/// that hangs would keep its pods from being ended as well.
const ALLOCATE_MAX: Duration = Duration::from_secs(120);

/// A connection to one plugin's socket; cheap to clone.
#[derive(Clone, Debug)]
pub struct DevicePluginClient {
    channel: Channel,
}

macro_rules! method {
    ($name:literal) => {
        ($name, concat!("/v1beta1.DevicePlugin/", $name))
    };
}

impl DevicePluginClient {
    /// To the plugin that listens on this socket; the connection is made with the first call.
    ///
    /// # Errors
    /// When the path is not absolute.
    pub fn new(socket: &Path) -> CriResult<Self> {
        let path = socket
            .to_str()
            .ok_or_else(|| CriError::new("Connect", Code::InvalidArgument, "the path of the socket is not UTF-8"))?;
        Ok(Self { channel: connect(&format!("unix://{path}"))? })
    }

    /// All its devices, again and again as they change, for as long as it is there.
    ///
    /// # Errors
    /// As of every call.
    pub async fn watch(&self) -> CriResult<BoxStream<'static, CriResult<Vec<Device>>>> {
        let (name, path) = method!("ListAndWatch");
        let lists = stream::<_, DeviceList>(&self.channel, name, path, Empty {}).await?;
        Ok(lists.map(|list| list.map(|l| l.devices)).boxed())
    }

    /// Which of the available devices it would give, `must` among them; it may name fewer, or none.
    ///
    /// # Errors
    /// As of every call.
    pub async fn preferred(&self, available: Vec<String>, must: Vec<String>, size: usize) -> CriResult<Vec<String>> {
        let (name, path) = method!("GetPreferredAllocation");
        let size = i32::try_from(size).unwrap_or(i32::MAX);
        let request = PreferredRequest {
            container_requests: vec![PreferredForContainer { available, must_include: must, size }],
        };
        let answer = unary(&self.channel, name, path, Some(ALLOCATE_MAX), Request::new(request)).await;
        let answer: DeviceIdsOfContainers = answer?;
        Ok(answer.containers.into_iter().next().map(|c| c.ids).unwrap_or_default())
    }

    /// How a container gets these devices.
    ///
    /// # Errors
    /// As of every call, and for an answer that says nothing of the container.
    pub async fn allocate(&self, ids: Vec<String>) -> CriResult<ContainerAllocation> {
        let (name, path) = method!("Allocate");
        let request = DeviceIdsOfContainers { containers: vec![DeviceIds { ids }] };
        let answer = unary(&self.channel, name, path, Some(ALLOCATE_MAX), Request::new(request)).await;
        let answer: AllocateResponse = answer?;
        let nothing = || CriError::new(name, Code::Internal, "no containers return in allocation response");
        answer.container_responses.into_iter().next().ok_or_else(nothing)
    }

    /// Has it prepare the devices of a container that starts.
    ///
    /// # Errors
    /// As of every call.
    pub async fn pre_start(&self, ids: Vec<String>) -> CriResult<()> {
        let (name, path) = method!("PreStartContainer");
        let answer: Empty =
            unary(&self.channel, name, path, Some(PRE_START_MAX), Request::new(DeviceIds { ids })).await?;
        let Empty {} = answer;
        Ok(())
    }
}
