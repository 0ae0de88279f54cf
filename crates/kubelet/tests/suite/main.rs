//! Tests of the kubelet from outside: pod workers on a paused clock, plugins on real sockets.

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
