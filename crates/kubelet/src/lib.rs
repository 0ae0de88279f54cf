//! Kelson's kubelet: the node agent. It registers its Node and reports the node's status, runs the pods that are bound to the node through
//! a CRI runtime, and serves logs, exec, attach, port-forward and metrics. It reaches the cluster only through the Kubernetes API.
//!
//! [`Kubelet::start`] takes a typed [`Config`] and its effects as traits ([`Dependencies`]), and returns a [`Running`] that ends all tasks.
//! [`pods`] is the core: sources (the API, manifests, URLs) put the newest state of each pod into an inbox; the manager admits a pod and
//! starts one worker for it; the worker compares specification, status of the runtime and probes, computes a plan, executes it through CRI,
//! and writes the status. Every other module supports this: `config` and `pod` read input, `volumes`, `images`, `env`, `cgroups`,
//! `placement`, `devices` and `dra` prepare what a container needs, `status` computes and writes the result, `eviction` and `shutdown` end
//! pods, `server` answers requests. The network of pods belongs to the runtime and its CNI plugins.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds | may touch |
//! |---|---|---|
//! | `pod` | what a Pod says: containers of all roles, policies, requests | nothing |
//! | `config/` | typed configuration, thresholds, the `KubeletConfiguration` file | its file |
//! | `systemd/` | messages of D-Bus (`wire`, pure), the bus, slices and scopes, and locks that delay a shutdown | the system's bus |
//! | `metrics/` | metrics under upstream's names; the runtime that counts its calls | the runtime |
//! | `spans` | spans of the kubelet's work, under upstream's names | the collector, through `kelson-traces` |
//! | `logs/` | CRI log lines, reading, following, rotation | log files, the runtime |
//! | `probes/` | handlers, one file each; one task for each probe; results of probes | containers, the pod's address |
//! | `effects` | what several rooms need: events, runtime, hooks, clock | the runtime, the API's events |
//! | `csi/` | volume drivers on this node: registration (as of other plugins), calls to them, what the node reports | their sockets, the `CSINode` |
//! | `cgroups/` | cgroups of pods, by name and bounds (both pure), the cgroups above them, resources, memory that may be swapped (`swap`), reserved memory and OOM scores (`memory`), pressure (`pressure`), I/O (`io`), all measurements of one (`reading`), whether containers are in those of their pods (`location`) | the kernel's tree, systemd |
//! | `placement/` | CPUs and memory that containers have exclusively: the topology of the machine, who has what (`cpus`, `memory`: tables), where it could come from (`hints`), all pure except `sysfs` and `manager` | the kernel's files, its state files |
//! | `dra/` | claims for devices: which are prepared, and for which pods (`prepared`, pure), the health of devices (`health`), drivers, the slices of drivers that leave | drivers' sockets, claims and slices, its checkpoint |
//! | `devices/` | devices of plugins: the table (pure), their assignment, registration of plugins, and the list of what pods have | plugins' sockets, its checkpoint |
//! | `node/` | facts of the machine, features of the runtime, registration, status, lease | the kernel's files, the Node object |
//! | `objects/` | config maps, secrets and tokens that pods refer to | the API |
//! | `env/` | environments of containers | `objects` |
//! | `runtime/` | sandbox and container configuration, security contexts, user namespaces, snapshots, events of the runtime | the runtime |
//! | `volumes/` | one file and one row for each kind of volume, mounts of containers, usage (`usage`), unmounting | directories of pods, mounts |
//! | `images/` | from a container to its image (`kelson-credentials` decides), collection | the runtime, secrets |
//! | `status/` | the status of a pod as a pure function; the one writer | the API's pods |
//! | `pods/` | the manager, one worker for each pod, the plan (pure), its execution, termination | all of the above, through `parts.rs` |
//! | `eviction/` | which pod is evicted when the node is short of a resource | the kernel's numbers; notifies the manager |
//! | `shutdown/` | which pods end when the machine shuts down (`plan`, pure), and that it waits for them | logind; notifies the manager |
//! | `server/` | one file and one row for each endpoint; authentication and authorization of callers | the runtime, `pods/known.rs` |
//! | `wiring` | the effects that a kubelet is given, and the channels between its parts | nothing by itself |
//! | `upkeep` | starts what maintains the node beside its pods | everything but `start.rs` |
//! | `start` | builds the parts, starts the tasks, ends them | everything |
//!
//! Every task is in a group (`kelson-tasks`) that `Running::shutdown` ends and waits for. Permanent parts are restarted after a
//! panic. The manager restarts the worker of a pod, with the state that the API and the runtime have. Sources do not queue:
//! they put the newest state of each pod into an inbox (`pods/inbox.rs`, `pods/event.rs`), which is as large as the number of
//! pods on the node. File work, mounts and removals run in lanes; the removal of pods' directories and the walk that computes
//! their usage have separate lanes.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod cgroups;
pub mod cleanup;
pub mod config;
pub mod csi;
pub mod devices;
pub mod dra;
pub mod effects;
pub mod env;
pub mod eviction;
pub mod images;
pub mod logs;
pub mod metrics;
pub mod node;
pub mod objects;
pub mod placement;
pub mod pod;
pub mod pods;
pub mod probes;
pub mod runtime;
pub mod server;
pub mod shutdown;
pub mod spans;
pub mod start;
pub mod status;
pub mod systemd;
mod upkeep;
pub mod volumes;
pub mod wiring;

pub use config::{Config, CredentialProviderFiles, RegisterTaint, ServerConfig};
pub use effects::NetworkGate;
pub use start::{Kubelet, KubeletError, Running};
pub use wiring::Dependencies;
