//! Labels and annotations by which the kubelet recognizes its sandboxes and containers, also after a restart. The names are upstream's
//! (`pkg/kubelet/types`, `kuberuntime/labels.go`).

/// Label with the pod's name.
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label with the pod's namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label with the pod's UID.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label with the container's name.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Annotation with the hash of the container's spec.
pub const HASH: &str = "io.kubernetes.container.hash";
/// Annotation with the number of earlier instances.
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation with the path of the termination message in the container.
pub const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
/// Annotation with the termination message policy: `File` or `FallbackToLogsOnError`.
pub const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// Annotation with the pod's grace period in seconds.
pub const GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
/// Annotation with the container's preStop handler as JSON, for pods whose object is gone.
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
/// Annotation with the limits at creation (`cgroups::resources::Limits` as JSON), for runtimes that do not report limits. Specific to
/// Kelson.
pub const LIMITS: &str = "io.kelson.container.limits";
/// Annotation with the container's memory request at creation in bytes. Specific to Kelson.
pub const MEMORY_REQUEST: &str = "io.kelson.container.memoryRequest";
/// Annotation with the root directory of the kubelet that created the sandbox, because several nodes may share a runtime. Specific to
/// Kelson.
pub const NODE_DIRECTORY: &str = "io.kelson.node.directory";
/// Annotation with the container's ports as JSON.
pub const PORTS: &str = "io.kubernetes.container.ports";
