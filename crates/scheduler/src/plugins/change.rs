//! Changes in a cluster after which a rejected pod may fit, by upstream's names (`ClusterEvent`).

macro_rules! changes {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// A change in the cluster after which a rejected pod may fit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Change { $($(#[$doc])* $name,)* }

        /// All kinds of change, each at the index of its number.
        pub const CHANGES: &[Change] = &[$(Change::$name,)*];

        impl Change {
            /// Returns the name in metrics.
            pub fn label(self) -> &'static str {
                match self { $(Change::$name => $label,)* }
            }
        }
    };
}

changes! {
    NodeAdd = "NodeAdd",
    /// A node's allocatable resources, labels, taints or features changed.
    NodeUpdate = "NodeUpdate",
    NodeDelete = "NodeDelete",
    /// A pod was placed on a node.
    AssignedPodAdd = "AssignedPodAdd",
    /// Labels or requests of a placed pod changed.
    AssignedPodUpdate = "AssignedPodUpdate",
    /// A pod left a node.
    AssignedPodDelete = "AssignedPodDelete",
    ClaimAdd = "PersistentVolumeClaimAdd",
    ClaimUpdate = "PersistentVolumeClaimUpdate",
    VolumeAdd = "PersistentVolumeAdd",
    VolumeUpdate = "PersistentVolumeUpdate",
    ClassAdd = "StorageClassAdd",
    ClassUpdate = "StorageClassUpdate",
    CsiNodeAdd = "CSINodeAdd",
    CsiNodeUpdate = "CSINodeUpdate",
    /// A node without a CSINode has no volume limits.
    CsiNodeDelete = "CSINodeDelete",
    CsiDriverUpdate = "CSIDriverUpdate",
    CapacityAdd = "CSIStorageCapacityAdd",
    CapacityUpdate = "CSIStorageCapacityUpdate",
    ResourceClaimAdd = "ResourceClaimAdd",
    ResourceClaimUpdate = "ResourceClaimUpdate",
    SliceAdd = "ResourceSliceAdd",
    SliceUpdate = "ResourceSliceUpdate",
    DeviceClassAdd = "DeviceClassAdd",
    DeviceClassUpdate = "DeviceClassUpdate",
    /// A namespace was added, deleted or relabelled.
    Namespaces = "NamespaceUpdate",
}
