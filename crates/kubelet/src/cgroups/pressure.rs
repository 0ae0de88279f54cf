//! How long those in a cgroup have waited for processors, memory and disks: the kernel's pressure stall information (KEP-4205).
#![allow(clippy::disallowed_methods, reason = "blocking: the kernel's memory, no disk")]

use std::path::Path;

use serde_json::{Value, json};

/// One kind of stall of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// All of it so far, microseconds.
    pub total: u64,
    /// Share of the last ten, sixty and three hundred seconds, percent.
    pub averages: [f64; 3],
}

/// What waited for one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StallPair {
    /// At least one of the tasks.
    pub some: Stall,
    /// All of them at once, so that nothing was done.
    pub full: Stall,
}

/// Of each resource, where the kernel tells.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResourcePressures {
    /// What waited for a processor.
    pub cpu: Option<StallPair>,
    /// What waited for pages of memory.
    pub memory: Option<StallPair>,
    /// What waited for a disk.
    pub io: Option<StallPair>,
}

impl ResourcePressures {
    /// Those of the cgroup that this directory is; a kernel without them, or told to count none, has no such files.
    pub fn read(cgroup: &Path) -> Self {
        let of = |name: &str| parse(&std::fs::read_to_string(cgroup.join(format!("{name}.pressure"))).ok()?);
        Self { cpu: of("cpu"), memory: of("memory"), io: of("io") }
    }
}

/// Reads such a file's text. Of processors old kernels do not tell when all waited.
fn parse(text: &str) -> Option<StallPair> {
    let line = |kind: &str| {
        let rest = text.lines().find_map(|l| l.strip_prefix(kind)?.strip_prefix(' '))?;
        let field = |name: &str| rest.split(' ').find_map(|f| f.strip_prefix(name)?.strip_prefix('='));
        let average = |name: &str| field(name)?.parse().ok();
        Some(Stall {
            total: field("total")?.parse().ok()?,
            averages: [average("avg10")?, average("avg60")?, average("avg300")?],
        })
    };
    Some(StallPair { some: line("some")?, full: line("full").unwrap_or_default() })
}

impl StallPair {
    /// As summaries show it (`PSIStats`).
    pub fn json(&self) -> Value {
        let of = |s: &Stall| {
            let [avg10, avg60, avg300] = s.averages;
            json!({"total": s.total, "avg10": avg10, "avg60": avg60, "avg300": avg300})
        };
        json!({"full": of(&self.full), "some": of(&self.some)})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_kernel_writes_them() {
        let both =
            "some avg10=1.50 avg60=0.25 avg300=0.00 total=12345\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=99\n";
        let found = parse(both).expect("both lines");
        assert_eq!(found.some, Stall { total: 12345, averages: [1.5, 0.25, 0.0] });
        assert_eq!(found.full.total, 99);
        let old = parse("some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n").expect("one line");
        assert_eq!((old.some.total, old.full), (7, Stall::default()));
        for bad in ["", "some total=x\n", "full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n", "some avg10=1 total=2\n"]
        {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
        let shown = json!({"full": {"total": 99, "avg10": 0.5, "avg60": 0.0, "avg300": 0.0},
            "some": {"total": 12345, "avg10": 1.5, "avg60": 0.25, "avg300": 0.0}});
        assert_eq!(found.json(), shown);
    }

    #[test]
    fn a_kernel_that_counts_none_has_none() {
        let dir = tempfile::tempdir().expect("tempdir");
        assert_eq!(ResourcePressures::read(dir.path()), ResourcePressures::default());
        std::fs::write(dir.path().join("io.pressure"), "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n")
            .expect("write");
        let found = ResourcePressures::read(dir.path());
        assert_eq!((found.cpu, found.memory, found.io.map(|p| p.some.total)), (None, None, Some(7)));
    }
}
