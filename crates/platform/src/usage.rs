//! The resource usage of a process, as far as the system reports it.

/// The current resource usage of this process. Values that the system does not report are `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// The CPU time in user and system mode together, in seconds.
    pub cpu_s: Option<f64>,
    /// The resident memory in bytes.
    pub resident_bytes: Option<f64>,
    /// The virtual memory in bytes.
    pub virtual_bytes: Option<f64>,
    /// The number of open file descriptors.
    pub open_files: Option<f64>,
    /// The start time in seconds since the Unix epoch.
    pub started_s: Option<f64>,
}
