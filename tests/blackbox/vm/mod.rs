//! Kelson where it is used: Debian with systemd, pure cgroup v2 and AppArmor, in a virtual machine. `make test-vm` sets `KELSON_VM` and makes
//! the image; docs/internals/vm.md has the values that are compared. A guest takes minutes under emulation, so a test is one guest, and its
//! cases run one after another in it. `KELSON_VM_CASES` (`make test-vm CASES=…`) names parts of the cases to run.
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use kelson_blackbox::{Needs::VirtualMachine, Outcome, Subject, Test};

mod cgroups;
mod guest;
mod isolation;
mod network;
mod node;
mod openrc;
mod resources;
mod service;
mod values;

use guest::{Guest, Init, Machine};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "vm::one_node", needs: VirtualMachine, run: one_node },
        Test { name: "vm::little_memory", needs: VirtualMachine, run: little_memory },
        Test { name: "vm::two_machines", needs: VirtualMachine, run: network::two_machines },
        Test { name: "vm::openrc", needs: VirtualMachine, run: openrc::node },
    ]
}

/// The time limit of what takes seconds on a real machine: emulated it is ten times slower, and other programs use the host too.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// The names of cases to run, separated by commas; each case whose name has one of them in it.
const CASES: &str = "KELSON_VM_CASES";

/// One part of a guest's test.
struct Case {
    name: &'static str,
    run: fn(&mut Guest) -> Outcome,
}

/// Runs the chosen cases in a guest, all of them even if some fail.
fn run(machine: &Machine, prepare: fn(&mut Guest) -> Outcome, cases: &[Case]) -> Outcome {
    let asked = std::env::var(CASES).unwrap_or_default();
    let asked: Vec<&str> = asked.split(',').filter(|part| !part.is_empty()).collect();
    let is_chosen = |case: &&Case| asked.is_empty() || asked.iter().any(|part| case.name.contains(part));
    let chosen: Vec<&Case> = cases.iter().filter(is_chosen).collect();
    if chosen.is_empty() {
        return Ok(());
    }
    let started = Instant::now();
    let mut guest = Guest::boot(machine)?;
    prepare(&mut guest)?;
    println!("  a guest with {} MiB and its node: {:.0}s", machine.memory_mib, started.elapsed().as_secs_f64());
    let mut failed = Vec::new();
    for (i, case) in chosen.into_iter().enumerate() {
        if i > 0 {
            guest.forget_pods().with_context(|| format!("before {}\n{}", case.name, guest.log_tail()))?;
        }
        let started = Instant::now();
        let outcome = (case.run)(&mut guest);
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("  case {} ... {word} ({:.0}s)", case.name, started.elapsed().as_secs_f64());
        if let Err(why) = outcome {
            println!("  ---- {} ----\n{why:#}", case.name);
            failed.push(case.name);
        }
    }
    if !failed.is_empty() {
        bail!("{failed:?} failed\n{}", guest.log_tail());
    }
    Ok(())
}

/// All that one node shows. The order saves starts: cases of the cgroupfs driver, then those of systemd's, then those that restart the guest.
fn one_node(_: &Subject) -> Outcome {
    let machine = Machine { memory_mib: 2048, cpus: 2, wire: None, init: Init::Systemd };
    run(
        &machine,
        |guest| {
            guest.sh(PAGES_AND_SWAP)?;
            guest.install(&kubelet("cgroupfs"), "")
        },
        &[
            Case { name: "check", run: node::check },
            Case { name: "cgroups-cgroupfs", run: |guest| cgroups::compare(guest, "cgroupfs") },
            Case { name: "statistics", run: node::statistics },
            Case { name: "resize", run: resources::resize },
            Case { name: "oom", run: resources::oom },
            Case { name: "apparmor", run: isolation::apparmor },
            Case { name: "seccomp", run: isolation::seccomp },
            Case { name: "firewall", run: network::firewall },
            Case { name: "ipv6", run: network::ipv6 },
            Case { name: "journal", run: service::journal },
            Case { name: "service", run: service::stop_and_start },
            Case { name: "watchdog", run: service::watchdog },
            Case {
                name: "cgroups-systemd",
                run: |guest| {
                    guest.reconfigure(&kubelet("systemd"), "")?;
                    cgroups::compare(guest, "systemd")
                },
            },
            Case { name: "eviction", run: resources::eviction },
            Case { name: "shutdown", run: service::graceful_shutdown },
            Case { name: "usernamespaces-old", run: isolation::user_namespaces_wait },
            Case { name: "usernamespaces-new", run: isolation::user_namespaces },
        ],
    )
}

/// The machine of the smallest boards: 512 MiB, then the same disk with 384 MiB.
fn little_memory(_: &Subject) -> Outcome {
    let machine = Machine { memory_mib: 512, cpus: 2, wire: None, init: Init::Systemd };
    run(
        &machine,
        |guest| guest.install(KUBELET, ""),
        &[
            Case { name: "memory-512", run: service::five_pods },
            Case {
                name: "memory-384",
                run: |guest| {
                    guest.boot_again(384)?;
                    service::five_pods(guest)
                },
            },
        ],
    )
}

/// 16 huge pages, and 256 MiB of swap.
const PAGES_AND_SWAP: &str = "echo 16 >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
dd if=/dev/zero of=/swap bs=1M count=256 status=none; chmod 600 /swap; mkswap -q /swap
echo '/swap none swap sw 0 0' >>/etc/fstab; echo vm.nr_hugepages=16 >/etc/sysctl.d/pages.conf; swapon /swap";

/// A configuration without anything.
const KUBELET: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

/// A configuration with everything that shows in cgroups.
fn kubelet(driver: &str) -> String {
    format!(
        "{KUBELET}cgroupDriver: {driver}
podPidsLimit: 200
cpuManagerPolicy: static
systemReserved: {{cpu: 500m, memory: 100Mi}}
failSwapOn: false
memorySwap: {{swapBehavior: LimitedSwap}}
featureGates: {{MemoryQoS: true}}
memoryReservationPolicy: TieredReservation
evictionHard: {{memory.available: 50Mi, nodefs.available: 1%}}
shutdownGracePeriod: 60s
shutdownGracePeriodCriticalPods: 10s
"
    )
}

/// A pod whose containers have these resources (in YAML, in JSON's form), and more of its specification.
fn pod(name: &str, containers: &[(&str, &str)], more: &str) -> String {
    let containers: String = containers
        .iter()
        .map(|(container, resources)| {
            format!(
                "  - {{name: {container}, image: \"{IMAGE}\", command: [sleep, \"3600\"], resources: {resources}}}\n"
            )
        })
        .collect();
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\nspec:\n  terminationGracePeriodSeconds: 1\n{more}  containers:\n{containers}"
    )
}

/// The image in the guest.
const IMAGE: &str = "kelson.local/test/busybox:1";

/// Reads a number that a command printed.
fn number(text: &str) -> anyhow::Result<u64> {
    let text = text.trim();
    ensure!(!text.is_empty(), "a number was expected, nothing was printed");
    Ok(text.parse()?)
}
