//! OpenRC as the first process: the service that install.sh makes, from its installation to its removal.
use anyhow::{Context as _, ensure};
use kelson_blackbox::{Outcome, Subject, eventually};

use super::guest::{Guest, Init, Machine};
use super::service::PROCESSES;
use super::{Case, KUBELET, PATIENCE, pod};

/// The program is a file of the guest, as after any installation. What would kill pods with the service is switched on for all services.
const INSTALL: &str = "rm -f /usr/local/bin/kelson; echo 'rc_cgroup_cleanup=YES' >>/etc/rc.conf
sh /payload/release/install.sh --kubelet-config /etc/kelson-kubelet.yaml 2>&1";

pub fn node(_: &Subject) -> Outcome {
    let machine = Machine { memory_mib: 1024, cpus: 2, wire: None, init: Init::OpenRc };
    super::run(
        &machine,
        |guest| {
            guest.sh(&format!("cat >/etc/kelson-kubelet.yaml <<'X'\n{KUBELET}X\n{INSTALL}"))?;
            guest.connect()
        },
        &[
            Case { name: "openrc-service", run: stop_and_start },
            Case { name: "openrc-process", run: process },
            Case { name: "openrc-reboot", run: reboot },
            Case { name: "openrc-uninstall", run: uninstall },
        ],
    )
}

/// Two pods that run.
fn two_pods(guest: &Guest) -> Outcome {
    guest.apply(&(pod("a", &[("main", "{}")], "") + &pod("b", &[("main", "{}")], "")), &["a", "b"])
}

/// Stop, start and restart end Kelson alone. A server that needs ten seconds to end is waited for.
fn stop_and_start(guest: &mut Guest) -> Outcome {
    two_pods(guest)?;
    let before = guest.sh(PROCESSES)?;
    ensure!(before.matches("(sleep)").count() == 2 && before.contains("(containerd)"), "{before}");
    let said = guest.sh("rc-service kelson-server status 2>&1; rc-update show default")?;
    ensure!(said.contains("started") && said.contains("kelson-server"), "{said}");
    guest.sh("server=$(pgrep -xo kelson); kill -STOP $server; (sleep 10; kill -CONT $server) >/dev/null 2>&1 &
rc-service kelson-server stop 2>&1; wait")?;
    let stopped = guest.sh("pgrep -x kelson || echo none; rc-service kelson-server status 2>&1 || echo $?")?;
    ensure!(stopped.starts_with("none\n") && stopped.ends_with("stopped\n3\n"), "{stopped}");
    let now = guest.sh(PROCESSES)?;
    ensure!(now == before, "stopped: {now}\nbefore: {before}");
    for command in ["start", "restart"] {
        guest.sh(&format!("rc-service kelson-server {command} 2>&1"))?;
        guest.became_ready_again()?;
        let now = guest.sh(PROCESSES)?;
        ensure!(now == before, "{command}: {now}\nbefore: {before}");
    }
    let restarts =
        guest.kubectl().ok(&["get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[0].restartCount}"])?;
    ensure!(restarts == "0 0", "{restarts}");
    let hello = guest.kubectl().ok(&["exec", "a", "--", "echo", "hello"])?;
    ensure!(hello == "hello\n", "{hello}");
    Ok(())
}

/// The limits of the process and of its runtime, the log with a time in each line, reload, and a new process after one that was killed.
fn process(guest: &mut Guest) -> Outcome {
    two_pods(guest)?;
    for program in ["kelson", "containerd"] {
        let limits = guest.sh(&format!(
            "cd /proc/$(pgrep -xo {program}); cat oom_score_adj; awk '/^Max open files/ {{print $4}}' limits"
        ))?;
        ensure!(limits == "-999\n1048576\n", "{program}: {limits}");
    }
    let id = guest.sh("pgrep -xo kelson")?;
    guest.sh("rc-service kelson-server reload 2>&1")?;
    let line = eventually("a line about the reload", PATIENCE, || {
        guest.sh("grep 'reloaded: the log level' /var/log/kelson-server.log")
    })?;
    let is_timed = line.get(..4).is_some_and(|year| year.bytes().all(|b| b.is_ascii_digit()));
    ensure!(is_timed && line.contains("INFO"), "{line}");
    let now = guest.sh("pgrep -xo kelson")?;
    ensure!(now == id, "the process is the same after a reload: {id}{now}");
    let before = guest.sh(PROCESSES)?;
    guest.sh(&format!("kill -KILL {id}"))?;
    let other = eventually("another process", PATIENCE, || {
        let now = guest.sh("pgrep -xo kelson")?;
        ensure!(now != id, "{now}");
        Ok(now)
    })?;
    guest.became_ready_again()?;
    let now = guest.sh(PROCESSES)?;
    ensure!(now == before, "now: {now}\nbefore: {before}");
    let now = guest.sh("pgrep -xo kelson")?;
    ensure!(now == other, "the new process stays: {other}{now}");
    Ok(())
}

/// The service starts at boot, and its pods run again.
fn reboot(guest: &mut Guest) -> Outcome {
    two_pods(guest)?;
    guest.reboot()?;
    guest.connect()?;
    guest.became_ready_again()?;
    let k = guest.kubectl();
    eventually("the pods run again", PATIENCE, || {
        let pods = k.json(&["get", "pods"])?;
        for pod in pods["items"].as_array().context("pods")? {
            let status = &pod["status"]["containerStatuses"][0];
            ensure!(status["ready"] == true && status["restartCount"] == 1, "{status}");
        }
        k.ok(&["exec", "b", "--", "true"])
    })?;
    Ok(())
}

/// What kelson-uninstall.sh leaves: nothing of the service, of its pods and of its files.
fn uninstall(guest: &mut Guest) -> Outcome {
    two_pods(guest)?;
    guest.sh("kelson-uninstall.sh 2>&1")?;
    let left = guest.sh("pgrep -a 'kelson|containerd|supervise|sleep' || true
ls -d /usr/local/bin/kelson* /etc/init.d/kelson* /etc/runlevels/default/kelson* /var/log/kelson* /var/lib/kelson /etc/kelson 2>/dev/null || true
find /sys/fs/cgroup -name '*kubepods*'")?;
    ensure!(left.is_empty(), "{left}");
    Ok(())
}
