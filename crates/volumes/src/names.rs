//! Annotations for the state of a binding, and names of provisioners (upstream
//! `component-helpers/storage/volume/pv_helpers.go`).

/// The annotation of a claim whose binding is complete: both objects refer to each other.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// The annotation of a claim or volume that the controller or the scheduler bound, not a user.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// The annotation of a volume with its provisioner.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// The annotation of a claim with the provisioner for its volume.
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The former name of [`PROVISIONER`], which older provisioners still read.
pub const PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// The annotation of a claim that waits for its first consumer: the node that the scheduler chose.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The annotation of a claim or volume with its class, older than the field. It takes precedence over the field.
pub const CLASS_BETA: &str = "volume.beta.kubernetes.io/storage-class";
/// The provisioner of classes with manually created volumes.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// The prefix of former in-tree provisioners, which others may not use.
pub const IN_TREE_PREFIX: &str = "kubernetes.io/";
/// The provisioner for directories on nodes that is built into Kelson. k3s uses the same name.
pub const LOCAL_PATH: &str = "rancher.io/local-path";
/// The annotation of a Node with the directory in which its kubelet creates and deletes volumes of [`LOCAL_PATH`].
pub const LOCAL_PATH_DIRECTORY: &str = "local-path.kelson.dev/directory";
