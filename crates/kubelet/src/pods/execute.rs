//! Carries out the actions of a plan: sandbox, images, containers, hooks. Reports each step to the worker as it happens
//! (upstream: `kuberuntime_manager.go` SyncPod, `kuberuntime_container.go` startContainer).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, removals in one of their own")]

use std::path::Path;
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
use super::parts::Parts;
use super::place::place;
use super::plan::{Action, KillReason};
use super::terminate::{self, Kill};
use crate::env::resolve::{self, Given};
use crate::images::error::{StartError, StartReason};
use crate::images::{Present, Wanted};
use crate::pod::{self, Member, Role};
use crate::probes::{Handler, Target};
use crate::runtime::dns::{ClusterDns, PodDns, pod_dns};
use crate::runtime::snapshot::{RuntimePod, Sandbox, State};
use crate::runtime::userns::IdRange;
use crate::runtime::{config, sandbox, security};
use crate::volumes::container::{CONTAINERS_DIR, ContainerMounts};
use crate::volumes::{PodVolumes, Ready};

/// How long a postStart hook may take; upstream sets no limit but the pod's own deletion.
const POST_START_MAX: Duration = Duration::from_secs(3600);

/// One execution of a plan.
pub struct Executor {
    /// What it works with.
    pub parts: Arc<Parts>,
    /// The pod that the action is for.
    pub pod: Arc<Pod>,
    /// What the runtime has, as of the plan.
    pub runtime: Arc<RuntimePod>,
    /// To the worker.
    pub report: mpsc::Sender<Step>,
}

impl Executor {
    pub(super) async fn tell(&self, step: Step) {
        // The worker outlives its executor: a closed channel means that the kubelet ends.
        let _ = self.report.send(step).await;
    }

    fn event(&self, kind: EventType, reason: &str, message: impl Into<String>) {
        self.parts.effects.tell.pod(&self.pod, kind, reason, message);
    }

    /// Does all of it, in order; a failed start does not keep others from being tried.
    pub async fn run(self, actions: Vec<Action>) {
        let (began, new) = (Instant::now(), self.runtime.sandboxes.is_empty());
        let update = if new { "create" } else { "update" };
        let span = self.parts.effects.spans.pod("syncPod", &self.pod, Some(update));
        if let Err(why) = span.scope(self.carry_out(actions)).await {
            span.fail(&why);
        }
        self.parts.effects.metrics.pod_worked(if new { "create" } else { "sync" }, began.elapsed());
    }

    /// Tells each step; what is given back is the first that failed.
    async fn carry_out(&self, actions: Vec<Action>) -> Result<(), String> {
        let needs_volumes =
            actions.iter().any(|a| matches!(a, Action::CreateSandbox { .. } | Action::StartContainer { .. }));
        let mut volumes = PodVolumes::default();
        if needs_volumes {
            let anew = actions.iter().any(|a| matches!(a, Action::CreateSandbox { .. }));
            if let Err(why) = place(&self.parts, &self.pod, anew).await {
                let text = why.message.clone();
                self.tell(Step::Refused(why)).await;
                return Err(text);
            }
            match self.prepare().await {
                Ok(v) => {
                    self.tell(Step::Prepared(v.clone())).await;
                    volumes = v;
                }
                Err(message) => {
                    self.tell(Step::NotPrepared(message.clone())).await;
                    return Err(message);
                }
            }
            if let Err(message) = self.claims(anew).await {
                self.tell(Step::NotPrepared(message.clone())).await;
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
                    self.tell(match outcome {
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

    /// The devices of the pod's claims are ready when this returns: before the sandbox, since drivers may want to change it.
    async fn claims(&self, anew: bool) -> Result<(), String> {
        if !anew && self.parts.claims.is_prepared(&self.pod) {
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
            tracing::warn!(pod = %pod::format_pod(&self.pod), sandbox = id, error = %e, "sandbox not stopped");
        }
        self.tell(Step::Changed).await;
    }

    /// The configuration of the pod's sandbox; container calls repeat it.
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
            return self.tell(Step::SandboxFailed(message)).await;
        }
        self.tell(Step::Changed).await;
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

    /// The host IDs of the pod's users, where they are not the node's. What was promised and cannot be given keeps the
    /// pod from starting: it must never run with the node's own users instead.
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
        self.tell(Step::Changed).await;
    }

    /// For a new start of the pod: whoever asks for it wants no grace, and each container's log goes on being kept.
    async fn remove(&self, id: &str, name: String, ended: Option<Instant>) {
        let runtime = &self.parts.effects.runtime;
        let found = self.runtime.containers.iter().find(|c| c.id == id);
        if let Some(instance) = found.filter(|c| c.state == State::Running) {
            Kill::of(&self.parts.effects, &self.pod, instance, Duration::ZERO).run(None).await;
        }
        match runtime.remove_container(id).await {
            Err(e) if !e.is_not_found() => {
                tracing::warn!(container = name, id, error = %e, "container not removed for a new start of its pod");
                self.tell(Step::Changed).await;
            }
            _ => self.tell(Step::Removed { name, ended }).await,
        }
    }

    async fn start(&self, name: &str, restart_count: i32, volumes: &PodVolumes) -> Result<(), StartError> {
        let pod = &*self.pod;
        let Some(m) = pod::member(pod, name) else { return Ok(()) };
        let Some(sandbox) = self.runtime.ready_sandbox() else { return Ok(()) };
        let started = self.try_start(&m, restart_count, volumes, sandbox).await;
        let id = started.inspect_err(|e| {
            // As upstream: of an image that did not come, the reason alone is an event too.
            let image = matches!(e.reason, StartReason::ImagePull | StartReason::Image(_));
            let what = if image { e.reason.as_str() } else { &e.message };
            let text = format!("Error: {what}");
            self.parts.effects.tell.container(pod, m.role, name, EventType::Warning, "Failed", text);
        })?;
        self.tell(Step::Changed).await;
        let ip = self.pod_ips(sandbox).into_iter().next().unwrap_or_default();
        self.post_start(&m, &id, &ip).await
    }

    fn pod_ips(&self, sandbox: &Sandbox) -> Vec<String> {
        if pod::host_network(&self.pod) { self.parts.host_ips() } else { sandbox.ips.clone() }
    }

    /// Image, configuration, container, start; gives the container's ID.
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
        let image = parts.images.ensure(&effects, pod, Wanted::of(m.role, &m.container), &sandbox_config).await?;
        let (volumes, of_images) = &self.with_images(&m.container, volumes, &sandbox_config).await?;
        let pod_ips = self.pod_ips(sandbox);
        let config = self.container_config(m, restart_count, volumes, &image, &pod_ips, ids).await;
        let config = config.map_err(config_fault)?;
        let create_fault = |message: String| StartError::new(StartReason::Create, message);
        let log_dir = Path::new(&sandbox_config.log_directory).join(name);
        let made = FILES.run(move || std::fs::create_dir_all(log_dir)).await;
        made.map_err(|e| create_fault(e.to_string()))?.map_err(|e| create_fault(e.to_string()))?;
        if let Some(gate) = parts.effects.network_gate.as_ref().filter(|_| !pod::host_network(pod)) {
            gate.pass(pod, &pod_ips).await.map_err(|e| create_fault(e.to_string()))?;
        }
        parts.placement.starts(pod, name).await;
        let runtime = &parts.effects.runtime;
        let created = runtime.create_container(&sandbox.id, config, sandbox_config).await;
        parts.effects.metrics.lives().image_volumes(*of_images, created.is_ok());
        let id = created.map_err(|e| create_fault(e.message))?;
        let tell = &parts.effects.tell;
        tell.container(pod, m.role, name, EventType::Normal, "Created", "Container created");
        let started = runtime.start_container(&id).await;
        started.map_err(|e| StartError::new(StartReason::Run, e.message))?;
        tell.container(pod, m.role, name, EventType::Normal, "Started", "Container started");
        Ok(id)
    }

    /// The volumes, with the images of those that the container mounts pulled as their policies say, and how many these are.
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
            let wanted = Wanted { image: reference, policy: policy.as_deref(), container: None };
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
        let given = Given { pod_ips, volume: &volume };
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
        effects.tell.container(&self.pod, m.role, name, kind, "FailedPostStartHook", text);
        let message = format!("FailedPostStartHook: Container {name} failed postStart hook");
        let grace = pod::grace(&self.pod);
        let kill = Kill { effects, pod: &self.pod, id, name, running: true, made_with: None, grace };
        kill.run(Some(message)).await;
        Err(StartError::new(StartReason::PostStartHook, "PostStartHook failed"))
    }
}
