//! Endpoints (legacy) and EndpointSlices (discovery.k8s.io).
use std::collections::BTreeSet;
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::{is_dns1123_label, is_dns1123_subdomain, is_label_value, is_qualified_name};
use serde_json::{Value, json};

use super::endpoint_ip;
use crate::addresses;
use crate::column::{AGE, Column, NAME};
use crate::metadata::{self, immutable};
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::rules;
use crate::strategy::{Context, Strategy, base_create, base_update};
use crate::table::{NONE, UNSET, age, list_with_more, name};
use crate::tree::{default_to, default_zero, entries, int, int0, items, items_mut, present, remove, same, set, text};

const ENDPOINTS_MAX: usize = 1000;
const PORTS_MAX: usize = 20_000;
const ADDRESSES_MAX: usize = 100;
const ZONES_MAX: usize = 8;
/// Labels of `deprecatedTopology`.
const TOPOLOGY_LABELS_MAX: usize = 16;
/// The label of `deprecatedTopology` with the name of an endpoint's node.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The strategy of endpoints.
pub struct Endpoints;

static ENDPOINTS: LazyLock<Options> = LazyLock::new(|| Options {
    allow_create_on_update: true,
    columns: columns![NAME, Column::text("Endpoints", "Addresses and ports."), AGE],
    ..Options::of("", "endpoints")
});

impl Strategy for Endpoints {
    fn options(&self) -> &Options {
        &ENDPOINTS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        for s in items_mut(obj, "subsets") {
            for p in items_mut(s, "ports") {
                default_zero(p, "protocol", "TCP");
            }
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let list = Path::new("subsets");
        for (i, s) in items(&obj["subsets"]).iter().enumerate() {
            subset(s, &list.index(i), e);
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        // Older versions allowed more, so unchanged values are not validated again.
        if !same(&new["subsets"], &old["subsets"]) {
            self.check(new, e);
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let host_port = |ip: &str, port: i64| {
            if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
        };
        let mut list = Vec::new();
        for s in items(&obj["subsets"]) {
            let addresses = items(&s["addresses"]);
            if items(&s["ports"]).is_empty() {
                list.extend(addresses.iter().map(|a| text(&a["ip"]).to_owned()));
            }
            for p in items(&s["ports"]) {
                list.extend(addresses.iter().map(|a| host_port(text(&a["ip"]), int0(&p["port"]))));
            }
        }
        let none = if items(&obj["subsets"]).is_empty() { NONE } else { "" };
        vec![name(obj), json!(list_with_more(&list, none)), age(obj, now)]
    }
}

fn subset(s: &Value, p: &Path<'_>, e: &mut Errors) {
    let lists = ["addresses", "notReadyAddresses"];
    if lists.iter().all(|f| items(&s[*f]).is_empty()) {
        e.required(p, "must specify `addresses` or `notReadyAddresses`");
    }
    for f in lists {
        let list = p.child(f);
        for (i, a) in items(&s[f]).iter().enumerate() {
            let at = list.index(i);
            addresses::ip(text(&a["ip"]), &[], &at.child("ip"), e);
            let host = text(&a["hostname"]);
            if !host.is_empty() {
                e.invalid_each(&at.child("hostname"), host, is_dns1123_label(host));
            }
            if let Some(n) = a["nodeName"].as_str() {
                e.invalid_each(&at.child("nodeName"), n, is_dns1123_subdomain(n));
            }
            endpoint_ip(text(&a["ip"]), &at.child("ip"), e);
        }
    }
    let list = p.child("ports");
    let ports = items(&s["ports"]);
    for (i, port) in ports.iter().enumerate() {
        let at = list.index(i);
        let n = text(&port["name"]);
        if !n.is_empty() {
            e.invalid_each(&at.child("name"), n, is_dns1123_label(n));
        } else if ports.len() > 1 {
            e.required(&at.child("name"), "");
        }
        rules::port(&port["port"], &at.child("port"), e);
        rules::one_of(&port["protocol"], &at.child("protocol"), &["SCTP", "TCP", "UDP"], e);
        if let Some(a) = port["appProtocol"].as_str() {
            e.invalid_each(&at.child("appProtocol"), a, is_qualified_name(a));
        }
    }
}

/// The strategy of endpointslices.
pub struct EndpointSlices;

static SLICES: LazyLock<Options> = LazyLock::new(|| Options {
    generation: true,
    columns: columns![
        NAME,
        Column::text("AddressType", "Kind of the addresses."),
        Column::text("Ports", "Ports of every endpoint."),
        Column::text("Endpoints", "Addresses of the endpoints."),
        AGE,
    ],
    ..Options::of("discovery.k8s.io", "endpointslices")
});

impl Strategy for EndpointSlices {
    fn options(&self) -> &Options {
        &SLICES
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        for p in items_mut(obj, "ports") {
            default_to(p, "name", "");
            default_to(p, "protocol", "TCP");
        }
        if let Some(o) = obj.as_object_mut() {
            for f in ["endpoints", "ports"] {
                o.entry(f).or_insert(Value::Null);
            }
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let kind = text(&obj["addressType"]);
        let endpoints = items(&obj["endpoints"]);
        let at = Path::new("endpoints");
        rules::one_of(&obj["addressType"], &Path::new("addressType"), &["FQDN", "IPv4", "IPv6"], e);
        if endpoints.len() > ENDPOINTS_MAX {
            return e.too_many(&at, endpoints.len(), ENDPOINTS_MAX);
        }
        for (i, x) in endpoints.iter().enumerate() {
            endpoint(x, kind, &at.index(i), e);
        }
        slice_ports(&obj["ports"], &Path::new("ports"), e);
    }
    fn prepare_create(&self, _cx: &Context<'_>, obj: &mut Value) {
        base_create(self, obj);
        drop_topology(obj, &Value::Null);
    }
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        drop_topology(new, old);
        base_update(&SLICES, new, old);
        // Labels say which service the endpoints belong to.
        if !same(&new["metadata"]["labels"], &old["metadata"]["labels"]) {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
            if let Some(meta) = new.get_mut("metadata") {
                set(meta, "generation", generation + 1);
            }
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        immutable(&new["addressType"], &old["addressType"], &Path::new("addressType"), e);
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let ports: Vec<String> = items(&obj["ports"])
            .iter()
            .map(|p| match (int(&p["port"]), p["name"].as_str()) {
                (Some(n), _) => n.to_string(),
                (None, Some(n)) => n.to_owned(),
                (None, None) => "*".to_owned(),
            })
            .collect();
        let addresses: Vec<String> =
            items(&obj["endpoints"]).iter().flat_map(|x| items(&x["addresses"])).map(|a| text(a).to_owned()).collect();
        vec![
            name(obj),
            json!(text(&obj["addressType"])),
            json!(list_with_more(&ports, UNSET)),
            json!(list_with_more(&addresses, UNSET)),
            age(obj, now),
        ]
    }
}

/// Drops the topology of v1beta1, unless an object that has it keeps its endpoints. Where the topology was the node's name, `nodeName` takes
/// it over (upstream `dropTopologyOnV1`).
fn drop_topology(new: &mut Value, old: &Value) {
    if present(old) && same(&new["endpoints"], &old["endpoints"]) {
        return;
    }
    let node_of = |endpoint: &Value| text(&endpoint["deprecatedTopology"][HOSTNAME]).to_owned();
    let before: BTreeSet<String> = items(&old["endpoints"]).iter().map(node_of).collect();
    for endpoint in items_mut(new, "endpoints") {
        let node = node_of(endpoint);
        if !present(&endpoint["nodeName"]) && before.contains(&node) && is_dns1123_subdomain(&node).is_ok() {
            set(endpoint, "nodeName", node);
        }
        remove(endpoint, "deprecatedTopology");
    }
}

fn endpoint(x: &Value, kind: &str, p: &Path<'_>, e: &mut Errors) {
    let addresses = items(&x["addresses"]);
    let at = p.child("addresses");
    if addresses.is_empty() {
        e.required(&at, "must contain at least 1 address");
    } else if addresses.len() > ADDRESSES_MAX {
        e.too_many(&at, addresses.len(), ADDRESSES_MAX);
    }
    for (i, a) in addresses.iter().map(text).enumerate() {
        let (list, at) = (&at, at.index(i));
        match kind {
            "IPv4" => {
                let faults = e.len();
                addresses::ip(a, &[], &at, e);
                if e.len() == faults {
                    if a.parse::<std::net::Ipv4Addr>().is_err() {
                        e.invalid(list, a, "must be an IPv4 address");
                    }
                    endpoint_ip(a, &at, e);
                }
            }
            "IPv6" => {
                if let Err(why) = addresses::canonical_ip(a) {
                    e.invalid(&at, a, why);
                } else {
                    if a.parse::<std::net::Ipv6Addr>().is_err() {
                        e.invalid(list, a, "must be an IPv6 address");
                    }
                    endpoint_ip(a, &at, e);
                }
            }
            "FQDN" => e.invalid_each(&at, a, is_dns1123_subdomain(a)),
            _ => {}
        }
    }
    if let Some(n) = x["nodeName"].as_str() {
        e.invalid_each(&p.child("nodeName"), n, is_dns1123_subdomain(n));
    }
    if let Some(h) = x["hostname"].as_str() {
        e.invalid_each(&p.child("hostname"), h, is_dns1123_label(h));
    }
    let topology = p.child("deprecatedTopology");
    let labels = entries(&x["deprecatedTopology"]).count();
    if labels > TOPOLOGY_LABELS_MAX {
        e.too_many(&topology, labels, TOPOLOGY_LABELS_MAX);
    }
    metadata::labels(&x["deprecatedTopology"], &topology, e);
    let hints = p.child("hints");
    for f in ["forZones", "forNodes"] {
        let list = items(&x["hints"][f]);
        let at = hints.child(f);
        if list.len() > ZONES_MAX {
            e.too_many(&at, list.len(), ZONES_MAX);
            break;
        }
        rules::unique(&x["hints"][f], "name", &at, e);
        for (i, hint) in list.iter().enumerate() {
            let name = text(&hint["name"]);
            let fit = if f == "forZones" { is_label_value(name) } else { is_dns1123_subdomain(name) };
            e.invalid_each(&at.index(i).child("name"), name, fit);
        }
    }
}

fn slice_ports(list: &Value, p: &Path<'_>, e: &mut Errors) {
    let ports = items(list);
    if ports.len() > PORTS_MAX {
        return e.too_many(p, ports.len(), PORTS_MAX);
    }
    let mut names = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = p.index(i);
        let n = text(&port["name"]);
        if !n.is_empty() {
            e.invalid_each(&at.child("name"), n, is_dns1123_label(n));
        }
        if !names.insert(n) {
            e.duplicate(&at.child("name"), n);
        }
        rules::optional_one_of(&port["protocol"], &at.child("protocol"), &["SCTP", "TCP", "UDP"], e);
        if let Some(a) = port["appProtocol"].as_str() {
            e.invalid_each(&at.child("appProtocol"), a, is_qualified_name(a));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topology_of_v1beta1_stays_only_with_unchanged_endpoints() {
        let endpoint =
            |address: &str, node: &str| json!({"addresses": [address], "deprecatedTopology": {HOSTNAME: node}});
        let slice =
            |endpoints: Value| json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": endpoints});
        let old = slice(json!([endpoint("10.0.0.1", "n1")]));
        let update = |endpoints: Value| {
            let mut new = slice(endpoints);
            EndpointSlices.prepare_update(&Context::at(Timestamp::UNIX_EPOCH), &mut new, &old);
            let mut e = Errors::new();
            EndpointSlices.check(&new, &mut e);
            assert!(e.is_empty(), "{new}");
            new["endpoints"].clone()
        };
        assert_eq!(update(old["endpoints"].clone()), old["endpoints"]);
        assert_eq!(
            update(json!([endpoint("10.0.0.1", "n1"), endpoint("10.0.0.2", "n2")])),
            json!([{"addresses": ["10.0.0.1"], "nodeName": "n1"}, {"addresses": ["10.0.0.2"]}])
        );
        let mut new = slice(json!([endpoint("10.0.0.1", "n1")]));
        EndpointSlices.prepare_create(&Context::at(Timestamp::UNIX_EPOCH), &mut new);
        assert_eq!(new["endpoints"], json!([{"addresses": ["10.0.0.1"]}]));
    }
}
