//! Executes the actions of a plan: sandbox, images, containers, hooks. Reports each step to the worker when it is done (upstream:
//! `kuberuntime_manager.go` SyncPod, `kuberuntime_container.go` startContainer).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use kelson_client::EventType;
use kelson_cri::proto as cri;
use kelson_tasks::FILES;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::event::Step;
use super::in_flight::InFlight;
use super::logging;
use super::parts::Parts;
use super::place::place;
use super::plan::{Action, KillReason};
use super::terminate::{self, Kill};
use crate::env::resolve::{self, EnvironmentInput};
use crate::images::error::{StartError, StartReason};
use crate::images::{ImageRequest, Present};
use crate::pod::{self, Member, Role};
use crate::probes::{Handler, Target};
use crate::runtime::dns::{ClusterDns, PodDns, pod_dns};
use crate::runtime::snapshot::{RuntimePod, Sandbox, State};
use crate::runtime::userns::IdRange;
use crate::runtime::{config, sandbox, security};
use crate::volumes::container::{CONTAINERS_DIR, ContainerMounts};
use crate::volumes::{PodVolumes, Ready};

/// Maximum duration of a postStart hook. Upstream has no limit except the deletion of the pod.
const POST_START_MAX: Duration = Duration::from_secs(3600);

/// One execution of a plan for one pod. [`Executor::run`] executes the actions in order and sends a [`Step`] to the worker after each. The
/// worker may drop the future when the pod must end; calls that must not be interrupted run through `in_flight`.
pub struct Executor {
    /// Dependencies of pod workers.
    pub parts: Arc<Parts>,
    /// The pod that the actions are for.
    pub pod: Arc<Pod>,
    /// State of the runtime from which the plan was computed.
    pub runtime: Arc<RuntimePod>,
    /// Sends steps to the worker.
    pub report: mpsc::Sender<Step>,
    /// Calls that are not interrupted when the pod must end. The execution then ends after the current call.
    pub in_flight: InFlight,
}

impl Executor {
    pub(super) async fn report_step(&self, step: Step) {
        // A closed channel means that the kubelet stops; otherwise the worker outlives its executor.
        let _ = self.report.send(step).await;
    }

    fn event(&self, kind: EventType, reason: &str, message: impl Into<String>) {
        self.parts.effects.events.pod(&self.pod, kind, reason, message);
    }

    /// Executes all actions in order. After a container fails to start, the others are still tried.
    pub async fn run(self, actions: Vec<Action>) {
        let (began, new) = (Instant::now(), self.runtime.sandboxes.is_empty());
        let update = if new { "create" } else { "update" };
        let span = self.parts.effects.spans.pod("syncPod", &self.pod, Some(update));
        let carried = tokio::select! {
            biased;
            () = self.in_flight.stopped() => Ok(()),
            carried = span.scope(self.carry_out(actions)) => carried,
        };
        if let Err(why) = carried {
            span.fail(&why);
        }
        self.parts.effects.metrics.pod_worked(if new { "create" } else { "sync" }, began.elapsed());
    }

    /// Executes all actions and reports each step. Returns the first failure; later actions are executed anyway.
    async fn carry_out(&self, actions: Vec<Action>) -> Result<(), String> {
        let needs_volumes =
            actions.iter().any(|a| matches!(a, Action::CreateSandbox { .. } | Action::StartContainer { .. }));
        let mut volumes = PodVolumes::default();
        if needs_volumes {
            let is_new = actions.iter().any(|a| matches!(a, Action::CreateSandbox { .. }));
            if let Err(why) = place(&self.parts, &self.pod, is_new).await {
                let text = why.message.clone();
                self.report_step(Step::Refused(why)).await;
                return Err(text);
            }
            match self.prepare().await {
                Ok(v) => {
                    self.report_step(Step::Prepared(v.clone())).await;
                    volumes = v;
                }
                Err(message) => {
                    self.report_step(Step::NotPrepared(message.clone())).await;
                    return Err(message);
                }
            }
            if let Err(message) = self.claims(is_new).await {
                self.report_step(Step::NotPrepared(message.clone())).await;
                return Err(message);
            }
        }
        let mut failed = Ok(());
        for action in actions {
            match action {
                Action::StopSandbox { id } => self.stop_sandbox(&id).await,
                Action::CreateSandbox { attempt } => self.create_sandbox(attempt).await,
                Action::KillContainer { id, name, reason, message } => self.kill(&id, &name, reason, message).await,
                Action::StartContainer { name, restart_count, restarted_after } => {
                    let outcome = self.start(&name, restart_count, &volumes).await;
                    self.count(&name, outcome.as_ref().err());
                    self.report_step(match outcome {
                        Ok(()) => Step::Started { name, restarted_after },
                        Err(error) => {
                            let why = format!("failed to start container {name:?}: {}", error.reason.as_str());
                            failed = failed.and(Err(why));
                            Step::StartFailed { name, error, restarted_after }
                        }
                    })
                    .await;
                }
                Action::RemoveContainer { id, name, ended } => self.remove(&id, name, ended).await,
                Action::Resize { containers } => self.resize(&containers).await,
            }
        }
        failed
    }

    fn count(&self, name: &str, fault: Option<&StartError>) {
        if let Some(member) = pod::member(&self.pod, name) {
            self.parts.effects.metrics.container_started(member.role, fault.map(|e| e.reason.as_str()));
        }
    }

    async fn prepare(&self) -> Result<PodVolumes, String> {
        let (parts, pod) = (&self.parts, &*self.pod);
        if !pod::host_network(pod) {
            let fault = parts.runtime_state.borrow().network_fault.clone();
            if let Some(fault) = fault {
                let message = format!("network is not ready: {fault}");
                self.event(EventType::Warning, "NetworkNotReady", message.clone());
                return Err(message);
            }
        }
        if let Err(message) = parts.cgroups.ensure(pod, parts.unbound_cpu(pod)).await {
            let text = format!("unable to ensure pod container exists: {message}");
            self.event(EventType::Warning, "FailedToCreatePodContainer", text);
            return Err(message);
        }
        self.directories().await.map_err(|e| format!("error making pod data directories: {e}"))?;
        parts.volumes.objects.register(pod);
        match parts.volumes.ensure(pod).await {
            Ok(v) => Ok(v),
            Err(e) => {
                self.event(EventType::Warning, "FailedMount", e.to_string());
                Err(e.to_string())
            }
        }
    }

    /// Prepares the devices of the pod's resource claims. This precedes the sandbox, because DRA drivers may want to change it.
    async fn claims(&self, is_new: bool) -> Result<(), String> {
        if !is_new && self.parts.claims.is_prepared(&self.pod) {
            return Ok(());
        }
        self.parts.claims.prepare(&self.pod).await.inspect_err(|why| {
            let text = format!("Failed to prepare dynamic resources: {why}");
            self.event(EventType::Warning, "FailedPrepareDynamicResources", text);
        })
    }

    async fn directories(&self) -> Result<(), String> {
        use std::os::unix::fs::PermissionsExt as _;
        let (pod, dirs) = (&*self.pod, &self.parts.dirs);
        let dir = dirs.pod(pod::uid(pod));
        let logs = dirs.pod_logs(pod::namespace(pod), pod::name(pod), pod::uid(pod));
        let make = move || -> std::io::Result<()> {
            std::fs::create_dir_all(dir.join("volumes"))?;
            std::fs::create_dir_all(dir.join(CONTAINERS_DIR))?;
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o750))?;
            std::fs::create_dir_all(logs)
        };
        FILES.run(make).await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
    }

    async fn stop_sandbox(&self, id: &str) {
        if self.runtime.sandboxes.first().is_some_and(|s| s.id == id) {
            let message = "Pod sandbox changed, it will be killed and re-created.";
            self.event(EventType::Normal, "SandboxChanged", message);
        }
        if let Err(e) = self.parts.effects.runtime.stop_pod_sandbox(id).await
            && !e.is_not_found()
        {
            tracing::warn!(pod = %pod::format_pod(&self.pod), sandbox = id, error = %e, "cannot stop the pod sandbox");
        }
        self.report_step(Step::Changed).await;
    }

    /// Builds the CRI configuration of the pod's sandbox. Calls for containers repeat it.
    async fn sandbox_config(&self, attempt: u32, ids: Option<IdRange>) -> cri::PodSandboxConfig {
        let parts = &self.parts;
        let dns = self.dns().await.config;
        let groups = parts.volumes.claims.groups(&self.pod);
        sandbox::config(&self.pod, &parts.config, dns, attempt, &parts.cgroups.parent(&self.pod), (ids, &groups))
    }

    async fn dns(&self) -> PodDns {
        let parts = &self.parts;
        let cluster =
            ClusterDns { servers: parts.config.cluster_dns.clone(), domain: parts.config.cluster_domain.clone() };
        pod_dns(&self.pod, &parts.host_dns.get().await, &cluster)
    }

    async fn create_sandbox(&self, attempt: u32) {
        let made = self.try_sandbox(attempt).await;
        if pod::has_own_users(&self.pod) {
            self.parts.effects.metrics.lives().with_own_users(made.is_ok());
        }
        if let Err(message) = made {
            self.parts.effects.metrics.pod_failed();
            let text = format!("Failed to create pod sandbox: {message}");
            self.event(EventType::Warning, "FailedCreatePodSandBox", text);
            return self.report_step(Step::SandboxFailed(message)).await;
        }
        self.report_step(Step::Changed).await;
    }

    async fn try_sandbox(&self, attempt: u32) -> Result<(), String> {
        let handler = self.runtime_handler().await?;
        let ids = self.isolation(&handler).await?;
        for (reason, text) in self.dns().await.warnings {
            self.event(EventType::Warning, reason, text);
        }
        let config = self.sandbox_config(attempt, ids).await;
        let made = self.parts.effects.runtime.run_pod_sandbox(config, &handler).await;
        made.map(drop).map_err(|e| e.to_string())
    }

    async fn runtime_handler(&self) -> Result<String, String> {
        let name = pod::runtime_class(&self.pod);
        if name.is_empty() {
            return Ok(String::new());
        }
        let class = self.parts.client.get::<RuntimeClass>("", name).await;
        class.map(|c| c.handler).map_err(|e| format!("failed to get sandbox runtime: {e}"))
    }

    /// The host IDs of the pod's user namespace (`None`: the host's). A pod whose isolation the runtime cannot provide must not start.
    async fn isolation(&self, handler: &str) -> Result<Option<IdRange>, String> {
        let state = self.parts.runtime_state.borrow().clone();
        if pod::has_strict_groups(&self.pod) && !state.supplemental_groups_policy {
            return Err("the container runtime does not support supplementalGroupsPolicy: Strict".into());
        }
        if !pod::has_own_users(&self.pod) {
            return Ok(None);
        }
        if !state.has_user_namespaces(handler) {
            return Err(format!("the container runtime handler {handler:?} does not support user namespaces"));
        }
        self.parts.user_namespaces.get(pod::uid(&self.pod)).await.map(Some)
    }

    async fn kill(&self, id: &str, name: &str, reason: KillReason, message: String) {
        let Some(instance) = self.runtime.containers.iter().find(|c| c.id == id) else { return };
        let member = pod::member(&self.pod, name);
        let of_probe = member.as_ref().and_then(|m| match reason {
            KillReason::Liveness => m.container.liveness_probe.as_ref(),
            KillReason::Startup => m.container.startup_probe.as_ref(),
            KillReason::DefinitionChanged | KillReason::UnknownState | KillReason::Resize => None,
        });
        let grace = of_probe.and_then(|p| p.termination_grace_period_seconds).map(pod::seconds);
        let grace = grace.unwrap_or_else(|| pod::grace(&self.pod));
        Kill::of(&self.parts.effects, &self.pod, instance, grace).run(Some(message)).await;
        self.report_step(Step::Changed).await;
    }

    /// Removes a container so that its pod restarts: without grace period, and with its log kept.
    async fn remove(&self, id: &str, name: String, ended: Option<Instant>) {
        let runtime = &self.parts.effects.runtime;
        let found = self.runtime.containers.iter().find(|c| c.id == id);
        if let Some(instance) = found.filter(|c| c.state == State::Running) {
            Kill::of(&self.parts.effects, &self.pod, instance, Duration::ZERO).run(None).await;
        }
        match runtime.remove_container(id).await {
            Err(e) if !e.is_not_found() => {
                tracing::warn!(container = name, id, error = %e, "cannot remove the container to restart its pod");
                self.report_step(Step::Changed).await;
            }
            _ => {
                logging::unlink(&self.parts, &self.pod, (&name, id)).await;
                self.report_step(Step::Removed { name, ended }).await;
            }
        }
    }

    async fn start(&self, name: &str, restart_count: i32, volumes: &PodVolumes) -> Result<(), StartError> {
        let pod = &*self.pod;
        let Some(m) = pod::member(pod, name) else { return Ok(()) };
        let Some(sandbox) = self.runtime.ready_sandbox() else { return Ok(()) };
        let started = self.try_start(&m, restart_count, volumes, sandbox).await;
        let id = started.inspect_err(|e| {
            // Like upstream, a failed pull also records an event with the reason alone.
            let image = matches!(e.reason, StartReason::ImagePull | StartReason::Image(_));
            let what = if image { e.reason.as_str() } else { &e.message };
            let text = format!("Error: {what}");
            self.parts.effects.events.container(pod, m.role, name, EventType::Warning, "Failed", text);
        })?;
        self.report_step(Step::Changed).await;
        let ip = self.pod_ips(sandbox).into_iter().next().unwrap_or_default();
        self.post_start(&m, &id, &ip).await
    }

    fn pod_ips(&self, sandbox: &Sandbox) -> Vec<String> {
        if pod::host_network(&self.pod) { self.parts.host_ips() } else { sandbox.ips.clone() }
    }

    /// Pulls the image, builds the configuration, creates and starts the container. Returns the container's ID.
    async fn try_start(
        &self,
        m: &Member<'_>,
        restart_count: i32,
        volumes: &PodVolumes,
        sandbox: &Sandbox,
    ) -> Result<String, StartError> {
        let (parts, pod, name) = (&self.parts, &*self.pod, m.container.name.as_str());
        let config_fault = |message: String| StartError::new(StartReason::Config, message);
        let ids = match pod::has_own_users(pod) || pod::has_strict_groups(pod) {
            true => self.isolation(&self.runtime_handler().await.map_err(config_fault)?).await.map_err(config_fault)?,
            false => None,
        };
        let sandbox_config = self.sandbox_config(sandbox.attempt, ids).await;
        let effects = parts.image_effects();
        let image = parts.images.ensure(&effects, pod, ImageRequest::of(m.role, &m.container), &sandbox_config).await?;
        let (volumes, of_images) = &self.with_images(&m.container, volumes, &sandbox_config).await?;
        let pod_ips = self.pod_ips(sandbox);
        let config = self.container_config(m, restart_count, volumes, &image, &pod_ips, ids).await;
        let config = config.map_err(config_fault)?;
        let create_fault = |message: String| StartError::new(StartReason::Create, message);
        let log = logging::prepare(&sandbox_config, name, restart_count).await.map_err(create_fault)?;
        if let Some(gate) = parts.effects.network_gate.as_ref().filter(|_| !pod::host_network(pod)) {
            gate.pass(pod, &pod_ips).await.map_err(|e| create_fault(e.to_string()))?;
        }
        parts.placement.starts(pod, name).await;
        let (runtime, events) = (&parts.effects.runtime, &parts.effects.events);
        let created = self.in_flight.call(runtime.create_container(&sandbox.id, config, sandbox_config)).await;
        parts.effects.metrics.lives().image_volumes(*of_images, created.is_ok());
        let id = created.map_err(|e| create_fault(e.message))?;
        events.container(pod, m.role, name, EventType::Normal, "Created", "Container created");
        let started = self.in_flight.call(runtime.start_container(&id)).await;
        started.map_err(|e| StartError::new(StartReason::Run, e.message))?;
        logging::link(parts, pod, (name, &id), log).await;
        events.container(pod, m.role, name, EventType::Normal, "Started", "Container started");
        self.check_location(name, &id).await;
        Ok(id)
    }

    /// Pulls the images of the container's image volumes as their policies say. Returns the volumes with these images, and their number.
    async fn with_images(
        &self,
        c: &Container,
        volumes: &PodVolumes,
        sandbox: &cri::PodSandboxConfig,
    ) -> Result<(PodVolumes, usize), StartError> {
        let mut count = 0;
        let (mut volumes, effects) = (volumes.clone(), self.parts.image_effects());
        for mount in c.volume_mounts.iter().flatten() {
            let Some(Ready::Image { reference, policy }) = volumes.ready.get_mut(&mount.name) else { continue };
            let wanted = ImageRequest { image: reference, policy: policy.as_deref(), container: None };
            let present = self.parts.images.ensure(&effects, &self.pod, wanted, sandbox).await?;
            *reference = present.reference;
            count += 1;
        }
        Ok((volumes, count))
    }

    async fn container_config(
        &self,
        m: &Member<'_>,
        restart_count: i32,
        volumes: &PodVolumes,
        image: &Present,
        pod_ips: &[String],
        ids: Option<IdRange>,
    ) -> Result<cri::ContainerConfig, String> {
        let (parts, pod, c) = (&self.parts, &*self.pod, &*m.container);
        let volume = |name: &str| volumes.path(name);
        let given = EnvironmentInput { pod_ips, volume: &volume };
        let env = resolve::environment(&parts.environment, pod, m.role, c, &given).await?;
        let mounts = ContainerMounts {
            pod: Arc::clone(&self.pod),
            container: c.clone(),
            restart_count,
            volumes: volumes.clone(),
            env: env.clone(),
            pod_ips: pod_ips.to_vec(),
            ids,
            has_recursive_read_only: parts.has_recursive_read_only(c, self.runtime_handler()).await?,
        };
        let mounts = parts.volumes.container_mounts(mounts).await?;
        let defaults = security::Defaults {
            ids,
            volume_groups: &parts.volumes.claims.groups(pod),
            seccomp_default: parts.config.seccomp_default,
            seccomp_root: &parts.config.root_dir.join("seccomp"),
        };
        let user = (image.uid, image.user.as_str());
        let target = m.target.filter(|_| m.role == Role::Ephemeral);
        let security = security::container(pod, c, user, target, &self.runtime, &defaults)?;
        let memory = parts.node.borrow().machine_memory;
        let mut device_allocation = parts.devices.given(pod::uid(pod), &c.name).await?;
        device_allocation.cdi_devices.extend(parts.claims.given(pod, c)?);
        config::config(config::ContainerParts {
            pod,
            role: m.role,
            container: c,
            restart_count,
            image_ref: image.reference.clone(),
            env,
            mounts,
            devices: volumes.devices(c)?,
            given: device_allocation,
            security,
            placed: parts.placement.placed(pod::uid(pod), &c.name),
            swap: parts.swap,
            memory: parts.memory,
            cpu_quota: parts.config.cpu_quota,
            machine_memory: memory,
            may_lower_oom: terminate::may_lower_oom(),
        })
    }

    async fn post_start(&self, m: &Member<'_>, id: &str, pod_ip: &str) -> Result<(), StartError> {
        let hook = m.container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref());
        let Some(handler) = hook.and_then(Handler::of_hook) else { return Ok(()) };
        let (effects, name) = (&self.parts.effects, &m.container.name);
        let target = Target::new(&m.container, id, pod_ip);
        let Err(why) = effects.hook(&self.pod, &handler, &target, POST_START_MAX).await else { return Ok(()) };
        tracing::info!(pod = %pod::format_pod(&self.pod), container = %name, why, "postStart hook failed");
        let (kind, text) = (EventType::Warning, "PostStartHook failed");
        effects.events.container(&self.pod, m.role, name, kind, "FailedPostStartHook", text);
        let grace = pod::grace(&self.pod);
        let kill = Kill { effects, pod: &self.pod, id, name, running: true, made_with: None, grace };
        kill.run(Some(format!("FailedPostStartHook: Container {name} failed postStart hook"))).await;
        Err(StartError::new(StartReason::PostStartHook, "PostStartHook failed"))
    }
}
