//! The PodResources API (`PodResourcesLister`, KEP-606), by which monitoring agents assign devices to pods.
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::Pod;
use kelson_tasks::Tasks;
use tonic::Status;
use tonic::body::Body;

use super::grpc;
use super::messages::{
    AllocatableResponse, CdiDevice, ClaimedDevice, ClaimedResource, ContainerDevices, ContainerMemory,
    ContainerResources, Empty, GetPodRequest, GetPodResponse, ListPodsResponse, NumaNode, PodResources, Topology,
};
use super::plugins::Devices;
use crate::config::cpuset::CpuSet;
use crate::dra::DynamicResources;
use crate::dra::manager::ClaimedDevices;
use crate::dra::prepared::ReadyDevice;
use crate::placement::Placement;
use crate::placement::memory::MemoryBlock;
use crate::pod::{self, Role};

/// Delay before listening again after a failure.
const RETRY: Duration = Duration::from_secs(5);

/// Returns the pods of this node.
pub type Pods = Arc<dyn Fn() -> Vec<Arc<Pod>> + Send + Sync>;

/// Serves the PodResources API. Clones share the state.
#[derive(Clone)]
pub struct PodResourcesLister {
    /// Path of the socket.
    pub socket: PathBuf,
    /// The pods to list.
    pub pods: Pods,
    /// Reads the assigned devices.
    pub devices: Devices,
    /// Exclusive CPUs and memory.
    pub placement: Placement,
    /// Devices of resource claims.
    pub claims: DynamicResources,
    /// Task group of connections.
    pub tasks: Tasks,
}

impl PodResourcesLister {
    /// Serves until the task is aborted.
    pub async fn run(self) {
        loop {
            if let Err(error) = grpc::serve(&self.tasks, "pod-resources", &self.socket, self.clone()).await {
                tracing::warn!(%error, socket = %self.socket.display(), "cannot serve the PodResources API; retrying");
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Resources of the pod's containers. Of init containers only sidecars are listed.
    fn of_pod(&self, pod: &Pod) -> PodResources {
        let members = pod::members(pod).filter(|m| matches!(m.role, Role::App | Role::Sidecar));
        let containers = members.map(|m| {
            let devices = self.devices.read(|table| {
                let of = table.of(pod::uid(pod), &m.container.name);
                of.flat_map(|(resource, held)| by_part(resource, held.near.clone())).collect()
            });
            let (cpus, memory) = self.placement.listed(pod::uid(pod), &m.container.name);
            let memory = memory.into_iter().map(listed).collect();
            let claimed = self.claims.devices(pod, &m.container).unwrap_or_default();
            let dynamic_resources = claimed.into_iter().map(|c| by_claim(pod, c)).collect();
            ContainerResources {
                name: m.container.name.clone(),
                devices,
                cpu_ids: numbers(&cpus),
                memory,
                dynamic_resources,
            }
        });
        let (name, namespace) = (pod::name(pod).to_owned(), pod::namespace(pod).to_owned());
        PodResources { name, namespace, containers: containers.collect() }
    }

    fn list(&self) -> ListPodsResponse {
        let active = (self.pods)().into_iter().filter(|p| !pod::is_terminal(p));
        ListPodsResponse { pod_resources: active.map(|p| self.of_pod(&p)).collect() }
    }

    fn get(&self, wanted: &GetPodRequest) -> Result<GetPodResponse, Status> {
        let (namespace, name) = (&wanted.pod_namespace, &wanted.pod_name);
        let pods = (self.pods)();
        let found = pods.iter().find(|p| pod::namespace(p) == namespace && pod::name(p) == name);
        let pod = found.ok_or_else(|| Status::unknown(format!("pod {name} in namespace {namespace} not found")))?;
        Ok(GetPodResponse { pod_resources: Some(self.of_pod(pod)) })
    }

    fn allocatable(&self) -> AllocatableResponse {
        let all = self.devices.read(super::table::Table::allocatable);
        let (cpus, memory) = self.placement.allocatable();
        AllocatableResponse {
            devices: all.into_iter().flat_map(|(name, near)| by_part(&name, near)).collect(),
            cpu_ids: numbers(&cpus),
            memory: memory.into_iter().map(listed).collect(),
        }
    }
}

fn by_claim(pod: &Pod, (claim_name, devices): ClaimedDevices) -> ClaimedResource {
    let of = |(driver_name, d): (String, ReadyDevice)| ClaimedDevice {
        cdi_devices: d.cdi_device_ids.into_iter().flatten().map(|name| CdiDevice { name }).collect(),
        driver_name,
        pool_name: d.pool_name,
        device_name: d.device_name,
        share_id: d.share_id,
    };
    let claim_namespace = pod::namespace(pod).to_owned();
    ClaimedResource { claim_name, claim_namespace, claim_resources: devices.into_iter().map(of).collect() }
}

fn numbers(cpus: &CpuSet) -> Vec<i64> {
    cpus.iter().map(i64::from).collect()
}

fn listed(block: MemoryBlock) -> ContainerMemory {
    let nodes = block.nodes.into_iter().map(|id| NumaNode { id: i64::from(id) }).collect();
    ContainerMemory { memory_type: block.resource, size: block.size, topology: Some(Topology { nodes }) }
}

/// Devices of one resource, grouped by NUMA node.
fn by_part(
    resource: &str,
    near: impl IntoIterator<Item = (i64, std::collections::BTreeSet<String>)>,
) -> Vec<ContainerDevices> {
    let of = |(part, ids): (i64, std::collections::BTreeSet<String>)| ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: ids.into_iter().collect(),
        topology: (part >= 0).then(|| Topology { nodes: vec![NumaNode { id: part }] }),
    };
    near.into_iter().map(of).collect()
}

impl grpc::GrpcService for PodResourcesLister {
    fn call(&self, request: http::Request<Incoming>) -> BoxFuture<'static, http::Response<Body>> {
        let me = self.clone();
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            let Some(call) = path.strip_prefix("/v1.PodResourcesLister/") else { return grpc::unknown() };
            match call {
                "List" => {
                    me.devices.metrics().asked("list");
                    grpc::answer(request, move |_: Empty| std::future::ready(Ok(me.list()))).await
                }
                "GetAllocatableResources" => {
                    me.devices.metrics().asked("get_allocatable");
                    grpc::answer(request, move |_: Empty| std::future::ready(Ok(me.allocatable()))).await
                }
                "Get" => {
                    me.devices.metrics().asked("get");
                    grpc::answer(request, move |wanted: GetPodRequest| {
                        let found = me.get(&wanted).inspect_err(|_| me.devices.metrics().refused("get"));
                        std::future::ready(found)
                    })
                    .await
                }
                _ => grpc::unknown(),
            }
        })
    }
}
