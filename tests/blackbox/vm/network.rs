//! Firewalls, IPv6, and pods of two machines.
use anyhow::{Context as _, ensure};
use kelson_blackbox::{Outcome, Subject, eventually};

use super::guest::{BUSY_HOST, Guest, Init, Machine};
use super::{KUBELET, PATIENCE, pod};

/// A firewall as distributions set it up: what is not named is dropped.
const FIREWALL: &str = "nft -f - <<'X'
table inet filter {
  chain input { type filter hook input priority filter; policy drop;
    ct state established,related accept; iifname lo accept; tcp dport { 22, 6443 } accept; }
  chain forward { type filter hook forward priority filter; policy drop; ct state established,related accept; }
}
X";
/// The rules of docs/install.md.
const RULES: &str = "nft insert rule inet filter input iifname 'kn*' accept
nft insert rule inet filter forward iifname 'kn*' accept
nft insert rule inet filter forward oifname 'kn*' accept";

/// With a firewall that drops, `kelson check` names the chains; with the documented rules names, services and pods are reached.
pub fn firewall(guest: &mut Guest) -> Outcome {
    guest.apply(&(pod("web", &[("main", "{}")], "") + &pod("client", &[("main", "{}")], "")), &["web", "client"])?;
    let k = guest.kubectl();
    k.ok(&["exec", "web", "--", "sh", "-c", "mkdir /w && echo hello >/w/index.html && httpd -h /w"])?;
    k.ok(&["expose", "pod", "web", "--port=80"])?;
    let reaches =
        || k.ok(&["exec", "client", "--", "wget", "-q", "-T", "5", "-O", "-", "http://web.default.svc.cluster.local"]);
    let outcome = (|| {
        eventually("the service by name", PATIENCE, reaches)?;
        guest.sh(FIREWALL)?;
        ensure!(reaches().is_err(), "the firewall drops what its rules do not name");
        let said = guest.sh("kelson check 2>&1 || true")?;
        for chain in ["input", "forward"] {
            ensure!(said.lines().any(|line| line.contains(chain) && line.contains("drop")), "{chain}: {said}");
        }
        guest.sh(RULES)?;
        let page = eventually("the service by name with the documented rules", PATIENCE, reaches)?;
        ensure!(page == "hello\n", "{page}");
        Ok(())
    })();
    // Whatever happened, the next case has a network.
    guest.sh("nft delete table inet filter 2>/dev/null || true")?;
    k.ok(&["delete", "service", "web", "--ignore-not-found"])?;
    outcome
}

/// The guest has IPv6, the cluster none: pods have a link-local address alone, and a socket of both families is reached by IPv4.
pub fn ipv6(guest: &mut Guest) -> Outcome {
    guest.apply(&pod("six", &[("main", "{}")], ""), &["six"])?;
    let k = guest.kubectl();
    let found = k.ok(&["exec", "six", "--", "ip", "-6", "addr", "show", "dev", "eth0"])?;
    ensure!(!found.contains("scope global"), "{found}");
    let ips = k.json(&["get", "pod", "six"])?["status"]["podIPs"].clone();
    let ip = ips[0]["ip"].as_str().context("an address")?.to_owned();
    ensure!(ips.as_array().is_some_and(|all| all.len() == 1) && ip.contains('.'), "{ips}");
    k.ok(&["exec", "six", "--", "sh", "-c", "mkdir /w && echo six >/w/index.html && httpd -p '[::]:8080' -h /w"])?;
    let page = eventually("a socket of both families", PATIENCE, || {
        guest.sh(&format!("busybox wget -q -T 5 -O - http://{ip}:8080"))
    })?;
    ensure!(page == "six\n", "{page}");
    Ok(())
}

/// A server and an agent in two guests on one wire; their pods reach each other through VXLAN.
pub fn two_machines(_: &Subject) -> Outcome {
    if std::env::var(super::CASES).is_ok_and(|asked| !asked.is_empty() && !asked.contains("vxlan")) {
        return Ok(());
    }
    // One port for each run, so that two runs on a host do not share a wire.
    let wire = 20000 + u16::try_from(std::process::id() % 20000)?;
    let guest = |last: u8| -> anyhow::Result<Guest> {
        let guest = Guest::boot(&Machine { memory_mib: 768, cpus: 1, wire: Some((wire, last)), init: Init::Systemd })?;
        guest.sh(&format!(
            "hostnamectl hostname node-{last}; ip addr add 10.77.0.{last}/24 dev eth1; ip link set eth1 up"
        ))?;
        Ok(guest)
    };
    let mut server = guest(1)?;
    server.install(KUBELET, "--node-name node-1 --node-ip 10.77.0.1")?;
    let token = server.sh("cat /var/lib/kelson/node-token")?;
    let agent = guest(2)?;
    agent.sh(&format!(
        "cp /payload/release/packaging/systemd/*.service /etc/systemd/system/; mkdir -p /etc/kelson
printf 'KELSON_URL=https://10.77.0.1:6443\nKELSON_TOKEN={}\nKELSON_ARGS=\"--node-name node-2 --node-ip 10.77.0.2\"\n' >/etc/kelson/kelson.env
{BUSY_HOST}; systemctl enable -q --now kelson-agent",
        token.trim()
    ))?;
    let k = server.kubectl();
    eventually("two nodes", PATIENCE, || {
        let ready = k.ok(&["wait", "node", "node-1", "node-2", "--for=condition=Ready", "--timeout=5s"])?;
        ensure!(ready.lines().count() == 2, "{ready}");
        Ok(())
    })
    .with_context(|| agent.sh("journalctl -u kelson-agent -n 40 --no-pager -o cat").unwrap_or_default())?;
    let on = |name: &str, node: &str| pod(name, &[("main", "{}")], &format!("  nodeName: {node}\n"));
    server.apply(&(on("here", "node-1") + &on("there", "node-2")), &["here", "there"])?;
    k.ok(&["exec", "there", "--", "sh", "-c", "mkdir /w && head -c 1m /dev/zero >/w/file && httpd -h /w"])?;
    k.ok(&["expose", "pod", "there", "--port=80"])?;
    let ip = k.ok(&["get", "pod", "there", "-o", "jsonpath={.status.podIP}"])?;
    // A megabyte: packets of full size pass as well.
    for host in [ip.as_str(), "there.default.svc.cluster.local"] {
        let bytes = eventually(&format!("{host} from the other machine"), PATIENCE, || {
            k.ok(&["exec", "here", "--", "sh", "-c", &format!("wget -q -T 10 -O - http://{host}/file | wc -c")])
        })?;
        ensure!(bytes.trim() == "1048576", "{host}: {bytes}");
    }
    let device = server.sh("ip -d link show type vxlan")?;
    ensure!(device.contains("dstport 8472"), "{device}");
    Ok(())
}
