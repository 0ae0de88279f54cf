//! Annotations for the state of a binding, and names of provisioners (upstream
//! `component-helpers/storage/volume/pv_helpers.go`).

/// On a claim: the binding is complete, both objects name each other.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// On a claim or volume: it was the controller (or the scheduler), not a user, that wrote the other's name into it.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// The annotation of a volume with its provisioner.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// On a claim: which provisioner is to make its volume.
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The former name of [`PROVISIONER`], which older provisioners still read.
pub const PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// On a claim that waits for its first consumer: the node that the scheduler chose.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On a claim or volume: its class, from before there was a field; it wins over the field.
pub const CLASS_BETA: &str = "volume.beta.kubernetes.io/storage-class";
/// The provisioner of classes with manually created volumes.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// The prefix of former in-tree provisioners, which others may not use.
pub const IN_TREE_PREFIX: &str = "kubernetes.io/";
/// The provisioner of directories on nodes that is built into Kelson, by the name that users of k3s know.
pub const LOCAL_PATH: &str = "rancher.io/local-path";
/// On a Node: the directory below which its kubelet makes and removes volumes of [`LOCAL_PATH`].
pub const LOCAL_PATH_DIRECTORY: &str = "local-path.kelson.dev/directory";
