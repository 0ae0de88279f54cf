//! What templates ask of the cluster around an object.
use jiff::Timestamp;

/// What templates ask of the cluster around the object.
pub trait Surroundings: Send + Sync + 'static {
    /// What time it is, for `Now`.
    fn now(&self) -> Timestamp;
    /// When the process began.
    fn started(&self) -> Timestamp;
    /// The version that objects tell of.
    fn version(&self) -> String;
    /// Address of nodes that have none; empty where nothing is known.
    fn node_ip(&self) -> String;
    /// The name that nodes are reached by; empty where nothing is known.
    fn node_name(&self) -> String;
    /// Port of the nodes' kubelets; 0: none.
    fn node_port(&self) -> u16;
    /// Addresses of a node.
    fn node_ips(&self, node: &str) -> Vec<String>;
    /// Free addresses for a pod on a node, one of each of its ranges; they are the pod's from now on.
    fn pod_ips(&self, node: &str) -> Vec<String>;
}
