//! The file system of the data directory: room, kind, and how long a write takes to be durable.
#![allow(clippy::disallowed_methods, reason = "blocking: in a command that does nothing else")]

use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::finding::{Finding, Findings, Level};
use crate::host::{Host, Measured, Purpose, nearest};

/// Writes that are measured: enough for a 98th percentile, and a second on a slow card.
const WRITES: usize = 50;
/// Measuring ends after this.
const MEASURE_MAX: Duration = Duration::from_secs(3);
/// etcd's advice for its log is 10 ms at the 99th percentile; every write to the API waits for one.
const SLOW: Duration = Duration::from_millis(10);
/// Leases of a few nodes alone keep such a disk busy.
const VERY_SLOW: Duration = Duration::from_millis(100);
const GIB: u64 = 1 << 30;
/// Images of a small cluster and its objects need as much.
const LEAST_FREE_BYTES: u64 = GIB;
/// File systems in memory, and those of other machines.
const UNFIT: &[(&str, &str)] = &[
    ("tmpfs", "It is memory: everything is lost at a reboot."),
    ("ramfs", "It is memory: everything is lost at a reboot."),
    ("nfs", "Locks and durable writes depend on the server, and overlayfs does not work on it."),
    ("nfs4", "Locks and durable writes depend on the server, and overlayfs does not work on it."),
    ("cifs", "Locks and durable writes depend on the server, and overlayfs does not work on it."),
    (
        "overlay",
        "It is a container's own layer: everything is lost with the container, and overlayfs does not work on it.",
    ),
];

/// The state of the file system.
#[derive(Debug, PartialEq, Eq)]
pub struct DiskFacts {
    /// The directory that was looked at: the data directory, or the nearest above it.
    pub dir: PathBuf,
    /// Its type, as `/proc/self/mountinfo` has it.
    pub kind: String,
    /// Bytes: all, and free for this user.
    pub bytes: (u64, u64),
    /// Inodes: all, and free; zeros where the file system has no fixed number.
    pub inodes: (u64, u64),
    /// Durations of durable writes; empty where none could be made.
    pub writes: Measured,
}

/// Looks at the data directory's file system, and writes a file there, which it removes.
pub fn read(host: &Host, purpose: &Purpose) -> DiskFacts {
    let dir = nearest(host, &purpose.data_dir);
    let real = host.path(&dir);
    let stat = rustix::fs::statvfs(&real).ok();
    let pair = |f: fn(&rustix::fs::StatVfs) -> (u64, u64)| stat.as_ref().map(f).unwrap_or_default();
    DiskFacts {
        kind: kind(&host.text("/proc/self/mountinfo"), &dir),
        bytes: pair(|s| (s.f_blocks.saturating_mul(s.f_frsize), s.f_bavail.saturating_mul(s.f_frsize))),
        inodes: pair(|s| (s.f_files, s.f_favail)),
        writes: measure(&real).unwrap_or_default(),
        dir,
    }
}

/// The type of the file system that a directory is on: that of the last mount at the longest path that leads to it.
fn kind(mounts: &str, dir: &Path) -> String {
    let mut best: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let Some((mount, super_block)) = line.split_once(" - ") else { continue };
        let (Some(at), Some(kind)) = (mount.split(' ').nth(4), super_block.split(' ').next()) else { continue };
        if dir.starts_with(at) && best.is_none_or(|(length, _)| at.len() >= length) {
            best = Some((at.len(), kind));
        }
    }
    best.map(|(_, kind)| kind.to_owned()).unwrap_or_default()
}

/// Durations of writes of 4 KiB that are each made durable, as the store's log is.
fn measure(dir: &Path) -> std::io::Result<Measured> {
    let path = dir.join(format!(".kelson-check-{}", std::process::id()));
    let mut file = std::fs::File::options().write(true).create_new(true).open(&path)?;
    let mut write = || {
        let begun = Instant::now();
        file.write_all(&[1; 4096])?;
        file.sync_data()?;
        // The same few blocks: a log that grows is written ahead.
        if file.stream_position()? >= 1 << 16 {
            file.rewind()?;
        }
        std::io::Result::Ok(begun.elapsed())
    };
    let begun = Instant::now();
    let mut times = Vec::new();
    let mut result = Ok(());
    while times.len() < WRITES && begun.elapsed() < MEASURE_MAX {
        match write() {
            Ok(time) => times.push(time),
            Err(e) => {
                result = Err(e);
                break;
            }
        }
    }
    std::fs::remove_file(&path)?;
    times.sort();
    result.map(|()| Measured(times))
}

impl Measured {
    /// The duration that this part of the writes stayed below.
    fn percentile(&self, percent: usize) -> Option<Duration> {
        let last = self.0.len().checked_sub(1)?;
        self.0.get(last * percent / 100).copied()
    }
}

/// Returns the findings for the data directory.
pub fn find(facts: &DiskFacts, purpose: &Purpose) -> Vec<Finding> {
    let mut findings = Findings::of("disk");
    let dir = facts.dir.display();
    let (all, free) = facts.bytes;
    let unfit = UNFIT.iter().find(|(kind, _)| *kind == facts.kind);
    if let Some((kind, meaning)) = unfit {
        let action = "Give --data-dir a directory on a local disk (a volume, in a container).";
        findings.add(Level::Warning, format!("{dir} is on {kind}"), *meaning, action);
    }
    let room = format!("{:.1} of {:.1} GiB are free on {dir}", free as f64 / GIB as f64, all as f64 / GIB as f64);
    let action = "Free some room, or give --data-dir a directory on another disk.";
    if all > 0 && free < LEAST_FREE_BYTES {
        findings.add(
            Level::Warning,
            room.as_str(),
            "This is too little for images. Writes to the API fail when the disk is full.",
            action,
        );
    } else if purpose.node && all > 0 && free / 3 < all / 20 {
        let meaning = "Below 15 % images are deleted and pods evicted, until there is more again.";
        findings.add(Level::Warning, room.as_str(), meaning, action);
    } else {
        findings.ok(room);
    }
    let (inodes, free_inodes) = facts.inodes;
    if purpose.node && inodes > 0 && free_inodes < inodes / 20 {
        let found = format!("{free_inodes} of {inodes} inodes are free on {dir}");
        findings.add(Level::Warning, found, "Below 5 % pods are evicted.", action);
    }
    speed(&mut findings, facts, purpose);
    findings.done()
}

fn speed(findings: &mut Findings, facts: &DiskFacts, purpose: &Purpose) {
    let (Some(middle), Some(high)) = (facts.writes.percentile(50), facts.writes.percentile(98)) else {
        let found = format!("no file can be written in {}", facts.dir.display());
        let meaning = "The speed of the disk was not measured. The data directory must be writable at the start.";
        findings.add(Level::Info, found, meaning, "");
        return;
    };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let found = format!("a durable write takes {:.1} ms (half of them), {:.1} ms (98 of 100)", ms(middle), ms(high));
    let action = "Use another disk (an SSD, no SD card), or one that other programs do not keep busy.";
    if purpose.server && high > VERY_SLOW {
        let meaning = "Each write to the API waits as long. Leases of nodes may be renewed too late, so that nodes appear to be down.";
        findings.add(Level::Warning, found, meaning, action);
    } else if purpose.server && high > SLOW {
        findings.add(
            Level::Info,
            found,
            "Each write to the API waits as long. Less than 10 ms is usual for an SSD.",
            "",
        );
    } else {
        findings.ok(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{levels, machine, purpose};

    fn facts(free: u64, all: u64, write_ms: u64) -> DiskFacts {
        DiskFacts {
            dir: "/var/lib".into(),
            kind: "ext4".to_owned(),
            bytes: (all * GIB, free * GIB),
            inodes: (1000, 900),
            writes: Measured(vec![Duration::from_millis(write_ms); 10]),
        }
    }

    #[test]
    fn room_and_speed_have_limits() {
        let found = |facts: &DiskFacts| levels(&find(facts, &purpose()));
        assert_eq!(found(&facts(50, 100, 1)), [Level::Ok, Level::Ok]);
        assert_eq!(found(&facts(14, 100, 20)), [Level::Warning, Level::Info]);
        assert_eq!(found(&facts(0, 1, 200)), [Level::Warning, Level::Warning]);
        let few = DiskFacts { inodes: (1000, 10), kind: "nfs4".to_owned(), ..facts(50, 100, 1) };
        assert_eq!(found(&few), [Level::Warning, Level::Ok, Level::Warning, Level::Ok]);
        let unwritable = DiskFacts { writes: Measured::default(), ..facts(50, 100, 1) };
        assert_eq!(found(&unwritable), [Level::Ok, Level::Info]);
    }

    #[test]
    fn the_file_system_is_that_of_the_longest_mount() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n23 22 0:5 / /var rw - tmpfs tmpfs rw\n24 22 0:6 / /v rw - nfs4 x:/ rw\n";
        assert_eq!(kind(mounts, Path::new("/var/lib/kelson")), "tmpfs");
        assert_eq!(kind(mounts, Path::new("/srv")), "ext4");
        assert_eq!(kind("", Path::new("/srv")), "");
    }

    #[test]
    fn the_nearest_directory_is_measured_and_left_as_it_was() {
        let (dir, host) = machine(&[("/var/lib/other", "")], &[]);
        let facts = read(&host, &purpose());
        assert_eq!(facts.dir, Path::new("/var/lib"));
        assert!(!facts.writes.0.is_empty() && facts.bytes.0 > 0);
        assert_eq!(std::fs::read_dir(dir.path().join("var/lib")).unwrap().count(), 1);
    }
}
