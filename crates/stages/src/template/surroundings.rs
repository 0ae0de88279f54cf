//! The interface through which templates read the cluster around an object.
use jiff::Timestamp;

/// The cluster around an object, as templates read it. The crate is pure, so the caller provides the clock, the
/// process's version and the addresses of nodes and pods through this trait. The methods are called while a template
/// is rendered and should answer from memory.
pub trait Surroundings: Send + Sync + 'static {
    /// Returns the current time, for `Now`.
    fn now(&self) -> Timestamp;
    /// Returns the time when the process started.
    fn started(&self) -> Timestamp;
    /// Returns the version that objects report.
    fn version(&self) -> String;
    /// Returns the address for nodes without one, or an empty string if it is unknown.
    fn node_ip(&self) -> String;
    /// Returns the host name of nodes, or an empty string if it is unknown.
    fn node_name(&self) -> String;
    /// Returns the port of the nodes' kubelets; 0 means none.
    fn node_port(&self) -> u16;
    /// Returns the addresses of a node.
    fn node_ips(&self, node: &str) -> Vec<String>;
    /// Allocates addresses for a pod on a node, one from each of the node's ranges.
    fn pod_ips(&self, node: &str) -> Vec<String>;
}
