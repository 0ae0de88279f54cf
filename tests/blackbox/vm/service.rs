//! The unit: stop, start, restart, shutdown of the machine, and little memory.
use anyhow::{Context as _, ensure};
use kelson_blackbox::{Outcome, eventually};

use super::guest::Guest;
use super::{IMAGE, PATIENCE, number, pod};

/// ID and start time of every process of a container, and of the runtime.
pub const PROCESSES: &str = "for pid in $(pgrep -x sleep) $(pgrep -x containerd); do cut -d' ' -f1,2,22 /proc/$pid/stat 2>/dev/null || true; done | sort";

/// Stop, start and restart end Kelson alone: the pods' processes and the runtime are the same after each.
pub fn stop_and_start(guest: &mut Guest) -> Outcome {
    guest.apply(&(pod("a", &[("main", "{}")], "") + &pod("b", &[("main", "{}")], "")), &["a", "b"])?;
    // The channel's own shell sleeps too, but only where the host is away.
    let before = guest.sh(PROCESSES)?;
    ensure!(before.matches("(sleep)").count() == 2 && before.contains("(containerd)"), "{before}");
    guest.sh("systemctl stop kelson-server")?;
    let result = guest.sh("systemctl show -P Result kelson-server; pgrep -x kelson || echo none")?;
    ensure!(result == "success\nnone\n", "{result}");
    let stopped = guest.sh(PROCESSES)?;
    ensure!(stopped == before, "stopped: {stopped}\nbefore: {before}");
    for command in ["start", "restart"] {
        // The unit is Type=notify: the command ends when the API server answers.
        guest.sh(&format!("systemctl {command} kelson-server && systemctl is-active kelson-server"))?;
        guest.became_ready_again()?;
        let now = guest.sh(PROCESSES)?;
        ensure!(now == before, "{command}: {now}\nbefore: {before}");
    }
    let restarts =
        guest.kubectl().ok(&["get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[0].restartCount}"])?;
    ensure!(restarts == "0 0", "{restarts}");
    Ok(())
}

/// The journal keeps each line's priority and its time once, and a reload keeps the process.
pub fn journal(guest: &mut Guest) -> Outcome {
    let main = "systemctl show -P MainPID kelson-server";
    let before = guest.sh(main)?;
    guest.sh("systemctl reload kelson-server")?;
    let reloaded = eventually("a line about the reload", PATIENCE, || {
        let lines = lines(guest, "kelson-server")?;
        lines.into_iter().find(|(_, text)| text.contains("reloaded:")).context("no line about the reload")
    })?;
    ensure!(reloaded.0 == "6", "{reloaded:?}");
    let after = guest.sh(&format!("{main}; systemctl is-active kelson-server"))?;
    ensure!(after == format!("{before}active\n"), "{before}{after}");
    // The end of a process that does not understand its flags is an error.
    guest.sh("systemd-run -q --unit=wrong --wait kelson server --log-level nonsense=loud || true")?;
    let wrong = lines(guest, "wrong")?;
    ensure!(wrong.iter().any(|(priority, text)| priority == "3" && text.contains("--log-level")), "{wrong:?}");
    for (_, text) in lines(guest, "kelson-server")? {
        let is_timed = text.get(..4).is_some_and(|year| year.bytes().all(|b| b.is_ascii_digit()));
        let has_level = ["INFO ", "WARN ", "ERROR ", "<"].iter().any(|level| text.trim_start().starts_with(level));
        ensure!(!is_timed && !has_level, "{text}");
    }
    Ok(())
}

/// What a unit's processes wrote to the journal: priority and text of each line.
fn lines(guest: &Guest, unit: &str) -> anyhow::Result<Vec<(String, String)>> {
    let text = guest.sh(&format!(
        "journalctl _SYSTEMD_UNIT={unit}.service _TRANSPORT=stdout -n 200 -o json --output-fields=MESSAGE,PRIORITY --no-pager"
    ))?;
    let lines = text.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line)?;
        let of = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
        Ok((of("PRIORITY"), of("MESSAGE")))
    });
    lines.collect()
}

/// A server that hangs is replaced; its pods and their runtime do not notice.
pub fn watchdog(guest: &mut Guest) -> Outcome {
    guest.apply(&(pod("a", &[("main", "{}")], "") + &pod("b", &[("main", "{}")], "")), &["a", "b"])?;
    let before = guest.sh(PROCESSES)?;
    // The time of the unit; the other cases have a longer one.
    guest.sh("mkdir -p /run/systemd/system/kelson-server.service.d
printf '[Service]\nWatchdogSec=60\nTimeoutAbortSec=2\n' >/run/systemd/system/kelson-server.service.d/watchdog.conf
systemctl daemon-reload; systemctl restart kelson-server")?;
    guest.became_ready_again()?;
    let restarts = || super::number(&guest.sh("systemctl show -P NRestarts kelson-server")?);
    let restarted = restarts()?;
    guest.sh("kill -STOP $(systemctl show -P MainPID kelson-server)")?;
    eventually("a restart by the watchdog", PATIENCE, || {
        ensure!(restarts()? > restarted, "no restart");
        guest.sh("systemctl is-active kelson-server; journalctl -u kelson-server | grep 'Watchdog timeout'")
    })?;
    guest.became_ready_again()?;
    guest.sh(
        "rm -r /run/systemd/system/kelson-server.service.d; systemctl daemon-reload; systemctl restart kelson-server",
    )?;
    guest.became_ready_again()?;
    let now = guest.sh(PROCESSES)?;
    ensure!(now == before, "now: {now}\nbefore: {before}");
    Ok(())
}

/// A pod that needs three seconds to end and writes when it did.
fn slow(name: &str) -> String {
    let script = "trap 'sleep 3; date >>/d/ended; exit 0' TERM; echo started >>/d/starts; while :; do sleep 1; done";
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 20\n  volumes: [{{name: d, hostPath: {{path: /var/slow, type: DirectoryOrCreate}}}}]\n  containers:\n  - {{name: main, image: \"{IMAGE}\", command: [sh, -c, {}], volumeMounts: [{{name: d, mountPath: /d}}]}}\n",
        serde_json::Value::from(script)
    )
}

/// `systemctl reboot` waits for the pods: each gets its grace, and is Failed with upstream's reason afterwards; a Deployment replaces its own.
pub fn graceful_shutdown(guest: &mut Guest) -> Outcome {
    let held = guest.sh("systemd-inhibit --list --no-legend")?;
    ensure!(held.contains("shutdown") && held.contains("delay"), "the kubelet delays a shutdown: {held}");
    guest.apply(&slow("slow"), &["slow"])?;
    let k = guest.kubectl();
    k.ok(&["create", "deployment", "web", &format!("--image={IMAGE}"), "--", "sleep", "3600"])?;
    k.ok(&["rollout", "status", "deployment/web", "--timeout=180s"])?;
    guest.reboot()?;
    guest.connect()?;
    guest.became_ready_again()?;
    // The image does not wait for its network at boot, so the node may start before it has an address.
    let address =
        k.ok(&["get", "nodes", "-o", "jsonpath={.items[0].status.addresses[?(@.type==\"InternalIP\")].address}"])?;
    ensure!(address == "10.0.2.15", "the node's address: {address}");
    let written = guest.sh("cat /var/slow/ended | wc -l; wc -l </var/slow/starts")?;
    ensure!(written == "1\n1\n", "its grace was given once, and it did not start again: {written}");
    let status = k.json(&["get", "pod", "slow"])?["status"].clone();
    ensure!(status["phase"] == "Failed" && status["reason"] == "Terminated", "{status}");
    let message = status["message"].as_str().context("a message")?;
    ensure!(message == "Pod was terminated in response to imminent node shutdown.", "{message}");
    eventually("the deployment's new pod", PATIENCE, || {
        k.ok(&["rollout", "status", "deployment/web", "--timeout=5s"])
    })?;
    Ok(())
}

/// Five pods live on a small machine, and nothing is killed for memory.
pub fn five_pods(guest: &mut Guest) -> Outcome {
    guest.connect()?;
    let k = guest.kubectl();
    let deployment = ["create", "deployment", "small", &format!("--image={IMAGE}"), "--replicas=5"];
    k.ok(&[&deployment[..], &["--", "httpd", "-f"]].concat())?;
    eventually("five pods", PATIENCE * 2, || k.ok(&["rollout", "status", "deployment/small", "--timeout=10s"]))
        .with_context(|| k.ok(&["get", "pods", "-o", "wide"]).unwrap_or_default())?;
    let killed = guest
        .sh("journalctl -k --no-pager | grep -ci 'out of memory' || true; systemctl show -P NRestarts kelson-server")?;
    ensure!(killed == "0\n0\n", "killed for memory, and restarts: {killed}");
    let rss = number(&guest.sh("awk '/^VmRSS/ {print $2}' /proc/$(pgrep -xo kelson)/status")?)?;
    let free = guest.sh("free -m | sed -n 2p")?;
    println!("  kelson has {rss} KiB resident; {}", free.trim());
    Ok(())
}
