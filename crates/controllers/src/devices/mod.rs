//! Claims for devices: creation from templates and release (`claims`), and eviction of pods because of device taints
//! (`taints`). `plan` has the pure decisions.
pub mod claims;
pub mod plan;
pub mod taints;
#[cfg(test)]
mod tests;
