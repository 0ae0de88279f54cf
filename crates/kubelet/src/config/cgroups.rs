//! How pods' cgroups are made, and which cgroups of the node are held to what it reserves.

/// Who makes cgroups (`cgroupDriver`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupDriver {
    /// The kubelet itself, as directories of the kernel's tree.
    #[default]
    Cgroupfs,
    /// systemd, as slices. It must be so where systemd looks after the tree, and the runtime must do the same.
    Systemd,
}

impl CgroupDriver {
    /// As documents spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }
}

/// Which cgroups are held to what (`enforceNodeAllocatable`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enforced {
    /// That of all pods, to the node's allocatable (`pods`).
    pub pods: bool,
    /// The cgroup named here, to what is reserved for the system; with `true`, in CPU alone.
    pub system: Option<(String, bool)>,
    /// The same of what is reserved for Kubernetes' own parts.
    pub kube: Option<(String, bool)>,
}

impl Default for Enforced {
    fn default() -> Self {
        Self { pods: true, system: None, kube: None }
    }
}

/// How and where pods' cgroups are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupConfig {
    /// `cgroupRoot`: `kubepods` is made below it; empty: at the top of the tree.
    pub root: String,
    /// Who makes them. A runtime that says which driver it uses has the last word (KEP-4033).
    pub driver: CgroupDriver,
    /// What is held to the node's reservations.
    pub enforced: Enforced,
    /// Whether the root is for pods alone and made here: it has what the cgroup of all pods has, or that would weigh nothing
    /// beside the system's own cgroups. A root that a user names is theirs.
    pub own_root: bool,
}

impl CgroupConfig {
    /// Below `root`, which nobody else has, made by the kubelet itself.
    pub fn below(root: impl Into<String>) -> Self {
        Self { root: root.into(), own_root: true, ..Self::default() }
    }
}

/// How the kernel is to treat pods' memory where it is short of it (KEP-2570, `MemoryQoS`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryQos {
    /// `memoryThrottlingFactor`: at which part of the way from what a container asks for to what it may use it is slowed down.
    pub throttling: f64,
    /// `memoryReservationPolicy: TieredReservation`: what pods ask for is kept for them, for guaranteed ones at all events.
    pub is_tiered: bool,
}

/// How memory is shared out beyond the limits of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryConfig {
    /// `singleProcessOOMKill`: whether a container that has no memory left loses one process, and not all. `None`: all, on the
    /// unified tree, where that can be had.
    pub kills_one: Option<bool>,
    /// The gate `MemoryQoS`; `None`: it is off, as it is by default.
    pub qos: Option<MemoryQos>,
    /// `qosReserved` of memory: this percentage of what pods of the better classes ask for the others cannot have. `None`: they
    /// can (the gate `QOSReserved` is off, or nothing is said).
    pub reserved_percent: Option<u8>,
}

/// `memorySwap.swapBehavior`: which containers may swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapBehavior {
    /// `NoSwap`: containers have none.
    #[default]
    NoSwap,
    /// `LimitedSwap`: containers of burstable pods have as large a part of it as they ask for of the memory.
    LimitedSwap,
}

impl SwapBehavior {
    /// By its name in the configuration; empty stands for the default.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "" | "NoSwap" => Some(Self::NoSwap),
            "LimitedSwap" => Some(Self::LimitedSwap),
            _ => None,
        }
    }

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoSwap => "NoSwap",
            Self::LimitedSwap => "LimitedSwap",
        }
    }
}
