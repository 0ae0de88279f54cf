//! Exclusive CPUs of a container, as shown by the kernel.
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::{Kubectl, Needs::OwnNode, Outcome, Subject, Test, eventually};

use crate::node_pressure::with;
use crate::pods::{ready, script};

pub fn tests() -> Vec<Test> {
    vec![Test { name: "node::exclusive_cpus", needs: OwnNode, run: own_processors }]
}

const LIMIT: Duration = Duration::from_secs(120);

/// Returns the CPUs on which a pod's container may run.
fn cpus(k: &Kubectl, pod: &str) -> anyhow::Result<String> {
    let line = k.ok(&["exec", pod, "--", "grep", "Cpus_allowed_list", "/proc/self/status"])?;
    Ok(line.rsplit('\t').next().unwrap_or_default().trim().to_owned())
}

fn runs_on(k: &Kubectl, pod: &str, wanted: impl Fn(&str) -> bool) -> anyhow::Result<String> {
    eventually(&format!("{pod} is moved"), LIMIT, || {
        let now = cpus(k, pod)?;
        ensure!(wanted(&now), "{now}");
        Ok(now)
    })
}

/// The first CPU is reserved, and a guaranteed pod has another one exclusively.
fn own_processors(_: &Subject) -> Outcome {
    let (server, _dir) = with("cpuManagerPolicy: static\nsystemReserved: {cpu: 500m}\n")?;
    let k = server.kubectl();
    k.apply(&script("others", "sleep 600", ""))?;
    ready(&k, "others")?;
    let all = cpus(&k, "others")?;
    ensure!(all.starts_with("0-"), "{all}");
    let amounts = "{cpu: \"1\", memory: 32Mi}";
    let guaranteed = format!("    resources: {{requests: {amounts}, limits: {amounts}}}\n");
    k.apply(&script("alone", "sleep 600", &guaranteed))?;
    ready(&k, "alone")?;
    let own = cpus(&k, "alone")?;
    ensure!(own.parse::<u32>().is_ok_and(|cpu| cpu > 0), "one processor, and not the reserved one: {own}");
    runs_on(&k, "others", |now| now != all && now.starts_with('0') && !now.split([',', '-']).any(|n| n == own))?;
    // It keeps its CPU.
    let patch =
        r#"{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"500m"},"limits":{"cpu":"500m"}}}]}}"#;
    let name = k.ok(&["get", "pod", "alone", "-o", "jsonpath={.spec.containers[0].name}"])?;
    k.ok(&["patch", "pod", "alone", "--subresource", "resize", "-p", &patch.replace("main", &name)])?;
    eventually("the resize is infeasible", LIMIT, || {
        let why = "jsonpath={.status.conditions[?(@.type==\"PodResizePending\")]}";
        let pending = k.ok(&["get", "pod", "alone", "-o", why])?;
        ensure!(pending.contains("Infeasible") && pending.contains("CPU Manager policy"), "{pending}");
        Ok(())
    })?;
    k.ok(&["delete", "pod", "alone", "--grace-period=1"])?;
    runs_on(&k, "others", |now| now == all)?;
    server.finish(false)
}
