//! Fields about memory beyond limits (OOM kills, memory QoS, reservations by QoS class), and about the number of user IDs in a pod's user
//! namespace.
use serde_json::{Value, json};

use super::Layer;
use super::fields::{Fields, Shape};
use super::idle::{MEMORY_QOS, QOS_RESERVED, gate};
use crate::config::IDS_PER_POD;
use crate::config::cgroups::MemoryQos;

/// Upstream's default of `memoryThrottlingFactor`.
const THROTTLING: f64 = 0.9;
const POLICIES: [&str; 2] = ["None", "TieredReservation"];

impl Layer<'_> {
    pub(super) fn memory(&mut self, f: &mut Fields<'_>) {
        self.config.memory.kills_one = f.boolean("singleProcessOOMKill", self.faults).or(self.config.memory.kills_one);
        self.qos(f);
        self.reserved_by_class(f);
        self.users(f);
    }

    fn qos(&mut self, f: &mut Fields<'_>) {
        let is_on = gate(f, MEMORY_QOS);
        let part = f.shaped("memoryThrottlingFactor", Shape::Number, self.faults).and_then(Value::as_f64);
        let at = f.at("memoryThrottlingFactor");
        if let Some(part) = part.filter(|part| !(*part > 0.0 && *part <= 1.0)) {
            let why = "must be greater than 0 and less than or equal to 1.0";
            self.faults.invalid(&at, json!(part), why);
        }
        if !is_on && part.is_some_and(|part| (part - THROTTLING).abs() > f64::EPSILON) {
            self.ignored.push(at.to_string());
        }
        let policy = f.string("memoryReservationPolicy", self.faults);
        let at = f.at("memoryReservationPolicy");
        if let Some(policy) = policy.filter(|p| !POLICIES.contains(p)) {
            self.faults.not_supported(&at, policy, &POLICIES);
        }
        let is_tiered = policy == Some("TieredReservation");
        if is_tiered && !is_on {
            self.faults.invalid(&at, "TieredReservation", "requires MemoryQoS feature gate to be enabled");
        }
        self.config.memory.qos = is_on.then(|| MemoryQos { throttling: part.unwrap_or(THROTTLING), is_tiered });
    }

    fn reserved_by_class(&mut self, f: &mut Fields<'_>) {
        let is_on = gate(f, QOS_RESERVED);
        let entries = f.map("qosReserved", self.faults);
        if !entries.is_empty() && !is_on {
            self.ignored.push(f.at("qosReserved").to_string());
        }
        for (path, resource, text) in entries {
            if resource != "memory" {
                self.faults.invalid(&path, text, format!("cannot reserve {resource:?} resource"));
                continue;
            }
            let percent = text.strip_suffix('%').map(str::parse::<u8>);
            match percent {
                Some(Ok(percent)) if percent <= 100 => {
                    self.config.memory.reserved_percent = Some(percent).filter(|_| is_on);
                }
                _ => self.faults.invalid(&path, text, "must be a percentage between 0% and 100%"),
            }
        }
    }

    fn users(&mut self, f: &mut Fields<'_>) {
        let mut users = f.below("userNamespaces", self.faults);
        let ids = users.integer("idsPerPod", (i64::MIN, i64::MAX), self.faults);
        let unit = i64::from(IDS_PER_POD);
        if let Some(ids) = ids {
            match u32::try_from(ids) {
                Ok(n) if ids >= unit && ids % unit == 0 => self.config.ids_per_pod = n,
                _ => {
                    let max = u32::MAX;
                    let why = format!("must be a multiple of {unit}, not less than that and not more than {max}");
                    self.faults.invalid(&users.at("idsPerPod"), ids, why);
                }
            }
        }
        users.finish(&[], self.faults);
    }
}
