//! Pods of each QoS class, and every cgroup above and below them, with either cgroup driver.
use std::collections::BTreeMap;

use anyhow::{Context as _, bail, ensure};
use kelson_blackbox::{Outcome, eventually};

use super::guest::Guest;
use super::values::{CGROUPS, Memory};
use super::{PATIENCE, pod};

/// Pods of all classes; together they take 1.4 of the 1.5 CPUs that pods have.
fn pods() -> String {
    [
        pod("guaranteed", &[("main", "{limits: {cpu: 100m, memory: 32Mi, hugepages-2Mi: 4Mi}}")], ""),
        pod("exclusive", &[("main", "{limits: {cpu: 1, memory: 32Mi}}")], ""),
        pod(
            "mixed",
            &[
                ("main", "{requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}"),
                ("side", "{requests: {cpu: 50m, memory: 32Mi}}"),
            ],
            "",
        ),
        pod(
            "podlevel",
            &[("main", "{}"), ("side", "{requests: {cpu: 20m, memory: 16Mi}}")],
            "  resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {cpu: 100m, memory: 48Mi}}\n",
        ),
        pod("best", &[("main", "{}")], ""),
    ]
    .concat()
}

const PODS: [&str; 5] = ["guaranteed", "exclusive", "mixed", "podlevel", "best"];

/// Prints `FILE:VALUE` for the files of interest of every cgroup, the identity of each sandbox included.
const DUMP: &str = "cd /sys/fs/cgroup; grep -rs '' --include={cpu.weight,cpu.max,memory.min,memory.low,memory.high,memory.max,memory.swap.max,memory.oom.group,pids.max,hugetlb.2MB.max,cpuset.cpus,cgroup.procs} . || true";

/// The cgroups of a guest: for each path its files.
pub struct Cgroups(BTreeMap<String, BTreeMap<String, String>>);

impl Cgroups {
    pub fn read(guest: &Guest) -> anyhow::Result<Self> {
        let mut all: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for line in guest.sh(DUMP)?.lines() {
            let Some((file, value)) = cut(line) else { continue };
            let (path, name) = file.rsplit_once('/').unwrap_or((".", file));
            all.entry(path.to_owned()).or_default().insert(name.to_owned(), value.to_owned());
        }
        Ok(Self(all))
    }

    /// Returns the only cgroup whose last part contains this string.
    fn named(&self, part: &str) -> anyhow::Result<&str> {
        let found: Vec<&String> =
            self.0.keys().filter(|path| path.rsplit('/').next().is_some_and(|last| last.contains(part))).collect();
        match found[..] {
            [one] => Ok(one),
            _ => bail!("one cgroup of {part}, not {found:?}"),
        }
    }

    /// The value of a file, for messages empty if there is none.
    pub fn value(&self, path: &str, file: &str) -> &str {
        self.0.get(path).and_then(|files| files.get(file)).map_or("", String::as_str)
    }

    /// The cgroup of a pod, and those of its containers by name, each with a process in it; `pause` is the sandbox's.
    pub fn of_pod(&self, pod: &serde_json::Value, driver: &str) -> anyhow::Result<BTreeMap<String, String>> {
        let name = pod["metadata"]["name"].as_str().context("a name")?;
        let uid = pod["metadata"]["uid"].as_str().context("a UID")?;
        let uid = if driver == "systemd" { uid.replace('-', "_") } else { uid.to_owned() };
        let own = self.named(&format!("pod{uid}"))?;
        let mut found = BTreeMap::from([(name.to_owned(), own.to_owned())]);
        for status in pod["status"]["containerStatuses"].as_array().context("containers")? {
            let id = status["containerID"].as_str().and_then(|id| id.rsplit('/').next()).context("a container's ID")?;
            let path = self.named(id)?;
            ensure!(path.starts_with(&format!("{own}/")), "{name}: {path} is not below {own}");
            ensure!(!self.value(path, "cgroup.procs").is_empty(), "{path} has no process");
            found.insert(format!("{name}/{}", status["name"].as_str().unwrap_or_default()), path.to_owned());
        }
        let others: Vec<&String> =
            self.0.keys().filter(|p| p.starts_with(&format!("{own}/")) && !found.values().any(|f| f == *p)).collect();
        let [pause] = others[..] else { bail!("{name}: one sandbox, not {others:?}") };
        ensure!(!self.value(pause, "cgroup.procs").is_empty(), "{pause} has no process");
        found.insert(format!("{name}/pause"), pause.clone());
        Ok(found)
    }
}

/// Splits grep's line. Names of cgroups have colons in them, files of the kernel none before their value.
fn cut(line: &str) -> Option<(&str, &str)> {
    let name = line.rfind('/')?;
    let colon = name + line[name..].find(':')?;
    Some((line[..colon].trim_start_matches("./"), &line[colon + 1..]))
}

/// Starts the pods and compares every row of the table.
pub fn compare(guest: &mut Guest, driver: &str) -> Outcome {
    guest.apply(&pods(), &PODS)?;
    let memory = Memory::parse(&guest.sh("cat /proc/meminfo")?)?;
    let pods = guest.kubectl().json(&["get", "pods"])?;
    // Weights and protection of classes follow their pods by a minute.
    eventually("the table", PATIENCE, || {
        let cgroups = Cgroups::read(guest)?;
        let paths = paths(&cgroups, &pods, driver)?;
        let wrong = differences(&cgroups, &paths, memory)?;
        ensure!(wrong.is_empty(), "{driver}:\n{}", wrong.join("\n"));
        Ok(())
    })
}

/// The path of each row.
fn paths(cgroups: &Cgroups, pods: &serde_json::Value, driver: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for pod in pods["items"].as_array().context("pods")? {
        all.extend(cgroups.of_pod(pod, driver)?);
    }
    let above = |path: &str| path.rsplit_once('/').map(|(parent, _)| parent.to_owned()).context("a parent");
    let kubepods = above(&all["guaranteed"])?;
    for (class, pod) in [("burstable", "mixed"), ("besteffort", "best")] {
        let path = above(&all[pod])?;
        ensure!(path.starts_with(&format!("{kubepods}/")) && path.contains(class), "{pod} is in {path}");
        all.insert(class.to_owned(), path);
    }
    let root = above(&kubepods)?;
    ensure!(!root.contains('/'), "{root} is at the top, beside system.slice");
    all.extend([("kubepods".to_owned(), kubepods), ("root".to_owned(), root)]);
    Ok(all)
}

/// The cells of the table that differ.
fn differences(cgroups: &Cgroups, paths: &BTreeMap<String, String>, memory: Memory) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    for row in CGROUPS.lines().filter(|row| !row.is_empty()) {
        let mut cells = row.split_whitespace();
        let name = cells.next().context("a row's name")?;
        let path = paths.get(name).with_context(|| format!("{name}: no such cgroup"))?;
        for cell in cells {
            let (file, value) = cell.split_once('=').context("FILE=VALUE")?;
            let (expected, found) = (memory.value(value)?, cgroups.value(path, file));
            if found != expected {
                wrong.push(format!("{name} {file}: {expected} expected, found {found}"));
            }
        }
    }
    Ok(wrong)
}
