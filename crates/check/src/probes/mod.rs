//! One file a probe, and in each the same: facts, `read` (a host's facts) and `find` (what they mean), which is pure.
use crate::finding::Finding;
use crate::host::{Host, Purpose};

mod capabilities;
mod cgroups;
mod clock;
mod disk;
mod features;
mod files;
mod firewall;
mod kernel;
mod memory;
mod ports;
mod processes;
mod programs;

pub use ports::listens;
pub use processes::{Running, read as processes};

/// Reads and decides.
type Probe = fn(&Host, &Purpose) -> Vec<Finding>;

/// Those that take no more than milliseconds and change nothing.
const QUICK: &[Probe] = &[
    |host, purpose| cgroups::find(&cgroups::read(host), purpose),
    |host, purpose| kernel::find(&kernel::read(host), purpose),
    |host, purpose| features::find(&features::read(host), purpose),
    |host, purpose| capabilities::find(&capabilities::read(host), purpose),
    |host, purpose| programs::find(&programs::read(host), purpose),
    |host, purpose| clock::find(&clock::read(host), purpose),
    |host, purpose| memory::find(&memory::read(host), purpose),
];

/// Those that run programs, look at every process, or measure.
const SLOW: &[Probe] = &[
    |host, purpose| files::find(&files::read(host), purpose),
    |host, purpose| processes::find(&processes::read(host), purpose),
    |host, purpose| ports::find(&ports::read(host, purpose), purpose),
    firewalls,
    |host, purpose| disk::find(&disk::read(host, purpose), purpose),
];

/// Everything there is to find.
pub fn all(host: &Host, purpose: &Purpose) -> Vec<Finding> {
    QUICK.iter().chain(SLOW).flat_map(|probe| probe(host, purpose)).collect()
}

/// Checks the firewalls.
pub fn firewalls(host: &Host, purpose: &Purpose) -> Vec<Finding> {
    firewall::find(&firewall::read(host), purpose)
}

/// Runs the quick checks.
pub fn quick(host: &Host, purpose: &Purpose) -> Vec<Finding> {
    QUICK.iter().flat_map(|probe| probe(host, purpose)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{control_plane, machine, purpose};
    use crate::finding::Level;

    #[test]
    fn what_is_not_as_it_should_be_says_what_to_do() {
        let (_dir, host) = machine(&[], &[]);
        for finding in all(&host, &purpose()).iter().filter(|finding| finding.level > Level::Info) {
            assert!(!finding.meaning.is_empty() && !finding.action.is_empty(), "{finding:?}");
        }
    }

    #[test]
    fn a_control_plane_asks_less_than_a_node() {
        let (_dir, host) = machine(&[], &[]);
        let errors = |purpose: &Purpose| quick(&host, purpose).iter().filter(|f| f.level == Level::Error).count();
        assert_eq!((errors(&control_plane()), errors(&purpose()) > 3), (0, true));
    }

    #[test]
    fn this_machine_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let here = Purpose { data_dir: dir.path().join("not/yet"), ..purpose() };
        let found = all(&Host::this(), &here);
        let named: std::collections::BTreeSet<&str> = found.iter().map(|finding| finding.probe).collect();
        assert_eq!(named.len(), QUICK.len() + SLOW.len(), "each probe says something: {named:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }
}
