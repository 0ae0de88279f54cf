//! Ports that Kelson listens on, and who has them.
use std::collections::BTreeSet;

use crate::finding::{Finding, Findings, Level};
use crate::host::{Host, Purpose};

/// State of a listening TCP socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";
/// Files of `/proc/net`, and whether they are of UDP.
const TABLES: &[(&str, bool)] = &[("tcp", false), ("tcp6", false), ("udp", true), ("udp6", true)];
/// State of a UDP socket without a peer.
const UNCONNECTED: &str = "07";

/// A port that Kelson listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Port {
    number: u16,
    is_udp: bool,
    what: &'static str,
    level: Level,
    meaning: &'static str,
}

/// A process that uses a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The port's number.
    pub number: u16,
    /// Whether it is one of UDP.
    pub is_udp: bool,
    /// Name and ID of a process that has it; `None`: it cannot be seen, or is of the kernel.
    pub process: Option<(String, u32)>,
    /// Whether that is a Kelson: a server that runs already.
    pub is_kelson: bool,
}

fn used(purpose: &Purpose) -> Vec<Port> {
    let tcp = |number, what, level, meaning| Port { number, is_udp: false, what, level, meaning };
    let api = "The server does not start.";
    let other = "Kelson uses another port or none. Clients of this port reach the other program.";
    let server = [
        tcp(purpose.secure_port, "the API", Level::Error, api),
        tcp(10257, "the controller manager's metrics", Level::Info, other),
        tcp(10259, "the scheduler's metrics", Level::Info, other),
    ];
    let node = [
        tcp(purpose.kubelet_port, "the kubelet", Level::Warning, other),
        tcp(10249, "the proxy's metrics", Level::Info, other),
        tcp(10256, "the proxy's health", Level::Info, other),
        Port {
            number: 8472,
            is_udp: true,
            what: "VXLAN between nodes",
            level: Level::Info,
            meaning: "It is used by the kernel for an overlay, of this node or of another program: two overlays cannot share it.",
        },
    ];
    let server = server.into_iter().filter(|_| purpose.server);
    server.chain(node.into_iter().filter(|_| purpose.node)).filter(|port| port.number > 0).collect()
}

/// Those of Kelson's ports that some process listens on.
pub fn read(host: &Host, purpose: &Purpose) -> Vec<Holder> {
    let used = used(purpose);
    let mut taken: Vec<(u16, bool, String)> = Vec::new();
    for (file, is_udp) in TABLES {
        let is_udp = *is_udp;
        for (number, inode) in listening(&host.text(format!("/proc/net/{file}")), is_udp) {
            let is_new = !taken.iter().any(|(n, udp, _)| (*n, *udp) == (number, is_udp));
            if is_new && used.iter().any(|port| (port.number, port.is_udp) == (number, is_udp)) {
                taken.push((number, is_udp, inode));
            }
        }
    }
    let inodes: BTreeSet<String> = taken.iter().map(|(.., inode)| inode.clone()).collect();
    let owners = owners(host, &inodes);
    let holder = |(number, is_udp, inode): (u16, bool, String)| {
        let process = owners.iter().find(|(socket, ..)| *socket == inode).map(|(_, name, pid)| (name.clone(), *pid));
        let is_kelson = process.as_ref().is_some_and(|(name, _)| name == "kelson");
        Holder { number, is_udp, process, is_kelson }
    };
    taken.into_iter().map(holder).collect()
}

/// Returns the ports on which a process listens: `6443`, `8472/udp`, each once, in order.
pub fn listens(host: &Host, pid: u32) -> Vec<String> {
    let dir = format!("/proc/{pid}/fd");
    let sockets: BTreeSet<String> = host
        .names(&dir)
        .into_iter()
        .filter_map(|fd| inode(&host.link(format!("{dir}/{fd}"))?.to_string_lossy()).map(str::to_owned))
        .collect();
    let mut ports = BTreeSet::new();
    for (file, is_udp) in TABLES {
        let table = listening(&host.text(format!("/proc/{pid}/net/{file}")), *is_udp);
        ports.extend(table.into_iter().filter(|(_, inode)| sockets.contains(inode)).map(|(port, _)| (port, *is_udp)));
    }
    ports.into_iter().map(|(port, is_udp)| format!("{port}{}", if is_udp { "/udp" } else { "" })).collect()
}

/// The inode of a socket that a descriptor's link names.
fn inode(link: &str) -> Option<&str> {
    link.strip_prefix("socket:[")?.strip_suffix(']')
}

/// Port and inode of each listening socket of a table of `/proc/net`.
fn listening(table: &str, is_udp: bool) -> Vec<(u16, String)> {
    let state = if is_udp { UNCONNECTED } else { LISTEN };
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (local, found, inode) = (words.get(1)?, words.get(3)?, words.get(9)?);
        let (_, port) = local.rsplit_once(':')?;
        (*found == state).then_some((u16::from_str_radix(port, 16).ok()?, (*inode).to_owned()))
    };
    table.lines().skip(1).filter_map(row).collect()
}

/// Returns the processes of these sockets; only root sees all of them.
fn owners(host: &Host, inodes: &BTreeSet<String>) -> Vec<(String, String, u32)> {
    if inodes.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for pid in host.names("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok()) {
        let dir = format!("/proc/{pid}/fd");
        for fd in host.names(&dir) {
            let Some(to) = host.link(format!("{dir}/{fd}")) else { continue };
            let to = to.to_string_lossy();
            if let Some(inode) = inode(&to).filter(|inode| inodes.contains(*inode)) {
                let name = host.text(format!("/proc/{pid}/comm")).trim().to_owned();
                found.push((inode.to_owned(), name, pid));
            }
        }
    }
    found
}

/// Returns findings about ports that are in use.
pub fn find(holders: &[Holder], purpose: &Purpose) -> Vec<Finding> {
    let mut findings = Findings::of("ports");
    for port in used(purpose) {
        let is_it = |holder: &&Holder| (holder.number, holder.is_udp) == (port.number, port.is_udp);
        let Some(holder) = holders.iter().find(is_it) else { continue };
        let protocol = if port.is_udp { "UDP " } else { "" };
        let who = match &holder.process {
            Some((name, pid)) => format!("by {name} ({pid})"),
            None if port.is_udp => "by the kernel".to_owned(),
            None => "by a process that cannot be seen".to_owned(),
        };
        let found = format!("{protocol}port {} ({}) is used {who}", port.number, port.what);
        match (holder.is_kelson, port.level) {
            (true, _) => findings.ok(found),
            (false, Level::Error) => {
                findings.add(
                    port.level,
                    found,
                    port.meaning,
                    "Stop that program, or give --secure-port another number.",
                );
            }
            (false, Level::Warning) => {
                findings.add(
                    port.level,
                    found,
                    port.meaning,
                    "Stop that program, or give --kubelet-port another number.",
                );
            }
            (false, level) => findings.add(level, found, port.meaning, ""),
        }
    }
    let count = used(purpose).len();
    findings.or_ok(|| format!("all {count} ports are free"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{levels, machine, purpose};

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    fn line(port: u16, state: &str, inode: u32) -> String {
        format!(
            "   0: 00000000:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0\n"
        )
    }

    #[test]
    fn who_has_a_port_is_named() {
        let tcp = format!("{HEAD}{}{}{}", line(6443, "0A", 11), line(10250, "01", 12), line(22, "0A", 13));
        let tcp6 = format!("{HEAD}{}", line(10259, "0A", 14));
        let udp = format!("{HEAD}{}", line(8472, "07", 0));
        let files = [
            ("/proc/net/tcp", tcp.as_str()),
            ("/proc/net/tcp6", tcp6.as_str()),
            ("/proc/net/udp", udp.as_str()),
            ("/proc/50/comm", "k3s-server\n"),
            ("/proc/50/fd/3", "-> socket:[11]"),
            ("/proc/50/fd/4", "-> /dev/null"),
            ("/proc/51/comm", "kelson\n"),
            ("/proc/51/fd/9", "-> socket:[14]"),
        ];
        let (_dir, host) = machine(&files, &[]);
        let found = find(&read(&host, &purpose()), &purpose());
        assert_eq!(levels(&found), [Level::Error, Level::Ok, Level::Info], "{found:?}");
        assert_eq!(found[0].found, "port 6443 (the API) is used by k3s-server (50)");
        assert_eq!(found[2].found, "UDP port 8472 (VXLAN between nodes) is used by the kernel");
        let elsewhere = Purpose { secure_port: 7443, ..purpose() };
        assert_eq!(levels(&find(&read(&host, &elsewhere), &elsewhere)), [Level::Ok, Level::Info]);
    }

    #[test]
    fn where_a_process_listens() {
        let tcp = format!("{HEAD}{}{}", line(6443, "0A", 11), line(22, "0A", 13));
        let udp = format!("{HEAD}{}", line(53, "07", 15));
        let files = [
            ("/proc/50/net/tcp", tcp.as_str()),
            ("/proc/50/net/udp", udp.as_str()),
            ("/proc/50/fd/3", "-> socket:[11]"),
            ("/proc/50/fd/4", "-> socket:[15]"),
        ];
        let (_dir, host) = machine(&files, &[]);
        assert_eq!(listens(&host, 50), ["53/udp", "6443"]);
        assert_eq!(listens(&host, 51), Vec::<String>::new());
    }

    #[test]
    fn free_ports_are_as_they_should_be() {
        assert_eq!(levels(&find(&[], &purpose())), [Level::Ok]);
    }
}
