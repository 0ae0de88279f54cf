//! Claims for devices: made for pods from templates, released when pods no longer need them (`claims`), and pods that go
//! because a device they use must not be used any more (`taints`). `plan` decides, purely.
pub mod claims;
pub mod plan;
pub mod taints;
#[cfg(test)]
mod tests;
