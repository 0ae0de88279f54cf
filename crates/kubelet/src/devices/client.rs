//! Client of one device plugin.
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

/// Timeout of `PreStartContainer`, as in upstream.
const PRE_START_MAX: Duration = Duration::from_secs(30);
/// Timeout of `GetPreferredAllocation` and `Allocate`. Upstream waits forever; a plugin that hangs would then also prevent its pods from
/// ending.
const ALLOCATE_MAX: Duration = Duration::from_secs(120);

/// A connection to one plugin's socket. Clones share the connection.
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
    /// Creates a client of the plugin that listens on this socket. It connects with the first call.
    ///
    /// # Errors
    /// The path is not absolute or not UTF-8.
    pub fn new(socket: &Path) -> CriResult<Self> {
        let path = socket
            .to_str()
            .ok_or_else(|| CriError::new("Connect", Code::InvalidArgument, "the path of the socket is not UTF-8"))?;
        Ok(Self { channel: connect(&format!("unix://{path}"))? })
    }

    /// Streams the plugin's devices: a complete list at first and after each change.
    ///
    /// # Errors
    /// As for every call.
    pub async fn watch(&self) -> CriResult<BoxStream<'static, CriResult<Vec<Device>>>> {
        let (name, path) = method!("ListAndWatch");
        let lists = stream::<_, DeviceList>(&self.channel, name, path, Empty {}).await?;
        Ok(lists.map(|list| list.map(|l| l.devices)).boxed())
    }

    /// Asks which `size` of the `available` devices the plugin prefers; they must include `must`. It may return fewer or none.
    ///
    /// # Errors
    /// As for every call.
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

    /// Asks how to pass these devices to a container.
    ///
    /// # Errors
    /// As for every call, and if the response has no container.
    pub async fn allocate(&self, ids: Vec<String>) -> CriResult<ContainerAllocation> {
        let (name, path) = method!("Allocate");
        let request = DeviceIdsOfContainers { containers: vec![DeviceIds { ids }] };
        let answer = unary(&self.channel, name, path, Some(ALLOCATE_MAX), Request::new(request)).await;
        let answer: AllocateResponse = answer?;
        let nothing = || CriError::new(name, Code::Internal, "no containers return in allocation response");
        answer.container_responses.into_iter().next().ok_or_else(nothing)
    }

    /// Lets the plugin prepare the devices of a container that starts.
    ///
    /// # Errors
    /// As for every call.
    pub async fn pre_start(&self, ids: Vec<String>) -> CriResult<()> {
        let (name, path) = method!("PreStartContainer");
        let answer: Empty =
            unary(&self.channel, name, path, Some(PRE_START_MAX), Request::new(DeviceIds { ids })).await?;
        let Empty {} = answer;
        Ok(())
    }
}
