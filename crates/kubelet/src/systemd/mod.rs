//! D-Bus calls to systemd: slices as pods' cgroups (`cgroupDriver: systemd`), and inhibitor locks for graceful node shutdown. `cgroups` and
//! `shutdown` decide when to call.
pub mod bus;
pub mod logind;
pub mod units;
pub mod wire;
