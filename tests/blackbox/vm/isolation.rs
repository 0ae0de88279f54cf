//! What keeps a container from the rest: AppArmor, seccomp, user namespaces.
use anyhow::ensure;
use kelson_blackbox::{Outcome, eventually};

use super::guest::Guest;
use super::{PATIENCE, pod};

/// A profile that denies one directory; it takes signals of the runtime, which Debian confines too.
const PROFILE: &str = "apparmor_parser -r <<'X'
#include <tunables/global>
profile kelson-local flags=(attach_disconnected,mediate_deleted) {
  #include <abstractions/base>
  file, network, capability,
  deny /tmp/denied/** w,
  signal (receive) peer=runc,
  signal (receive) peer=unconfined,
  signal peer=kelson-local,
}
X";

/// The profile that a container's process has, for each way to ask for one.
pub fn apparmor(guest: &mut Guest) -> Outcome {
    guest.sh(PROFILE)?;
    let with = |profile: &str| format!("  securityContext: {{appArmorProfile: {profile}}}\n");
    let all = [
        ("none", String::new(), "cri-containerd.apparmor.d (enforce)"),
        ("default", with("{type: RuntimeDefault}"), "cri-containerd.apparmor.d (enforce)"),
        ("local", with("{type: Localhost, localhostProfile: kelson-local}"), "kelson-local (enforce)"),
        // Debian 13 gives runc a profile without rules, and its children keep it.
        ("free", with("{type: Unconfined}"), "runc (unconfined)"),
    ];
    let text: String = all.iter().map(|(name, more, _)| pod(name, &[("main", "{}")], more)).collect();
    let missing = pod("missing", &[("main", "{}")], &with("{type: Localhost, localhostProfile: not-there}"));
    guest.apply(&(text + &missing), &all.each_ref().map(|(name, ..)| *name))?;
    let k = guest.kubectl();
    for (name, _, profile) in &all {
        let found = k.ok(&["exec", name, "--", "cat", "/proc/1/attr/current"])?;
        ensure!(found.trim() == *profile, "{name}: {found}");
    }
    k.fails(&["exec", "local", "--", "sh", "-c", "mkdir -p /tmp/denied && echo x >/tmp/denied/file"])?;
    k.ok(&["exec", "free", "--", "sh", "-c", "mkdir -p /tmp/denied && echo x >/tmp/denied/file"])?;
    eventually("a profile that is not there", PATIENCE, || {
        let waits = "jsonpath={.status.containerStatuses[0].state.waiting.reason}";
        let why = k.ok(&["get", "pod", "missing", "-o", waits])?;
        ensure!(why == "CreateContainerError", "{why}");
        Ok(())
    })?;
    // The profile takes the runtime's signals, so the pod ends in time.
    k.ok(&["delete", "pod", "local", "--timeout=60s"])?;
    Ok(())
}

/// `Seccomp` of /proc is 2 with a filter. With `SeccompDefault` off a pod that asks for nothing has none.
pub fn seccomp(guest: &mut Guest) -> Outcome {
    let with = |profile: &str| format!("  securityContext: {{seccompProfile: {{type: {profile}}}}}\n");
    let all =
        [("none", String::new(), "0"), ("default", with("RuntimeDefault"), "2"), ("free", with("Unconfined"), "0")];
    let text: String = all.iter().map(|(name, more, _)| pod(name, &[("main", "{}")], more)).collect();
    guest.apply(&text, &all.each_ref().map(|(name, ..)| *name))?;
    let k = guest.kubectl();
    for (name, _, mode) in &all {
        let found = k.ok(&["exec", name, "--", "awk", "/^Seccomp:/ {print $2}", "/proc/1/status"])?;
        ensure!(found.trim() == *mode, "{name}: {found}");
    }
    Ok(())
}

/// Debian's runtime cannot do them: the pod waits and says why, and its Deployment makes no other.
pub fn user_namespaces_wait(guest: &mut Guest) -> Outcome {
    let k = guest.kubectl();
    guest.apply(DEPLOYMENT, &[])?;
    eventually("a reason", PATIENCE, || {
        let events = k.ok(&["get", "events", "-o", "jsonpath={.items[*].reason}"])?;
        ensure!(events.contains("FailedCreatePodSandBox"), "{events}");
        Ok(())
    })?;
    let pods = k.ok(&["get", "pods", "-l", "app=own-users", "-o", "jsonpath={.items[*].status.phase}"])?;
    ensure!(pods == "Pending", "one pod that waits, not {pods}");
    Ok(())
}

const DEPLOYMENT: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: own-users}
spec:
  selector: {matchLabels: {app: own-users}}
  template:
    metadata: {labels: {app: own-users}}
    spec:
      hostUsers: false
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "kelson.local/test/busybox:1", command: [sleep, "3600"]}]
"#;

/// With the next Debian's runtime root of a pod is not root of the guest, and two pods share no user.
pub fn user_namespaces(guest: &mut Guest) -> Outcome {
    guest.forget_pods()?;
    guest.sh("systemctl stop kelson-server; kelson cleanup || true; mkdir -p /etc/systemd/system/kelson-server.service.d
printf '[Service]\nEnvironment=PATH=/opt/newer/usr/bin:/opt/newer/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin\n' >/etc/systemd/system/kelson-server.service.d/path.conf
systemctl daemon-reload; systemctl start kelson-server")?;
    guest.connect()?;
    guest.became_ready_again()?;
    let pods =
        [pod("one", &[("main", "{}")], "  hostUsers: false\n"), pod("two", &[("main", "{}")], "  hostUsers: false\n")];
    guest.apply(&pods.concat(), &["one", "two"])?;
    let k = guest.kubectl();
    let map = |name: &str| -> anyhow::Result<Vec<u64>> {
        let text = k.ok(&["exec", name, "--", "cat", "/proc/self/uid_map"])?;
        Ok(text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
    };
    let (one, two) = (map("one")?, map("two")?);
    for found in [&one, &two] {
        ensure!(found.len() == 3 && found[0] == 0 && found[1] >= 65536 && found[2] == 65536, "{found:?}");
    }
    ensure!(one[1].abs_diff(two[1]) >= 65536, "{one:?} {two:?}");
    Ok(())
}
