//! The `Runtime` trait: the calls of the kubelet to a container runtime. Tests implement it with a fake, the node uses
//! a [`crate::client::CriClient`]. Arguments are what the caller knows; the client builds the messages. (upstream:
//! k8s.io/cri-api/pkg/apis/services.go)

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::error::CriResult;
use crate::proto::*;

/// Container events as the runtime streams them; ends when the runtime does.
pub type EventStream = BoxStream<'static, CriResult<ContainerEventResponse>>;

/// The result of `ExecSync`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Standard output, limited by the runtime (16 MiB in containerd).
    pub stdout: Vec<u8>,
    /// Standard error, with the same limit.
    pub stderr: Vec<u8>,
    /// The exit code of the command.
    pub exit_code: i32,
}

/// RuntimeService and ImageService of CRI v1.
///
/// Every call has a time limit (see [`crate::client::Limits`]). Stop and remove calls are idempotent: the runtime
/// reports success for what is already gone, and callers treat `NotFound` the same way.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// Returns name and versions of the runtime.
    async fn version(&self) -> CriResult<VersionResponse>;
    /// Returns the conditions `RuntimeReady` and `NetworkReady`, handlers and features; `verbose` adds the runtime's
    /// own info.
    async fn status(&self, verbose: bool) -> CriResult<StatusResponse>;
    /// Sends the node's pod CIDR to the runtime.
    async fn update_runtime_config(&self, config: RuntimeConfig) -> CriResult<()>;
    /// Returns the runtime's cgroup driver; `Unimplemented` before containerd 2.0.
    async fn runtime_config(&self) -> CriResult<RuntimeConfigResponse>;

    /// Creates and starts a sandbox with its network; returns its ID. An empty handler is the default runtime.
    async fn run_pod_sandbox(&self, config: PodSandboxConfig, runtime_handler: &str) -> CriResult<String>;
    /// Kills what runs in the sandbox and releases its network.
    async fn stop_pod_sandbox(&self, id: &str) -> CriResult<()>;
    /// Removes a sandbox with all its containers.
    async fn remove_pod_sandbox(&self, id: &str) -> CriResult<()>;
    /// Returns state and addresses of a sandbox; from runtimes with events also its containers' statuses.
    async fn pod_sandbox_status(&self, id: &str, verbose: bool) -> CriResult<PodSandboxStatusResponse>;
    /// Lists sandboxes that match the filter; all of them without one.
    async fn list_pod_sandbox(&self, filter: Option<PodSandboxFilter>) -> CriResult<Vec<PodSandbox>>;

    /// Creates a container without starting it; returns its ID.
    async fn create_container(
        &self,
        sandbox_id: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> CriResult<String>;
    /// Starts a created container.
    async fn start_container(&self, id: &str) -> CriResult<()>;
    /// Sends the stop signal, and SIGKILL after `grace`; returns when the container has ended.
    async fn stop_container(&self, id: &str, grace: Duration) -> CriResult<()>;
    /// Removes a container, killing it if it runs.
    async fn remove_container(&self, id: &str) -> CriResult<()>;
    /// Lists containers that match the filter; all of them without one.
    async fn list_containers(&self, filter: Option<ContainerFilter>) -> CriResult<Vec<Container>>;
    /// Returns the full status of a container.
    async fn container_status(&self, id: &str, verbose: bool) -> CriResult<ContainerStatusResponse>;
    /// Changes cgroup limits of a container in place.
    async fn update_container_resources(&self, request: UpdateContainerResourcesRequest) -> CriResult<()>;
    /// Makes the runtime reopen the log path after the file was renamed.
    async fn reopen_container_log(&self, id: &str) -> CriResult<()>;

    /// Runs a command to its end. A zero `timeout` means no limit; past it the call is `DeadlineExceeded`.
    async fn exec_sync(&self, id: &str, cmd: Vec<String>, timeout: Duration) -> CriResult<ExecOutput>;
    /// Returns the URL of the runtime's streaming server for an exec session.
    async fn exec(&self, request: ExecRequest) -> CriResult<String>;
    /// Returns the URL of the runtime's streaming server for an attach session.
    async fn attach(&self, request: AttachRequest) -> CriResult<String>;
    /// Returns the URL of the runtime's streaming server for a port-forward session.
    async fn port_forward(&self, sandbox_id: &str, ports: Vec<i32>) -> CriResult<String>;

    /// Returns CPU, memory and writable layer usage of one container.
    async fn container_stats(&self, id: &str) -> CriResult<Option<ContainerStats>>;
    /// Returns the statistics of all containers that match.
    async fn list_container_stats(&self, filter: Option<ContainerStatsFilter>) -> CriResult<Vec<ContainerStats>>;
    /// Returns CPU, memory, network and process usage of one sandbox.
    async fn pod_sandbox_stats(&self, id: &str) -> CriResult<Option<PodSandboxStats>>;
    /// Returns the statistics of all sandboxes that match.
    async fn list_pod_sandbox_stats(&self, filter: Option<PodSandboxStatsFilter>) -> CriResult<Vec<PodSandboxStats>>;
    /// Streams lifecycle events as they happen. `Unimplemented` before containerd 1.7: callers then keep relisting.
    async fn container_events(&self) -> CriResult<EventStream>;

    /// Lists images that match; all of them without a filter.
    async fn list_images(&self, filter: Option<ImageFilter>) -> CriResult<Vec<Image>>;
    /// Returns one image, or `None` when it is not on the node.
    async fn image_status(&self, image: ImageSpec) -> CriResult<Option<Image>>;
    /// Pulls an image; returns the reference to run it by. There is no time limit: drop the future to cancel.
    async fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox_config: Option<PodSandboxConfig>,
    ) -> CriResult<String>;
    /// Removes an image; succeeds when it is already gone.
    async fn remove_image(&self, image: ImageSpec) -> CriResult<()>;
    /// Returns the downloads in progress: bytes received by the runtime's name of each part. `None` when the runtime
    /// does not report it. CRI has no call for it; containerd has it in its own API.
    async fn transfers(&self) -> CriResult<Option<BTreeMap<String, u64>>> {
        Ok(None)
    }
    /// Returns the file systems of images and writable layers and their usage.
    async fn image_fs_info(&self) -> CriResult<ImageFsInfoResponse>;
}
