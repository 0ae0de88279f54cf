//! The CRI interface of the runtime for kubelets.
use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use kelson_cri::proto as cri;
use kelson_cri::{Code, CriError, CriResult, EventStream, ExecOutput, Runtime};
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::{Container, FakeRuntime, NOT_READY, READY, RUNNING, Sandbox};

fn no<T>(call: &'static str) -> CriResult<T> {
    Err(CriError::new(call, Code::Unimplemented, "not in this fake"))
}

fn gone(call: &'static str, id: &str) -> CriError {
    CriError::new(call, Code::NotFound, format!("{id} is not there"))
}

/// Reports whether an object matches a filter; an empty ID or no labels match everything.
fn fits(id: &str, labels: &BTreeMap<String, String>, want_id: &str, want: &BTreeMap<String, String>) -> bool {
    (want_id.is_empty() || want_id == id) && want.iter().all(|(k, v)| labels.get(k) == Some(v))
}

impl FakeRuntime {
    fn make_sandbox(&self, config: cri::PodSandboxConfig) -> CriResult<String> {
        const CALL: &str = "RunPodSandbox";
        if let Some(n) = self.refused.lock().as_mut() {
            *n += 1;
            return Err(CriError::new(CALL, Code::Unknown, "no cgroup"));
        }
        let mut s = self.state();
        if config.metadata.is_some() && s.sandboxes.iter().any(|o| o.listed.metadata == config.metadata) {
            return Err(CriError::new(CALL, Code::Unknown, "failed to reserve sandbox name: it is taken"));
        }
        let ip = s.address(self.prefix).ok_or_else(|| CriError::new(CALL, Code::Unknown, "no address is free"))?;
        let listed = cri::PodSandbox {
            id: s.id("sandbox"),
            metadata: config.metadata,
            state: READY,
            created_at: self.nanos(),
            labels: config.labels,
            ..Default::default()
        };
        let id = listed.id.clone();
        s.sandboxes.push(Sandbox { listed, ip });
        Ok(id)
    }

    fn make_container(&self, sandbox: &str, config: cri::ContainerConfig) -> CriResult<String> {
        const CALL: &str = "CreateContainer";
        let now = self.nanos();
        let mut s = self.state();
        match s.sandboxes.iter().find(|o| o.listed.id == sandbox) {
            None => return Err(gone(CALL, sandbox)),
            Some(o) if o.listed.state != READY => {
                return Err(CriError::new(CALL, Code::Unknown, "the sandbox is not ready"));
            }
            Some(_) => {}
        }
        if s.containers.iter().any(|c| c.sandbox == sandbox && c.status.metadata == config.metadata) {
            return Err(CriError::new(CALL, Code::Unknown, "failed to reserve container name: it is taken"));
        }
        let id = s.id("container");
        let status = cri::ContainerStatus {
            id: id.clone(),
            metadata: config.metadata,
            image: config.image,
            // Objects created at the same time are ordered nevertheless.
            created_at: now + i64::from(s.next),
            labels: config.labels,
            annotations: config.annotations,
            ..Default::default()
        };
        let life = Container::life(&config.command);
        s.containers.push(Container { status, sandbox: sandbox.to_owned(), life, begun: None });
        Ok(id)
    }

    fn begin(&self, id: &str) -> CriResult<()> {
        const CALL: &str = "StartContainer";
        let now = self.nanos();
        let mut guard = self.state();
        let s = &mut *guard;
        let c = s.containers.iter_mut().find(|c| c.status.id == id).ok_or_else(|| gone(CALL, id))?;
        let ready = s.sandboxes.iter().any(|o| o.listed.id == c.sandbox && o.listed.state == READY);
        if !ready || c.status.state != cri::ContainerState::ContainerCreated as i32 {
            return Err(CriError::new(CALL, Code::Unknown, "the container cannot be started"));
        }
        (c.status.state, c.status.started_at, c.begun) = (RUNNING, now, Some(Instant::now()));
        drop(guard);
        self.report();
        Ok(())
    }
}

#[async_trait]
impl Runtime for FakeRuntime {
    async fn version(&self) -> CriResult<cri::VersionResponse> {
        self.answers("Version")?;
        Ok(cri::VersionResponse { runtime_name: "fake".into(), ..Default::default() })
    }
    async fn status(&self, _: bool) -> CriResult<cri::StatusResponse> {
        self.answers("Status")?;
        let ready = |kind: &str| cri::RuntimeCondition { r#type: kind.into(), status: true, ..Default::default() };
        let status = cri::RuntimeStatus { conditions: ["RuntimeReady", "NetworkReady"].map(ready).into() };
        Ok(cri::StatusResponse { status: Some(status), ..Default::default() })
    }
    async fn update_runtime_config(&self, _: cri::RuntimeConfig) -> CriResult<()> {
        no("UpdateRuntimeConfig")
    }
    async fn runtime_config(&self) -> CriResult<cri::RuntimeConfigResponse> {
        no("RuntimeConfig")
    }
    async fn run_pod_sandbox(&self, config: cri::PodSandboxConfig, _: &str) -> CriResult<String> {
        self.called("run_pod_sandbox");
        self.made.lock().push(config.clone());
        self.perform("RunPodSandbox", |me| me.make_sandbox(config)).await
    }
    async fn stop_pod_sandbox(&self, id: &str) -> CriResult<()> {
        let stop = |me: &Self| {
            let now = me.nanos();
            let mut state = me.state();
            for s in state.sandboxes.iter_mut().filter(|s| s.listed.id == id) {
                s.listed.state = NOT_READY;
            }
            state.end(now, 137, |c| c.sandbox == id);
            drop(state);
            me.report();
            Ok(())
        };
        self.perform("StopPodSandbox", stop).await
    }
    async fn remove_pod_sandbox(&self, id: &str) -> CriResult<()> {
        let remove = |me: &Self| {
            let mut state = me.state();
            state.sandboxes.retain(|s| s.listed.id != id);
            state.containers.retain(|c| c.sandbox != id);
            Ok(())
        };
        self.perform("RemovePodSandbox", remove).await
    }
    async fn pod_sandbox_status(&self, id: &str, _: bool) -> CriResult<cri::PodSandboxStatusResponse> {
        let read = |me: &Self| {
            let s = me.state();
            let found = s.sandboxes.iter().find(|s| s.listed.id == id);
            let found = found.ok_or_else(|| gone("PodSandboxStatus", id))?;
            let network = Some(cri::PodSandboxNetworkStatus { ip: found.ip.clone(), ..Default::default() });
            let status =
                cri::PodSandboxStatus { id: id.into(), state: found.listed.state, network, ..Default::default() };
            Ok(cri::PodSandboxStatusResponse { status: Some(status), ..Default::default() })
        };
        self.perform("PodSandboxStatus", read).await
    }
    async fn list_pod_sandbox(&self, filter: Option<cri::PodSandboxFilter>) -> CriResult<Vec<cri::PodSandbox>> {
        self.called(if filter.is_some() { "list_one_pod" } else { "list_all_pods" });
        let filter = filter.unwrap_or_default();
        let list = |me: &Self| {
            let s = me.state();
            let all = s.sandboxes.iter().map(|s| &s.listed);
            let mine = all.filter(|s| fits(&s.id, &s.labels, &filter.id, &filter.label_selector));
            Ok(mine.cloned().collect())
        };
        self.perform("ListPodSandbox", list).await
    }
    async fn create_container(
        &self,
        sandbox: &str,
        config: cri::ContainerConfig,
        _: cri::PodSandboxConfig,
    ) -> CriResult<String> {
        self.perform("CreateContainer", |me| me.make_container(sandbox, config)).await
    }
    async fn start_container(&self, id: &str) -> CriResult<()> {
        self.perform("StartContainer", |me| me.begin(id)).await
    }
    async fn stop_container(&self, id: &str, grace: Duration) -> CriResult<()> {
        let stop = |me: &Self| {
            me.stops.lock().push(grace.as_secs());
            let now = me.nanos();
            me.state().end(now, 137, |c| c.status.id == id);
            me.report();
            Ok(())
        };
        self.perform("StopContainer", stop).await
    }
    async fn remove_container(&self, id: &str) -> CriResult<()> {
        let remove = |me: &Self| {
            me.state().containers.retain(|c| c.status.id != id);
            Ok(())
        };
        self.perform("RemoveContainer", remove).await
    }
    async fn list_containers(&self, filter: Option<cri::ContainerFilter>) -> CriResult<Vec<cri::Container>> {
        let filter = filter.unwrap_or_default();
        let one = |c: &Container| cri::Container {
            id: c.status.id.clone(),
            pod_sandbox_id: c.sandbox.clone(),
            state: c.status.state,
            created_at: c.status.created_at,
            labels: c.status.labels.clone(),
            ..Default::default()
        };
        let list = |me: &Self| {
            let s = me.state();
            let mine = s.containers.iter().filter(|c| {
                fits(&c.status.id, &c.status.labels, &filter.id, &filter.label_selector)
                    && (filter.pod_sandbox_id.is_empty() || filter.pod_sandbox_id == c.sandbox)
            });
            Ok(mine.map(one).collect())
        };
        self.perform("ListContainers", list).await
    }
    async fn container_status(&self, id: &str, _: bool) -> CriResult<cri::ContainerStatusResponse> {
        let read = |me: &Self| {
            let s = me.state();
            let found = s.containers.iter().find(|c| c.status.id == id).map(|c| c.status.clone());
            let status = Some(found.ok_or_else(|| gone("ContainerStatus", id))?);
            Ok(cri::ContainerStatusResponse { status, ..Default::default() })
        };
        self.perform("ContainerStatus", read).await
    }
    async fn update_container_resources(&self, request: cri::UpdateContainerResourcesRequest) -> CriResult<()> {
        let id = request.container_id;
        let update = |me: &Self| {
            let s = me.state.lock();
            let found = s.containers.iter().find(|c| c.status.id == id && c.status.state == RUNNING);
            let found = found.ok_or_else(|| gone("UpdateContainerResources", &id))?;
            let name = found.status.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
            me.resizes.lock().push((name, request.linux.unwrap_or_default()));
            Ok(())
        };
        self.perform("UpdateContainerResources", update).await
    }
    async fn reopen_container_log(&self, _: &str) -> CriResult<()> {
        no("ReopenContainerLog")
    }
    async fn exec_sync(&self, _: &str, _: Vec<String>, _: Duration) -> CriResult<ExecOutput> {
        no("ExecSync")
    }
    async fn exec(&self, _: cri::ExecRequest) -> CriResult<String> {
        no("Exec")
    }
    async fn attach(&self, _: cri::AttachRequest) -> CriResult<String> {
        no("Attach")
    }
    async fn port_forward(&self, _: &str, _: Vec<i32>) -> CriResult<String> {
        no("PortForward")
    }
    async fn container_stats(&self, _: &str) -> CriResult<Option<cri::ContainerStats>> {
        Ok(None)
    }
    async fn list_container_stats(&self, _: Option<cri::ContainerStatsFilter>) -> CriResult<Vec<cri::ContainerStats>> {
        Ok(Vec::new())
    }
    async fn pod_sandbox_stats(&self, _: &str) -> CriResult<Option<cri::PodSandboxStats>> {
        no("PodSandboxStats")
    }
    async fn list_pod_sandbox_stats(
        &self,
        _: Option<cri::PodSandboxStatsFilter>,
    ) -> CriResult<Vec<cri::PodSandboxStats>> {
        Ok(Vec::new())
    }
    async fn container_events(&self) -> CriResult<EventStream> {
        self.answers("GetContainerEvents")?;
        let next = |mut events: broadcast::Receiver<()>| async move {
            // For a reader that fell behind, the next event replaces the missed ones.
            match events.recv().await {
                Ok(()) | Err(broadcast::error::RecvError::Lagged(_)) => Some((Ok(Default::default()), events)),
                Err(broadcast::error::RecvError::Closed) => None,
            }
        };
        Ok(futures::stream::unfold(self.events.lock().subscribe(), next).boxed())
    }
    async fn list_images(&self, _: Option<cri::ImageFilter>) -> CriResult<Vec<cri::Image>> {
        Ok(Vec::new())
    }
    async fn image_status(&self, image: cri::ImageSpec) -> CriResult<Option<cri::Image>> {
        self.answers("ImageStatus")?;
        let there = !self.missing.lock().contains(&image.image);
        Ok(there.then(|| cri::Image { id: image.image, ..Default::default() }))
    }
    async fn pull_image(
        &self,
        _: cri::ImageSpec,
        _: Option<cri::AuthConfig>,
        _: Option<cri::PodSandboxConfig>,
    ) -> CriResult<String> {
        Err(CriError::new("PullImage", Code::NotFound, "no such image"))
    }
    async fn remove_image(&self, _: cri::ImageSpec) -> CriResult<()> {
        Ok(())
    }
    async fn image_fs_info(&self) -> CriResult<cri::ImageFsInfoResponse> {
        Ok(cri::ImageFsInfoResponse::default())
    }
}
