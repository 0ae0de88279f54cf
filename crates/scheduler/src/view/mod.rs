//! What the scheduler reads of the API's objects, decoded once into compact forms. Everything else of an object is
//! skipped while decoding, so a cached pod costs a few hundred bytes.
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
