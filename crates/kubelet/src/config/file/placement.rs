//! Fields about exclusive CPUs and memory (CPU manager, memory manager, topology manager).
use std::collections::BTreeMap;

use kelson_meta::{FieldErrors, FieldPath, Quantity};

use super::Layer;
use super::fields::Fields;
use crate::config::cpuset::CpuSet;
use crate::config::placement::{AlignmentPolicy, AlignmentScope, CpuOptions, NODES_MAX, ReservedMemory};

const ALIGNMENTS: [(&str, AlignmentPolicy); 4] = [
    ("none", AlignmentPolicy::None),
    ("best-effort", AlignmentPolicy::BestEffort),
    ("restricted", AlignmentPolicy::Restricted),
    ("single-numa-node", AlignmentPolicy::SingleNumaNode),
];
const SCOPES: [(&str, AlignmentScope); 2] = [("container", AlignmentScope::Container), ("pod", AlignmentScope::Pod)];
/// CPU manager options that are alpha in 1.36: they require `CPUManagerPolicyAlphaOptions`, which is off by default.
const ALPHA: [&str; 2] = ["align-by-socket", "distribute-cpus-across-cores"];

/// Parses a boolean with Go's spellings (`strconv.ParseBool`).
fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Reads one of several words; the first if the field is unset.
fn word<T: Copy>(f: &mut Fields<'_>, name: &'static str, words: &[(&str, T)], faults: &mut FieldErrors) -> Option<T> {
    let value = f.string(name, faults).filter(|value| !value.is_empty())?;
    let found = words.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning);
    if found.is_none() {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        faults.not_supported(&f.at(name), value, &known);
    }
    found
}

impl Layer<'_> {
    pub(super) fn placement(&mut self, f: &mut Fields<'_>) {
        let alpha = self.alpha_options(f);
        let (to, faults) = (&mut self.config.placement, &mut *self.faults);
        if let Some(own) = word(f, "cpuManagerPolicy", &[("none", false), ("static", true)], faults) {
            to.has_own_cpus = own;
        }
        if let Some(own) = word(f, "memoryManagerPolicy", &[("None", false), ("Static", true)], faults) {
            to.has_own_memory = own;
        }
        to.alignment = word(f, "topologyManagerPolicy", &ALIGNMENTS, faults).unwrap_or(to.alignment);
        to.scope = word(f, "topologyManagerScope", &SCOPES, faults).unwrap_or(to.scope);
        // In the published form, which kubeadm writes, zero means unset.
        if let Some(period) = f.duration("cpuManagerReconcilePeriod", faults).filter(|p| !p.is_zero()) {
            to.reconcile_every = period;
        }
        let options = f.map("cpuManagerPolicyOptions", faults);
        if !options.is_empty() {
            if !to.has_own_cpus {
                let why = "the none policy takes no options";
                faults.forbidden(&f.at("cpuManagerPolicyOptions"), why);
            }
            to.cpu_options = cpu_options(&options, alpha, &f.at("cpuManagerPolicyOptions"), faults);
        }
        if to.cpu_options.by_socket && to.alignment == AlignmentPolicy::SingleNumaNode {
            let why = "align-by-socket is incompatible with topologyManagerPolicy single-numa-node";
            faults.forbidden(&f.at("cpuManagerPolicyOptions"), why);
        }
        self.alignment_options(f);
        self.reserved_cpus(f);
        self.reserved_memory(f);
    }

    /// Returns whether `featureGates` enables the alpha options. The gates are validated elsewhere.
    fn alpha_options(&self, f: &Fields<'_>) -> bool {
        f.peek("featureGates").and_then(|g| g.get("CPUManagerPolicyAlphaOptions")).and_then(|v| v.as_bool())
            == Some(true)
    }

    fn alignment_options(&mut self, f: &mut Fields<'_>) {
        let (to, faults) = (&mut self.config.placement, &mut *self.faults);
        for (path, name, value) in f.map("topologyManagerPolicyOptions", faults) {
            match name {
                "prefer-closest-numa-nodes" => match truth(value) {
                    Some(on) => to.prefers_closest = on,
                    None => faults.invalid(&path, value, "must be true or false"),
                },
                "max-allowable-numa-nodes" => match value.parse::<u32>() {
                    Ok(max) if max >= NODES_MAX => to.nodes_max = max,
                    _ => faults.invalid(&path, value, format!("must be a number, {NODES_MAX} at least")),
                },
                other => faults.invalid(&path, other, "unknown Topology Manager Policy option"),
            }
        }
    }

    fn reserved_cpus(&mut self, f: &mut Fields<'_>) {
        let faults = &mut *self.faults;
        let Some(text) = f.string("reservedSystemCPUs", faults).filter(|t| !t.is_empty()) else { return };
        let enforced = self.config.cgroups.as_ref().map(|c| &c.enforced);
        if enforced.is_some_and(|e| e.system.is_some() || e.kube.is_some()) {
            let why = "cannot be used with systemReservedCgroup or kubeReservedCgroup";
            faults.forbidden(&f.at("reservedSystemCPUs"), why);
        }
        match text.parse::<CpuSet>() {
            Ok(cpus) => self.config.placement.reserved_cpus = cpus,
            Err(why) => faults.invalid(&f.at("reservedSystemCPUs"), text, why),
        }
    }

    fn reserved_memory(&mut self, f: &mut Fields<'_>) {
        let faults = &mut *self.faults;
        let list = f.list("reservedMemory", faults);
        if list.is_empty() {
            return;
        }
        let mut all: Vec<ReservedMemory> = Vec::new();
        for (path, value) in list {
            let mut entry = Fields::of(value, path, faults);
            let node = entry.integer("numaNode", (0, i64::from(u32::MAX)), faults).and_then(|n| u32::try_from(n).ok());
            let node = node.unwrap_or(0);
            let mut amounts: BTreeMap<String, Quantity> = BTreeMap::new();
            for (path, resource, text) in entry.map("limits", faults) {
                let known = resource == "memory" || resource.starts_with("hugepages-");
                let before = all.iter().any(|r| r.node == node && r.amounts.contains_key(resource));
                match text.parse::<Quantity>() {
                    _ if !known => faults.not_supported(&path, resource, &["memory", "hugepages-<HugePageSize>"]),
                    _ if before => faults.duplicate(&path, resource),
                    Err(_) => faults.invalid(&path, text, "must be a quantity"),
                    Ok(q) if q.is_zero() => faults.invalid(&path, text, "reserved memory may not be zero"),
                    Ok(q) => drop(amounts.insert(resource.to_owned(), q)),
                }
            }
            entry.finish(&[], faults);
            all.push(ReservedMemory { node, amounts });
        }
        self.config.placement.reserved_memory = all;
    }
}

fn cpu_options(
    options: &[(FieldPath, &str, &str)],
    alpha: bool,
    at: &FieldPath,
    faults: &mut FieldErrors,
) -> CpuOptions {
    let mut out = CpuOptions::default();
    for (path, name, value) in options {
        let to = match *name {
            "full-pcpus-only" => &mut out.whole_cores,
            "distribute-cpus-across-numa" => &mut out.across_nodes,
            "align-by-socket" => &mut out.by_socket,
            "distribute-cpus-across-cores" => &mut out.across_cores,
            "strict-cpu-reservation" => &mut out.strict_reservation,
            "prefer-align-cpus-by-uncorecache" => &mut out.by_cache,
            other => {
                faults.invalid(path, other, "unknown CPU Manager Policy option");
                continue;
            }
        };
        if ALPHA.contains(name) && !alpha {
            faults.forbidden(path, "CPU Manager Policy Alpha-level Options not enabled");
        }
        match truth(value) {
            Some(on) => *to = on,
            None => faults.invalid(path, *value, "must be true or false"),
        }
    }
    let clashes = [
        (out.whole_cores, "full-pcpus-only"),
        (out.across_nodes, "distribute-cpus-across-numa"),
        (out.by_cache, "prefer-align-cpus-by-uncorecache"),
    ];
    for (_, name) in clashes.into_iter().filter(|(on, _)| *on && out.across_cores) {
        faults.forbidden(at, format!("{name} and distribute-cpus-across-cores can not be used at the same time"));
    }
    if out.by_cache && out.across_nodes {
        let why = "prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be used at the same time";
        faults.forbidden(at, why);
    }
    out
}
