//! Tests of the kubelet's public interface: pod workers on the paused clock, plugins on real sockets.

mod claims;
mod common;
mod csi;
mod devices;
mod ending;
mod grpc;
mod lifecycle;
mod preemption;
mod renewal;
mod statics;
mod statuses;
mod systemd;
