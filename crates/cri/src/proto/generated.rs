//! The messages of CRI `runtime.v1`. Made by `cargo xtask cri`; do not edit. The calls that carry them are in
//! `crate::client`.
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct VersionRequest {
    #[prost(string, tag = "1")]
    pub version: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct VersionResponse {
    #[prost(string, tag = "1")]
    pub version: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub runtime_name: ::prost::alloc::string::String,
    #[prost(string, tag = "3")]
    pub runtime_version: ::prost::alloc::string::String,
    #[prost(string, tag = "4")]
    pub runtime_api_version: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct DnsConfig {
    #[prost(string, repeated, tag = "1")]
    pub servers: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, repeated, tag = "2")]
    pub searches: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, repeated, tag = "3")]
    pub options: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct PortMapping {
    #[prost(enumeration = "Protocol", tag = "1")]
    pub protocol: i32,
    #[prost(int32, tag = "2")]
    pub container_port: i32,
    #[prost(int32, tag = "3")]
    pub host_port: i32,
    #[prost(string, tag = "4")]
    pub host_ip: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Mount {
    #[prost(string, tag = "1")]
    pub container_path: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub host_path: ::prost::alloc::string::String,
    #[prost(bool, tag = "3")]
    pub readonly: bool,
    #[prost(bool, tag = "4")]
    pub selinux_relabel: bool,
    #[prost(enumeration = "MountPropagation", tag = "5")]
    pub propagation: i32,
    #[prost(message, repeated, tag = "6")]
    pub uid_mappings: ::prost::alloc::vec::Vec<IdMapping>,
    #[prost(message, repeated, tag = "7")]
    pub gid_mappings: ::prost::alloc::vec::Vec<IdMapping>,
    #[prost(bool, tag = "8")]
    pub recursive_read_only: bool,
    #[prost(message, optional, tag = "9")]
    pub image: ::core::option::Option<ImageSpec>,
    #[prost(string, tag = "10")]
    pub image_sub_path: ::prost::alloc::string::String,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct IdMapping {
    #[prost(uint32, tag = "1")]
    pub host_id: u32,
    #[prost(uint32, tag = "2")]
    pub container_id: u32,
    #[prost(uint32, tag = "3")]
    pub length: u32,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct UserNamespace {
    #[prost(enumeration = "NamespaceMode", tag = "1")]
    pub mode: i32,
    #[prost(message, repeated, tag = "2")]
    pub uids: ::prost::alloc::vec::Vec<IdMapping>,
    #[prost(message, repeated, tag = "3")]
    pub gids: ::prost::alloc::vec::Vec<IdMapping>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct NamespaceOption {
    #[prost(enumeration = "NamespaceMode", tag = "1")]
    pub network: i32,
    #[prost(enumeration = "NamespaceMode", tag = "2")]
    pub pid: i32,
    #[prost(enumeration = "NamespaceMode", tag = "3")]
    pub ipc: i32,
    #[prost(string, tag = "4")]
    pub target_id: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "5")]
    pub userns_options: ::core::option::Option<UserNamespace>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Int64Value {
    #[prost(int64, tag = "1")]
    pub value: i64,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct LinuxSandboxSecurityContext {
    #[prost(message, optional, tag = "1")]
    pub namespace_options: ::core::option::Option<NamespaceOption>,
    #[prost(message, optional, tag = "2")]
    pub selinux_options: ::core::option::Option<SeLinuxOption>,
    #[prost(message, optional, tag = "3")]
    pub run_as_user: ::core::option::Option<Int64Value>,
    #[prost(message, optional, tag = "8")]
    pub run_as_group: ::core::option::Option<Int64Value>,
    #[prost(bool, tag = "4")]
    pub readonly_rootfs: bool,
    #[prost(int64, repeated, tag = "5")]
    pub supplemental_groups: ::prost::alloc::vec::Vec<i64>,
    #[prost(enumeration = "SupplementalGroupsPolicy", tag = "11")]
    pub supplemental_groups_policy: i32,
    #[prost(bool, tag = "6")]
    pub privileged: bool,
    #[prost(message, optional, tag = "9")]
    pub seccomp: ::core::option::Option<SecurityProfile>,
    #[prost(message, optional, tag = "10")]
    pub apparmor: ::core::option::Option<SecurityProfile>,
    #[deprecated]
    #[prost(string, tag = "7")]
    pub seccomp_profile_path: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct SecurityProfile {
    #[prost(enumeration = "security_profile::ProfileType", tag = "1")]
    pub profile_type: i32,
    #[prost(string, tag = "2")]
    pub localhost_ref: ::prost::alloc::string::String,
}
pub mod security_profile {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
    #[repr(i32)]
    pub enum ProfileType {
        RuntimeDefault = 0,
        Unconfined = 1,
        Localhost = 2,
    }
    impl ProfileType {
        pub fn as_str_name(&self) -> &'static str {
            match self {
                Self::RuntimeDefault => "RuntimeDefault",
                Self::Unconfined => "Unconfined",
                Self::Localhost => "Localhost",
            }
        }
        pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
            match value {
                "RuntimeDefault" => Some(Self::RuntimeDefault),
                "Unconfined" => Some(Self::Unconfined),
                "Localhost" => Some(Self::Localhost),
                _ => None,
            }
        }
    }
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct LinuxPodSandboxConfig {
    #[prost(string, tag = "1")]
    pub cgroup_parent: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub security_context: ::core::option::Option<LinuxSandboxSecurityContext>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub sysctls: ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(message, optional, tag = "4")]
    pub overhead: ::core::option::Option<LinuxContainerResources>,
    #[prost(message, optional, tag = "5")]
    pub resources: ::core::option::Option<LinuxContainerResources>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub uid: ::prost::alloc::string::String,
    #[prost(string, tag = "3")]
    pub namespace: ::prost::alloc::string::String,
    #[prost(uint32, tag = "4")]
    pub attempt: u32,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PodSandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: ::core::option::Option<PodSandboxMetadata>,
    #[prost(string, tag = "2")]
    pub hostname: ::prost::alloc::string::String,
    #[prost(string, tag = "3")]
    pub log_directory: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "4")]
    pub dns_config: ::core::option::Option<DnsConfig>,
    #[prost(message, repeated, tag = "5")]
    pub port_mappings: ::prost::alloc::vec::Vec<PortMapping>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub labels: ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(btree_map = "string, string", tag = "7")]
    pub annotations:
        ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(message, optional, tag = "8")]
    pub linux: ::core::option::Option<LinuxPodSandboxConfig>,
    #[prost(message, optional, tag = "9")]
    pub windows: ::core::option::Option<WindowsPodSandboxConfig>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct RunPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub config: ::core::option::Option<PodSandboxConfig>,
    #[prost(string, tag = "2")]
    pub runtime_handler: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RunPodSandboxResponse {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct StopPodSandboxRequest {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: ::prost::alloc::string::String,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct StopPodSandboxResponse {}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RemovePodSandboxRequest {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: ::prost::alloc::string::String,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RemovePodSandboxResponse {}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct PodSandboxStatusRequest {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: ::prost::alloc::string::String,
    #[prost(bool, tag = "2")]
    pub verbose: bool,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct PodIp {
    #[prost(string, tag = "1")]
    pub ip: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PodSandboxNetworkStatus {
    #[prost(string, tag = "1")]
    pub ip: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "2")]
    pub additional_ips: ::prost::alloc::vec::Vec<PodIp>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Namespace {
    #[prost(message, optional, tag = "2")]
    pub options: ::core::option::Option<NamespaceOption>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct LinuxPodSandboxStatus {
    #[prost(message, optional, tag = "1")]
    pub namespaces: ::core::option::Option<Namespace>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PodSandboxStatus {
    #[prost(string, tag = "1")]
    pub id: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub metadata: ::core::option::Option<PodSandboxMetadata>,
    #[prost(enumeration = "PodSandboxState", tag = "3")]
    pub state: i32,
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    #[prost(message, optional, tag = "5")]
    pub network: ::core::option::Option<PodSandboxNetworkStatus>,
    #[prost(message, optional, tag = "6")]
    pub linux: ::core::option::Option<LinuxPodSandboxStatus>,
    #[prost(btree_map = "string, string", tag = "7")]
    pub labels: ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub annotations:
        ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(string, tag = "9")]
    pub runtime_handler: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PodSandboxStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub status: ::core::option::Option<PodSandboxStatus>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub info: ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(message, repeated, tag = "3")]
    pub containers_statuses: ::prost::alloc::vec::Vec<ContainerStatus>,
    #[prost(int64, tag = "4")]
    pub timestamp: i64,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct PodSandboxStateValue {
    #[prost(enumeration = "PodSandboxState", tag = "1")]
    pub state: i32,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PodSandboxFilter {
    #[prost(string, tag = "1")]
    pub id: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub state: ::core::option::Option<PodSandboxStateValue>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub label_selector:
        ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: ::core::option::Option<PodSandboxFilter>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PodSandbox {
    #[prost(string, tag = "1")]
    pub id: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub metadata: ::core::option::Option<PodSandboxMetadata>,
    #[prost(enumeration = "PodSandboxState", tag = "3")]
    pub state: i32,
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub annotations:
        ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(string, tag = "7")]
    pub runtime_handler: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    pub items: ::prost::alloc::vec::Vec<PodSandbox>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct StreamPodSandboxesRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: ::core::option::Option<PodSandboxFilter>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct StreamPodSandboxesResponse {
    #[prost(message, repeated, tag = "1")]
    pub pod_sandboxes: ::prost::alloc::vec::Vec<PodSandbox>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct PodSandboxStatsRequest {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PodSandboxStatsResponse {
    #[prost(message, optional, tag = "1")]
    pub stats: ::core::option::Option<PodSandboxStats>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PodSandboxStatsFilter {
    #[prost(string, tag = "1")]
    pub id: ::prost::alloc::string::String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub label_selector:
        ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListPodSandboxStatsRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: ::core::option::Option<PodSandboxStatsFilter>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListPodSandboxStatsResponse {
    #[prost(message, repeated, tag = "1")]
    pub stats: ::prost::alloc::vec::Vec<PodSandboxStats>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct StreamPodSandboxStatsRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: ::core::option::Option<PodSandboxStatsFilter>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct StreamPodSandboxStatsResponse {
    #[prost(message, repeated, tag = "1")]
    pub pod_sandbox_stats: ::prost::alloc::vec::Vec<PodSandboxStats>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PodSandboxAttributes {
    #[prost(string, tag = "1")]
    pub id: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub metadata: ::core::option::Option<PodSandboxMetadata>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub labels: ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub annotations:
        ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PodSandboxStats {
    #[prost(message, optional, tag = "1")]
    pub attributes: ::core::option::Option<PodSandboxAttributes>,
    #[prost(message, optional, tag = "2")]
    pub linux: ::core::option::Option<LinuxPodSandboxStats>,
    #[prost(message, optional, tag = "3")]
    pub windows: ::core::option::Option<WindowsPodSandboxStats>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct LinuxPodSandboxStats {
    #[prost(message, optional, tag = "1")]
    pub cpu: ::core::option::Option<CpuUsage>,
    #[prost(message, optional, tag = "2")]
    pub memory: ::core::option::Option<MemoryUsage>,
    #[prost(message, optional, tag = "3")]
    pub network: ::core::option::Option<NetworkUsage>,
    #[prost(message, optional, tag = "4")]
    pub process: ::core::option::Option<ProcessUsage>,
    #[prost(message, repeated, tag = "5")]
    pub containers: ::prost::alloc::vec::Vec<ContainerStats>,
    #[prost(message, optional, tag = "6")]
    pub io: ::core::option::Option<IoUsage>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct WindowsPodSandboxStats {
    #[prost(message, optional, tag = "1")]
    pub cpu: ::core::option::Option<WindowsCpuUsage>,
    #[prost(message, optional, tag = "2")]
    pub memory: ::core::option::Option<WindowsMemoryUsage>,
    #[prost(message, optional, tag = "3")]
    pub network: ::core::option::Option<WindowsNetworkUsage>,
    #[prost(message, optional, tag = "4")]
    pub process: ::core::option::Option<WindowsProcessUsage>,
    #[prost(message, repeated, tag = "5")]
    pub containers: ::prost::alloc::vec::Vec<WindowsContainerStats>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct NetworkUsage {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(message, optional, tag = "2")]
    pub default_interface: ::core::option::Option<NetworkInterfaceUsage>,
    #[prost(message, repeated, tag = "3")]
    pub interfaces: ::prost::alloc::vec::Vec<NetworkInterfaceUsage>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct WindowsNetworkUsage {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(message, optional, tag = "2")]
    pub default_interface: ::core::option::Option<WindowsNetworkInterfaceUsage>,
    #[prost(message, repeated, tag = "3")]
    pub interfaces: ::prost::alloc::vec::Vec<WindowsNetworkInterfaceUsage>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct NetworkInterfaceUsage {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub rx_bytes: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "3")]
    pub rx_errors: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "4")]
    pub tx_bytes: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "5")]
    pub tx_errors: ::core::option::Option<UInt64Value>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WindowsNetworkInterfaceUsage {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub rx_bytes: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "3")]
    pub rx_packets_dropped: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "4")]
    pub tx_bytes: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "5")]
    pub tx_packets_dropped: ::core::option::Option<UInt64Value>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ProcessUsage {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(message, optional, tag = "2")]
    pub process_count: ::core::option::Option<UInt64Value>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WindowsProcessUsage {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(message, optional, tag = "2")]
    pub process_count: ::core::option::Option<UInt64Value>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ImageSpec {
    #[prost(string, tag = "1")]
    pub image: ::prost::alloc::string::String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub annotations:
        ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(string, tag = "18")]
    pub user_specified_image: ::prost::alloc::string::String,
    #[prost(string, tag = "19")]
    pub runtime_handler: ::prost::alloc::string::String,
    #[prost(string, tag = "20")]
    pub image_ref: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: ::prost::alloc::string::String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: ::prost::alloc::vec::Vec<u8>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct LinuxContainerResources {
    #[prost(int64, tag = "1")]
    pub cpu_period: i64,
    #[prost(int64, tag = "2")]
    pub cpu_quota: i64,
    #[prost(int64, tag = "3")]
    pub cpu_shares: i64,
    #[prost(int64, tag = "4")]
    pub memory_limit_in_bytes: i64,
    #[prost(int64, tag = "5")]
    pub oom_score_adj: i64,
    #[prost(string, tag = "6")]
    pub cpuset_cpus: ::prost::alloc::string::String,
    #[prost(string, tag = "7")]
    pub cpuset_mems: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "8")]
    pub hugepage_limits: ::prost::alloc::vec::Vec<HugepageLimit>,
    #[prost(btree_map = "string, string", tag = "9")]
    pub unified: ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(int64, tag = "10")]
    pub memory_swap_limit_in_bytes: i64,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct HugepageLimit {
    #[prost(string, tag = "1")]
    pub page_size: ::prost::alloc::string::String,
    #[prost(uint64, tag = "2")]
    pub limit: u64,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct SeLinuxOption {
    #[prost(string, tag = "1")]
    pub user: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub role: ::prost::alloc::string::String,
    #[prost(string, tag = "3")]
    pub r#type: ::prost::alloc::string::String,
    #[prost(string, tag = "4")]
    pub level: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Capability {
    #[prost(string, repeated, tag = "1")]
    pub add_capabilities: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, repeated, tag = "2")]
    pub drop_capabilities: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, repeated, tag = "3")]
    pub add_ambient_capabilities: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct LinuxContainerSecurityContext {
    #[prost(message, optional, tag = "1")]
    pub capabilities: ::core::option::Option<Capability>,
    #[prost(bool, tag = "2")]
    pub privileged: bool,
    #[prost(message, optional, tag = "3")]
    pub namespace_options: ::core::option::Option<NamespaceOption>,
    #[prost(message, optional, tag = "4")]
    pub selinux_options: ::core::option::Option<SeLinuxOption>,
    #[prost(message, optional, tag = "5")]
    pub run_as_user: ::core::option::Option<Int64Value>,
    #[prost(message, optional, tag = "12")]
    pub run_as_group: ::core::option::Option<Int64Value>,
    #[prost(string, tag = "6")]
    pub run_as_username: ::prost::alloc::string::String,
    #[prost(bool, tag = "7")]
    pub readonly_rootfs: bool,
    #[prost(int64, repeated, tag = "8")]
    pub supplemental_groups: ::prost::alloc::vec::Vec<i64>,
    #[prost(enumeration = "SupplementalGroupsPolicy", tag = "17")]
    pub supplemental_groups_policy: i32,
    #[prost(bool, tag = "11")]
    pub no_new_privs: bool,
    #[prost(string, repeated, tag = "13")]
    pub masked_paths: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, repeated, tag = "14")]
    pub readonly_paths: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(message, optional, tag = "15")]
    pub seccomp: ::core::option::Option<SecurityProfile>,
    #[prost(message, optional, tag = "16")]
    pub apparmor: ::core::option::Option<SecurityProfile>,
    #[deprecated]
    #[prost(string, tag = "9")]
    pub apparmor_profile: ::prost::alloc::string::String,
    #[deprecated]
    #[prost(string, tag = "10")]
    pub seccomp_profile_path: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct LinuxContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub resources: ::core::option::Option<LinuxContainerResources>,
    #[prost(message, optional, tag = "2")]
    pub security_context: ::core::option::Option<LinuxContainerSecurityContext>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct LinuxContainerUser {
    #[prost(int64, tag = "1")]
    pub uid: i64,
    #[prost(int64, tag = "2")]
    pub gid: i64,
    #[prost(int64, repeated, tag = "3")]
    pub supplemental_groups: ::prost::alloc::vec::Vec<i64>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WindowsNamespaceOption {
    #[prost(enumeration = "NamespaceMode", tag = "1")]
    pub network: i32,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WindowsSandboxSecurityContext {
    #[prost(string, tag = "1")]
    pub run_as_username: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub credential_spec: ::prost::alloc::string::String,
    #[prost(bool, tag = "3")]
    pub host_process: bool,
    #[prost(message, optional, tag = "4")]
    pub namespace_options: ::core::option::Option<WindowsNamespaceOption>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WindowsPodSandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub security_context: ::core::option::Option<WindowsSandboxSecurityContext>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WindowsContainerSecurityContext {
    #[prost(string, tag = "1")]
    pub run_as_username: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub credential_spec: ::prost::alloc::string::String,
    #[prost(bool, tag = "3")]
    pub host_process: bool,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct WindowsContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub resources: ::core::option::Option<WindowsContainerResources>,
    #[prost(message, optional, tag = "2")]
    pub security_context: ::core::option::Option<WindowsContainerSecurityContext>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct WindowsContainerResources {
    #[prost(int64, tag = "1")]
    pub cpu_shares: i64,
    #[prost(int64, tag = "2")]
    pub cpu_count: i64,
    #[prost(int64, tag = "3")]
    pub cpu_maximum: i64,
    #[prost(int64, tag = "4")]
    pub memory_limit_in_bytes: i64,
    #[prost(int64, tag = "5")]
    pub rootfs_size_in_bytes: i64,
    #[prost(message, repeated, tag = "6")]
    pub affinity_cpus: ::prost::alloc::vec::Vec<WindowsCpuGroupAffinity>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WindowsCpuGroupAffinity {
    #[prost(uint64, tag = "1")]
    pub cpu_mask: u64,
    #[prost(uint32, tag = "2")]
    pub cpu_group: u32,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(uint32, tag = "2")]
    pub attempt: u32,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Device {
    #[prost(string, tag = "1")]
    pub container_path: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub host_path: ::prost::alloc::string::String,
    #[prost(string, tag = "3")]
    pub permissions: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct CdiDevice {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub metadata: ::core::option::Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub image: ::core::option::Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    pub command: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, repeated, tag = "4")]
    pub args: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, tag = "5")]
    pub working_dir: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "6")]
    pub envs: ::prost::alloc::vec::Vec<KeyValue>,
    #[prost(message, repeated, tag = "7")]
    pub mounts: ::prost::alloc::vec::Vec<Mount>,
    #[prost(message, repeated, tag = "8")]
    pub devices: ::prost::alloc::vec::Vec<Device>,
    #[prost(btree_map = "string, string", tag = "9")]
    pub labels: ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(btree_map = "string, string", tag = "10")]
    pub annotations:
        ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(string, tag = "11")]
    pub log_path: ::prost::alloc::string::String,
    #[prost(bool, tag = "12")]
    pub stdin: bool,
    #[prost(bool, tag = "13")]
    pub stdin_once: bool,
    #[prost(bool, tag = "14")]
    pub tty: bool,
    #[prost(message, optional, tag = "15")]
    pub linux: ::core::option::Option<LinuxContainerConfig>,
    #[prost(message, optional, tag = "16")]
    pub windows: ::core::option::Option<WindowsContainerConfig>,
    #[prost(message, repeated, tag = "17")]
    pub cdi_devices: ::prost::alloc::vec::Vec<CdiDevice>,
    #[prost(enumeration = "Signal", tag = "18")]
    pub stop_signal: i32,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct CreateContainerRequest {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub config: ::core::option::Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pub sandbox_config: ::core::option::Option<PodSandboxConfig>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct CreateContainerResponse {
    #[prost(string, tag = "1")]
    pub container_id: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct StartContainerRequest {
    #[prost(string, tag = "1")]
    pub container_id: ::prost::alloc::string::String,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct StartContainerResponse {}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct StopContainerRequest {
    #[prost(string, tag = "1")]
    pub container_id: ::prost::alloc::string::String,
    #[prost(int64, tag = "2")]
    pub timeout: i64,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct StopContainerResponse {}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RemoveContainerRequest {
    #[prost(string, tag = "1")]
    pub container_id: ::prost::alloc::string::String,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RemoveContainerResponse {}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ContainerStateValue {
    #[prost(enumeration = "ContainerState", tag = "1")]
    pub state: i32,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ContainerFilter {
    #[prost(string, tag = "1")]
    pub id: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub state: ::core::option::Option<ContainerStateValue>,
    #[prost(string, tag = "3")]
    pub pod_sandbox_id: ::prost::alloc::string::String,
    #[prost(btree_map = "string, string", tag = "4")]
    pub label_selector:
        ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListContainersRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: ::core::option::Option<ContainerFilter>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Container {
    #[prost(string, tag = "1")]
    pub id: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "3")]
    pub metadata: ::core::option::Option<ContainerMetadata>,
    #[prost(message, optional, tag = "4")]
    pub image: ::core::option::Option<ImageSpec>,
    #[prost(string, tag = "5")]
    pub image_ref: ::prost::alloc::string::String,
    #[prost(enumeration = "ContainerState", tag = "6")]
    pub state: i32,
    #[prost(int64, tag = "7")]
    pub created_at: i64,
    #[prost(btree_map = "string, string", tag = "8")]
    pub labels: ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(btree_map = "string, string", tag = "9")]
    pub annotations:
        ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(string, tag = "10")]
    pub image_id: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListContainersResponse {
    #[prost(message, repeated, tag = "1")]
    pub containers: ::prost::alloc::vec::Vec<Container>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct StreamContainersRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: ::core::option::Option<ContainerFilter>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct StreamContainersResponse {
    #[prost(message, repeated, tag = "1")]
    pub containers: ::prost::alloc::vec::Vec<Container>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ContainerStatusRequest {
    #[prost(string, tag = "1")]
    pub container_id: ::prost::alloc::string::String,
    #[prost(bool, tag = "2")]
    pub verbose: bool,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ContainerStatus {
    #[prost(string, tag = "1")]
    pub id: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub metadata: ::core::option::Option<ContainerMetadata>,
    #[prost(enumeration = "ContainerState", tag = "3")]
    pub state: i32,
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    #[prost(int64, tag = "5")]
    pub started_at: i64,
    #[prost(int64, tag = "6")]
    pub finished_at: i64,
    #[prost(int32, tag = "7")]
    pub exit_code: i32,
    #[prost(message, optional, tag = "8")]
    pub image: ::core::option::Option<ImageSpec>,
    #[prost(string, tag = "9")]
    pub image_ref: ::prost::alloc::string::String,
    #[prost(string, tag = "10")]
    pub reason: ::prost::alloc::string::String,
    #[prost(string, tag = "11")]
    pub message: ::prost::alloc::string::String,
    #[prost(btree_map = "string, string", tag = "12")]
    pub labels: ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(btree_map = "string, string", tag = "13")]
    pub annotations:
        ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(message, repeated, tag = "14")]
    pub mounts: ::prost::alloc::vec::Vec<Mount>,
    #[prost(string, tag = "15")]
    pub log_path: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "16")]
    pub resources: ::core::option::Option<ContainerResources>,
    #[prost(string, tag = "17")]
    pub image_id: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "18")]
    pub user: ::core::option::Option<ContainerUser>,
    #[prost(enumeration = "Signal", tag = "19")]
    pub stop_signal: i32,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ContainerStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub status: ::core::option::Option<ContainerStatus>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub info: ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ContainerResources {
    #[prost(message, optional, tag = "1")]
    pub linux: ::core::option::Option<LinuxContainerResources>,
    #[prost(message, optional, tag = "2")]
    pub windows: ::core::option::Option<WindowsContainerResources>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ContainerUser {
    #[prost(message, optional, tag = "1")]
    pub linux: ::core::option::Option<LinuxContainerUser>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct UpdateContainerResourcesRequest {
    #[prost(string, tag = "1")]
    pub container_id: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub linux: ::core::option::Option<LinuxContainerResources>,
    #[prost(message, optional, tag = "3")]
    pub windows: ::core::option::Option<WindowsContainerResources>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub annotations:
        ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct UpdateContainerResourcesResponse {}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ExecSyncRequest {
    #[prost(string, tag = "1")]
    pub container_id: ::prost::alloc::string::String,
    #[prost(string, repeated, tag = "2")]
    pub cmd: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(int64, tag = "3")]
    pub timeout: i64,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ExecSyncResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub stdout: ::prost::alloc::vec::Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub stderr: ::prost::alloc::vec::Vec<u8>,
    #[prost(int32, tag = "3")]
    pub exit_code: i32,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ExecRequest {
    #[prost(string, tag = "1")]
    pub container_id: ::prost::alloc::string::String,
    #[prost(string, repeated, tag = "2")]
    pub cmd: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(bool, tag = "3")]
    pub tty: bool,
    #[prost(bool, tag = "4")]
    pub stdin: bool,
    #[prost(bool, tag = "5")]
    pub stdout: bool,
    #[prost(bool, tag = "6")]
    pub stderr: bool,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ExecResponse {
    #[prost(string, tag = "1")]
    pub url: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct AttachRequest {
    #[prost(string, tag = "1")]
    pub container_id: ::prost::alloc::string::String,
    #[prost(bool, tag = "2")]
    pub stdin: bool,
    #[prost(bool, tag = "3")]
    pub tty: bool,
    #[prost(bool, tag = "4")]
    pub stdout: bool,
    #[prost(bool, tag = "5")]
    pub stderr: bool,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct AttachResponse {
    #[prost(string, tag = "1")]
    pub url: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct PortForwardRequest {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: ::prost::alloc::string::String,
    #[prost(int32, repeated, tag = "2")]
    pub port: ::prost::alloc::vec::Vec<i32>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct PortForwardResponse {
    #[prost(string, tag = "1")]
    pub url: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ImageFilter {
    #[prost(message, optional, tag = "1")]
    pub image: ::core::option::Option<ImageSpec>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListImagesRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: ::core::option::Option<ImageFilter>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Image {
    #[prost(string, tag = "1")]
    pub id: ::prost::alloc::string::String,
    #[prost(string, repeated, tag = "2")]
    pub repo_tags: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(string, repeated, tag = "3")]
    pub repo_digests: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(uint64, tag = "4")]
    pub size: u64,
    #[prost(message, optional, tag = "5")]
    pub uid: ::core::option::Option<Int64Value>,
    #[prost(string, tag = "6")]
    pub username: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "7")]
    pub spec: ::core::option::Option<ImageSpec>,
    #[prost(bool, tag = "8")]
    pub pinned: bool,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListImagesResponse {
    #[prost(message, repeated, tag = "1")]
    pub images: ::prost::alloc::vec::Vec<Image>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct StreamImagesRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: ::core::option::Option<ImageFilter>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct StreamImagesResponse {
    #[prost(message, repeated, tag = "1")]
    pub images: ::prost::alloc::vec::Vec<Image>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ImageStatusRequest {
    #[prost(message, optional, tag = "1")]
    pub image: ::core::option::Option<ImageSpec>,
    #[prost(bool, tag = "2")]
    pub verbose: bool,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ImageStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub image: ::core::option::Option<Image>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub info: ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
#[prost(skip_debug)]
pub struct AuthConfig {
    #[prost(string, tag = "1")]
    pub username: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub password: ::prost::alloc::string::String,
    #[prost(string, tag = "3")]
    pub auth: ::prost::alloc::string::String,
    #[prost(string, tag = "4")]
    pub server_address: ::prost::alloc::string::String,
    #[prost(string, tag = "5")]
    pub identity_token: ::prost::alloc::string::String,
    #[prost(string, tag = "6")]
    pub registry_token: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PullImageRequest {
    #[prost(message, optional, tag = "1")]
    pub image: ::core::option::Option<ImageSpec>,
    #[prost(message, optional, tag = "2")]
    pub auth: ::core::option::Option<AuthConfig>,
    #[prost(message, optional, tag = "3")]
    pub sandbox_config: ::core::option::Option<PodSandboxConfig>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct PullImageResponse {
    #[prost(string, tag = "1")]
    pub image_ref: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct RemoveImageRequest {
    #[prost(message, optional, tag = "1")]
    pub image: ::core::option::Option<ImageSpec>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RemoveImageResponse {}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct NetworkConfig {
    #[prost(string, tag = "1")]
    pub pod_cidr: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RuntimeConfig {
    #[prost(message, optional, tag = "1")]
    pub network_config: ::core::option::Option<NetworkConfig>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct UpdateRuntimeConfigRequest {
    #[prost(message, optional, tag = "1")]
    pub runtime_config: ::core::option::Option<RuntimeConfig>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct UpdateRuntimeConfigResponse {}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RuntimeCondition {
    #[prost(string, tag = "1")]
    pub r#type: ::prost::alloc::string::String,
    #[prost(bool, tag = "2")]
    pub status: bool,
    #[prost(string, tag = "3")]
    pub reason: ::prost::alloc::string::String,
    #[prost(string, tag = "4")]
    pub message: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct RuntimeStatus {
    #[prost(message, repeated, tag = "1")]
    pub conditions: ::prost::alloc::vec::Vec<RuntimeCondition>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct StatusRequest {
    #[prost(bool, tag = "1")]
    pub verbose: bool,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RuntimeHandlerFeatures {
    #[prost(bool, tag = "1")]
    pub recursive_read_only_mounts: bool,
    #[prost(bool, tag = "2")]
    pub user_namespaces: bool,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RuntimeHandler {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub features: ::core::option::Option<RuntimeHandlerFeatures>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RuntimeFeatures {
    #[prost(bool, tag = "1")]
    pub supplemental_groups_policy: bool,
    #[prost(bool, tag = "2")]
    pub user_namespaces_host_network: bool,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub status: ::core::option::Option<RuntimeStatus>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub info: ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(message, repeated, tag = "3")]
    pub runtime_handlers: ::prost::alloc::vec::Vec<RuntimeHandler>,
    #[prost(message, optional, tag = "4")]
    pub features: ::core::option::Option<RuntimeFeatures>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ImageFsInfoRequest {}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct UInt64Value {
    #[prost(uint64, tag = "1")]
    pub value: u64,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct FilesystemIdentifier {
    #[prost(string, tag = "1")]
    pub mountpoint: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct FilesystemUsage {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(message, optional, tag = "2")]
    pub fs_id: ::core::option::Option<FilesystemIdentifier>,
    #[prost(message, optional, tag = "3")]
    pub used_bytes: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "4")]
    pub inodes_used: ::core::option::Option<UInt64Value>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WindowsFilesystemUsage {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(message, optional, tag = "2")]
    pub fs_id: ::core::option::Option<FilesystemIdentifier>,
    #[prost(message, optional, tag = "3")]
    pub used_bytes: ::core::option::Option<UInt64Value>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ImageFsInfoResponse {
    #[prost(message, repeated, tag = "1")]
    pub image_filesystems: ::prost::alloc::vec::Vec<FilesystemUsage>,
    #[prost(message, repeated, tag = "2")]
    pub container_filesystems: ::prost::alloc::vec::Vec<FilesystemUsage>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ContainerStatsRequest {
    #[prost(string, tag = "1")]
    pub container_id: ::prost::alloc::string::String,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ContainerStatsResponse {
    #[prost(message, optional, tag = "1")]
    pub stats: ::core::option::Option<ContainerStats>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListContainerStatsRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: ::core::option::Option<ContainerStatsFilter>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ContainerStatsFilter {
    #[prost(string, tag = "1")]
    pub id: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: ::prost::alloc::string::String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub label_selector:
        ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListContainerStatsResponse {
    #[prost(message, repeated, tag = "1")]
    pub stats: ::prost::alloc::vec::Vec<ContainerStats>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct StreamContainerStatsRequest {
    #[prost(message, optional, tag = "1")]
    pub filter: ::core::option::Option<ContainerStatsFilter>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct StreamContainerStatsResponse {
    #[prost(message, repeated, tag = "1")]
    pub container_stats: ::prost::alloc::vec::Vec<ContainerStats>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ContainerAttributes {
    #[prost(string, tag = "1")]
    pub id: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub metadata: ::core::option::Option<ContainerMetadata>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub labels: ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub annotations:
        ::prost::alloc::collections::BTreeMap<::prost::alloc::string::String, ::prost::alloc::string::String>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ContainerStats {
    #[prost(message, optional, tag = "1")]
    pub attributes: ::core::option::Option<ContainerAttributes>,
    #[prost(message, optional, tag = "2")]
    pub cpu: ::core::option::Option<CpuUsage>,
    #[prost(message, optional, tag = "3")]
    pub memory: ::core::option::Option<MemoryUsage>,
    #[prost(message, optional, tag = "4")]
    pub writable_layer: ::core::option::Option<FilesystemUsage>,
    #[prost(message, optional, tag = "5")]
    pub swap: ::core::option::Option<SwapUsage>,
    #[prost(message, optional, tag = "6")]
    pub io: ::core::option::Option<IoUsage>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct WindowsContainerStats {
    #[prost(message, optional, tag = "1")]
    pub attributes: ::core::option::Option<ContainerAttributes>,
    #[prost(message, optional, tag = "2")]
    pub cpu: ::core::option::Option<WindowsCpuUsage>,
    #[prost(message, optional, tag = "3")]
    pub memory: ::core::option::Option<WindowsMemoryUsage>,
    #[prost(message, optional, tag = "4")]
    pub writable_layer: ::core::option::Option<WindowsFilesystemUsage>,
}
#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct PsiStats {
    #[prost(message, optional, tag = "1")]
    pub full: ::core::option::Option<PsiData>,
    #[prost(message, optional, tag = "2")]
    pub some: ::core::option::Option<PsiData>,
}
#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct PsiData {
    #[prost(uint64, tag = "1")]
    pub total: u64,
    #[prost(double, tag = "2")]
    pub avg10: f64,
    #[prost(double, tag = "3")]
    pub avg60: f64,
    #[prost(double, tag = "4")]
    pub avg300: f64,
}
#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct CpuUsage {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(message, optional, tag = "2")]
    pub usage_core_nano_seconds: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "3")]
    pub usage_nano_cores: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "4")]
    pub psi: ::core::option::Option<PsiStats>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WindowsCpuUsage {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(message, optional, tag = "2")]
    pub usage_core_nano_seconds: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "3")]
    pub usage_nano_cores: ::core::option::Option<UInt64Value>,
}
#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct MemoryUsage {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(message, optional, tag = "2")]
    pub working_set_bytes: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "3")]
    pub available_bytes: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "4")]
    pub usage_bytes: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "5")]
    pub rss_bytes: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "6")]
    pub page_faults: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "7")]
    pub major_page_faults: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "8")]
    pub psi: ::core::option::Option<PsiStats>,
}
#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct IoUsage {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(message, optional, tag = "2")]
    pub psi: ::core::option::Option<PsiStats>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct SwapUsage {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(message, optional, tag = "2")]
    pub swap_available_bytes: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "3")]
    pub swap_usage_bytes: ::core::option::Option<UInt64Value>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct WindowsMemoryUsage {
    #[prost(int64, tag = "1")]
    pub timestamp: i64,
    #[prost(message, optional, tag = "2")]
    pub working_set_bytes: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "3")]
    pub available_bytes: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "4")]
    pub page_faults: ::core::option::Option<UInt64Value>,
    #[prost(message, optional, tag = "5")]
    pub commit_memory_bytes: ::core::option::Option<UInt64Value>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ReopenContainerLogRequest {
    #[prost(string, tag = "1")]
    pub container_id: ::prost::alloc::string::String,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ReopenContainerLogResponse {}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct CheckpointContainerRequest {
    #[prost(string, tag = "1")]
    pub container_id: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub location: ::prost::alloc::string::String,
    #[prost(int64, tag = "3")]
    pub timeout: i64,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct CheckpointContainerResponse {}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct GetEventsRequest {}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ContainerEventResponse {
    #[prost(string, tag = "1")]
    pub container_id: ::prost::alloc::string::String,
    #[prost(enumeration = "ContainerEventType", tag = "2")]
    pub container_event_type: i32,
    #[prost(int64, tag = "3")]
    pub created_at: i64,
    #[prost(message, optional, tag = "4")]
    pub pod_sandbox_status: ::core::option::Option<PodSandboxStatus>,
    #[prost(message, repeated, tag = "5")]
    pub containers_statuses: ::prost::alloc::vec::Vec<ContainerStatus>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ListMetricDescriptorsRequest {}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListMetricDescriptorsResponse {
    #[prost(message, repeated, tag = "1")]
    pub descriptors: ::prost::alloc::vec::Vec<MetricDescriptor>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct MetricDescriptor {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(string, tag = "2")]
    pub help: ::prost::alloc::string::String,
    #[prost(string, repeated, tag = "3")]
    pub label_keys: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct ListPodSandboxMetricsRequest {}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListPodSandboxMetricsResponse {
    #[prost(message, repeated, tag = "1")]
    pub pod_metrics: ::prost::alloc::vec::Vec<PodSandboxMetrics>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct StreamPodSandboxMetricsRequest {}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct StreamPodSandboxMetricsResponse {
    #[prost(message, repeated, tag = "1")]
    pub pod_sandbox_metrics: ::prost::alloc::vec::Vec<PodSandboxMetrics>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PodSandboxMetrics {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "2")]
    pub metrics: ::prost::alloc::vec::Vec<Metric>,
    #[prost(message, repeated, tag = "3")]
    pub container_metrics: ::prost::alloc::vec::Vec<ContainerMetrics>,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ContainerMetrics {
    #[prost(string, tag = "1")]
    pub container_id: ::prost::alloc::string::String,
    #[prost(message, repeated, tag = "2")]
    pub metrics: ::prost::alloc::vec::Vec<Metric>,
}
#[derive(Clone, PartialEq, Eq, Hash, ::prost::Message)]
pub struct Metric {
    #[prost(string, tag = "1")]
    pub name: ::prost::alloc::string::String,
    #[prost(int64, tag = "2")]
    pub timestamp: i64,
    #[prost(enumeration = "MetricType", tag = "3")]
    pub metric_type: i32,
    #[prost(string, repeated, tag = "4")]
    pub label_values: ::prost::alloc::vec::Vec<::prost::alloc::string::String>,
    #[prost(message, optional, tag = "5")]
    pub value: ::core::option::Option<UInt64Value>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RuntimeConfigRequest {}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct RuntimeConfigResponse {
    #[prost(message, optional, tag = "1")]
    pub linux: ::core::option::Option<LinuxRuntimeConfiguration>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct LinuxRuntimeConfiguration {
    #[prost(enumeration = "CgroupDriver", tag = "1")]
    pub cgroup_driver: i32,
}
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct UpdatePodSandboxResourcesRequest {
    #[prost(string, tag = "1")]
    pub pod_sandbox_id: ::prost::alloc::string::String,
    #[prost(message, optional, tag = "2")]
    pub overhead: ::core::option::Option<LinuxContainerResources>,
    #[prost(message, optional, tag = "3")]
    pub resources: ::core::option::Option<LinuxContainerResources>,
}
#[derive(Clone, Copy, PartialEq, Eq, Hash, ::prost::Message)]
pub struct UpdatePodSandboxResourcesResponse {}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum Protocol {
    Tcp = 0,
    Udp = 1,
    Sctp = 2,
}
impl Protocol {
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum MountPropagation {
    PropagationPrivate = 0,
    PropagationHostToContainer = 1,
    PropagationBidirectional = 2,
}
impl MountPropagation {
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::PropagationPrivate => "PROPAGATION_PRIVATE",
            Self::PropagationHostToContainer => "PROPAGATION_HOST_TO_CONTAINER",
            Self::PropagationBidirectional => "PROPAGATION_BIDIRECTIONAL",
        }
    }
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "PROPAGATION_PRIVATE" => Some(Self::PropagationPrivate),
            "PROPAGATION_HOST_TO_CONTAINER" => Some(Self::PropagationHostToContainer),
            "PROPAGATION_BIDIRECTIONAL" => Some(Self::PropagationBidirectional),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum NamespaceMode {
    Pod = 0,
    Container = 1,
    Node = 2,
    Target = 3,
}
impl NamespaceMode {
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Pod => "POD",
            Self::Container => "CONTAINER",
            Self::Node => "NODE",
            Self::Target => "TARGET",
        }
    }
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "POD" => Some(Self::Pod),
            "CONTAINER" => Some(Self::Container),
            "NODE" => Some(Self::Node),
            "TARGET" => Some(Self::Target),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum SupplementalGroupsPolicy {
    Merge = 0,
    Strict = 1,
}
impl SupplementalGroupsPolicy {
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Merge => "Merge",
            Self::Strict => "Strict",
        }
    }
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "Merge" => Some(Self::Merge),
            "Strict" => Some(Self::Strict),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum PodSandboxState {
    SandboxReady = 0,
    SandboxNotready = 1,
}
impl PodSandboxState {
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::SandboxReady => "SANDBOX_READY",
            Self::SandboxNotready => "SANDBOX_NOTREADY",
        }
    }
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "SANDBOX_READY" => Some(Self::SandboxReady),
            "SANDBOX_NOTREADY" => Some(Self::SandboxNotready),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum Signal {
    RuntimeDefault = 0,
    Sigabrt = 1,
    Sigalrm = 2,
    Sigbus = 3,
    Sigchld = 4,
    Sigcld = 5,
    Sigcont = 6,
    Sigfpe = 7,
    Sighup = 8,
    Sigill = 9,
    Sigint = 10,
    Sigio = 11,
    Sigiot = 12,
    Sigkill = 13,
    Sigpipe = 14,
    Sigpoll = 15,
    Sigprof = 16,
    Sigpwr = 17,
    Sigquit = 18,
    Sigsegv = 19,
    Sigstkflt = 20,
    Sigstop = 21,
    Sigsys = 22,
    Sigterm = 23,
    Sigtrap = 24,
    Sigtstp = 25,
    Sigttin = 26,
    Sigttou = 27,
    Sigurg = 28,
    Sigusr1 = 29,
    Sigusr2 = 30,
    Sigvtalrm = 31,
    Sigwinch = 32,
    Sigxcpu = 33,
    Sigxfsz = 34,
    Sigrtmin = 35,
    Sigrtminplus1 = 36,
    Sigrtminplus2 = 37,
    Sigrtminplus3 = 38,
    Sigrtminplus4 = 39,
    Sigrtminplus5 = 40,
    Sigrtminplus6 = 41,
    Sigrtminplus7 = 42,
    Sigrtminplus8 = 43,
    Sigrtminplus9 = 44,
    Sigrtminplus10 = 45,
    Sigrtminplus11 = 46,
    Sigrtminplus12 = 47,
    Sigrtminplus13 = 48,
    Sigrtminplus14 = 49,
    Sigrtminplus15 = 50,
    Sigrtmaxminus14 = 51,
    Sigrtmaxminus13 = 52,
    Sigrtmaxminus12 = 53,
    Sigrtmaxminus11 = 54,
    Sigrtmaxminus10 = 55,
    Sigrtmaxminus9 = 56,
    Sigrtmaxminus8 = 57,
    Sigrtmaxminus7 = 58,
    Sigrtmaxminus6 = 59,
    Sigrtmaxminus5 = 60,
    Sigrtmaxminus4 = 61,
    Sigrtmaxminus3 = 62,
    Sigrtmaxminus2 = 63,
    Sigrtmaxminus1 = 64,
    Sigrtmax = 65,
}
impl Signal {
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::RuntimeDefault => "RUNTIME_DEFAULT",
            Self::Sigabrt => "SIGABRT",
            Self::Sigalrm => "SIGALRM",
            Self::Sigbus => "SIGBUS",
            Self::Sigchld => "SIGCHLD",
            Self::Sigcld => "SIGCLD",
            Self::Sigcont => "SIGCONT",
            Self::Sigfpe => "SIGFPE",
            Self::Sighup => "SIGHUP",
            Self::Sigill => "SIGILL",
            Self::Sigint => "SIGINT",
            Self::Sigio => "SIGIO",
            Self::Sigiot => "SIGIOT",
            Self::Sigkill => "SIGKILL",
            Self::Sigpipe => "SIGPIPE",
            Self::Sigpoll => "SIGPOLL",
            Self::Sigprof => "SIGPROF",
            Self::Sigpwr => "SIGPWR",
            Self::Sigquit => "SIGQUIT",
            Self::Sigsegv => "SIGSEGV",
            Self::Sigstkflt => "SIGSTKFLT",
            Self::Sigstop => "SIGSTOP",
            Self::Sigsys => "SIGSYS",
            Self::Sigterm => "SIGTERM",
            Self::Sigtrap => "SIGTRAP",
            Self::Sigtstp => "SIGTSTP",
            Self::Sigttin => "SIGTTIN",
            Self::Sigttou => "SIGTTOU",
            Self::Sigurg => "SIGURG",
            Self::Sigusr1 => "SIGUSR1",
            Self::Sigusr2 => "SIGUSR2",
            Self::Sigvtalrm => "SIGVTALRM",
            Self::Sigwinch => "SIGWINCH",
            Self::Sigxcpu => "SIGXCPU",
            Self::Sigxfsz => "SIGXFSZ",
            Self::Sigrtmin => "SIGRTMIN",
            Self::Sigrtminplus1 => "SIGRTMINPLUS1",
            Self::Sigrtminplus2 => "SIGRTMINPLUS2",
            Self::Sigrtminplus3 => "SIGRTMINPLUS3",
            Self::Sigrtminplus4 => "SIGRTMINPLUS4",
            Self::Sigrtminplus5 => "SIGRTMINPLUS5",
            Self::Sigrtminplus6 => "SIGRTMINPLUS6",
            Self::Sigrtminplus7 => "SIGRTMINPLUS7",
            Self::Sigrtminplus8 => "SIGRTMINPLUS8",
            Self::Sigrtminplus9 => "SIGRTMINPLUS9",
            Self::Sigrtminplus10 => "SIGRTMINPLUS10",
            Self::Sigrtminplus11 => "SIGRTMINPLUS11",
            Self::Sigrtminplus12 => "SIGRTMINPLUS12",
            Self::Sigrtminplus13 => "SIGRTMINPLUS13",
            Self::Sigrtminplus14 => "SIGRTMINPLUS14",
            Self::Sigrtminplus15 => "SIGRTMINPLUS15",
            Self::Sigrtmaxminus14 => "SIGRTMAXMINUS14",
            Self::Sigrtmaxminus13 => "SIGRTMAXMINUS13",
            Self::Sigrtmaxminus12 => "SIGRTMAXMINUS12",
            Self::Sigrtmaxminus11 => "SIGRTMAXMINUS11",
            Self::Sigrtmaxminus10 => "SIGRTMAXMINUS10",
            Self::Sigrtmaxminus9 => "SIGRTMAXMINUS9",
            Self::Sigrtmaxminus8 => "SIGRTMAXMINUS8",
            Self::Sigrtmaxminus7 => "SIGRTMAXMINUS7",
            Self::Sigrtmaxminus6 => "SIGRTMAXMINUS6",
            Self::Sigrtmaxminus5 => "SIGRTMAXMINUS5",
            Self::Sigrtmaxminus4 => "SIGRTMAXMINUS4",
            Self::Sigrtmaxminus3 => "SIGRTMAXMINUS3",
            Self::Sigrtmaxminus2 => "SIGRTMAXMINUS2",
            Self::Sigrtmaxminus1 => "SIGRTMAXMINUS1",
            Self::Sigrtmax => "SIGRTMAX",
        }
    }
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "RUNTIME_DEFAULT" => Some(Self::RuntimeDefault),
            "SIGABRT" => Some(Self::Sigabrt),
            "SIGALRM" => Some(Self::Sigalrm),
            "SIGBUS" => Some(Self::Sigbus),
            "SIGCHLD" => Some(Self::Sigchld),
            "SIGCLD" => Some(Self::Sigcld),
            "SIGCONT" => Some(Self::Sigcont),
            "SIGFPE" => Some(Self::Sigfpe),
            "SIGHUP" => Some(Self::Sighup),
            "SIGILL" => Some(Self::Sigill),
            "SIGINT" => Some(Self::Sigint),
            "SIGIO" => Some(Self::Sigio),
            "SIGIOT" => Some(Self::Sigiot),
            "SIGKILL" => Some(Self::Sigkill),
            "SIGPIPE" => Some(Self::Sigpipe),
            "SIGPOLL" => Some(Self::Sigpoll),
            "SIGPROF" => Some(Self::Sigprof),
            "SIGPWR" => Some(Self::Sigpwr),
            "SIGQUIT" => Some(Self::Sigquit),
            "SIGSEGV" => Some(Self::Sigsegv),
            "SIGSTKFLT" => Some(Self::Sigstkflt),
            "SIGSTOP" => Some(Self::Sigstop),
            "SIGSYS" => Some(Self::Sigsys),
            "SIGTERM" => Some(Self::Sigterm),
            "SIGTRAP" => Some(Self::Sigtrap),
            "SIGTSTP" => Some(Self::Sigtstp),
            "SIGTTIN" => Some(Self::Sigttin),
            "SIGTTOU" => Some(Self::Sigttou),
            "SIGURG" => Some(Self::Sigurg),
            "SIGUSR1" => Some(Self::Sigusr1),
            "SIGUSR2" => Some(Self::Sigusr2),
            "SIGVTALRM" => Some(Self::Sigvtalrm),
            "SIGWINCH" => Some(Self::Sigwinch),
            "SIGXCPU" => Some(Self::Sigxcpu),
            "SIGXFSZ" => Some(Self::Sigxfsz),
            "SIGRTMIN" => Some(Self::Sigrtmin),
            "SIGRTMINPLUS1" => Some(Self::Sigrtminplus1),
            "SIGRTMINPLUS2" => Some(Self::Sigrtminplus2),
            "SIGRTMINPLUS3" => Some(Self::Sigrtminplus3),
            "SIGRTMINPLUS4" => Some(Self::Sigrtminplus4),
            "SIGRTMINPLUS5" => Some(Self::Sigrtminplus5),
            "SIGRTMINPLUS6" => Some(Self::Sigrtminplus6),
            "SIGRTMINPLUS7" => Some(Self::Sigrtminplus7),
            "SIGRTMINPLUS8" => Some(Self::Sigrtminplus8),
            "SIGRTMINPLUS9" => Some(Self::Sigrtminplus9),
            "SIGRTMINPLUS10" => Some(Self::Sigrtminplus10),
            "SIGRTMINPLUS11" => Some(Self::Sigrtminplus11),
            "SIGRTMINPLUS12" => Some(Self::Sigrtminplus12),
            "SIGRTMINPLUS13" => Some(Self::Sigrtminplus13),
            "SIGRTMINPLUS14" => Some(Self::Sigrtminplus14),
            "SIGRTMINPLUS15" => Some(Self::Sigrtminplus15),
            "SIGRTMAXMINUS14" => Some(Self::Sigrtmaxminus14),
            "SIGRTMAXMINUS13" => Some(Self::Sigrtmaxminus13),
            "SIGRTMAXMINUS12" => Some(Self::Sigrtmaxminus12),
            "SIGRTMAXMINUS11" => Some(Self::Sigrtmaxminus11),
            "SIGRTMAXMINUS10" => Some(Self::Sigrtmaxminus10),
            "SIGRTMAXMINUS9" => Some(Self::Sigrtmaxminus9),
            "SIGRTMAXMINUS8" => Some(Self::Sigrtmaxminus8),
            "SIGRTMAXMINUS7" => Some(Self::Sigrtmaxminus7),
            "SIGRTMAXMINUS6" => Some(Self::Sigrtmaxminus6),
            "SIGRTMAXMINUS5" => Some(Self::Sigrtmaxminus5),
            "SIGRTMAXMINUS4" => Some(Self::Sigrtmaxminus4),
            "SIGRTMAXMINUS3" => Some(Self::Sigrtmaxminus3),
            "SIGRTMAXMINUS2" => Some(Self::Sigrtmaxminus2),
            "SIGRTMAXMINUS1" => Some(Self::Sigrtmaxminus1),
            "SIGRTMAX" => Some(Self::Sigrtmax),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum ContainerState {
    ContainerCreated = 0,
    ContainerRunning = 1,
    ContainerExited = 2,
    ContainerUnknown = 3,
}
impl ContainerState {
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::ContainerCreated => "CONTAINER_CREATED",
            Self::ContainerRunning => "CONTAINER_RUNNING",
            Self::ContainerExited => "CONTAINER_EXITED",
            Self::ContainerUnknown => "CONTAINER_UNKNOWN",
        }
    }
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "CONTAINER_CREATED" => Some(Self::ContainerCreated),
            "CONTAINER_RUNNING" => Some(Self::ContainerRunning),
            "CONTAINER_EXITED" => Some(Self::ContainerExited),
            "CONTAINER_UNKNOWN" => Some(Self::ContainerUnknown),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum ContainerEventType {
    ContainerCreatedEvent = 0,
    ContainerStartedEvent = 1,
    ContainerStoppedEvent = 2,
    ContainerDeletedEvent = 3,
}
impl ContainerEventType {
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::ContainerCreatedEvent => "CONTAINER_CREATED_EVENT",
            Self::ContainerStartedEvent => "CONTAINER_STARTED_EVENT",
            Self::ContainerStoppedEvent => "CONTAINER_STOPPED_EVENT",
            Self::ContainerDeletedEvent => "CONTAINER_DELETED_EVENT",
        }
    }
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "CONTAINER_CREATED_EVENT" => Some(Self::ContainerCreatedEvent),
            "CONTAINER_STARTED_EVENT" => Some(Self::ContainerStartedEvent),
            "CONTAINER_STOPPED_EVENT" => Some(Self::ContainerStoppedEvent),
            "CONTAINER_DELETED_EVENT" => Some(Self::ContainerDeletedEvent),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum MetricType {
    Counter = 0,
    Gauge = 1,
}
impl MetricType {
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Counter => "COUNTER",
            Self::Gauge => "GAUGE",
        }
    }
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "COUNTER" => Some(Self::Counter),
            "GAUGE" => Some(Self::Gauge),
            _ => None,
        }
    }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum CgroupDriver {
    Systemd = 0,
    Cgroupfs = 1,
}
impl CgroupDriver {
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::Systemd => "SYSTEMD",
            Self::Cgroupfs => "CGROUPFS",
        }
    }
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "SYSTEMD" => Some(Self::Systemd),
            "CGROUPFS" => Some(Self::Cgroupfs),
            _ => None,
        }
    }
}
