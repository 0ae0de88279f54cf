//! The fields that the scheduler reads of API objects, decoded into compact forms. All other fields are skipped while
//! decoding, so a cached pod takes a few hundred bytes.
mod affinity;
mod node;
mod objects;
mod pod;
mod raw;
mod spec;

pub use affinity::{PodTerm, Toleration};
pub use node::{Capacity, Node, Taint, TaintEffect};
pub use objects::{
    CsiDriver, CsiNode, CsiNodeDriver, DisruptionBudget, Namespace, ReplicaSet, ReplicationController, Service,
    StatefulSet, StorageCapacity,
};
pub use pod::{Pod, ScheduledCondition};
pub use spec::{ClaimRef, DeviceRef, HostPort, PodSpec, Requests, SpreadConstraint};
