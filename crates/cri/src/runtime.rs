//! The `Runtime` trait: what the kubelet asks of a container runtime. A test gives a fake, the node a
//! [`crate::client::CriClient`]. Arguments are what the caller knows; the wrapping into messages is the client's work.
//! (upstream: k8s.io/cri-api/pkg/apis/services.go)

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::error::CriResult;
use crate::proto::*;

/// Container events as the runtime streams them; ends when the runtime does.
pub type EventStream = BoxStream<'static, CriResult<ContainerEventResponse>>;

/// What `ExecSync` gave back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Standard output, bounded by the runtime (16 MiB in containerd).
    pub stdout: Vec<u8>,
    /// Standard error, bounded likewise.
    pub stderr: Vec<u8>,
    /// The exit status of the command.
    pub exit_code: i32,
}

/// RuntimeService and ImageService of CRI v1.
///
/// Every call ends within a limit of its own (see [`crate::client::Limits`]). Stop and remove calls are idempotent:
/// the runtime answers success for what is already gone, and callers treat `NotFound` alike.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// Name and versions of the runtime.
    async fn version(&self) -> CriResult<VersionResponse>;
    /// Conditions `RuntimeReady` and `NetworkReady`, handlers and features; `verbose` adds the runtime's own info.
    async fn status(&self, verbose: bool) -> CriResult<StatusResponse>;
    /// Tells the runtime the node's pod CIDR.
    async fn update_runtime_config(&self, config: RuntimeConfig) -> CriResult<()>;
    /// The runtime's cgroup driver; `Unimplemented` before containerd 2.0.
    async fn runtime_config(&self) -> CriResult<RuntimeConfigResponse>;

    /// Creates and starts a sandbox with its network; returns its ID. An empty handler is the default runtime.
    async fn run_pod_sandbox(&self, config: PodSandboxConfig, runtime_handler: &str) -> CriResult<String>;
    /// Kills what runs in the sandbox and gives its network back.
    async fn stop_pod_sandbox(&self, id: &str) -> CriResult<()>;
    /// Removes a sandbox with all its containers.
    async fn remove_pod_sandbox(&self, id: &str) -> CriResult<()>;
    /// State and addresses of a sandbox; from runtimes with events also its containers' statuses.
    async fn pod_sandbox_status(&self, id: &str, verbose: bool) -> CriResult<PodSandboxStatusResponse>;
    /// Sandboxes that match the filter; all of them without one.
    async fn list_pod_sandbox(&self, filter: Option<PodSandboxFilter>) -> CriResult<Vec<PodSandbox>>;

    /// Creates (does not start) a container; returns its ID.
    async fn create_container(
        &self,
        sandbox_id: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> CriResult<String>;
    /// Starts a created container.
    async fn start_container(&self, id: &str) -> CriResult<()>;
    /// Stop signal, then SIGKILL after `grace`; returns when the container has ended.
    async fn stop_container(&self, id: &str, grace: Duration) -> CriResult<()>;
    /// Removes a container, killing it if it runs.
    async fn remove_container(&self, id: &str) -> CriResult<()>;
    /// Containers that match the filter; all of them without one.
    async fn list_containers(&self, filter: Option<ContainerFilter>) -> CriResult<Vec<Container>>;
    /// The full status of a container.
    async fn container_status(&self, id: &str, verbose: bool) -> CriResult<ContainerStatusResponse>;
    /// Changes cgroup limits of a container in place.
    async fn update_container_resources(&self, request: UpdateContainerResourcesRequest) -> CriResult<()>;
    /// Makes the runtime open the log path anew, after the file was renamed.
    async fn reopen_container_log(&self, id: &str) -> CriResult<()>;

    /// Runs a command to its end. A zero `timeout` means no limit; past it the call is `DeadlineExceeded`.
    async fn exec_sync(&self, id: &str, cmd: Vec<String>, timeout: Duration) -> CriResult<ExecOutput>;
    /// URL of the runtime's streaming server for an exec session.
    async fn exec(&self, request: ExecRequest) -> CriResult<String>;
    /// URL of the runtime's streaming server for an attach session.
    async fn attach(&self, request: AttachRequest) -> CriResult<String>;
    /// URL of the runtime's streaming server for a port-forward session.
    async fn port_forward(&self, sandbox_id: &str, ports: Vec<i32>) -> CriResult<String>;

    /// CPU, memory and writable layer of one container.
    async fn container_stats(&self, id: &str) -> CriResult<Option<ContainerStats>>;
    /// The same for all that match.
    async fn list_container_stats(&self, filter: Option<ContainerStatsFilter>) -> CriResult<Vec<ContainerStats>>;
    /// CPU, memory, network, processes of one sandbox.
    async fn pod_sandbox_stats(&self, id: &str) -> CriResult<Option<PodSandboxStats>>;
    /// The same for all that match.
    async fn list_pod_sandbox_stats(&self, filter: Option<PodSandboxStatsFilter>) -> CriResult<Vec<PodSandboxStats>>;
    /// Lifecycle events as they happen. `Unimplemented` before containerd 1.7: callers go on with relisting.
    async fn container_events(&self) -> CriResult<EventStream>;

    /// Images that match; all of them without a filter.
    async fn list_images(&self, filter: Option<ImageFilter>) -> CriResult<Vec<Image>>;
    /// One image, or `None` when it is not on the node.
    async fn image_status(&self, image: ImageSpec) -> CriResult<Option<Image>>;
    /// Pulls an image; returns the reference to run it by. No time limit of its own: drop the future to give up.
    async fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox_config: Option<PodSandboxConfig>,
    ) -> CriResult<String>;
    /// Removes an image; succeeds when it is already gone.
    async fn remove_image(&self, image: ImageSpec) -> CriResult<()>;
    /// What is being fetched for pulls at the moment: bytes that came so far, by the runtime's own names of the pieces.
    /// `None`: the runtime does not say. CRI has no call for it; containerd tells it through its own API.
    async fn transfers(&self) -> CriResult<Option<BTreeMap<String, u64>>> {
        Ok(None)
    }
    /// Where images and writable layers live and how much they use.
    async fn image_fs_info(&self) -> CriResult<ImageFsInfoResponse>;
}
