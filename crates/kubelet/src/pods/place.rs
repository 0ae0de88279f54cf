//! Allocates a pod's devices, CPUs and memory container by container, with NUMA alignment if configured (upstream:
//! `topologymanager/scope_container.go`, `scope_pod.go`).
use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use super::parts::Parts;
use crate::config::placement::AlignmentScope;
use crate::devices::PodDeviceAllocation;
use crate::placement::cpus::PlacementRefusal;
use crate::placement::hints::{Alignment, NumaHint, ResourceHints};
use crate::pod::{self, Member, Role};

/// Allocates what a pod requests; existing allocations stay. With `starts_anew` its devices must be healthy.
///
/// # Errors
/// Why the allocation is impossible. Partial allocations are released when the pod has ended.
pub async fn place(parts: &Parts, pod: &Pod, starts_anew: bool) -> Result<(), PlacementRefusal> {
    let (placement, uid) = (&parts.placement, pod::uid(pod));
    if placement.is_placed(uid) {
        // Devices may have become unhealthy since the allocation.
        return parts.devices.allocate(pod, starts_anew).await.map_err(PlacementRefusal::unexpected);
    }
    let _turn = placement.turn().await;
    let began = Instant::now();
    let done = try_place(parts, pod, starts_anew).await;
    placement.metrics().placed(done.is_ok(), began.elapsed());
    done?;
    placement.done(uid).await
}

async fn try_place(parts: &Parts, pod: &Pod, starts_anew: bool) -> Result<(), PlacementRefusal> {
    let placement = &parts.placement;
    let mut turn = PodDeviceAllocation::new(starts_anew);
    let of_pod = match placement.alignment().filter(|a| a.scope() == AlignmentScope::Pod) {
        Some(alignment) => {
            let wishes = [vec![parts.devices.pod_hints(pod, placement.nodes())], placement.pod_hints(pod)].concat();
            Some(aligned(parts, alignment, &wishes)?)
        }
        None => None,
    };
    for m in pod::members(pod).filter(|m| m.role != Role::Ephemeral) {
        let hint = match (of_pod, placement.alignment()) {
            (Some(hint), _) => hint,
            (None, Some(alignment)) => aligned(parts, alignment, &of_container(parts, pod, &m, &turn))?,
            // Like upstream, a provider without hints accepts any NUMA node.
            (None, None) => NumaHint { nodes: None, preferred: false },
        };
        let devices = parts.devices.allocate_for(pod, &m, hint.nodes, &mut turn).await;
        devices.map_err(PlacementRefusal::unexpected)?;
        placement.allocate(pod, &m, hint)?;
        if placement.alignment().is_some_and(|a| of_pod.is_none() && a.is_guaranteed()) {
            placement.metrics().bounded("container", "numa_node", true);
        }
    }
    if placement.alignment().is_some_and(|a| of_pod.is_some() && a.is_guaranteed()) {
        placement.metrics().bounded("pod", "numa_node", true);
    }
    parts.devices.allocated(&turn).await.map_err(PlacementRefusal::unexpected)
}

fn of_container(parts: &Parts, pod: &Pod, m: &Member<'_>, turn: &PodDeviceAllocation) -> Vec<ResourceHints> {
    let devices = parts.devices.hints(pod, m, turn, parts.placement.nodes());
    [vec![devices], parts.placement.hints(pod, &m.container)].concat()
}

fn aligned(parts: &Parts, alignment: &Alignment, wishes: &[ResourceHints]) -> Result<NumaHint, PlacementRefusal> {
    let (hint, admitted) = alignment.merge(wishes);
    if admitted {
        return Ok(hint);
    }
    if alignment.is_guaranteed() {
        let scope = if alignment.scope() == AlignmentScope::Pod { "pod" } else { "container" };
        parts.placement.metrics().bounded(scope, "numa_node", false);
    }
    let message = "Resources cannot be allocated with Topology locality".to_owned();
    Err(PlacementRefusal { reason: "TopologyAffinityError", message })
}
