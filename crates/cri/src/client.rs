//! `CriClient`: the `Runtime` trait over gRPC on a unix socket. One channel, connected on first use and again after the
//! runtime restarted. Callers decide what to do about an error.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;
use kelson_traces::KeyValue;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::channel::{connect, stream, unary};
use crate::error::{CriError, CriResult};
use crate::proto::*;
use crate::runtime::{EventStream, ExecOutput, Runtime};

/// Timeouts of calls.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The timeout of an ordinary call (`--runtime-request-timeout`). Starting a sandbox has twice this; stopping a
    /// container and `ExecSync` have it in addition to the requested time; pulls have none.
    pub request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { request: Duration::from_secs(120) }
    }
}

/// A client of the runtime at a unix socket.
#[derive(Debug, Clone)]
pub struct CriClient {
    channel: Channel,
    /// The channel of the image service, which may be another one.
    images: Channel,
    limits: Limits,
}

/// A gRPC method: the name for errors and the path on the wire.
struct Method {
    name: &'static str,
    path: &'static str,
}

/// The path prefix of the image service.
const IMAGES: &str = "/runtime.v1.ImageService/";

macro_rules! runtime_method {
    ($name:literal) => {
        Method { name: $name, path: concat!("/runtime.v1.RuntimeService/", $name) }
    };
}
macro_rules! image_method {
    ($name:literal) => {
        Method { name: $name, path: concat!("/runtime.v1.ImageService/", $name) }
    };
}

impl CriClient {
    /// Creates a client of the socket at `endpoint`: a path, or `unix:///path` as in `--container-runtime-endpoint`.
    /// Connects lazily; must be called inside a tokio runtime.
    ///
    /// # Errors
    /// `InvalidArgument` for an endpoint with another scheme.
    pub fn new(endpoint: &str, limits: Limits) -> CriResult<Self> {
        let channel = connect(endpoint)?;
        Ok(Self { images: channel.clone(), channel, limits })
    }

    /// Sets another socket for the image service (`--image-service-endpoint`).
    ///
    /// # Errors
    /// As of [`CriClient::new`].
    pub fn with_images(self, endpoint: &str) -> CriResult<Self> {
        Ok(Self { images: connect(endpoint)?, ..self })
    }

    async fn call<Q, A>(&self, method: Method, limit: Option<Duration>, request: Q) -> CriResult<A>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let called = method.path.trim_start_matches('/');
        let span = kelson_traces::client(called, || {
            vec![KeyValue::text("rpc.system.name", "grpc"), KeyValue::text("rpc.method", called)]
        });
        let mut request = Request::new(request);
        let mut headers = HeaderMap::new();
        span.pass_on(&mut headers);
        *request.metadata_mut() = MetadataMap::from_headers(headers);
        let channel = if method.path.starts_with(IMAGES) { &self.images } else { &self.channel };
        let answer = unary(channel, method.name, method.path, limit, request).await;
        let code = answer.as_ref().err().map_or("OK", CriError::code_name);
        span.set(|| vec![KeyValue::text("rpc.response.status_code", code)]);
        if let Err(e) = &answer {
            span.fail(&e.message);
        }
        answer
    }

    async fn ask<Q, A>(&self, method: Method, request: Q) -> CriResult<A>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        self.call(method, Some(self.limits.request), request).await
    }
}

/// Converts to seconds and rounds up, so that a grace period is never shortened.
fn whole_seconds(duration: Duration) -> i64 {
    let up = u64::from(duration.subsec_nanos() > 0);
    i64::try_from(duration.as_secs().saturating_add(up)).unwrap_or(i64::MAX)
}

#[async_trait]
impl Runtime for CriClient {
    async fn version(&self) -> CriResult<VersionResponse> {
        self.ask(runtime_method!("Version"), VersionRequest { version: "v1".to_owned() }).await
    }

    async fn status(&self, verbose: bool) -> CriResult<StatusResponse> {
        self.ask(runtime_method!("Status"), StatusRequest { verbose }).await
    }

    async fn update_runtime_config(&self, config: RuntimeConfig) -> CriResult<()> {
        let request = UpdateRuntimeConfigRequest { runtime_config: Some(config) };
        let _: UpdateRuntimeConfigResponse = self.ask(runtime_method!("UpdateRuntimeConfig"), request).await?;
        Ok(())
    }

    async fn runtime_config(&self) -> CriResult<RuntimeConfigResponse> {
        self.ask(runtime_method!("RuntimeConfig"), RuntimeConfigRequest {}).await
    }

    async fn run_pod_sandbox(&self, config: PodSandboxConfig, runtime_handler: &str) -> CriResult<String> {
        let request = RunPodSandboxRequest { config: Some(config), runtime_handler: runtime_handler.to_owned() };
        let limit = Some(self.limits.request * 2);
        let answer: RunPodSandboxResponse = self.call(runtime_method!("RunPodSandbox"), limit, request).await?;
        non_empty("RunPodSandbox", "PodSandboxId", answer.pod_sandbox_id)
    }

    async fn stop_pod_sandbox(&self, id: &str) -> CriResult<()> {
        let request = StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        let _: StopPodSandboxResponse = self.ask(runtime_method!("StopPodSandbox"), request).await?;
        Ok(())
    }

    async fn remove_pod_sandbox(&self, id: &str) -> CriResult<()> {
        let request = RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        let _: RemovePodSandboxResponse = self.ask(runtime_method!("RemovePodSandbox"), request).await?;
        Ok(())
    }

    async fn pod_sandbox_status(&self, id: &str, verbose: bool) -> CriResult<PodSandboxStatusResponse> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose };
        self.ask(runtime_method!("PodSandboxStatus"), request).await
    }

    async fn list_pod_sandbox(&self, filter: Option<PodSandboxFilter>) -> CriResult<Vec<PodSandbox>> {
        let request = ListPodSandboxRequest { filter };
        let answer: ListPodSandboxResponse = self.ask(runtime_method!("ListPodSandbox"), request).await?;
        Ok(answer.items)
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> CriResult<String> {
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let answer: CreateContainerResponse = self.ask(runtime_method!("CreateContainer"), request).await?;
        non_empty("CreateContainer", "ContainerId", answer.container_id)
    }

    async fn start_container(&self, id: &str) -> CriResult<()> {
        let request = StartContainerRequest { container_id: id.to_owned() };
        let _: StartContainerResponse = self.ask(runtime_method!("StartContainer"), request).await?;
        Ok(())
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> CriResult<()> {
        let request = StopContainerRequest { container_id: id.to_owned(), timeout: whole_seconds(grace) };
        let limit = Some(self.limits.request.saturating_add(grace));
        let _: StopContainerResponse = self.call(runtime_method!("StopContainer"), limit, request).await?;
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> CriResult<()> {
        let request = RemoveContainerRequest { container_id: id.to_owned() };
        let _: RemoveContainerResponse = self.ask(runtime_method!("RemoveContainer"), request).await?;
        Ok(())
    }

    async fn list_containers(&self, filter: Option<ContainerFilter>) -> CriResult<Vec<Container>> {
        let request = ListContainersRequest { filter };
        let answer: ListContainersResponse = self.ask(runtime_method!("ListContainers"), request).await?;
        Ok(answer.containers)
    }

    async fn container_status(&self, id: &str, verbose: bool) -> CriResult<ContainerStatusResponse> {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose };
        self.ask(runtime_method!("ContainerStatus"), request).await
    }

    async fn update_container_resources(&self, request: UpdateContainerResourcesRequest) -> CriResult<()> {
        let method = runtime_method!("UpdateContainerResources");
        let _: UpdateContainerResourcesResponse = self.ask(method, request).await?;
        Ok(())
    }

    async fn reopen_container_log(&self, id: &str) -> CriResult<()> {
        let request = ReopenContainerLogRequest { container_id: id.to_owned() };
        let _: ReopenContainerLogResponse = self.ask(runtime_method!("ReopenContainerLog"), request).await?;
        Ok(())
    }

    async fn exec_sync(&self, id: &str, cmd: Vec<String>, timeout: Duration) -> CriResult<ExecOutput> {
        let request = ExecSyncRequest { container_id: id.to_owned(), cmd, timeout: whole_seconds(timeout) };
        // Without a limit for the command the call has none either: the caller can drop it.
        let limit = (!timeout.is_zero()).then(|| self.limits.request.saturating_add(timeout));
        let answer: ExecSyncResponse = self.call(runtime_method!("ExecSync"), limit, request).await?;
        Ok(ExecOutput { stdout: answer.stdout, stderr: answer.stderr, exit_code: answer.exit_code })
    }

    async fn exec(&self, request: ExecRequest) -> CriResult<String> {
        let answer: ExecResponse = self.ask(runtime_method!("Exec"), request).await?;
        non_empty("Exec", "URL", answer.url)
    }

    async fn attach(&self, request: AttachRequest) -> CriResult<String> {
        let answer: AttachResponse = self.ask(runtime_method!("Attach"), request).await?;
        non_empty("Attach", "URL", answer.url)
    }

    async fn port_forward(&self, sandbox_id: &str, ports: Vec<i32>) -> CriResult<String> {
        let request = PortForwardRequest { pod_sandbox_id: sandbox_id.to_owned(), port: ports };
        let answer: PortForwardResponse = self.ask(runtime_method!("PortForward"), request).await?;
        non_empty("PortForward", "URL", answer.url)
    }

    async fn container_stats(&self, id: &str) -> CriResult<Option<ContainerStats>> {
        let request = ContainerStatsRequest { container_id: id.to_owned() };
        let answer: ContainerStatsResponse = self.ask(runtime_method!("ContainerStats"), request).await?;
        Ok(answer.stats)
    }

    async fn list_container_stats(&self, filter: Option<ContainerStatsFilter>) -> CriResult<Vec<ContainerStats>> {
        let request = ListContainerStatsRequest { filter };
        let answer: ListContainerStatsResponse = self.ask(runtime_method!("ListContainerStats"), request).await?;
        Ok(answer.stats)
    }

    async fn pod_sandbox_stats(&self, id: &str) -> CriResult<Option<PodSandboxStats>> {
        let request = PodSandboxStatsRequest { pod_sandbox_id: id.to_owned() };
        let answer: PodSandboxStatsResponse = self.ask(runtime_method!("PodSandboxStats"), request).await?;
        Ok(answer.stats)
    }

    async fn list_pod_sandbox_stats(&self, filter: Option<PodSandboxStatsFilter>) -> CriResult<Vec<PodSandboxStats>> {
        let request = ListPodSandboxStatsRequest { filter };
        let answer: ListPodSandboxStatsResponse = self.ask(runtime_method!("ListPodSandboxStats"), request).await?;
        Ok(answer.stats)
    }

    async fn container_events(&self) -> CriResult<EventStream> {
        let method = runtime_method!("GetContainerEvents");
        stream::<_, ContainerEventResponse>(&self.channel, method.name, method.path, GetEventsRequest {}).await
    }

    async fn list_images(&self, filter: Option<ImageFilter>) -> CriResult<Vec<Image>> {
        let answer: ListImagesResponse = self.ask(image_method!("ListImages"), ListImagesRequest { filter }).await?;
        Ok(answer.images)
    }

    async fn image_status(&self, image: ImageSpec) -> CriResult<Option<Image>> {
        let request = ImageStatusRequest { image: Some(image), verbose: false };
        let answer: ImageStatusResponse = self.ask(image_method!("ImageStatus"), request).await?;
        Ok(answer.image)
    }

    async fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox_config: Option<PodSandboxConfig>,
    ) -> CriResult<String> {
        let request = PullImageRequest { image: Some(image), auth, sandbox_config };
        let answer: PullImageResponse = self.call(image_method!("PullImage"), None, request).await?;
        non_empty("PullImage", "ImageRef", answer.image_ref)
    }

    async fn remove_image(&self, image: ImageSpec) -> CriResult<()> {
        let request = RemoveImageRequest { image: Some(image) };
        let _: RemoveImageResponse = self.ask(image_method!("RemoveImage"), request).await?;
        Ok(())
    }

    async fn transfers(&self) -> CriResult<Option<BTreeMap<String, u64>>> {
        crate::transfers::transfers(&self.images).await
    }

    async fn image_fs_info(&self) -> CriResult<ImageFsInfoResponse> {
        self.ask(image_method!("ImageFsInfo"), ImageFsInfoRequest {}).await
    }
}

fn non_empty(call: &'static str, field: &str, value: String) -> CriResult<String> {
    if value.is_empty() {
        return Err(CriError::new(call, Code::Internal, format!("{field} is not set in the runtime's response")));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grace_period_is_rounded_up() {
        assert_eq!(whole_seconds(Duration::ZERO), 0);
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_secs(30)), 30);
    }

    #[tokio::test]
    async fn only_unix_sockets() {
        assert!(CriClient::new("unix:///run/x.sock", Limits::default()).is_ok());
        assert!(CriClient::new("/run/x.sock", Limits::default()).is_ok());
        for bad in ["", "tcp://127.0.0.1:1", "unix://relative.sock", "http://a/b"] {
            let err = CriClient::new(bad, Limits::default()).expect_err(bad);
            assert_eq!(err.code, Code::InvalidArgument, "{bad}");
        }
    }

    #[tokio::test]
    async fn images_are_asked_for_where_they_are() {
        let dir = tempfile::tempdir().expect("tempdir");
        let at = |name: &str| dir.path().join(name).display().to_string();
        let listen = |name: &str| tokio::net::UnixListener::bind(at(name)).expect("a socket");
        let (runtime, images) = (listen("runtime"), listen("images"));
        let client = CriClient::new(&at("runtime"), Limits::default()).expect("client").with_images(&at("images"));
        let client = client.expect("another socket");
        tokio::select! {
            biased;
            asked = images.accept() => drop(asked.expect("asked for images")),
            asked = runtime.accept() => panic!("the runtime was asked: {asked:?}"),
            answer = client.image_fs_info() => panic!("somebody answered: {answer:?}"),
        }
        tokio::select! {
            biased;
            asked = runtime.accept() => drop(asked.expect("asked for its version")),
            answer = client.version() => panic!("somebody answered: {answer:?}"),
        }
        assert!(client.with_images("tcp://127.0.0.1:1").is_err());
    }

    #[tokio::test]
    async fn a_missing_socket_is_unavailable() {
        let dir = tempfile::tempdir().expect("tempdir");
        let socket = dir.path().join("none.sock");
        let client = CriClient::new(&format!("unix://{}", socket.display()), Limits::default()).expect("client");
        let err = client.version().await.expect_err("nobody listens");
        assert!(err.is_unavailable() && err.is_retriable(), "{err}");
        assert!(err.to_string().starts_with("rpc error: code = Unavailable desc = "), "{err}");
    }
}
