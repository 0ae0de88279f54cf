//! The messages of the device plugins' `v1beta1` and of the kubelet's `PodResourcesLister` `v1`: names and numbers of
//! `k8s.io/kubelet`.
#![allow(missing_docs, reason = "the fields have the names of the interface, which says what they are")]

use std::collections::HashMap;

use prost::Message;

/// Of calls that say or answer nothing.
#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

/// What a plugin wants to be asked.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct PluginOptions {
    /// It prepares devices before each start of a container.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// It says which devices go well together.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// A plugin offers a resource.
#[derive(Clone, PartialEq, Message)]
pub struct RegisterRequest {
    #[prost(string, tag = "1")]
    pub version: String,
    /// The name of its socket beside the kubelet's.
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

/// A device and how it is.
#[derive(Clone, PartialEq, Message)]
pub struct Device {
    #[prost(string, tag = "1")]
    pub id: String,
    /// `Healthy` or `Unhealthy`
    #[prost(string, tag = "2")]
    pub health: String,
    #[prost(message, optional, tag = "3")]
    pub topology: Option<Topology>,
}

/// Parts of the machine that something is near to.
#[derive(Clone, PartialEq, Message)]
pub struct Topology {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

/// A part of the machine by its number.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct NumaNode {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// Asks which of the available devices go well together.
#[derive(Clone, PartialEq, Message)]
pub struct PreferredRequest {
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<PreferredForContainer>,
}

/// The same, for one container.
#[derive(Clone, PartialEq, Message)]
pub struct PreferredForContainer {
    #[prost(string, repeated, tag = "1")]
    pub available: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub must_include: Vec<String>,
    #[prost(int32, tag = "3")]
    pub size: i32,
}

/// Devices that go well together, and those of a container that is to be given or started.
#[derive(Clone, PartialEq, Message)]
pub struct DeviceIds {
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// The same, by container.
#[derive(Clone, PartialEq, Message)]
pub struct DeviceIdsOfContainers {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<DeviceIds>,
}

/// How containers get what they were given.
#[derive(Clone, PartialEq, Message)]
pub struct AllocateResponse {
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerAllocation>,
}

/// How one container gets its devices.
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

/// A path of the host in the container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Mount {
    #[prost(string, tag = "1")]
    pub container_path: String,
    #[prost(string, tag = "2")]
    pub host_path: String,
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// A device file of the host in the container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeviceSpec {
    #[prost(string, tag = "1")]
    pub container_path: String,
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Letters of `rwm`.
    #[prost(string, tag = "3")]
    pub permissions: String,
}

/// A device by its name in the container device interface, such as `vendor.com/gpu=gpu0`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CdiDevice {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Which pod is asked about.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetPodRequest {
    #[prost(string, tag = "1")]
    pub pod_name: String,
    #[prost(string, tag = "2")]
    pub pod_namespace: String,
}

/// What one pod has.
#[derive(Clone, PartialEq, Message)]
pub struct GetPodResponse {
    #[prost(message, optional, tag = "1")]
    pub pod_resources: Option<PodResources>,
}

/// What all pods have.
#[derive(Clone, PartialEq, Message)]
pub struct ListPodsResponse {
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// What the node has to give.
#[derive(Clone, PartialEq, Message)]
pub struct AllocatableResponse {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<ContainerDevices>,
    /// Processors that containers can have alone.
    #[prost(int64, repeated, tag = "2")]
    pub cpu_ids: Vec<i64>,
    /// Memory that containers can be promised.
    #[prost(message, repeated, tag = "3")]
    pub memory: Vec<ContainerMemory>,
}

/// A pod and its containers.
#[derive(Clone, PartialEq, Message)]
pub struct PodResources {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// A container and its devices.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerResources {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
    /// Processors that it has alone.
    #[prost(int64, repeated, tag = "3")]
    pub cpu_ids: Vec<i64>,
    /// Memory that it was promised.
    #[prost(message, repeated, tag = "4")]
    pub memory: Vec<ContainerMemory>,
    /// Devices that it has by claims.
    #[prost(message, repeated, tag = "5")]
    pub dynamic_resources: Vec<ClaimedResource>,
}

/// What a container has by one claim.
#[derive(Clone, PartialEq, Message)]
pub struct ClaimedResource {
    #[prost(string, tag = "2")]
    pub claim_name: String,
    #[prost(string, tag = "3")]
    pub claim_namespace: String,
    #[prost(message, repeated, tag = "4")]
    pub claim_resources: Vec<ClaimedDevice>,
}

/// A device of a claim.
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

/// Memory of some parts of the machine.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerMemory {
    /// `memory` or huge pages of a size.
    #[prost(string, tag = "1")]
    pub memory_type: String,
    /// How many bytes.
    #[prost(uint64, tag = "2")]
    pub size: u64,
    #[prost(message, optional, tag = "3")]
    pub topology: Option<Topology>,
}

/// Devices of one resource that are near the same part of the machine.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerDevices {
    #[prost(string, tag = "1")]
    pub resource_name: String,
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
    #[prost(message, optional, tag = "3")]
    pub topology: Option<Topology>,
}
