//! What systemd does for a node, asked over D-Bus: slices as pods' cgroups (`cgroupDriver: systemd`), and a shutdown that
//! waits for pods. Leaves when to ask to `cgroups` and `shutdown`.
pub mod bus;
pub mod logind;
pub mod units;
pub mod wire;
