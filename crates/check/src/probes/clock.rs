//! The clock: certificates are valid from and until, and nodes compare times.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: before anything else is started, or by a command that does nothing else"
)]

use std::time::SystemTime;

use super::processes;
use crate::finding::{Finding, Findings, Level};
use crate::host::{Host, Purpose};

/// Programs that keep a clock right.
const KEEPERS: &[&str] = &[
    "chronyd",
    "ntpd",
    "ntpd-rs",
    "ntp-daemon",
    "openntpd",
    "ptp4l",
    "phc2sys",
    "systemd-timesyn",
    "VBoxService",
    "vmtoolsd",
];

/// The state of the clock.
#[derive(Debug, PartialEq, Eq)]
pub struct ClockFacts {
    /// Now, seconds since the Unix epoch.
    pub now_s: i64,
    /// The program that keeps it right.
    pub keeper: Option<String>,
    /// Whether systemd-timesyncd has reached a server since the boot.
    pub is_synchronized: bool,
    /// Whether the clock is a hypervisor's or the host's: a container or a virtual machine with a paravirtual clock.
    pub is_given: bool,
}

/// Reads the state from processes and from files in `/run`.
pub fn read(host: &Host) -> ClockFacts {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let running = processes::names(host);
    let source = host.text("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    ClockFacts {
        now_s: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
        keeper: KEEPERS.iter().find(|keeper| running.iter().any(|name| name == *keeper)).map(|k| (*k).to_owned()),
        is_synchronized: host.has("/run/systemd/timesync/synchronized"),
        is_given: ["kvm-clock", "xen", "hyperv_clocksource_tsc_page"].contains(&source.trim())
            || host.has("/run/.containerenv")
            || host.has("/.dockerenv"),
    }
}

/// Returns the findings for certificates and leases.
pub fn find(facts: &ClockFacts, purpose: &Purpose) -> Vec<Finding> {
    let mut findings = Findings::of("clock");
    if facts.now_s < purpose.built_s {
        findings.add(
            Level::Error,
            "the clock is earlier than this program's build",
            "Certificates that are created now are already expired, and those of others are not yet valid.",
            "Set the clock (date -s), and run chrony or systemd-timesyncd; a board without a battery needs it at each boot.",
        );
        return findings.done();
    }
    match (&facts.keeper, facts.is_synchronized || facts.is_given) {
        (Some(keeper), _) => findings.ok(format!("kept by {keeper}")),
        (None, true) => findings.ok("kept by the host"),
        (None, false) => findings.add(
            Level::Warning,
            "no program synchronizes the clock",
            "Nodes whose clocks differ by minutes reject each other's certificates and tokens, and appear to be down.",
            "Install chrony, or: systemctl enable --now systemd-timesyncd",
        ),
    }
    findings.done()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{levels, machine, purpose};

    #[test]
    fn a_clock_is_right_and_kept_so() {
        let (_dir, host) = machine(&[("/proc/77/comm", "chronyd\n"), ("/proc/77/cmdline", "/usr/sbin/chronyd\0")], &[]);
        let facts = read(&host);
        assert_eq!(facts.keeper.as_deref(), Some("chronyd"));
        assert_eq!(levels(&find(&facts, &purpose())), [Level::Ok]);
        let alone = ClockFacts { keeper: None, ..facts };
        assert_eq!(levels(&find(&alone, &purpose())), [Level::Warning]);
        let (_dir, host) = machine(&[("/run/systemd/timesync/synchronized", "")], &[]);
        assert_eq!(levels(&find(&read(&host), &purpose())), [Level::Ok]);
        let past = ClockFacts { now_s: 0, ..alone };
        assert_eq!(levels(&find(&past, &purpose())), [Level::Error]);
    }
}
