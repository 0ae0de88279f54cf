//! What may happen in a cluster so that pods fit which were refused before, by upstream's names of it (`ClusterEvent`).

macro_rules! changes {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// A change of the cluster that may let a pod fit which was refused before.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Change { $($(#[$doc])* $name,)* }

        /// All kinds of change, each at its own number.
        pub const CHANGES: &[Change] = &[$(Change::$name,)*];

        impl Change {
            /// As metrics name it.
            pub fn label(self) -> &'static str {
                match self { $(Change::$name => $label,)* }
            }
        }
    };
}

changes! {
    NodeAdd = "NodeAdd",
    /// What it can hold, its labels, taints or features.
    NodeUpdate = "NodeUpdate",
    NodeDelete = "NodeDelete",
    /// A pod was placed on a node.
    AssignedPodAdd = "AssignedPodAdd",
    /// Labels of a placed pod, or what it asks for.
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
    /// Without a word of drivers a node has no limits.
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
    /// Namespaces came, went, or have other labels.
    Namespaces = "NamespaceUpdate",
}
