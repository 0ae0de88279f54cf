//! A runtime wrapper that counts calls. A call that is dropped is not counted, because it has no result.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kelson_cri::proto::*;
use kelson_cri::{CriResult, EventStream, ExecOutput, Runtime};
use tokio::time::Instant;

use super::counted::Metrics;

/// Wraps a runtime and counts its calls under upstream's names.
pub struct MeteredRuntime {
    runtime: Arc<dyn Runtime>,
    metrics: Arc<Metrics>,
}

impl MeteredRuntime {
    /// Creates a wrapper of `runtime`.
    pub fn new(runtime: Arc<dyn Runtime>, metrics: Arc<Metrics>) -> Self {
        Self { runtime, metrics }
    }

    async fn counted<T>(&self, operation: &str, call: impl Future<Output = CriResult<T>> + Send) -> CriResult<T> {
        let began = Instant::now();
        let answer = call.await;
        self.metrics.calls().ended(operation, began.elapsed(), answer.is_ok());
        answer
    }
}

#[async_trait]
impl Runtime for MeteredRuntime {
    async fn version(&self) -> CriResult<VersionResponse> {
        self.counted("version", self.runtime.version()).await
    }
    async fn status(&self, verbose: bool) -> CriResult<StatusResponse> {
        self.counted("status", self.runtime.status(verbose)).await
    }
    async fn update_runtime_config(&self, config: RuntimeConfig) -> CriResult<()> {
        self.counted("update_runtime_config", self.runtime.update_runtime_config(config)).await
    }
    async fn runtime_config(&self) -> CriResult<RuntimeConfigResponse> {
        self.counted("runtime_config", self.runtime.runtime_config()).await
    }
    async fn run_pod_sandbox(&self, config: PodSandboxConfig, runtime_handler: &str) -> CriResult<String> {
        let began = Instant::now();
        let made = self.counted("run_podsandbox", self.runtime.run_pod_sandbox(config, runtime_handler)).await;
        self.metrics.sandbox_asked_for();
        self.metrics.calls().sandbox(runtime_handler, began.elapsed(), made.is_ok());
        made
    }
    async fn stop_pod_sandbox(&self, id: &str) -> CriResult<()> {
        self.counted("stop_podsandbox", self.runtime.stop_pod_sandbox(id)).await
    }
    async fn remove_pod_sandbox(&self, id: &str) -> CriResult<()> {
        self.counted("remove_podsandbox", self.runtime.remove_pod_sandbox(id)).await
    }
    async fn pod_sandbox_status(&self, id: &str, verbose: bool) -> CriResult<PodSandboxStatusResponse> {
        self.counted("podsandbox_status", self.runtime.pod_sandbox_status(id, verbose)).await
    }
    async fn list_pod_sandbox(&self, filter: Option<PodSandboxFilter>) -> CriResult<Vec<PodSandbox>> {
        self.counted("list_podsandbox", self.runtime.list_pod_sandbox(filter)).await
    }
    async fn create_container(
        &self,
        sandbox_id: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> CriResult<String> {
        self.counted("create_container", self.runtime.create_container(sandbox_id, config, sandbox_config)).await
    }
    async fn start_container(&self, id: &str) -> CriResult<()> {
        self.counted("start_container", self.runtime.start_container(id)).await
    }
    async fn stop_container(&self, id: &str, grace: Duration) -> CriResult<()> {
        self.counted("stop_container", self.runtime.stop_container(id, grace)).await
    }
    async fn remove_container(&self, id: &str) -> CriResult<()> {
        self.counted("remove_container", self.runtime.remove_container(id)).await
    }
    async fn list_containers(&self, filter: Option<ContainerFilter>) -> CriResult<Vec<Container>> {
        self.counted("list_containers", self.runtime.list_containers(filter)).await
    }
    async fn container_status(&self, id: &str, verbose: bool) -> CriResult<ContainerStatusResponse> {
        self.counted("container_status", self.runtime.container_status(id, verbose)).await
    }
    async fn update_container_resources(&self, request: UpdateContainerResourcesRequest) -> CriResult<()> {
        self.counted("update_container", self.runtime.update_container_resources(request)).await
    }
    async fn reopen_container_log(&self, id: &str) -> CriResult<()> {
        self.counted("reopen_container_log", self.runtime.reopen_container_log(id)).await
    }
    async fn exec_sync(&self, id: &str, cmd: Vec<String>, timeout: Duration) -> CriResult<ExecOutput> {
        self.counted("exec_sync", self.runtime.exec_sync(id, cmd, timeout)).await
    }
    async fn exec(&self, request: ExecRequest) -> CriResult<String> {
        self.counted("exec", self.runtime.exec(request)).await
    }
    async fn attach(&self, request: AttachRequest) -> CriResult<String> {
        self.counted("attach", self.runtime.attach(request)).await
    }
    async fn port_forward(&self, sandbox_id: &str, ports: Vec<i32>) -> CriResult<String> {
        self.counted("port_forward", self.runtime.port_forward(sandbox_id, ports)).await
    }
    async fn container_stats(&self, id: &str) -> CriResult<Option<ContainerStats>> {
        self.counted("container_stats", self.runtime.container_stats(id)).await
    }
    async fn list_container_stats(&self, filter: Option<ContainerStatsFilter>) -> CriResult<Vec<ContainerStats>> {
        self.counted("list_container_stats", self.runtime.list_container_stats(filter)).await
    }
    async fn pod_sandbox_stats(&self, id: &str) -> CriResult<Option<PodSandboxStats>> {
        self.counted("podsandbox_stats", self.runtime.pod_sandbox_stats(id)).await
    }
    async fn list_pod_sandbox_stats(&self, filter: Option<PodSandboxStatsFilter>) -> CriResult<Vec<PodSandboxStats>> {
        self.counted("list_podsandbox_stats", self.runtime.list_pod_sandbox_stats(filter)).await
    }
    async fn container_events(&self) -> CriResult<EventStream> {
        self.counted("get_container_events", self.runtime.container_events()).await
    }
    async fn list_images(&self, filter: Option<ImageFilter>) -> CriResult<Vec<Image>> {
        self.counted("list_images", self.runtime.list_images(filter)).await
    }
    async fn image_status(&self, image: ImageSpec) -> CriResult<Option<Image>> {
        self.counted("image_status", self.runtime.image_status(image)).await
    }
    async fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox_config: Option<PodSandboxConfig>,
    ) -> CriResult<String> {
        self.counted("pull_image", self.runtime.pull_image(image, auth, sandbox_config)).await
    }
    async fn remove_image(&self, image: ImageSpec) -> CriResult<()> {
        self.counted("remove_image", self.runtime.remove_image(image)).await
    }
    async fn transfers(&self) -> CriResult<Option<BTreeMap<String, u64>>> {
        self.runtime.transfers().await
    }
    async fn image_fs_info(&self) -> CriResult<ImageFsInfoResponse> {
        self.counted("image_fs_info", self.runtime.image_fs_info()).await
    }
}
