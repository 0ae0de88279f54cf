//! Pressure stall information of a cgroup: how long tasks waited for CPU, memory and I/O (KEP-4205).
#![allow(clippy::disallowed_methods, reason = "blocking: only kernel files, no disk")]

use std::path::Path;

use serde_json::{Value, json};

/// Stall times of one kind for one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// Total in microseconds.
    pub total: u64,
    /// Share of the last 10, 60 and 300 seconds in percent.
    pub averages: [f64; 3],
}

/// Stall times for one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StallPair {
    /// Time in which at least one task waited.
    pub some: Stall,
    /// Time in which all tasks waited.
    pub full: Stall,
}

/// Stall times by resource; `None` if the kernel does not report them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResourcePressures {
    /// Waiting for a CPU.
    pub cpu: Option<StallPair>,
    /// Waiting for memory pages.
    pub memory: Option<StallPair>,
    /// Waiting for I/O.
    pub io: Option<StallPair>,
}

impl ResourcePressures {
    /// Reads the files in the cgroup's directory. They do not exist if the kernel has no pressure information or it is disabled.
    pub fn read(cgroup: &Path) -> Self {
        let of = |name: &str| parse(&std::fs::read_to_string(cgroup.join(format!("{name}.pressure"))).ok()?);
        Self { cpu: of("cpu"), memory: of("memory"), io: of("io") }
    }
}

/// Parses a pressure file. Old kernels have no line `full` for CPU.
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
    /// Returns the JSON form of the summary API (`PSIStats`).
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
    fn pressure_files_are_parsed() {
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
    fn no_pressure_files_mean_no_pressure() {
        let dir = tempfile::tempdir().expect("tempdir");
        assert_eq!(ResourcePressures::read(dir.path()), ResourcePressures::default());
        std::fs::write(dir.path().join("io.pressure"), "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n")
            .expect("write");
        let found = ResourcePressures::read(dir.path());
        assert_eq!((found.cpu, found.memory, found.io.map(|p| p.some.total)), (None, None, Some(7)));
    }
}
