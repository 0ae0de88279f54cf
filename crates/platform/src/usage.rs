//! What a process uses of its machine, as far as the system says.

/// What this process uses now. What a system does not say is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Processor time, user and system together, seconds.
    pub cpu_s: Option<f64>,
    /// Resident memory, bytes.
    pub resident_bytes: Option<f64>,
    /// Virtual memory, bytes.
    pub virtual_bytes: Option<f64>,
    /// Open file descriptors.
    pub open_files: Option<f64>,
    /// When it began, seconds since the Unix epoch.
    pub started_s: Option<f64>,
}
