//! Usage of the machine and of node components' processes, read from kernel files.
#![allow(clippy::disallowed_methods, reason = "blocking: only kernel files, no disk")]

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};

/// Memory usage of the machine in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineMemory {
    /// All memory that is not free.
    pub usage: u64,
    /// Memory not backed by files.
    pub rss: u64,
    /// Page faults since boot: minor and major.
    pub faults: (u64, u64),
}

/// Reads the memory usage.
pub fn memory() -> MachineMemory {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    memory_of(&read("/proc/meminfo"), &read("/proc/vmstat"))
}

fn memory_of(meminfo: &str, vmstat: &str) -> MachineMemory {
    let number = |text: &str, name: &str, separator: char| -> u64 {
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(separator));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    let bytes = |name: &str| number(meminfo, name, ':') * 1024;
    MachineMemory {
        usage: bytes("MemTotal").saturating_sub(bytes("MemFree")),
        rss: bytes("AnonPages"),
        faults: (number(vmstat, "pgfault", ' '), number(vmstat, "pgmajfault", ' ')),
    }
}

/// Network counters of the machine in the form of `NetworkStats`, without the interfaces of pods. The interface of the default route
/// represents the machine.
pub fn network(time: &str) -> Option<Value> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    network_of(&read("/proc/net/dev"), &read("/proc/net/route"), time)
}

fn network_of(dev: &str, route: &str, time: &str) -> Option<Value> {
    let one = |line: &str| {
        let (name, numbers) = line.trim().split_once(':')?;
        // Host ends of pods' interfaces, of Kelson and of other CNI plugins.
        if name == "lo" || ["veth", "kv", "cali"].iter().any(|p| name.starts_with(p)) {
            return None;
        }
        let numbers: Vec<u64> = numbers.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let at = |n: usize| numbers.get(n).copied();
        Some(json!({"name": name, "rxBytes": at(0)?, "rxErrors": at(2)?, "txBytes": at(8)?, "txErrors": at(10)?}))
    };
    let interfaces: Vec<Value> = dev.lines().skip(2).filter_map(one).collect();
    let mut routes = route.lines().skip(1).map(|l| l.split_whitespace().collect::<Vec<_>>());
    let default = routes.find(|r| r.get(1) == Some(&"00000000")).and_then(|r| r.first().map(|n| (*n).to_owned()));
    let default = default.as_deref().unwrap_or("eth0");
    let first = interfaces.iter().find(|i| i["name"] == default).or(interfaces.first())?;
    let mut out = first.clone();
    out["time"] = json!(time);
    out["interfaces"] = json!(interfaces);
    Some(out)
}

/// Usage of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Total CPU time in nanoseconds.
    pub cpu_nanos: u64,
    /// Resident memory in bytes.
    pub resident: u64,
    /// Anonymous resident memory in bytes.
    pub rss: u64,
    /// Page faults: minor and major.
    pub faults: (u64, u64),
    /// Start time in seconds after boot.
    pub started_s: u64,
}

/// Reads the process with this ID; `None` if it does not exist.
pub fn process(id: &str) -> Option<ProcessUsage> {
    let dir = Path::new("/proc").join(id);
    process_of(&std::fs::read_to_string(dir.join("stat")).ok()?, &std::fs::read_to_string(dir.join("status")).ok()?)
}

fn process_of(stat: &str, status: &str) -> Option<ProcessUsage> {
    // Fields after the name, which may contain any character; the state is field 3 in the manual.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |n: usize| fields.get(n - 3)?.parse::<u64>().ok();
    let kib = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some(ProcessUsage {
        // The kernel counts hundredths of a second.
        cpu_nanos: (field(14)? + field(15)?) * 10_000_000,
        resident: kib("VmRSS")? * 1024,
        rss: kib("RssAnon").unwrap_or(0) * 1024,
        faults: (field(10)?, field(12)?),
        started_s: field(22)? / 100,
    })
}

/// ID of the process that listens on a runtime's socket.
pub fn listener(endpoint: &str) -> Option<String> {
    let path = endpoint.trim_start_matches("unix://");
    let stream = UnixStream::connect(path).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(stream.as_fd()).ok()?;
    Some(peer.pid.as_raw_nonzero().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read() {
        let meminfo = "MemTotal: 100 kB\nMemFree: 40 kB\nMemAvailable: 70 kB\nAnonPages: 20 kB\n";
        let memory = memory_of(meminfo, "pgfault_other 1\npgfault 7\npgmajfault 3\n");
        assert_eq!(memory, MachineMemory { usage: 60 << 10, rss: 20 << 10, faults: (7, 3) });
        let stat = "12 (a) b) S 1 1 1 0 -1 4194560 11 0 13 0 150 50 0 0 20 0 9 0 4200 1000 5 18446744073709551615";
        let status = "Name:\ta\nVmRSS:\t 8 kB\nRssAnon:\t 6 kB\n";
        let expected =
            ProcessUsage { cpu_nanos: 2_000_000_000, resident: 8192, rss: 6144, faults: (11, 13), started_s: 42 };
        assert_eq!(process_of(stat, status), Some(expected));
        assert_eq!(process_of("nonsense", ""), None);
        assert!(process("self").is_some_and(|p| p.resident > 0));
    }

    #[test]
    fn the_default_routes_interface_represents_the_machine() {
        let dev = "Inter-|   Receive\n face |bytes\n    lo: 9 9 9 0 0 0 0 0 9 9 9 0 0 0 0 0\n\
            eth0: 1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\nens5: 10 1 3 0 0 0 0 0 20 1 4 0 0 0 0 0\nkvab12: 5 1 0 0 0 0 0 0 5 1 0 0\n";
        let route = "Iface\tDestination\tGateway\nens5\t00000000\t0101\neth0\t0000FEA9\t00\n";
        let shown = network_of(dev, route, "now").expect("interfaces");
        assert_eq!((&shown["name"], &shown["rxBytes"], &shown["txErrors"]), (&json!("ens5"), &json!(10), &json!(4)));
        let names: Vec<&str> =
            shown["interfaces"].as_array().expect("a list").iter().filter_map(|i| i["name"].as_str()).collect();
        assert_eq!(names, ["eth0", "ens5"]);
        assert_eq!(network_of(dev, "", "now").expect("interfaces")["name"], "eth0");
        assert_eq!(network_of("", "", "now"), None);
    }
}
