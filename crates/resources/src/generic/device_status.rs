//! Validates the status of resource claims (upstream `pkg/apis/resource/validation`).
use std::collections::HashSet;

use serde_json::{Value, json};

use super::device_claims::{configuration, references};
use super::device_formats::{RequestNames, binding, driver, each, label, pool, raw, set, share};
use crate::addresses::parse_cidr;
use crate::metadata::immutable;
use crate::path::{Errors, Path};
use crate::pod::node_selector;
use crate::tree::{items, present, same, text};

const CONSUMERS_MAX: usize = 256;
const RESULTS_MAX: usize = 32;
/// The maximum number of configurations, from the class and from the claim.
const CONFIG_MAX: usize = 64;
const CONDITIONS_MAX: usize = 8;
const DATA_MAX: usize = 10 * 1024;
const INTERFACE_MAX: usize = 256;
const HARDWARE_MAX: usize = 128;
const ADDRESSES_MAX: usize = 16;

/// Validates a claim's status.
pub fn claim_status(obj: &Value, old: Option<&Value>, e: &mut Errors) {
    let (root, status) = (Path::new("status"), &obj["status"]);
    let before = old.map_or(&Value::Null, |old| &old["status"]);
    let names = RequestNames::of(&obj["spec"]["devices"]);
    let reserved = root.child("reservedFor");
    let uid = |c: &Value| text(&c["uid"]).to_owned();
    set(&status["reservedFor"], CONSUMERS_MAX, &reserved, e, uid, |c| c["uid"].clone(), consumer);
    let results = items(&status["allocation"]["devices"]["results"]);
    let given: HashSet<String> = results.iter().map(|r| id(r).to_string()).collect();
    let key = |d: &Value| id(d).to_string();
    set(&status["devices"], usize::MAX, &root.child("devices"), e, key, id, |d, p, e| device(d, &given, p, e));
    let allocation = &status["allocation"];
    if !items(&status["reservedFor"]).is_empty() {
        if !present(allocation) {
            e.forbidden(&reserved, "may not be specified when `allocated` is not set");
        } else if present(&obj["metadata"]["deletionTimestamp"]) {
            let known = items(&before["reservedFor"]);
            if items(&status["reservedFor"]).iter().any(|c| !known.iter().any(|k| same(k, c))) {
                let why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
                e.forbidden(&reserved, why);
            }
        }
    }
    let p = root.child("allocation");
    if present(allocation) && present(&before["allocation"]) {
        immutable(allocation, &before["allocation"], &p, e);
    } else if present(allocation) {
        self::allocation(allocation, &names, &p, e);
    }
}

/// Removes the status of devices that an update deallocates: their drivers reported it, and nothing else would remove
/// it.
pub fn drop_deallocated(new: &mut Value, old: &Value) {
    let allocated = |claim: &Value| -> HashSet<String> {
        items(&claim["status"]["allocation"]["devices"]["results"]).iter().map(|r| id(r).to_string()).collect()
    };
    let (now, before) = (allocated(new), allocated(old));
    let Some(status) = new.get_mut("status") else { return };
    let Some(devices) = status.get_mut("devices").and_then(Value::as_array_mut) else { return };
    devices.retain(|device| {
        let id = id(device).to_string();
        now.contains(&id) || !before.contains(&id)
    });
    if devices.is_empty() {
        crate::tree::remove(status, "devices");
    }
}

/// Returns what identifies a device or a share of it.
fn id(v: &Value) -> Value {
    json!({"Driver": text(&v["driver"]), "Pool": text(&v["pool"]), "Device": text(&v["device"]), "ShareID": text(&v["shareID"])})
}

fn consumer(v: &Value, p: &Path<'_>, e: &mut Errors) {
    for name in ["resource", "name", "uid"] {
        if text(&v[name]).is_empty() {
            e.required(&p.child(name), "");
        }
    }
}

fn allocation(v: &Value, names: &RequestNames<'_>, p: &Path<'_>, e: &mut Errors) {
    let (devices, at) = (&v["devices"], p.child("devices"));
    each(&devices["results"], RESULTS_MAX, &at.child("results"), e, |r, p, e| {
        names.check(&r["request"], &p.child("request"), e);
        driver(&r["driver"], &p.child("driver"), e);
        pool(&r["pool"], &p.child("pool"), e);
        label(&r["device"], &p.child("device"), e);
        binding(r, p, e);
        if present(&r["shareID"]) {
            share(&r["shareID"], &p.child("shareID"), e);
        }
    });
    each(&devices["config"], CONFIG_MAX, &at.child("config"), e, |c, p, e| {
        crate::rules::one_of(&c["source"], &p.child("source"), &["FromClaim", "FromClass"], e);
        references(&c["requests"], names, &p.child("requests"), e);
        configuration(c, false, p, e);
    });
    if present(&v["nodeSelector"]) {
        node_selector(&v["nodeSelector"], &p.child("nodeSelector"), e);
    }
}

fn device(v: &Value, given: &HashSet<String>, p: &Path<'_>, e: &mut Errors) {
    driver(&v["driver"], &p.child("driver"), e);
    pool(&v["pool"], &p.child("pool"), e);
    label(&v["device"], &p.child("device"), e);
    if present(&v["shareID"]) {
        share(&v["shareID"], &p.child("shareID"), e);
    }
    if !given.contains(&id(v).to_string()) {
        e.invalid(p, id(v), "must be an allocated device in the claim");
    }
    let at = p.child("conditions");
    let conditions = items(&v["conditions"]).len();
    if conditions > CONDITIONS_MAX {
        e.too_many(&at, conditions, CONDITIONS_MAX);
    }
    crate::conditions::check(&v["conditions"], &at, e);
    if present(&v["data"]) {
        raw(&v["data"], false, DATA_MAX, &p.child("data"), e);
    }
    network(&v["networkData"], &p.child("networkData"), e);
}

fn network(v: &Value, p: &Path<'_>, e: &mut Errors) {
    for (name, max) in [("interfaceName", INTERFACE_MAX), ("hardwareAddress", HARDWARE_MAX)] {
        if text(&v[name]).len() > max {
            e.too_long(&p.child(name), max);
        }
    }
    let own = |a: &Value| text(a).to_owned();
    set(&v["ips"], ADDRESSES_MAX, &p.child("ips"), e, own, Value::clone, |a, p, e| {
        let Some((ip, prefix)) = parse_cidr(text(a)) else {
            let why = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
            return e.invalid(p, a, why);
        };
        // An IPv4-mapped IPv6 address means the IPv4 address, and its prefix the IPv4 prefix.
        let prefix = if ip.is_ipv6() && ip.to_canonical().is_ipv4() { prefix.saturating_sub(96) } else { prefix };
        let canonical = format!("{}/{prefix}", ip.to_canonical());
        if canonical != text(a) {
            e.invalid(p, a, format!("must be in canonical form (\"{canonical}\")"));
        }
    });
}
