//! Machines as network namespaces on a bridge, which has a namespace too, so that several runs do not meet. Faults of the network are
//! rules of nftables on the receiving machine.
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::machine::sh;

/// A bridge and the machines on it.
pub struct Network {
    prefix: String,
    machines: usize,
}

impl Network {
    /// Creates the bridge, and machines with the numbers 0 to `machines` - 1.
    pub fn start(machines: usize) -> anyhow::Result<Self> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let network = Self { prefix: format!("ks{}-{number}", std::process::id()), machines };
        let (hub, gateway) = (network.hub(), Self::address(machines));
        sh(&format!(
            "ip netns add {hub} && ip -n {hub} link set lo up && ip -n {hub} link add bridge0 type bridge &&
             ip -n {hub} addr add {gateway}/24 dev bridge0 && ip -n {hub} link set bridge0 up"
        ))?;
        for machine in 0..machines {
            let (name, address) = (network.machine(machine), Self::address(machine));
            sh(&format!(
                "ip netns add {name} && ip -n {hub} link add p{machine} type veth peer name up0 netns {name} &&
                 ip -n {hub} link set p{machine} master bridge0 up && ip -n {name} link set lo up &&
                 ip -n {name} addr add {address}/24 dev up0 && ip -n {name} link set up0 up &&
                 ip -n {name} route add default via {gateway} &&
                 ip netns exec {name} nft 'table inet faults {{ chain input {{ type filter hook input priority 0; }}; }}'"
            ))?;
        }
        Ok(network)
    }

    /// Returns the address of a machine. The network is closed, so every run has the same addresses.
    pub fn address(machine: usize) -> Ipv4Addr {
        // RFC 2544's range for tests of network devices.
        Ipv4Addr::new(198, 19, 0, u8::try_from(machine + 1).unwrap_or(u8::MAX))
    }

    fn hub(&self) -> String {
        format!("{}h", self.prefix)
    }

    /// Returns the name of a machine's network namespace.
    pub fn machine(&self, machine: usize) -> String {
        format!("{}m{machine}", self.prefix)
    }

    /// Moves the calling thread to the bridge, where it reaches all machines. Its later threads and connections are there as well.
    pub fn enter(&self) -> anyhow::Result<()> {
        let namespace = std::fs::File::open(format!("/run/netns/{}", self.hub()))?;
        Ok(move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(LinkNameSpaceType::Network))?)
    }

    /// Has a machine ignore all packets of another one.
    pub fn cut(&self, from: usize, to: usize) -> anyhow::Result<()> {
        let (name, address) = (self.machine(to), Self::address(from));
        sh(&format!("ip netns exec {name} nft add rule inet faults input ip saddr {address} drop")).map(drop)
    }

    /// Has a machine ignore connections to one of its ports.
    pub fn close_port(&self, machine: usize, port: u16) -> anyhow::Result<()> {
        let name = self.machine(machine);
        sh(&format!("ip netns exec {name} nft add rule inet faults input tcp dport {port} drop")).map(drop)
    }

    /// Reverts every [`Network::cut`] and [`Network::close_port`].
    pub fn mend(&self) -> anyhow::Result<()> {
        for machine in 0..self.machines {
            sh(&format!("ip netns exec {} nft flush chain inet faults input", self.machine(machine)))?;
        }
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let machines = (0..self.machines).map(|machine| self.machine(machine));
        for name in machines.chain([self.hub()]) {
            let _ = Command::new("ip").args(["netns", "del", &name]).stderr(Stdio::null()).status();
        }
    }
}
