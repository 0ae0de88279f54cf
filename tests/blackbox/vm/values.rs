//! What the kernel's files must say for the pods of [`super::cgroups`]: a row is a cgroup, with `FILE=VALUE` for each file that is compared.
//! The formulas are upstream's (`cm/qos_container_manager_linux.go`, `cm/helpers_linux.go`, `kuberuntime_container_linux.go`).
use anyhow::Context as _;

/// Rows: `root` is the cgroup that Kelson makes, `kubepods`, `burstable` and `besteffort` are below it; then pods and `POD/CONTAINER`, where
/// `pause` is the pod's sandbox. A space in a value is a comma. `allocatable`, `high(REQUEST)` and `swap(REQUEST)` depend on the memory of
/// the guest.
pub const CGROUPS: &str = "
root             cpu.weight=59 cpu.max=max,100000 memory.min=201326592 memory.max=max
kubepods         cpu.weight=59 cpu.max=max,100000 memory.min=201326592 memory.max=allocatable hugetlb.2MB.max=33554432 pids.max=max
burstable        cpu.weight=8 cpu.max=max,100000 memory.min=0 memory.low=134217728 memory.max=max hugetlb.2MB.max=4611686018427387904
besteffort       cpu.weight=1 cpu.max=max,100000 memory.min=0 memory.low=0 memory.max=max hugetlb.2MB.max=4611686018427387904

guaranteed       cpu.weight=4 cpu.max=10000,100000 memory.min=33554432 memory.low=0 memory.max=33554432 hugetlb.2MB.max=4194304 pids.max=200
guaranteed/main  cpu.weight=4 cpu.max=10000,100000 memory.min=33554432 memory.low=0 memory.high=max memory.max=33554432 memory.swap.max=0 memory.oom.group=1 cpuset.cpus=0
guaranteed/pause cpu.weight=1 cpu.max=max,100000 memory.min=0 memory.max=max

exclusive        cpu.weight=39 cpu.max=max,100000 memory.min=33554432 memory.max=33554432 hugetlb.2MB.max=0 pids.max=200
exclusive/main   cpu.weight=39 cpu.max=max,100000 memory.min=33554432 memory.high=max memory.max=33554432 memory.swap.max=0 memory.oom.group=1 cpuset.cpus=1

mixed            cpu.weight=6 cpu.max=max,100000 memory.min=0 memory.low=100663296 memory.max=max pids.max=200
mixed/main       cpu.weight=4 cpu.max=20000,100000 memory.min=0 memory.low=67108864 memory.high=127504384 memory.max=134217728 memory.swap.max=swap(67108864) memory.oom.group=1 cpuset.cpus=0
mixed/side       cpu.weight=2 cpu.max=max,100000 memory.min=0 memory.low=33554432 memory.high=high(33554432) memory.max=max memory.swap.max=swap(33554432) cpuset.cpus=0

podlevel         cpu.weight=2 cpu.max=10000,100000 memory.low=33554432 memory.max=50331648 pids.max=200
podlevel/main    cpu.weight=4 cpu.max=10000,100000 memory.low=0 memory.high=max memory.max=50331648 memory.swap.max=0
podlevel/side    cpu.weight=1 cpu.max=10000,100000 memory.low=16777216 memory.high=high(16777216) memory.max=50331648 memory.swap.max=swap(16777216)

best             cpu.weight=1 cpu.max=max,100000 memory.min=0 memory.low=0 memory.max=max hugetlb.2MB.max=0 pids.max=200
best/main        cpu.weight=1 cpu.max=max,100000 memory.min=0 memory.low=0 memory.high=max memory.max=max memory.swap.max=0 memory.oom.group=1 cpuset.cpus=0
";

/// Memory reserved for the system by the configuration under test, in bytes.
const RESERVED: u64 = 100 << 20;
const PAGE: u64 = 4096;

/// The guest's memory and swap in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub total: u64,
    pub swap: u64,
}

impl Memory {
    /// Reads `MemTotal` and `SwapTotal` of /proc/meminfo.
    pub fn parse(meminfo: &str) -> anyhow::Result<Self> {
        let of = |name: &str| {
            let line = meminfo.lines().find(|line| line.starts_with(name)).context("a line of /proc/meminfo")?;
            let kib = line.split_whitespace().nth(1).context("an amount")?;
            anyhow::Ok(kib.parse::<u64>()? * 1024)
        };
        Ok(Self { total: of("MemTotal:")?, swap: of("SwapTotal:")? })
    }

    /// The value of a table's cell as the kernel prints it.
    pub fn value(self, cell: &str) -> anyhow::Result<String> {
        let argument = |function: &str| cell.strip_prefix(function).and_then(|rest| rest.strip_suffix(')'));
        let allocatable = self.total - RESERVED;
        if cell == "allocatable" {
            return Ok((allocatable / PAGE * PAGE).to_string());
        }
        if let Some(request) = argument("high(") {
            // KEP-2570: the request and nine tenths of what the node has beyond it.
            let request: u64 = request.parse()?;
            return Ok(((request + (allocatable - request) * 9 / 10) / PAGE * PAGE).to_string());
        }
        if let Some(request) = argument("swap(") {
            // KEP-2400: the share of swap is the share of memory.
            let request: u128 = request.parse()?;
            let bytes = u64::try_from(request * u128::from(self.swap) / u128::from(self.total))?;
            return Ok((bytes / PAGE * PAGE).to_string());
        }
        Ok(cell.replace(',', " "))
    }
}
