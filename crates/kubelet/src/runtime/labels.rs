//! Labels and annotations by which the kubelet knows its sandboxes and containers again, after its own restart too; the
//! names are upstream's (`pkg/kubelet/types`, `kuberuntime/labels.go`).

/// Under which label the pod's name is.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Under which label the pod's namespace is.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Under which label the pod's UID is.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Under which label the container's name is.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Digest of the container's spec.
pub const HASH: &str = "io.kubernetes.container.hash";
/// How many instances there were before.
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Where the container writes its termination message.
pub const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// `File` or `FallbackToLogsOnError`.
pub const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// The pod's grace period, seconds.
pub const GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
/// The container's preStop handler as JSON, for pods whose object is gone.
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
/// What the kernel was to hold the container to when it was made (`cgroups::resources::Limits` as JSON), for runtimes that do
/// not tell; this one is Kelson's own.
pub const LIMITS: &str = "io.kelson.container.limits";
/// The memory that the container asked for when it was made, in bytes; this one is Kelson's own.
pub const MEMORY_REQUEST: &str = "io.kelson.container.memoryRequest";
/// The directory of the kubelet that made the sandbox: several nodes may share a runtime. This one is Kelson's own.
pub const NODE_DIRECTORY: &str = "io.kelson.node.directory";
/// The container's ports as JSON.
pub const PORTS: &str = "io.kubernetes.container.ports";
