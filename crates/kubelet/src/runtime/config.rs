//! Builds the CRI configuration of a container (upstream: `kuberuntime_container.go` generateContainerConfig).
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use kelson_cri::proto as cri;

use super::labels;
use crate::cgroups::memory::MemoryRules;
use crate::cgroups::placed::ContainerPlacement;
use crate::cgroups::resources;
use crate::cgroups::swap::SwapRules;
use crate::devices::DeviceAllocation;
use crate::env::expand::{Budget, expand_words};
use crate::pod::{self, Role};

/// All input for a container's configuration.
pub struct ContainerParts<'a> {
    /// The pod of the container.
    pub pod: &'a Pod,
    /// The container's role in its pod.
    pub role: Role,
    /// The container's specification.
    pub container: &'a Container,
    /// Number of earlier instances of the container.
    pub restart_count: i32,
    /// Reference of the image, as the runtime returned it.
    pub image_ref: String,
    /// All environment variables.
    pub env: Vec<(String, String)>,
    /// Mounts of volumes and of files that the kubelet manages.
    pub mounts: Vec<cri::Mount>,
    /// Host devices of block volumes.
    pub devices: Vec<cri::Device>,
    /// Devices, mounts and environment from device plugins and DRA drivers.
    pub given: DeviceAllocation,
    /// The merged security contexts of pod and container.
    pub security: cri::LinuxContainerSecurityContext,
    /// The CPUs and NUMA nodes that it may use.
    pub placed: ContainerPlacement,
    /// Rules for swap.
    pub swap: SwapRules,
    /// Rules for memory protection and for the OOM killer.
    pub memory: MemoryRules,
    /// Whether CPU limits are enforced.
    pub cpu_quota: bool,
    /// Memory of the machine in bytes, for the OOM score.
    pub machine_memory: i64,
    /// Whether this process may set OOM scores below its own.
    pub may_lower_oom: bool,
}

/// Path of the log file of a container instance, relative to the pod's log directory.
pub fn log_path(name: &str, restart_count: i32) -> String {
    format!("{name}/{restart_count}.log")
}

/// Builds the configuration.
///
/// # Errors
/// The message of `CreateContainerConfigError`: the command is larger than the kernel allows.
pub fn config(mut parts: ContainerParts<'_>) -> Result<cri::ContainerConfig, String> {
    let c = parts.container;
    let given = std::mem::take(&mut parts.given);
    // The container's own values override those of devices.
    let own = std::mem::take(&mut parts.env);
    let others = given.env.into_iter().filter(|(name, _)| !own.iter().any(|(known, _)| known == name));
    let env: Vec<(String, String)> = others.collect::<Vec<_>>().into_iter().chain(own).collect();
    let mut annotations = given.annotations;
    annotations.extend(self::annotations(parts.pod, c, parts.restart_count));
    let mut budget = Budget::default();
    let mut expanded = |words: &Option<Vec<String>>| {
        let words = words.as_deref().unwrap_or_default();
        expand_words(words, &env, &mut budget).map_err(|e| format!("the command has {e}"))
    };
    let (command, args) = (expanded(&c.command)?, expanded(&c.args)?);
    let attempt = u32::try_from(parts.restart_count).unwrap_or(0);
    let mut resources =
        resources::container_resources(parts.pod, parts.role, c, parts.machine_memory, parts.may_lower_oom);
    parts.placed.bind(&mut resources);
    if !parts.cpu_quota {
        resources::unbound_cpu(&mut resources);
    }
    parts.swap.bind(parts.pod, c, &mut resources);
    parts.memory.bind(parts.pod, c, &mut resources);
    Ok(cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: c.name.clone(), attempt }),
        image: Some(cri::ImageSpec {
            image: parts.image_ref,
            user_specified_image: c.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command,
        args,
        working_dir: c.working_dir.clone().unwrap_or_default(),
        envs: envs(&env),
        mounts: given.mounts.into_iter().chain(parts.mounts).collect(),
        devices: given.devices.into_iter().chain(parts.devices).collect(),
        cdi_devices: given.cdi_devices,
        labels: container_labels(parts.pod, c),
        annotations,
        log_path: log_path(&c.name, parts.restart_count),
        stdin: c.stdin.unwrap_or(false),
        stdin_once: c.stdin_once.unwrap_or(false),
        tty: c.tty.unwrap_or(false),
        linux: Some(cri::LinuxContainerConfig { resources: Some(resources), security_context: Some(parts.security) }),
        ..Default::default()
    })
}

fn envs(env: &[(String, String)]) -> Vec<cri::KeyValue> {
    env.iter().map(|(k, v)| cri::KeyValue { key: k.clone(), value: v.clone().into_bytes() }).collect()
}

fn container_labels(pod: &Pod, c: &Container) -> BTreeMap<String, String> {
    [
        (labels::POD_NAME, pod::name(pod)),
        (labels::POD_NAMESPACE, pod::namespace(pod)),
        (labels::POD_UID, pod::uid(pod)),
        (labels::CONTAINER_NAME, &c.name),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), v.to_owned()))
    .collect()
}

fn annotations(pod: &Pod, c: &Container, restart_count: i32) -> BTreeMap<String, String> {
    let mut out: BTreeMap<String, String> = [
        (labels::HASH, pod::container_hash(c)),
        (labels::RESTART_COUNT, restart_count.to_string()),
        (labels::LIMITS, resources::Limits::of(pod, c).json()),
        (labels::MEMORY_REQUEST, resources::memory_request(c).to_string()),
        (labels::TERMINATION_PATH, c.termination_message_path.clone().unwrap_or_default()),
        (labels::TERMINATION_POLICY, c.termination_message_policy.clone().unwrap_or_default()),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), v))
    .collect();
    let grace = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    if let Some(grace) = grace {
        out.insert(labels::GRACE_PERIOD.into(), grace.to_string());
    }
    let json = |v: &dyn erased::Json| v.json();
    if let Some(hook) = c.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()) {
        out.extend(json(hook).map(|text| (labels::PRE_STOP.to_owned(), text)));
    }
    if let Some(ports) = c.ports.as_ref().filter(|p| !p.is_empty()) {
        out.extend(json(ports).map(|text| (labels::PORTS.to_owned(), text)));
    }
    out
}

/// Serializes values for annotations.
mod erased {
    pub trait Json {
        fn json(&self) -> Option<String>;
    }
    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> Option<String> {
            serde_json::to_string(self).ok()
        }
    }
}
