//! Hostile pods, callers and a failing runtime: their effect is limited and reported, and everything else continues.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kelson_blackbox::{
    ChildGuard, Kubectl, Needs::Node, Needs::OwnNode, Outcome, Process, Subject, Test, eventually, sh,
};

use serde_json::Value;

use crate::pods::{IMAGE, ready, script};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "hostile::paths_in_volumes_that_race", needs: Node, run: racing_paths },
        Test { name: "hostile::links_in_place_of_logs", needs: OwnNode, run: linked_logs },
        Test { name: "hostile::a_million_variables", needs: Node, run: variables },
        Test { name: "hostile::logs_as_fast_as_it_can", needs: OwnNode, run: loud },
        Test { name: "hostile::a_flood_of_commands", needs: Node, run: exec_flood },
        Test { name: "hostile::callers_who_show_nothing", needs: OwnNode, run: strangers },
        Test { name: "hostile::a_runtime_that_hangs_and_one_that_dies", needs: OwnNode, run: bad_runtime },
    ]
}

const LIMIT: Duration = Duration::from_secs(90);

fn server(s: &Subject) -> anyhow::Result<&Process> {
    s.server.as_ref().context("own server")
}

/// A container replaces a directory by a link to the host's root and back, as fast as it can, while another container
/// is started again and again on a path through it: that one sees the volume or does not start.
fn racing_paths(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("h-race")?;
    let swaps = "mkdir -p /v/real; echo mine > /v/real/word; ln -sfn / /v/link; while :; do ln -sfn / /v/t; mv -T /v/t /v/at 2>/dev/null; rm -f /v/at; mkdir -p /v/at; echo mine > /v/at/word; rm -rf /v/at; done";
    let looks = "ls -a /seen > /v/seen-$$-$(date +%s%N); test -e /seen/proc -o -e /seen/etc/passwd && echo out > /v/escaped; exit 1";
    let sees = format!(
        "    volumeMounts: [{{name: v, mountPath: /v}}]
  - name: looks
    image: {IMAGE}
    command: [sh, -c, {}]
    restartPolicy: Never
    restartPolicyRules: [{{action: Restart, exitCodes: {{operator: In, values: [1]}}}}]
    volumeMounts: [{{name: v, mountPath: /v}}, {{name: v, mountPath: /seen, subPath: at}}]
  volumes: [{{name: v, emptyDir: {{}}}}]
",
        Value::from(looks)
    );
    // Many pods, since the pause between starts of each grows.
    let all = ["a", "b", "c", "d", "e", "f"];
    for name in all {
        k.apply(&script(name, swaps, &sees))?;
    }
    // A busy node may not know a pod yet that the API shows: it answers 404 for commands in it, as upstream's does.
    for name in all {
        eventually("its first container runs", LIMIT, || {
            let path = "jsonpath={.status.containerStatuses[?(@.name=='main')].state.running.startedAt}";
            ensure!(!k.ok(&["get", "pod", name, "-o", path])?.is_empty(), "{name} does not");
            Ok(())
        })?;
    }
    std::thread::sleep(Duration::from_secs(25));
    let mut starts = 0;
    for name in all {
        let found = k.ok(&[
            "exec",
            name,
            "-c",
            "main",
            "--",
            "sh",
            "-c",
            "ls /v | grep -c seen-; ls /v/escaped 2>&1 >/dev/null || true; test -e /v/escaped && echo OUT || true",
        ])?;
        ensure!(!found.contains("OUT"), "{name} saw the host: {found}");
        starts += found.lines().next().and_then(|n| n.parse::<u32>().ok()).unwrap_or(0);
    }
    let tried: u32 = all
        .iter()
        .map(|name| k.ok(&["events", "--for", &format!("pod/{name}")]).map_or(0, |e| e.lines().count() as u32))
        .sum();
    ensure!(starts + tried > 12, "neither started nor refused: {starts} {tried}");
    k.ok(&["delete", "pod", "--all", "--timeout=90s"])?;
    Ok(())
}

/// The log file of a container that runs, on this machine.
fn log_file(server: &Process, k: &Kubectl, pod: &str) -> anyhow::Result<PathBuf> {
    // By its UID: the directory may hold logs of other pods with this name.
    let uid = k.ok(&["get", "pod", pod, "-o", "jsonpath={.metadata.uid}"])?;
    // A node that is the machine's only one logs where collectors look, and notes where that is.
    let noted = std::fs::read_to_string(server.dir.join("kubelet/pod-logs-directory"))?;
    let found = sh(&format!("find {} -path '*_{pod}_{uid}/*' -name '*.log'", noted.trim()))?;
    Ok(PathBuf::from(found.lines().next().context("a log file")?))
}

fn linked_logs(s: &Subject) -> Outcome {
    let server = server(s)?;
    let k = s.kubectl.fresh_namespace("h-logs")?;
    k.apply(&script("honest", "echo fine; sleep 6000", ""))?;
    ready(&k, "honest")?;
    let file = eventually("its log", LIMIT, || log_file(server, &k, "honest"))?;
    let dir = tempfile::tempdir()?;
    let secret = dir.path().join("secret");
    // In the format of a log, so that only the link prevents reading it.
    std::fs::write(&secret, "2026-01-01T00:00:00.000000000Z stdout F of the host\n")?;
    std::fs::remove_file(&file)?;
    std::os::unix::fs::symlink(&secret, &file)?;
    for args in [&["logs", "honest"][..], &["logs", "honest", "--tail=1"], &["logs", "honest", "--previous"]] {
        let out = k.run(args)?;
        ensure!(!out.stdout.contains("of the host") && !out.stderr.contains("of the host"), "{args:?}: {out:?}");
    }
    let reported = k.fails(&["logs", "honest"])?;
    ensure!(reported.stderr.contains("failed to open log file"), "{reported:?}");
    // A pipe without a writer does not block, and other logs are still readable.
    std::fs::remove_file(&file)?;
    sh(&format!("mkfifo {}", file.display()))?;
    let begun = Instant::now();
    k.run(&["logs", "honest", "--request-timeout=90s"])?;
    ensure!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    std::fs::remove_file(&file)?;
    k.ok(&["delete", "pod", "honest", "--timeout=60s"])?;
    k.apply(&script("other", "echo fine; sleep 6000", ""))?;
    ready(&k, "other")?;
    // A container runs before it has logged anything.
    eventually("others' logs", LIMIT, || {
        let said = k.ok(&["logs", "other"])?;
        ensure!(said == "fine\n", "{said:?}");
        Ok(())
    })
}

/// Thirty-four prefixes for the thirty thousand keys of one ConfigMap. The kernel cannot start a process with so many
/// variables; that is reported, the pod waits, and other pods of the node start as usual.
fn variables(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("h-env")?;
    let keys: String = (0..30_000).map(|n| format!("  k{n}: v\n")).collect();
    k.with_input(
        &["create", "-f", "-"],
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: many}}\ndata:\n{keys}").as_bytes(),
    )
    .and_then(|out| if out.code == 0 { Ok(()) } else { Err(anyhow::anyhow!("{}", out.stderr)) })?;
    let from: Vec<String> = (0..34).map(|n| format!("{{prefix: P{n}_, configMapRef: {{name: many}}}}")).collect();
    k.apply(&script("many", "env | wc -l; sleep 6000", &format!("    envFrom: [{}]\n", from.join(", "))))?;
    eventually("it is told", Duration::from_secs(120), || {
        let c = k.json(&["get", "pod", "many"])?["status"]["containerStatuses"][0].clone();
        let why = format!("{} {}", c["state"], c["lastState"]);
        let reasons = [
            "CreateContainerError",
            "RunContainerError",
            "StartError",
            "CrashLoopBackOff",
            "CreateContainerConfigError",
        ];
        ensure!(reasons.iter().any(|r| why.contains(r)), "{c}");
        Ok(())
    })?;
    k.apply(&script("small", "sleep 6000", ""))?;
    ready(&k, "small")?;
    k.ok(&["delete", "pod", "many", "--timeout=60s"])?;
    Ok(())
}

fn loud(s: &Subject) -> Outcome {
    let server = server(s)?;
    let k = s.kubectl.fresh_namespace("h-loud")?;
    let line = "x".repeat(1000);
    k.apply(&script("loud", &format!("yes {line}"), "    resources: {requests: {cpu: 1m}, limits: {cpu: 500m}}\n"))?;
    k.apply(&script("calm", "sleep 6000", ""))?;
    ready(&k, "loud")?;
    ready(&k, "calm")?;
    // While a client follows it, too.
    let follower = k.command(&["logs", "-f", "loud", "--tail=1"]).stdout(std::process::Stdio::null()).spawn()?;
    let mut follower = ChildGuard(follower);
    let begun = Instant::now();
    let mut slowest = Duration::ZERO;
    while begun.elapsed() < Duration::from_secs(25) {
        let one = Instant::now();
        ensure!(k.ok(&["exec", "calm", "--", "echo", "there"])? == "there\n", "another pod");
        slowest = slowest.max(one.elapsed());
        std::thread::sleep(Duration::from_secs(1));
    }
    follower.kill()?;
    follower.wait()?;
    ensure!(slowest < Duration::from_secs(60), "a command in another pod took {slowest:?}");
    let file = log_file(server, &k, "loud")?;
    let dir = file.parent().context("a directory")?;
    k.ok(&["delete", "pod", "loud", "--wait=false", "--grace-period=1"])?;
    // Five files at most, of which the rotated ones are compressed; the limit may be exceeded between two checks.
    let files = std::fs::read_dir(dir).map(|d| d.flatten().count()).unwrap_or(0);
    ensure!(files <= 7, "{files} files");
    k.ok(&["wait", "pod/loud", "--for=delete", "--timeout=90s"])?;
    eventually("its logs go with it", LIMIT, || {
        ensure!(!dir.exists(), "{} is still there", dir.display());
        Ok(())
    })
}

fn exec_flood(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("h-exec")?;
    k.apply(&script("box", "sleep 6000", ""))?;
    ready(&k, "box")?;
    let mut all = Vec::new();
    for n in 0..60 {
        let script = format!("echo {n}; sleep 3; echo {n}");
        all.push((n, k.spawn(&["exec", "box", "--", "sh", "-c", &script])?));
    }
    // Half of their callers disconnect in the middle.
    std::thread::sleep(Duration::from_secs(2));
    let (gone, stay): (Vec<_>, Vec<_>) = all.into_iter().partition(|(n, _)| n % 2 == 0);
    for (_, mut child) in gone {
        child.kill()?;
        child.wait()?;
    }
    let mut whole = 0;
    for (n, child) in stay {
        let out = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        if out.status.success() {
            ensure!(said == format!("{n}\n{n}\n"), "{n}: {said}");
            whole += 1;
        } else {
            ensure!(!out.stderr.is_empty(), "{n} failed and said nothing");
        }
    }
    ensure!(whole > 0, "none of thirty came to its end");
    eventually("the node works as before", LIMIT, || {
        let out = k.ok(&["exec", "box", "--", "sh", "-c", "ps -o args | grep -c '[s]leep 3$' || true"])?;
        ensure!(out.trim() == "0", "left over: {out}");
        Ok(())
    })?;
    k.apply(&script("next", "sleep 6000", ""))?;
    ready(&k, "next")
}

/// The kubelet's port without credentials, with an invalid token and with a certificate of another CA.
fn strangers(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("h-caller")?;
    k.apply(&script("box", "sleep 6000", ""))?;
    ready(&k, "box")?;
    let at = k.ok(&[
        "get",
        "nodes",
        "-o",
        "jsonpath={.items[0].status.addresses[0].address}:{.items[0].status.daemonEndpoints.kubeletEndpoint.Port}",
    ])?;
    let dir = tempfile::tempdir()?;
    let (key, cert) = (dir.path().join("key"), dir.path().join("cert"));
    sh(&format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {} -out {} -subj /O=system:masters/CN=me -days 1 2>/dev/null",
        key.display(),
        cert.display()
    ))?;
    let paths = [
        "/pods",
        "/metrics",
        "/metrics/cadvisor",
        "/stats/summary",
        "/configz",
        "/containerLogs/h-caller/box/main",
        "/run/h-caller/box/main?cmd=id",
        "/exec/h-caller/box/main?command=id&output=1",
        "/attach/h-caller/box/main?output=1",
        "/portForward/h-caller/box?port=1",
        "/logs/",
        "/../pods",
    ];
    let ask = |path: &str, more: &[&str]| -> anyhow::Result<String> {
        let out = Command::new("curl")
            .args(["-sk", "--path-as-is", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}"])
            .args(more)
            .arg(format!("https://{at}{path}"))
            .output()?;
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let shown = [key.display().to_string(), cert.display().to_string()];
    for path in paths {
        for (who, more) in [
            ("nobody", &[][..]),
            ("a token", &["-H", "Authorization: Bearer nothing"]),
            ("a header", &["-H", "X-Remote-User: admin", "-H", "X-Remote-Group: system:masters"]),
            ("another authority's", &["--key", &shown[0], "--cert", &shown[1]]),
        ] {
            for method in ["GET", "POST"] {
                let code = ask(path, &[more, &["-X", method]].concat())?;
                // Code 000: the handshake fails.
                ensure!(
                    matches!(code.as_str(), "401" | "403" | "404" | "405" | "000"),
                    "{method} {path} by {who}: {code}"
                );
                ensure!(
                    code != "404" && code != "405" || path == "/../pods" || method == "POST",
                    "{method} {path} by {who}: {code}"
                );
            }
        }
    }
    ensure!(ask("/healthz", &[])? == "401", "what is to be asked without a name is asked of another port");
    ensure!(k.ok(&["exec", "box", "--", "echo", "there"])? == "there\n", "and it works for those who may");
    Ok(())
}

/// Returns the process of the node's containerd.
fn containerd(server: &Process) -> anyhow::Result<u32> {
    let dir = server.dir.display().to_string();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        let program = words.split(' ').next().unwrap_or_default();
        if Path::new(program).file_name().is_some_and(|n| n == "containerd") && words.contains(&dir) {
            return Ok(pid);
        }
    }
    anyhow::bail!("no containerd of {dir}")
}

fn node_is(k: &Kubectl, ready: bool) -> anyhow::Result<String> {
    let path = "jsonpath={.items[0].status.conditions[?(@.type==\"Ready\")].status} {.items[0].status.conditions[?(@.type==\"Ready\")].message}";
    let wanted = if ready { "True" } else { "False" };
    eventually(&format!("the node's Ready is {wanted}"), Duration::from_secs(180), || {
        let now = k.ok(&["get", "nodes", "-o", path])?;
        ensure!(now.starts_with(wanted), "{now}");
        Ok(now)
    })
}

fn bad_runtime(s: &Subject) -> Outcome {
    let server = server(s)?;
    let k = s.kubectl.fresh_namespace("h-runtime")?;
    k.apply(&script("stays", "sleep 6000", ""))?;
    ready(&k, "stays")?;
    let id = || {
        k.ok(&[
            "get",
            "pod",
            "stays",
            "-o",
            "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}",
        ])
    };
    let before = id()?;
    // It is killed: containers continue without it, and it is started again.
    let pid = containerd(server)?;
    sh(&format!("kill -9 {pid}"))?;
    eventually("another containerd", LIMIT, || {
        let now = containerd(server)?;
        ensure!(now != pid, "the old one");
        Ok(())
    })?;
    node_is(&k, true)?;
    eventually("commands work", LIMIT, || k.ok(&["exec", "stays", "--", "true"]))?;
    ensure!(id()? == before, "{} was {before}", id()?);
    // It hangs: the node reports that, requests end in bounded time, and afterwards all pending work is done.
    let pid = containerd(server)?;
    sh(&format!("kill -STOP {pid}"))?;
    let hung = (|| {
        k.apply(&script("waits", "sleep 6000", ""))?;
        let said = node_is(&k, false)?;
        ensure!(said.contains("container runtime is down"), "{said}");
        let begun = Instant::now();
        let out = k.run(&["logs", "stays", "--request-timeout=60s"])?;
        ensure!(begun.elapsed() < Duration::from_secs(100), "{:?} {out:?}", begun.elapsed());
        Ok(())
    })();
    sh(&format!("kill -CONT {pid}"))?;
    hung?;
    node_is(&k, true)?;
    ready(&k, "waits")?;
    ensure!(id()? == before, "{} was {before}", id()?);
    Ok(())
}
