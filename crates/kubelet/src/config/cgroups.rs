//! Configuration of pods' cgroups and of the cgroups that enforce the node's reservations.

/// The component that creates cgroups (`cgroupDriver`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupDriver {
    /// The kubelet creates directories in the cgroup file system.
    #[default]
    Cgroupfs,
    /// systemd creates slices. Required where systemd manages the hierarchy; the runtime must use the same driver.
    Systemd,
}

impl CgroupDriver {
    /// Name in configuration files and CRI.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }
}

/// Node allocatable enforcement (`enforceNodeAllocatable`): the cgroups that get limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnforcedCgroups {
    /// Limits all pods to the node's allocatable resources (`pods`).
    pub pods: bool,
    /// Name of the cgroup that is limited to `systemReserved`. With `true` only CPU is limited (compressible resources).
    pub system: Option<(String, bool)>,
    /// Name of the cgroup that is limited to `kubeReserved`; the flag has the same meaning.
    pub kube: Option<(String, bool)>,
}

impl Default for EnforcedCgroups {
    fn default() -> Self {
        Self { pods: true, system: None, kube: None }
    }
}

/// Location and driver of pods' cgroups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupConfig {
    /// `cgroupRoot`: parent of `kubepods`; empty for the root of the hierarchy.
    pub root: String,
    /// Configured driver. A driver that the runtime reports overrides it (KEP-4033).
    pub driver: CgroupDriver,
    /// Cgroups that are limited by the node's reservations.
    pub enforced: EnforcedCgroups,
    /// Whether the kubelet creates `root` for pods alone. Then `root` gets the CPU weight of `kubepods`; otherwise pods would have too
    /// little weight against the system's cgroups. `false` if the user set `root`.
    pub own_root: bool,
}

impl CgroupConfig {
    /// Uses the cgroupfs driver below `root`, which is not shared with other software.
    pub fn below(root: impl Into<String>) -> Self {
        Self { root: root.into(), own_root: true, ..Self::default() }
    }
}

/// Settings of memory QoS (KEP-2570, gate `MemoryQoS`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryQos {
    /// `memoryThrottlingFactor`: position of `memory.high` between the request (0) and the limit (1) of a container.
    pub throttling: f64,
    /// `memoryReservationPolicy: TieredReservation`: sets `memory.min` for guaranteed pods and `memory.low` for burstable pods to their
    /// requests.
    pub is_tiered: bool,
}

/// Memory settings beyond the limits of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryConfig {
    /// `singleProcessOOMKill`: whether the OOM killer ends one process of a container instead of all. `None` is upstream's default: all
    /// processes on cgroup v2.
    pub kills_one: Option<bool>,
    /// Settings of the gate `MemoryQoS`; `None` if it is off, which is the default.
    pub qos: Option<MemoryQos>,
    /// `qosReserved` of memory: percentage of the requests of pods in higher QoS classes that pods in lower classes cannot use. `None`: the
    /// gate `QOSReserved` is off or the field is unset.
    pub reserved_percent: Option<u8>,
}

/// `memorySwap.swapBehavior`: which containers may use swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapBehavior {
    /// `NoSwap`: no container may use swap.
    #[default]
    NoSwap,
    /// `LimitedSwap`: containers of burstable pods may use swap in proportion to their memory requests.
    LimitedSwap,
}

impl SwapBehavior {
    /// Parses the name in the configuration; an empty string is the default.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "" | "NoSwap" => Some(Self::NoSwap),
            "LimitedSwap" => Some(Self::LimitedSwap),
            _ => None,
        }
    }

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoSwap => "NoSwap",
            Self::LimitedSwap => "LimitedSwap",
        }
    }
}
