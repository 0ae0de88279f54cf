//! Isolation of containers: users, capabilities, host namespaces, host ports, paths inside volumes, resources as files
//! and variables.
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::{Needs::Node, Outcome, Subject, Test, eventually};

use crate::pods::{IMAGE, ready, script};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "pods::security_contexts", needs: Node, run: security },
        Test { name: "pods::host_namespaces", needs: Node, run: host_namespaces },
        Test { name: "pods::host_ports", needs: Node, run: host_ports },
        Test { name: "pods::sub_paths_and_resources", needs: Node, run: sub_paths },
        Test { name: "pods::kubelet_serves_statistics", needs: Node, run: statistics },
    ]
}

fn security(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-sec")?;
    let show =
        "id; touch /x; touch /e/f; stat -c %g /e/f; grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status; sleep 600";
    let one = |name: &str, context: &str| {
        format!(
            "  - {{name: {name}, image: {IMAGE}, command: [sh, -c, \"{show}\"], volumeMounts: [{{name: e, mountPath: /e}}], securityContext: {{{context}}}}}\n"
        )
    };
    k.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: sec}}\nspec:\n  terminationGracePeriodSeconds: 1\n  securityContext: {{runAsUser: 1000, runAsGroup: 3000, fsGroup: 2000, supplementalGroups: [4000]}}\n  containers:\n{}{}{}  volumes: [{{name: e, emptyDir: {{}}}}]\n",
        one("tight", "readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}"),
        one("net", "runAsUser: 0, capabilities: {add: [NET_ADMIN]}"),
        one("all", "runAsUser: 0, privileged: true"),
    ))?;
    ready(&k, "sec")?;
    let log = |c: &str| {
        eventually("the log", Duration::from_secs(60), || {
            let log = k.ok(&["logs", "sec", "-c", c])?;
            ensure!(log.contains("Seccomp:"), "{log}");
            Ok(log)
        })
    };
    let tight = log("tight")?;
    for want in [
        "uid=1000 gid=3000 groups=2000,3000,4000",
        "Read-only file system",
        "\n2000\n",
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        ensure!(tight.contains(want), "{want:?} in {tight}");
    }
    let bits = |log: &str| {
        let line = log.lines().find_map(|l| l.strip_prefix("CapEff:\t")).unwrap_or_default().to_owned();
        u64::from_str_radix(&line, 16).unwrap_or(0)
    };
    const NET_ADMIN: u64 = 1 << 12;
    const SYS_ADMIN: u64 = 1 << 21;
    let (net, all) = (log("net")?, log("all")?);
    ensure!(bits(&net) & (NET_ADMIN | SYS_ADMIN) == NET_ADMIN && net.contains("uid=0"), "{net}");
    ensure!(bits(&all) & SYS_ADMIN != 0 && all.contains("Seccomp:\t0"), "{all}");

    k.apply(&script("refused", "true", "    securityContext: {runAsNonRoot: true}\n"))?;
    eventually("a refusal", Duration::from_secs(30), || {
        let w = k.ok(&["get", "pod", "refused", "-o", "jsonpath={.status.containerStatuses[0].state.waiting}"])?;
        ensure!(
            w.contains("CreateContainerConfigError")
                && w.contains("container has runAsNonRoot and image will run as root"),
            "{w}"
        );
        Ok(())
    })
}

fn host_namespaces(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-hostns")?;
    let show = "for n in net pid ipc; do readlink /proc/self/ns/$n; done; hostname; sleep 600";
    k.apply(&script("shares", show, "  hostNetwork: true\n  hostPID: true\n  hostIPC: true\n"))?;
    k.apply(&script("own", show, ""))?;
    ready(&k, "shares")?;
    ready(&k, "own")?;
    let lines = |pod: &str| {
        eventually("four lines", Duration::from_secs(60), || {
            let log = k.ok(&["logs", pod])?;
            ensure!(log.lines().count() == 4, "{log}");
            Ok(log.lines().map(str::to_owned).collect::<Vec<_>>())
        })
    };
    let (shared, own) = (lines("shares")?, lines("own")?);
    ensure!(shared.iter().zip(&own).all(|(a, b)| a != b), "{shared:?} {own:?}");
    ensure!(own[3] == "own", "host name: {own:?}");
    let ips = k.ok(&["get", "pod", "shares", "-o", "jsonpath={.status.podIP} {.status.hostIP}"])?;
    let ips: Vec<&str> = ips.split(' ').collect();
    ensure!(ips.len() == 2 && ips[0] == ips[1], "{ips:?}");
    Ok(())
}

fn host_ports(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-hostport")?;
    let port = kelson_blackbox::free_port()?;
    k.apply(&script(
        "web",
        "mkdir /w; echo by host port > /w/index.html; exec httpd -f -p 80 -h /w",
        &format!("    ports: [{{containerPort: 80, hostPort: {port}}}]\n"),
    ))?;
    ready(&k, "web")?;
    let host = k.ok(&["get", "pod", "web", "-o", "jsonpath={.status.hostIP}"])?;
    eventually("an answer at the node's address", Duration::from_secs(60), || {
        let mut c = TcpStream::connect(format!("{host}:{port}"))?;
        c.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(c, "GET /index.html HTTP/1.0\r\n\r\n")?;
        let mut all = String::new();
        c.read_to_string(&mut all)?;
        ensure!(all.ends_with("by host port\n"), "{all}");
        Ok(())
    })
}

fn sub_paths(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-subpath")?;
    k.ok(&["create", "configmap", "conf", "--from-literal=a=alpha", "--from-literal=b=beta"])?;
    k.apply(&script(
        "sub",
        "echo hi > /own/file; cat /one; echo; echo $CPU $MEM; cat /info/mem; echo; cat /all/dir/sub/file; sleep 600",
        "    env:
    - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
    - {name: MEM, valueFrom: {resourceFieldRef: {resource: requests.memory}}}
    resources: {limits: {cpu: 250m, memory: 64Mi}, requests: {memory: 32Mi}}
    volumeMounts:
    - {name: e, mountPath: /own, subPathExpr: dir/$(NAME)}
    - {name: e, mountPath: /all}
    - {name: c, mountPath: /one, subPath: a}
    - {name: i, mountPath: /info}
  volumes:
  - {name: e, emptyDir: {}}
  - {name: c, configMap: {name: conf}}
  - {name: i, downwardAPI: {items: [{path: mem, resourceFieldRef: {containerName: main, resource: limits.memory, divisor: 1Mi}}]}}
",
    ))?;
    ready(&k, "sub")?;
    eventually("the log", Duration::from_secs(60), || {
        let log = k.ok(&["logs", "sub"])?;
        ensure!(log.lines().eq(["alpha", "250 33554432", "64", "hi"]), "{log}");
        Ok(())
    })
}

fn statistics(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("p-stats")?;
    k.apply(&script(
        "busy",
        "head -c 3000000 /dev/zero > /e/f; while :; do :; done",
        "    resources: {limits: {cpu: 100m}}
    volumeMounts: [{name: e, mountPath: /e}]
  volumes: [{name: e, emptyDir: {}}]
",
    ))?;
    ready(&k, "busy")?;
    let node = k.ok(&["get", "pod", "busy", "-o", "jsonpath={.spec.nodeName}"])?;
    let get = |path: &str| s.kubectl.ok(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy{path}")]);
    eventually("its usage", Duration::from_secs(30), || {
        let summary: serde_json::Value = serde_json::from_str(&get("/stats/summary")?)?;
        let pods = summary["pods"].as_array().cloned().unwrap_or_default();
        let busy = pods.iter().find(|p| p["podRef"]["name"] == "busy").cloned().unwrap_or_default();
        ensure!(busy["containers"][0]["cpu"]["usageCoreNanoSeconds"].as_u64() > Some(1_000_000), "{busy}");
        ensure!(busy["memory"]["workingSetBytes"].as_u64() > Some(0), "{busy}");
        Ok(())
    })?;
    eventually("how full its volume is", Duration::from_secs(150), || {
        let summary: serde_json::Value = serde_json::from_str(&get("/stats/summary")?)?;
        let pods = summary["pods"].as_array().cloned().unwrap_or_default();
        let busy = pods.iter().find(|p| p["podRef"]["name"] == "busy").cloned().unwrap_or_default();
        let volumes = busy["volume"].as_array().cloned().unwrap_or_default();
        let own = volumes.iter().find(|v| v["name"] == "e").cloned().unwrap_or_default();
        ensure!(own["usedBytes"].as_u64() > Some(2_999_999) && own["capacityBytes"].as_u64() > Some(0), "{busy}");
        Ok(())
    })?;
    let resource = get("/metrics/resource")?;
    for want in ["node_cpu_usage_seconds_total ", "pod=\"busy\"", "container_start_time_seconds{"] {
        ensure!(resource.contains(want), "{want} in {resource}");
    }
    ensure!(get("/metrics/cadvisor")?.contains("container_memory_working_set_bytes{container=\"main\""), "cadvisor");
    ensure!(get("/healthz")? == "ok" && get("/configz")?.contains("kubeletconfig"), "health and configuration");
    ensure!(get("/pods")?.contains("\"busy\""), "pods");
    Ok(())
}
