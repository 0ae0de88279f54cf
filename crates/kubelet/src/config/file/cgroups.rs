//! Fields about cgroups and node reservations.
use std::collections::BTreeMap;

use kelson_meta::{FieldPath, Quantity};

use super::fields::Fields;
use super::{FileSettings, Layer};
use crate::config::cgroups::{CgroupConfig, CgroupDriver, EnforcedCgroups};

const KEYS: &[&str] =
    &["pods", "system-reserved", "kube-reserved", "system-reserved-compressible", "kube-reserved-compressible", "none"];

impl Layer<'_> {
    pub(super) fn cgroups(&mut self, f: &mut Fields<'_>, laid: &mut FileSettings) {
        laid.cgroups_per_qos = f.boolean("cgroupsPerQOS", self.faults).unwrap_or(true);
        let root = f.string("cgroupRoot", self.faults).map(|root| root.trim_matches('/').to_owned());
        let driver = match f.string("cgroupDriver", self.faults) {
            Some("systemd") => CgroupDriver::Systemd,
            None | Some("" | "cgroupfs") => CgroupDriver::Cgroupfs,
            Some(other) => {
                self.faults.not_supported(&f.at("cgroupDriver"), other, &["cgroupfs", "systemd"]);
                CgroupDriver::Cgroupfs
            }
        };
        let cgroup = |f: &mut Fields<'_>, name, faults: &mut _| f.string(name, faults).unwrap_or_default().to_owned();
        let system = cgroup(f, "systemReservedCgroup", self.faults);
        let kube = cgroup(f, "kubeReservedCgroup", self.faults);
        let wanted = f.strings("enforceNodeAllocatable", self.faults);
        let mut enforced = EnforcedCgroups { pods: wanted.is_empty(), ..EnforcedCgroups::default() };
        self.contradictions(&wanted, laid.cgroups_per_qos);
        for (path, key) in &wanted {
            let (of, only_cpu) = match *key {
                "system-reserved" => (Some((&system, &mut enforced.system)), false),
                "kube-reserved" => (Some((&kube, &mut enforced.kube)), false),
                "system-reserved-compressible" => (Some((&system, &mut enforced.system)), true),
                "kube-reserved-compressible" => (Some((&kube, &mut enforced.kube)), true),
                other => {
                    enforced.pods |= other == "pods";
                    if !KEYS.contains(&other) {
                        self.faults.not_supported(path, other, KEYS);
                    }
                    (None, false)
                }
            };
            let Some((cgroup, to)) = of else { continue };
            if cgroup.is_empty() {
                let owner = key.split('-').next().unwrap_or_default();
                self.faults.required(&f.at("enforceNodeAllocatable"), format!("{owner}ReservedCgroup must be set too"));
            }
            *to = Some((cgroup.clone(), only_cpu));
        }
        let before = self.config.cgroups.take().unwrap_or_default();
        let own_root = before.own_root && root.is_none();
        self.config.cgroups = Some(CgroupConfig { root: root.unwrap_or(before.root), driver, enforced, own_root });
    }

    /// Reports keys of `enforceNodeAllocatable` that contradict each other.
    fn contradictions(&mut self, wanted: &[(FieldPath, &str)], cgroups_per_qos: bool) {
        for (n, (path, key)) in wanted.iter().enumerate() {
            let has = |other: &str| wanted.iter().any(|(_, key)| *key == other);
            if wanted.iter().take(n).any(|(_, before)| before == key) {
                self.faults.duplicate(path, *key);
            } else if *key == "none" && wanted.len() > 1 {
                self.faults.invalid(path, *key, "may not contain additional enforcements when \"none\" is specified");
            } else if key.ends_with("-compressible") && has(key.trim_end_matches("-compressible")) {
                let whole = key.trim_end_matches("-compressible");
                self.faults.invalid(path, *key, format!("cannot be specified together with {whole:?}"));
            } else if *key != "none" && KEYS.contains(key) && !cgroups_per_qos {
                self.faults.invalid(path, *key, "cgroupsPerQOS must be set to true");
            }
        }
    }

    pub(super) fn reserved(&mut self, f: &mut Fields<'_>) {
        for (name, to) in
            [("systemReserved", &mut self.config.system_reserved), ("kubeReserved", &mut self.config.kube_reserved)]
        {
            let all: BTreeMap<String, Quantity> = f
                .map(name, self.faults)
                .into_iter()
                .filter_map(|(path, resource, amount)| match amount.parse::<Quantity>() {
                    Ok(amount) => Some((resource.to_owned(), amount)),
                    Err(_) => {
                        self.faults.invalid(&path, amount, "must be a quantity");
                        None
                    }
                })
                .collect();
            to.extend(all);
        }
    }
}
