//! Firewalls that drop what pods send: chains of other programs with the policy `drop`, and the programs that are known to make them.
use serde_json::Value;

use super::processes;
use crate::finding::{Finding, Findings, Level};
use crate::host::{Host, Purpose};

/// Interfaces of the pod network begin with this: `kn` and eight digits.
const INTERFACE: &str = "kn";
/// The UDP port of the traffic between pods of different nodes.
const VXLAN_PORT: u16 = 8472;

/// A base chain of another program that drops what no rule accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropping {
    /// `ip`, `ip6` or `inet`.
    pub family: String,
    /// The table that it is in.
    pub table: String,
    /// The name of the chain.
    pub chain: String,
    /// `input` or `forward`.
    pub hook: String,
    /// Whether a rule in it names the pod network's interface.
    pub has_rule: bool,
}

/// The programs and rules that filter packets.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FirewallFacts {
    /// Whether the rules can be listed.
    pub is_seen: bool,
    /// Chains of nftables; those of iptables are among them, unless it is the old one.
    pub dropping: Vec<Dropping>,
    /// Hooks that the old iptables drops by policy.
    pub legacy: Vec<String>,
    /// Whether firewalld runs.
    pub firewalld: bool,
    /// Whether ufw is switched on.
    pub ufw: bool,
}

/// By `nft`, `iptables-legacy`, and files of firewalls.
pub fn read(host: &Host) -> FirewallFacts {
    let chains = host.output(&["nft", "-j", "list", "chains"]);
    let mut dropping = chains.as_deref().map(dropping).unwrap_or_default();
    for chain in &mut dropping {
        let text =
            host.output(&["nft", "list", "chain", &chain.family, &chain.table, &chain.chain]).unwrap_or_default();
        chain.has_rule = names_pods(&text);
    }
    let legacy = match host.text("/proc/net/ip_tables_names").lines().any(|table| table == "filter") {
        true => host.output(&["iptables-legacy", "-S"]).unwrap_or_default(),
        false => String::new(),
    };
    FirewallFacts {
        is_seen: chains.is_some(),
        dropping,
        legacy: legacy_drops(&legacy),
        firewalld: processes::read(host).iter().any(|p| p.name == "firewalld" || p.command.contains("/firewalld ")),
        ufw: host.text("/etc/ufw/ufw.conf").lines().any(|line| line.trim().eq_ignore_ascii_case("enabled=yes")),
    }
}

/// Base chains with the policy `drop` on the way of pods' packets, in the listing of `nft -j list chains`.
fn dropping(listing: &str) -> Vec<Dropping> {
    let listing: Value = serde_json::from_str(listing).unwrap_or_default();
    let text = |chain: &Value, key: &str| chain[key].as_str().unwrap_or_default().to_owned();
    let chains = listing["nftables"].as_array().into_iter().flatten().map(|entry| &entry["chain"]);
    let chains = chains.filter(|chain| {
        let is_on_the_way = ["input", "forward"].contains(&chain["hook"].as_str().unwrap_or_default());
        let is_of_pods = ["ip", "inet"].contains(&chain["family"].as_str().unwrap_or_default());
        is_on_the_way && is_of_pods && chain["policy"] == "drop" && !text(chain, "table").starts_with("kelson")
    });
    let chain = |chain: &Value| Dropping {
        family: text(chain, "family"),
        table: text(chain, "table"),
        chain: text(chain, "name"),
        hook: text(chain, "hook"),
        has_rule: false,
    };
    chains.map(chain).collect()
}

/// Whether the listing of a chain has a rule for the pod network's interface that accepts.
fn names_pods(chain: &str) -> bool {
    chain.lines().any(|line| line.contains(&format!("ifname \"{INTERFACE}")) && line.contains("accept"))
}

/// Returns the hooks with the policy DROP in the output of `iptables -S` without a rule for the pod network's
/// interface.
fn legacy_drops(listing: &str) -> Vec<String> {
    let drops = |chain: &&str| {
        let has_rule = listing.lines().any(|line| {
            line.starts_with(&format!("-A {chain} "))
                && line.contains(&format!(" {INTERFACE}"))
                && line.contains("ACCEPT")
        });
        listing.lines().any(|line| line == format!("-P {chain} DROP")) && !has_rule
    };
    ["INPUT", "FORWARD"].into_iter().filter(drops).map(|chain| chain.to_lowercase()).collect()
}

fn meaning(hook: &str) -> &'static str {
    match hook {
        "input" => {
            "Pods cannot look up names, and reach neither the API nor node ports by this node's address: all of that enters the node. \
             Other nodes reach neither its pods (VXLAN) nor its kubelet and API."
        }
        _ => "Pods reach neither services nor other nodes nor the outside: what they send is forwarded by this node.",
    }
}

/// The ports to which other machines connect.
fn tcp_ports(purpose: &Purpose) -> String {
    let api = purpose.server.then(|| purpose.secure_port.to_string());
    let ports: Vec<String> = api.into_iter().chain([purpose.kubelet_port.to_string()]).collect();
    ports.join(",")
}

/// Reports the traffic of pods that a firewall drops, with the rules that allow it.
pub fn find(facts: &FirewallFacts, purpose: &Purpose) -> Vec<Finding> {
    let mut findings = Findings::of("firewall");
    if !purpose.node {
        return findings.or_ok(|| "clients of the API need its port, and nothing else".to_owned());
    }
    // A manager restores its own rules: the change is made there.
    let action = match (facts.firewalld, facts.ufw) {
        (true, _) => Some(
            "firewall-cmd --permanent --zone=trusted --add-source=10.42.0.0/16 --add-source=10.43.0.0/16; firewall-cmd --permanent \
             --add-port=6443/tcp --add-port=10250/tcp --add-port=8472/udp; firewall-cmd --reload (with other ranges where --cluster-cidr and \
             --service-cidr say so)",
        ),
        (_, true) => Some(
            "ufw allow from 10.42.0.0/16; ufw route allow from 10.42.0.0/16; ufw route allow to 10.42.0.0/16; ufw allow 6443/tcp; ufw \
             allow 10250/tcp; ufw allow 8472/udp (with another range where --cluster-cidr says so)",
        ),
        _ => None,
    };
    if facts.firewalld {
        let meaning = "It rejects what pods send to this node and through it, unless their addresses are trusted.";
        findings.add(Level::Warning, "firewalld runs", meaning, action.unwrap_or_default());
    }
    for chain in facts.dropping.iter().filter(|chain| !chain.has_rule && !facts.firewalld) {
        let Dropping { family, table, chain: name, hook, .. } = chain;
        let rules = match hook.as_str() {
            "input" => format!(
                "nft insert rule {family} {table} {name} iifname \"{INTERFACE}*\" accept; nft insert rule {family} {table} {name} udp \
                 dport {VXLAN_PORT} accept; nft insert rule {family} {table} {name} tcp dport {{ {} }} accept",
                tcp_ports(purpose),
            ),
            _ => format!(
                "nft insert rule {family} {table} {name} iifname \"{INTERFACE}*\" accept; nft insert rule {family} {table} {name} oifname \
                 \"{INTERFACE}*\" accept"
            ),
        };
        let found = format!("the chain {family} {table} {name} drops by policy ({hook})");
        findings.add(Level::Warning, found, meaning(hook), action.map_or(rules, str::to_owned));
    }
    for hook in &facts.legacy {
        let chain = hook.to_uppercase();
        let rules = match hook.as_str() {
            "input" => format!(
                "iptables-legacy -I {chain} -i {INTERFACE}+ -j ACCEPT; iptables-legacy -I {chain} -p udp --dport {VXLAN_PORT} -j ACCEPT; \
                 iptables-legacy -I {chain} -p tcp -m multiport --dports {} -j ACCEPT",
                tcp_ports(purpose),
            ),
            _ => format!(
                "iptables-legacy -I {chain} -i {INTERFACE}+ -j ACCEPT; iptables-legacy -I {chain} -o {INTERFACE}+ -j ACCEPT"
            ),
        };
        findings.add(Level::Warning, format!("iptables (legacy) drops by policy ({hook})"), meaning(hook), rules);
    }
    if !facts.is_seen {
        let meaning = "A chain that drops what pods send would not be seen: nft is missing, or may not list.";
        findings.add(Level::Info, "the rules of nftables cannot be listed", meaning, "");
    }
    findings.or_ok(|| "no chain drops traffic of pods by policy".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{control_plane, levels, machine, purpose};

    const CHAINS: &str = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
        {"chain": {"family": "inet", "table": "filter", "name": "input", "handle": 1, "type": "filter", "hook": "input", "prio": 0, "policy": "drop"}},
        {"chain": {"family": "inet", "table": "filter", "name": "forward", "handle": 2, "type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}},
        {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "handle": 3, "type": "filter", "hook": "forward", "prio": 0, "policy": "drop"}},
        {"chain": {"family": "ip6", "table": "filter", "name": "FORWARD", "handle": 3, "type": "filter", "hook": "forward", "prio": 0, "policy": "drop"}},
        {"chain": {"family": "inet", "table": "filter", "name": "services", "handle": 4}}]}"#;

    #[test]
    fn chains_that_drop_are_named_with_the_rules_that_are_needed() {
        let docker = "table ip filter {\n  chain FORWARD {\n    iifname \"docker0\" accept\n  }\n}\n";
        let (_dir, host) =
            machine(&[], &[("nft -j list chains", CHAINS), ("nft list chain ip filter FORWARD", docker)]);
        let found = find(&read(&host), &purpose());
        assert_eq!(levels(&found), [Level::Warning, Level::Warning], "{found:?}");
        let rules = ["iifname \"kn*\" accept", "udp dport 8472 accept", "tcp dport { 6443,10250 } accept"];
        let rules = rules.map(|rule| format!("nft insert rule inet filter input {rule}"));
        assert_eq!(found[0].action, rules.join("; "));
        assert!(found[1].action.contains("ip filter FORWARD oifname \"kn*\" accept"), "{found:?}");
        assert_eq!(levels(&find(&read(&host), &control_plane())), [Level::Ok]);
    }

    #[test]
    fn a_chain_that_lets_pods_pass_is_as_it_should_be() {
        let passes = "chain x {\n iifname \"kn*\" accept\n}";
        let outputs = [
            ("nft -j list chains", CHAINS),
            ("nft list chain ip filter FORWARD", passes),
            ("nft list chain inet filter input", passes),
        ];
        let (_dir, host) = machine(&[], &outputs);
        assert_eq!(levels(&find(&read(&host), &purpose())), [Level::Ok]);
    }

    #[test]
    fn managers_are_given_their_own_commands() {
        let (_dir, host) = machine(
            &[("/proc/9/comm", "firewalld\n"), ("/proc/9/cmdline", "/usr/bin/python3 /usr/sbin/firewalld --nofork\0")],
            &[("nft -j list chains", CHAINS)],
        );
        let found = find(&read(&host), &purpose());
        assert_eq!(levels(&found), [Level::Warning]);
        assert!(found[0].action.starts_with("firewall-cmd"));
        let (_dir, host) = machine(&[("/etc/ufw/ufw.conf", "# x\nENABLED=yes\n")], &[("nft -j list chains", CHAINS)]);
        let found = find(&read(&host), &purpose());
        assert!(found.iter().all(|finding| finding.action.starts_with("ufw allow")), "{found:?}");
    }

    #[test]
    fn the_old_iptables_is_asked_where_it_has_tables() {
        let rules = "-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n";
        let outputs = [("iptables-legacy -S", rules), ("nft -j list chains", "{\"nftables\": []}")];
        let (_dir, host) = machine(&[("/proc/net/ip_tables_names", "nat\nfilter\n")], &outputs);
        let found = find(&read(&host), &purpose());
        assert_eq!(levels(&found), [Level::Warning]);
        assert!(found[0].action.contains("-I FORWARD -o kn+"), "{found:?}");
        let accepted = format!("{rules}-A FORWARD -i kn+ -j ACCEPT\n");
        assert!(legacy_drops(&accepted).is_empty());
    }

    #[test]
    fn rules_that_cannot_be_listed_are_not_taken_for_none() {
        let (_dir, host) = machine(&[], &[]);
        assert_eq!(levels(&find(&read(&host), &purpose())), [Level::Info]);
    }
}
