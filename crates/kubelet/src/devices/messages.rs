//! Messages of the device plugin API `v1beta1` and of the PodResources API `v1`, with the names and numbers of `k8s.io/kubelet`.
#![allow(missing_docs, reason = "the fields have the names of the interface, which says what they are")]

use std::collections::HashMap;

use prost::Message;

/// An empty message.
#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

/// Optional calls that a plugin supports.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct PluginOptions {
    /// The plugin requires `PreStartContainer` before each start.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// The plugin supports `GetPreferredAllocation`.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// Request of `Register`: a plugin advertises a resource.
#[derive(Clone, PartialEq, Message)]
pub struct RegisterRequest {
    #[prost(string, tag = "1")]
    pub version: String,
    /// Name of the plugin's socket in the directory of the kubelet's.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    #[prost(string, tag = "3")]
    pub resource_name: String,
    #[prost(message, optional, tag = "4")]
    pub options: Option<PluginOptions>,
}

/// All devices of a plugin.
#[derive(Clone, PartialEq, Message)]
pub struct DeviceList {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// A device and its health.
#[derive(Clone, PartialEq, Message)]
pub struct Device {
    #[prost(string, tag = "1")]
    pub id: String,
    /// Either `Healthy` or `Unhealthy`.
    #[prost(string, tag = "2")]
    pub health: String,
    #[prost(message, optional, tag = "3")]
    pub topology: Option<Topology>,
}

/// NUMA nodes near a device.
#[derive(Clone, PartialEq, Message)]
pub struct Topology {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

/// A NUMA node by number.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct NumaNode {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// Request of `GetPreferredAllocation`.
#[derive(Clone, PartialEq, Message)]
pub struct PreferredRequest {
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<PreferredForContainer>,
}

/// Request for one container.
#[derive(Clone, PartialEq, Message)]
pub struct PreferredForContainer {
    #[prost(string, repeated, tag = "1")]
    pub available: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub must_include: Vec<String>,
    #[prost(int32, tag = "3")]
    pub size: i32,
}

/// Device IDs of one container.
#[derive(Clone, PartialEq, Message)]
pub struct DeviceIds {
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// Device IDs by container.
#[derive(Clone, PartialEq, Message)]
pub struct DeviceIdsOfContainers {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<DeviceIds>,
}

/// Response of `Allocate`.
#[derive(Clone, PartialEq, Message)]
pub struct AllocateResponse {
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerAllocation>,
}

/// The settings that pass the devices to one container.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerAllocation {
    #[prost(map = "string, string", tag = "1")]
    pub envs: HashMap<String, String>,
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<DeviceSpec>,
    #[prost(map = "string, string", tag = "4")]
    pub annotations: HashMap<String, String>,
    #[prost(message, repeated, tag = "5")]
    pub cdi_devices: Vec<CdiDevice>,
}

/// A host path that is mounted in the container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Mount {
    #[prost(string, tag = "1")]
    pub container_path: String,
    #[prost(string, tag = "2")]
    pub host_path: String,
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// A device file of the host for the container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeviceSpec {
    #[prost(string, tag = "1")]
    pub container_path: String,
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Access permissions, letters of `rwm`.
    #[prost(string, tag = "3")]
    pub permissions: String,
}

/// A device by its CDI name, such as `vendor.com/gpu=gpu0`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CdiDevice {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Request of `Get`: name of the pod.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetPodRequest {
    #[prost(string, tag = "1")]
    pub pod_name: String,
    #[prost(string, tag = "2")]
    pub pod_namespace: String,
}

/// Response of `Get`.
#[derive(Clone, PartialEq, Message)]
pub struct GetPodResponse {
    #[prost(message, optional, tag = "1")]
    pub pod_resources: Option<PodResources>,
}

/// Response of `List`.
#[derive(Clone, PartialEq, Message)]
pub struct ListPodsResponse {
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// Response of `GetAllocatableResources`.
#[derive(Clone, PartialEq, Message)]
pub struct AllocatableResponse {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<ContainerDevices>,
    /// CPUs that can be assigned exclusively.
    #[prost(int64, repeated, tag = "2")]
    pub cpu_ids: Vec<i64>,
    /// Memory that can be reserved for containers.
    #[prost(message, repeated, tag = "3")]
    pub memory: Vec<ContainerMemory>,
}

/// Resources of a pod's containers.
#[derive(Clone, PartialEq, Message)]
pub struct PodResources {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// Resources of a container.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerResources {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
    /// Exclusive CPUs of the container.
    #[prost(int64, repeated, tag = "3")]
    pub cpu_ids: Vec<i64>,
    /// Memory that is reserved for the container.
    #[prost(message, repeated, tag = "4")]
    pub memory: Vec<ContainerMemory>,
    /// Devices of the container's resource claims.
    #[prost(message, repeated, tag = "5")]
    pub dynamic_resources: Vec<ClaimedResource>,
}

/// Devices of one resource claim.
#[derive(Clone, PartialEq, Message)]
pub struct ClaimedResource {
    #[prost(string, tag = "2")]
    pub claim_name: String,
    #[prost(string, tag = "3")]
    pub claim_namespace: String,
    #[prost(message, repeated, tag = "4")]
    pub claim_resources: Vec<ClaimedDevice>,
}

/// A device of a resource claim.
#[derive(Clone, PartialEq, Message)]
pub struct ClaimedDevice {
    #[prost(message, repeated, tag = "1")]
    pub cdi_devices: Vec<CdiDevice>,
    #[prost(string, tag = "2")]
    pub driver_name: String,
    #[prost(string, tag = "3")]
    pub pool_name: String,
    #[prost(string, tag = "4")]
    pub device_name: String,
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

/// Memory of a set of NUMA nodes.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerMemory {
    /// Either `memory` or a huge pages resource.
    #[prost(string, tag = "1")]
    pub memory_type: String,
    /// Size in bytes.
    #[prost(uint64, tag = "2")]
    pub size: u64,
    #[prost(message, optional, tag = "3")]
    pub topology: Option<Topology>,
}

/// Devices of one resource near the same NUMA node.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerDevices {
    #[prost(string, tag = "1")]
    pub resource_name: String,
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
    #[prost(message, optional, tag = "3")]
    pub topology: Option<Topology>,
}
