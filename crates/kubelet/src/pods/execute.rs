//! Carries out the actions of a plan: sandbox, images, containers, hooks. Reports each step to the worker as it happens
//! (upstream: `kuberuntime_manager.go` SyncPod, `kuberuntime_container.go` startContainer).
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kelson_client::EventType;
use kelson_cri::proto as cri;
use tokio::sync::mpsc;

use super::plan::Action;
use super::terminate::{self, Kill};
use super::worker::Event;
use crate::effects::Context;
use crate::env::resolve;
use crate::images::StartError;
use crate::pod::{self, Member, Role};
use crate::probes::{Handler, Outcome, Target};
use crate::runtime::snapshot::RuntimePod;
use crate::runtime::{config, dns, sandbox, security};
use crate::volumes::{self, PodVolumes};

/// How long a postStart hook may take; upstream sets no limit but the pod's own deletion.
const POST_START_MAX: Duration = Duration::from_secs(3600);

/// What the executor tells the worker.
#[derive(Debug)]
pub enum Step {
    /// Directories, cgroup and volumes are there.
    Prepared(PodVolumes),
    /// They are not; the whole pod waits.
    NotPrepared(String),
    /// A sandbox could not be made.
    SandboxFailed(String),
    /// Something changed in the runtime.
    Changed,
    /// A container was started.
    Started {
        /// Its name.
        name: String,
        /// The end of the instance before.
        restarted_after: Option<Timestamp>,
    },
    /// It could not be.
    StartFailed {
        /// Its name.
        name: String,
        /// Why.
        error: StartError,
        /// The end of the instance before.
        restarted_after: Option<Timestamp>,
    },
}

/// One execution of a plan.
pub struct Executor {
    /// Shared parts.
    pub ctx: Arc<Context>,
    /// The pod.
    pub pod: Arc<Pod>,
    /// What the runtime has, as of the plan.
    pub runtime: Arc<RuntimePod>,
    /// To the worker.
    pub report: mpsc::UnboundedSender<Event>,
}

impl Executor {
    fn tell(&self, step: Step) {
        // The worker outlives its executor; if it is gone nobody needs to know.
        let _ = self.report.send(Event::Step(step));
    }

    /// Does all of it, in order; a failed start does not keep others from being tried.
    pub async fn run(self, actions: Vec<Action>) {
        let needs_volumes =
            actions.iter().any(|a| matches!(a, Action::CreateSandbox { .. } | Action::StartContainer { .. }));
        let mut volumes = PodVolumes::default();
        if needs_volumes {
            match self.prepare().await {
                Ok(v) => {
                    self.tell(Step::Prepared(v.clone()));
                    volumes = v;
                }
                Err(message) => {
                    self.tell(Step::NotPrepared(message));
                    return;
                }
            }
        }
        for action in actions {
            match action {
                Action::StopSandbox { id } => self.stop_sandbox(&id).await,
                Action::CreateSandbox { attempt } => self.create_sandbox(attempt).await,
                Action::KillContainer { id, name, message, .. } => self.kill(&id, &name, message).await,
                Action::StartContainer { name, restart_count, restarted_after } => {
                    let outcome = self.start(&name, restart_count, &volumes).await;
                    self.tell(match outcome {
                        Ok(()) => Step::Started { name, restarted_after },
                        Err(error) => Step::StartFailed { name, error, restarted_after },
                    });
                }
            }
        }
    }

    async fn prepare(&self) -> Result<PodVolumes, String> {
        let (ctx, pod) = (&self.ctx, &*self.pod);
        if !pod::host_network(pod) {
            let fault = ctx.network_fault.borrow().clone();
            if let Some(fault) = fault {
                let message = format!("network is not ready: {fault}");
                ctx.event(pod, EventType::Warning, "NetworkNotReady", message.clone());
                return Err(message);
            }
        }
        if let Err(message) = ctx.cgroups.ensure(pod) {
            ctx.event(
                pod,
                EventType::Warning,
                "FailedToCreatePodContainer",
                format!("unable to ensure pod container exists: {message}"),
            );
            return Err(message);
        }
        self.directories().map_err(|e| format!("error making pod data directories: {e}"))?;
        ctx.objects.register(pod);
        match volumes::setup::ensure(ctx, pod).await {
            Ok(v) => Ok(v),
            Err(e) => {
                ctx.event(pod, EventType::Warning, "FailedMount", e.to_string());
                Err(e.to_string())
            }
        }
    }

    fn directories(&self) -> std::io::Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let (ctx, pod) = (&self.ctx, &*self.pod);
        let dir = ctx.config.pod_dir(pod::uid(pod));
        std::fs::create_dir_all(dir.join("volumes"))?;
        std::fs::create_dir_all(dir.join("containers"))?;
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o750))?;
        std::fs::create_dir_all(ctx.config.pod_log_dir(pod::namespace(pod), pod::name(pod), pod::uid(pod)))
    }

    async fn stop_sandbox(&self, id: &str) {
        if self.runtime.sandboxes.first().is_some_and(|s| s.id == id) {
            let message = "Pod sandbox changed, it will be killed and re-created.";
            self.ctx.event(&self.pod, EventType::Normal, "SandboxChanged", message);
        }
        if let Err(e) = self.ctx.runtime.stop_pod_sandbox(id).await
            && !e.is_not_found()
        {
            tracing::warn!(pod = %pod::format_pod(&self.pod), sandbox = id, error = %e, "sandbox not stopped");
        }
        self.tell(Step::Changed);
    }

    fn sandbox_config(&self, attempt: u32) -> cri::PodSandboxConfig {
        let text = std::fs::read_to_string(&self.ctx.config.resolv_conf).unwrap_or_default();
        sandbox::config(&self.pod, &self.ctx.config, &dns::parse(&text), attempt, &self.ctx.cgroups.parent(&self.pod))
    }

    async fn create_sandbox(&self, attempt: u32) {
        let handler = match self.runtime_handler().await {
            Ok(h) => h,
            Err(message) => return self.sandbox_failed(message),
        };
        match self.ctx.runtime.run_pod_sandbox(self.sandbox_config(attempt), &handler).await {
            Ok(_) => self.tell(Step::Changed),
            Err(e) => self.sandbox_failed(e.to_string()),
        }
    }

    fn sandbox_failed(&self, message: String) {
        let text = format!("Failed to create pod sandbox: {message}");
        self.ctx.event(&self.pod, EventType::Warning, "FailedCreatePodSandBox", text);
        self.tell(Step::SandboxFailed(message));
    }

    async fn runtime_handler(&self) -> Result<String, String> {
        let name = self.pod.spec.as_ref().and_then(|s| s.runtime_class_name.as_deref()).unwrap_or_default();
        if name.is_empty() {
            return Ok(String::new());
        }
        let class = self.ctx.client.get::<k8s_openapi::api::node::v1::RuntimeClass>("", name).await;
        class.map(|c| c.handler).map_err(|e| format!("failed to get sandbox runtime: {e}"))
    }

    async fn kill(&self, id: &str, name: &str, message: String) {
        let Some(instance) = self.runtime.containers.iter().find(|c| c.id == id) else { return };
        let liveness = message.contains("liveness probe");
        let startup = message.contains("startup probe");
        let member = pod::member(&self.pod, name);
        let of_probe = member.as_ref().and_then(|m| {
            let c = &m.container;
            let p = if liveness { c.liveness_probe.as_ref() } else { c.startup_probe.as_ref().filter(|_| startup) };
            p.and_then(|p| p.termination_grace_period_seconds)
        });
        let grace = of_probe.unwrap_or_else(|| pod::grace_seconds(&self.pod));
        let kill = Kill {
            ctx: &self.ctx,
            pod: &self.pod,
            instance,
            grace: Duration::from_secs(u64::try_from(grace).unwrap_or(0)),
        };
        kill.run(Some(message)).await;
        self.tell(Step::Changed);
    }

    async fn start(&self, name: &str, restart_count: i32, volumes: &PodVolumes) -> Result<(), StartError> {
        let (ctx, pod) = (&self.ctx, &*self.pod);
        let Some(m) = pod::member(pod, name) else { return Ok(()) };
        let failed = |message: &str| {
            ctx.container_event(pod, m.role, name, EventType::Warning, "Failed", format!("Error: {message}"));
        };
        let Some(sandbox) = self.runtime.ready_sandbox() else { return Ok(()) };
        let sandbox_config = self.sandbox_config(sandbox.attempt);
        let image = match ctx.images.ensure(ctx, pod, m.role, &m.container, &sandbox_config).await {
            Ok(i) => i,
            Err(e) => {
                // As upstream: the reason alone is an event too.
                failed(e.reason);
                return Err(e);
            }
        };
        let pod_ips = if pod::host_network(pod) { ctx.host_ips() } else { sandbox.ips.clone() };
        let config = match self.container_config(&m, restart_count, volumes, &image, &pod_ips).await {
            Ok(c) => c,
            Err(message) => {
                failed(&message);
                return Err(StartError::new("CreateContainerConfigError", message));
            }
        };
        let log_dir = Path::new(&sandbox_config.log_directory).join(name);
        if let Err(e) = std::fs::create_dir_all(&log_dir) {
            failed(&e.to_string());
            return Err(StartError::new("CreateContainerError", e.to_string()));
        }
        let id = match ctx.runtime.create_container(&sandbox.id, config, sandbox_config).await {
            Ok(id) => id,
            Err(e) => {
                failed(&e.message);
                return Err(StartError::new("CreateContainerError", e.message));
            }
        };
        ctx.container_event(pod, m.role, name, EventType::Normal, "Created", "Container created");
        if let Err(e) = ctx.runtime.start_container(&id).await {
            failed(&e.message);
            return Err(StartError::new("RunContainerError", e.message));
        }
        ctx.container_event(pod, m.role, name, EventType::Normal, "Started", "Container started");
        self.tell(Step::Changed);
        self.post_start(&m, &id, pod_ips.first().map_or("", String::as_str)).await
    }

    async fn container_config(
        &self,
        m: &Member<'_>,
        restart_count: i32,
        volumes: &PodVolumes,
        image: &crate::images::Present,
        pod_ips: &[String],
    ) -> Result<cri::ContainerConfig, String> {
        let (ctx, pod, c) = (&self.ctx, &*self.pod, &*m.container);
        let env = resolve::environment(ctx, pod, m.role, c, pod_ips).await?;
        let mounts = volumes::container::mounts(ctx, pod, c, restart_count, volumes, &env, pod_ips)?;
        let defaults = security::Defaults {
            seccomp_default: ctx.config.seccomp_default,
            seccomp_root: &ctx.config.root_dir.join("seccomp"),
        };
        let user = (image.uid, image.user.as_str());
        let target = m.target.filter(|_| m.role == Role::Ephemeral);
        let security = security::container(pod, c, user, target, &self.runtime, &defaults)?;
        let memory = ctx.node.borrow().machine_memory;
        Ok(config::config(config::Parts {
            pod,
            role: m.role,
            container: c,
            restart_count,
            image_ref: image.reference.clone(),
            env,
            mounts,
            security,
            machine_memory: memory,
            may_lower_oom: terminate::may_lower_oom(),
        }))
    }

    async fn post_start(&self, m: &Member<'_>, id: &str, pod_ip: &str) -> Result<(), StartError> {
        let hook = m.container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref());
        let Some(handler) = hook.and_then(Handler::of_hook) else { return Ok(()) };
        let target = Target::new(&m.container, id, pod_ip);
        let (Outcome::Failure(why) | Outcome::Unknown(why)) =
            self.ctx.prober.run(&handler, &target, POST_START_MAX).await
        else {
            return Ok(());
        };
        tracing::info!(pod = %pod::format_pod(&self.pod), container = %m.container.name, why, "postStart hook failed");
        let name = &m.container.name;
        self.ctx.container_event(
            &self.pod,
            m.role,
            name,
            EventType::Warning,
            "FailedPostStartHook",
            "PostStartHook failed",
        );
        let grace = Duration::from_secs(u64::try_from(pod::grace_seconds(&self.pod)).unwrap_or(0));
        let message = format!("FailedPostStartHook: Container {name} failed postStart hook");
        self.ctx.container_event(&self.pod, m.role, name, EventType::Normal, "Killing", message);
        if let Err(e) = self.ctx.runtime.stop_container(id, grace).await {
            tracing::warn!(error = %e, "container not stopped after its postStart hook failed");
        }
        Err(StartError::new("PostStartHookError", "PostStartHook failed"))
    }
}
