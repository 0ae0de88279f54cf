//! Services: the union by `type`, ports, addresses, traffic policies. Allocation of addresses and node ports is the API
//! server's; here is what must hold before and after it.
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::{is_dns1123_label, is_dns1123_subdomain, is_qualified_name};
use serde_json::{Value, json};

use crate::column::{AGE, Column, NAME, SELECTOR};
use crate::metadata;
use crate::names::NameRule;
use crate::options::{Allocation, Connects, Options, columns, texts};
use crate::path::{Errors, Path};
use crate::rules;
use crate::strategy::{Context, Strategy, base_update};
use crate::table::{NONE, age, label_map, name};
use crate::tree::{default_to, default_zero, empty, ensure, int0, items, items_mut, present, remove, same, set, text};

/// What `internalTrafficPolicy` may say.
const INTERNAL_POLICIES: [&str; 2] = ["Cluster", "Local"];
/// `sessionAffinityConfig.clientIP.timeoutSeconds` when absent.
const AFFINITY_SECONDS: i64 = 10_800;
const AFFINITY_SECONDS_MAX: i64 = 86_400;

/// The services resource.
pub struct Services;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    name: NameRule::Label,
    allow_create_on_update: true,
    columns: columns![
        NAME,
        Column::text("Type", "How the service is exposed."),
        Column::text("Cluster-IP", "First address in the cluster."),
        Column::text("External-IP", "Addresses from outside."),
        Column::text("Port(s)", "Ports, node ports and protocols."),
        AGE,
        SELECTOR,
    ],
    fields: texts!["spec.clusterIP", "spec.type"],
    delete_returns_object: true,
    allocation: Allocation::ServiceAddresses,
    connects: Connects::Service,
    ..Options::of("", "services")
});

impl Strategy for Services {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        if let Some(s) = ensure(obj, "status") {
            ensure(s, "loadBalancer");
        }
        let Some(spec) = ensure(obj, "spec") else { return };
        default_spec(spec);
        if text(&spec["type"]) == "LoadBalancer" {
            let ingress = crate::tree::at_mut(obj, &["status", "loadBalancer"]);
            for i in ingress.into_iter().flat_map(|b| items_mut(b, "ingress")) {
                if !text(&i["ip"]).is_empty() {
                    default_to(i, "ipMode", "VIP");
                }
            }
        }
    }
    fn initial_status(&self) -> Value {
        json!({"loadBalancer": {}})
    }
    fn prepare_create(&self, _cx: &Context<'_>, obj: &mut Value) {
        set(obj, "status", self.initial_status());
        if let Some(spec) = obj.get_mut("spec") {
            drop_policy_of_alias(spec);
            sync_cluster_ips(spec, None);
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        check_spec(obj, e);
    }
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        base_update(&OPTIONS, new, old);
        if let Some(spec) = new.get_mut("spec") {
            drop_type_dependent(spec, &old["spec"]);
            drop_policy_of_alias(spec);
            keep_allocated(spec, &old["spec"]);
            sync_cluster_ips(spec, Some(&old["spec"]));
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        check_addresses_update(&new["spec"], &old["spec"], e);
        if needs_health_port(&new["spec"])
            && needs_health_port(&old["spec"])
            && int0(&new["spec"]["healthCheckNodePort"]) != int0(&old["spec"]["healthCheckNodePort"])
        {
            let spec = Path::new("spec");
            e.forbidden(&spec.child("healthCheckNodePort"), "field is immutable");
        }
        if text(&new["spec"]["type"]) == "LoadBalancer" && text(&old["spec"]["type"]) == "LoadBalancer" {
            let (n, o) = (&new["spec"]["loadBalancerClass"], &old["spec"]["loadBalancerClass"]);
            if !same(n, o) {
                let spec = Path::new("spec");
                e.invalid(&spec.child("loadBalancerClass"), n, "may not change once set");
            }
        }
        check_spec(new, e);
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, _old: &Value, e: &mut Errors) {
        let status = Path::new("status");
        let lb = status.child("loadBalancer");
        let list = lb.child("ingress");
        let ingress = items(&new["status"]["loadBalancer"]["ingress"]);
        if !ingress.is_empty() && text(&new["spec"]["type"]) != "LoadBalancer" {
            e.forbidden(&list, "may only be used when `spec.type` is 'LoadBalancer'");
        }
        for (i, x) in ingress.iter().enumerate() {
            let at = list.index(i);
            if !text(&x["ip"]).is_empty() {
                rules::ip(text(&x["ip"]), &at.child("ip"), e);
            }
            let host = text(&x["hostname"]);
            if !host.is_empty() {
                e.invalid_each(&at.child("hostname"), host, is_dns1123_subdomain(host));
                if host.parse::<IpAddr>().is_ok() {
                    e.invalid(&at.child("hostname"), host, "must be a DNS name, not an IP address");
                }
            }
        }
    }
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        if new["metadata"]["annotations"].get("service.kubernetes.io/topology-aware-hints").is_some() {
            out.push("annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead".to_owned());
        }
        if old.is_none() && !text(&new["spec"]["loadBalancerIP"]).is_empty() {
            out.push("spec.loadBalancerIP: deprecated in v1.24+".to_owned());
        }
        let external = text(&new["spec"]["externalName"]);
        if text(&new["spec"]["type"]) != "ExternalName" && !external.is_empty() {
            out.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
        }
        if text(&new["spec"]["trafficDistribution"]) == "PreferClose" {
            out.push("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".to_owned());
        }
        out
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &obj["spec"];
        let cluster = text(&spec["clusterIPs"][0]);
        let ports: Vec<String> = items(&spec["ports"])
            .iter()
            .map(|p| match int0(&p["nodePort"]) {
                0 => format!("{}/{}", int0(&p["port"]), text(&p["protocol"])),
                n => format!("{}:{n}/{}", int0(&p["port"]), text(&p["protocol"])),
            })
            .collect();
        vec![
            name(obj),
            json!(text(&spec["type"])),
            crate::table::or_none(cluster),
            json!(external_ip(obj)),
            crate::table::or_none(&ports.join(",")),
            age(obj, now),
            json!(label_map(&spec["selector"])),
        ]
    }
}

fn default_spec(spec: &mut Value) {
    default_zero(spec, "sessionAffinity", "None");
    match text(&spec["sessionAffinity"]) {
        "None" => remove(spec, "sessionAffinityConfig"),
        "ClientIP" if !present(&spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"]) => {
            set(spec, "sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}}));
        }
        _ => {}
    }
    default_zero(spec, "type", "ClusterIP");
    for p in items_mut(spec, "ports") {
        default_zero(p, "protocol", "TCP");
        let port = p["port"].clone();
        if !empty(&port) {
            default_zero(p, "targetPort", port);
        }
    }
    let external = !items(&spec["externalIPs"]).is_empty();
    let kind = text(&spec["type"]).to_owned();
    let accessible = matches!(kind.as_str(), "LoadBalancer" | "NodePort") || (kind == "ClusterIP" && external);
    if accessible {
        default_zero(spec, "externalTrafficPolicy", "Cluster");
    }
    if kind != "ExternalName" {
        default_to(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default_to(spec, "allocateLoadBalancerNodePorts", true);
    }
}

/// `clusterIP` and `clusterIPs[0]` are one field by two names; what the client did not speak of follows.
fn sync_cluster_ips(spec: &mut Value, old: Option<&Value>) {
    let one = text(&spec["clusterIP"]).to_owned();
    let first = text(&spec["clusterIPs"][0]).to_owned();
    let none = Value::Null;
    let old = old.unwrap_or(&none);
    let (old_one, old_first) = (text(&old["clusterIP"]), text(&old["clusterIPs"][0]));
    if one != old_one && first == old_first && !one.is_empty() {
        // Only the old name was touched.
        set(spec, "clusterIPs", vec![json!(one)]);
    } else if one.is_empty() && !old_one.is_empty() && first == old_first {
        remove(spec, "clusterIPs");
    } else if one == old_one && first != old_first && !first.is_empty() && !old_first.is_empty() {
        set(spec, "clusterIP", first);
    } else if items(&spec["clusterIPs"]).is_empty() && !one.is_empty() {
        set(spec, "clusterIPs", vec![json!(one)]);
    } else if one.is_empty() && old_one.is_empty() && !first.is_empty() && !old.is_null() {
        set(spec, "clusterIP", first);
    }
}

/// An alias may be given a policy for traffic inside the cluster, and never shows one.
fn drop_policy_of_alias(spec: &mut Value) {
    if text(&spec["type"]) == "ExternalName" && INTERNAL_POLICIES.contains(&text(&spec["internalTrafficPolicy"])) {
        remove(spec, "internalTrafficPolicy");
    }
}

/// Fields that make no sense with the new type go, unless the same request changed them.
fn drop_type_dependent(new: &mut Value, old: &Value) {
    let kind = |s: &Value| text(&s["type"]).to_owned();
    let (n, o) = (kind(new), kind(old));
    let needs_ip = |k: &str| matches!(k, "ClusterIP" | "NodePort" | "LoadBalancer" | "");
    if needs_ip(&o) && !needs_ip(&n) {
        for f in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if same(&new[f], &old[f]) {
                remove(new, f);
            }
        }
    }
    let node_port = |k: &str| matches!(k, "NodePort" | "LoadBalancer");
    if node_port(&o) && !node_port(&n) {
        let ports = |s: &Value| items(&s["ports"]).iter().map(|p| int0(&p["nodePort"])).collect::<Vec<_>>();
        if ports(new) == ports(old) {
            for p in items_mut(new, "ports") {
                remove(p, "nodePort");
            }
        }
    }
    if needs_health_port(old)
        && !needs_health_port(new)
        && same(&new["healthCheckNodePort"], &old["healthCheckNodePort"])
    {
        remove(new, "healthCheckNodePort");
    }
    if o == "LoadBalancer" && n != "LoadBalancer" {
        for f in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if same(&new[f], &old[f]) {
                remove(new, f);
            }
        }
    }
    let external = |k: &str, s: &Value| node_port(k) || (k == "ClusterIP" && !items(&s["externalIPs"]).is_empty());
    if external(&o, old) && !external(&n, new) && same(&new["externalTrafficPolicy"], &old["externalTrafficPolicy"]) {
        remove(new, "externalTrafficPolicy");
    }
}

/// What was allocated and is not spoken of stays: cluster addresses, node ports by port, the health check port.
fn keep_allocated(new: &mut Value, old: &Value) {
    let kind = text(&new["type"]).to_owned();
    if kind == "ExternalName" {
        return;
    }
    if text(&old["type"]) != "ExternalName"
        && text(&new["clusterIP"]).is_empty()
        && items(&new["clusterIPs"]).is_empty()
    {
        for f in ["clusterIP", "clusterIPs"] {
            crate::tree::restore(new, old, f);
        }
    }
    let node_port = |k: &str| matches!(k, "NodePort" | "LoadBalancer");
    if node_port(&kind) && node_port(text(&old["type"])) {
        let asked: BTreeSet<i64> = items(&new["ports"]).iter().map(|p| int0(&p["nodePort"])).collect();
        for p in items_mut(new, "ports") {
            if int0(&p["nodePort"]) != 0 {
                continue;
            }
            let was = items(&old["ports"]).iter().find(|o| {
                o["port"] == p["port"] && o["protocol"] == p["protocol"] && !asked.contains(&int0(&o["nodePort"]))
            });
            if let Some(n) = was.map(|o| int0(&o["nodePort"])).filter(|n| *n != 0) {
                set(p, "nodePort", n);
            }
        }
    }
    if needs_health_port(new) && needs_health_port(old) && int0(&new["healthCheckNodePort"]) == 0 {
        crate::tree::restore(new, old, "healthCheckNodePort");
    }
}

fn needs_health_port(spec: &Value) -> bool {
    text(&spec["type"]) == "LoadBalancer" && text(&spec["externalTrafficPolicy"]) == "Local"
}

fn headless(spec: &Value) -> bool {
    let ips = items(&spec["clusterIPs"]);
    ips.len() == 1 && text(&ips[0]) == "None"
}

fn check_spec(obj: &Value, e: &mut Errors) {
    let spec = &obj["spec"];
    let p = Path::new("spec");
    let kind = text(&spec["type"]);
    let ports = items(&spec["ports"]);
    if ports.is_empty() && !headless(spec) && kind != "ExternalName" {
        e.required(&p.child("ports"), "");
    }
    if headless(spec) && matches!(kind, "LoadBalancer" | "NodePort") {
        let list = p.child("clusterIPs");
        e.invalid(&list.index(0), "None", format!("may not be set to 'None' for {kind} services"));
    }
    if kind == "ExternalName" {
        check_external_name(spec, &p, e);
    }
    check_ports(spec, kind, &p.child("ports"), e);
    metadata::labels(&spec["selector"], &p.child("selector"), e);
    rules::one_of(&spec["sessionAffinity"], &p.child("sessionAffinity"), &["ClientIP", "None"], e);
    if text(&spec["sessionAffinity"]) == "ClientIP" {
        let at = p.child("sessionAffinityConfig");
        let ip = at.child("clientIP");
        let seconds = &spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"];
        if !present(seconds) {
            e.required(&ip.child("timeoutSeconds"), "");
        } else if !(1..=AFFINITY_SECONDS_MAX).contains(&int0(seconds)) {
            let why = format!("must be greater than 0 and less than {AFFINITY_SECONDS_MAX}");
            e.invalid(&ip.child("timeoutSeconds"), int0(seconds), why);
        }
    }
    check_addresses(spec, kind, &p, e);
    rules::one_of(&spec["type"], &p.child("type"), &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"], e);
    check_load_balancer(spec, kind, &p, e);
    check_policies(spec, kind, &p, e);
}

fn check_external_name(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    for f in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if !empty(&spec[f]) {
            e.forbidden(&p.child(f), "may not be set for ExternalName services");
        }
    }
    let cname = text(&spec["externalName"]);
    let cname = cname.strip_suffix('.').unwrap_or(cname);
    if cname.is_empty() {
        e.required(&p.child("externalName"), "");
    } else {
        e.invalid_each(&p.child("externalName"), cname, is_dns1123_subdomain(cname));
    }
}

fn check_ports(spec: &Value, kind: &str, p: &Path<'_>, e: &mut Errors) {
    let ports = items(&spec["ports"]);
    let mut names = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = p.index(i);
        let n = text(&port["name"]);
        if n.is_empty() {
            if ports.len() > 1 {
                e.required(&at.child("name"), "");
            }
        } else {
            e.invalid_each(&at.child("name"), n, is_dns1123_label(n));
            if !names.insert(n) {
                e.duplicate(&at.child("name"), n);
            }
        }
        rules::port(&port["port"], &at.child("port"), e);
        rules::one_of(&port["protocol"], &at.child("protocol"), &["SCTP", "TCP", "UDP"], e);
        rules::port_or_name(&port["targetPort"], &at.child("targetPort"), e);
        if let Some(app) = port["appProtocol"].as_str() {
            e.invalid_each(&at.child("appProtocol"), app, is_qualified_name(app));
        }
        if kind == "ClusterIP" && int0(&port["nodePort"]) != 0 {
            e.forbidden(&at.child("nodePort"), "may not be used when `type` is 'ClusterIP'");
        }
    }
    let (mut node_ports, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (i, port) in ports.iter().enumerate() {
        let at = p.index(i);
        let node = int0(&port["nodePort"]);
        if node != 0 && !node_ports.insert((text(&port["protocol"]), node)) {
            e.duplicate(&at.child("nodePort"), node);
        }
        if !numbers.insert((text(&port["protocol"]), int0(&port["port"]))) {
            e.duplicate(&at, json!({"protocol": port["protocol"], "port": port["port"]}));
        }
    }
}

fn check_addresses(spec: &Value, kind: &str, p: &Path<'_>, e: &mut Errors) {
    let externals = p.child("externalIPs");
    for (i, ip) in items(&spec["externalIPs"]).iter().map(text).enumerate() {
        super::endpoint_ip(ip, &externals.index(i), e);
    }
    if kind == "ExternalName" {
        return;
    }
    let list = p.child("clusterIPs");
    let (one, ips) = (text(&spec["clusterIP"]), items(&spec["clusterIPs"]));
    match (one.is_empty(), ips.first().map(text)) {
        (false, None) => e.required(&list, ""),
        (false, Some(first)) if first != one => e.invalid(&list, ips, "first value must match `clusterIP`"),
        (true, Some(_)) => e.invalid(&list, ips, "must be empty when `clusterIP` is not specified"),
        _ => {}
    }
    let families = items(&spec["ipFamilies"]);
    let at = p.child("ipFamilies");
    for (i, f) in families.iter().enumerate() {
        if !matches!(text(f), "IPv4" | "IPv6") {
            e.not_supported(&at.index(i), f, &["IPv4", "IPv6"]);
        }
        if families[..i].contains(f) {
            e.duplicate(&at.index(i), f);
        }
    }
    rules::optional_one_of(
        &spec["ipFamilyPolicy"],
        &p.child("ipFamilyPolicy"),
        &["PreferDualStack", "RequireDualStack", "SingleStack"],
        e,
    );
    check_cluster_ips(ips, families, &list, e);
}

fn check_cluster_ips(ips: &[Value], families: &[Value], list: &Path<'_>, e: &mut Errors) {
    let before = e.len();
    for (i, ip) in ips.iter().map(text).enumerate() {
        if i == 0 && ip == "None" {
            if ips.len() > 1 {
                e.invalid(list, ips, "'None' must be the first and only value");
            }
        } else {
            rules::ip(ip, &list.index(i), e);
        }
    }
    if ips.len() > 2 {
        e.invalid(list, ips, "may only hold up to 2 values");
    }
    if e.len() > before {
        return;
    }
    let is_v4: Vec<bool> = ips.iter().filter_map(|i| text(i).parse::<IpAddr>().ok()).map(|i| i.is_ipv4()).collect();
    if is_v4.len() == 2 && is_v4[0] == is_v4[1] {
        e.invalid(list, ips, "may specify no more than one IP for each IP family");
    }
    for (i, (v4, family)) in is_v4.iter().zip(families).enumerate() {
        let family = text(family);
        if (family == "IPv4") != *v4 {
            e.invalid(&list.index(i), &ips[i], format!("expected an {family} value as indicated by `ipFamilies[{i}]`"));
        }
    }
}

fn check_addresses_update(new: &Value, old: &Value, e: &mut Errors) {
    let external = |s: &Value| text(&s["type"]) == "ExternalName";
    if external(new) || external(old) || (headless(new) && headless(old)) {
        return;
    }
    let spec = Path::new("spec");
    let list = spec.child("clusterIPs");
    let (n, o) = (items(&new["clusterIPs"]), items(&old["clusterIPs"]));
    if n.len() == o.len() {
        for (i, (a, b)) in n.iter().zip(o).enumerate() {
            if a != b {
                e.invalid(&list.index(i), n, "may not change once set");
            }
        }
    } else if n.len() < o.len() && n.is_empty() {
        e.invalid(&list.index(0), n, "primary clusterIP can not be unset");
    } else if !o.is_empty() && n[0] != o[0] {
        e.invalid(&list.index(0), n, "may not change once set");
    } else if n.len() < o.len() && text(&new["ipFamilyPolicy"]) != "SingleStack" {
        e.invalid(
            &spec.child("ipFamilyPolicy"),
            &new["ipFamilyPolicy"],
            "must be set to 'SingleStack' when releasing the secondary clusterIP",
        );
    }
    if headless(new) || headless(old) {
        return;
    }
    let (n, o) = (items(&new["ipFamilies"]), items(&old["ipFamilies"]));
    let at = spec.child("ipFamilies");
    if n.len() == o.len() {
        if n != o {
            e.invalid(&at.index(0), n, "may not change once set");
        }
    } else if let (Some(a), Some(b)) = (n.first(), o.first())
        && a != b
    {
        e.invalid(&at.index(0), n, "may not change once set");
    }
}

fn check_load_balancer(spec: &Value, kind: &str, p: &Path<'_>, e: &mut Errors) {
    let balanced = kind == "LoadBalancer";
    let only = "may only be used when `type` is 'LoadBalancer'";
    let at = p.child("LoadBalancerSourceRanges");
    let ranges = items(&spec["loadBalancerSourceRanges"]);
    if !ranges.is_empty() && !balanced {
        e.forbidden(&at, only);
    }
    for (i, r) in ranges.iter().enumerate() {
        rules::cidr(text(r).trim(), &at.index(i), e);
    }
    if present(&spec["allocateLoadBalancerNodePorts"]) && !balanced {
        e.forbidden(&p.child("allocateLoadBalancerNodePorts"), only);
    }
    if let Some(class) = spec["loadBalancerClass"].as_str() {
        if balanced {
            e.invalid_each(&p.child("loadBalancerClass"), class, is_qualified_name(class));
        } else {
            e.forbidden(&p.child("loadBalancerClass"), only);
        }
    }
}

fn check_policies(spec: &Value, kind: &str, p: &Path<'_>, e: &mut Errors) {
    let external = &spec["externalTrafficPolicy"];
    let at = p.child("externalTrafficPolicy");
    let accessible =
        matches!(kind, "LoadBalancer" | "NodePort") || (kind == "ClusterIP" && !items(&spec["externalIPs"]).is_empty());
    if accessible {
        rules::one_of(external, &at, &["Cluster", "Local"], e);
    } else if !empty(external) {
        e.invalid(&at, external, "may only be set for externally-accessible services");
    }
    let check = int0(&spec["healthCheckNodePort"]);
    if needs_health_port(spec) {
        if !(0..=65535).contains(&check) {
            e.invalid(&p.child("healthCheckNodePort"), check, "must be a valid port");
        }
    } else if check != 0 {
        e.invalid(
            &p.child("healthCheckNodePort"),
            check,
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        );
    }
    let internal = &spec["internalTrafficPolicy"];
    if present(internal) {
        rules::optional_one_of(internal, &p.child("internalTrafficPolicy"), &INTERNAL_POLICIES, e);
    } else if kind != "ExternalName" {
        e.required(&p.child("internalTrafficPolicy"), "");
    }
    rules::optional_one_of(
        &spec["trafficDistribution"],
        &p.child("trafficDistribution"),
        &["PreferClose", "PreferSameZone", "PreferSameNode"],
        e,
    );
}

fn external_ip(obj: &Value) -> String {
    let spec = &obj["spec"];
    let externals: Vec<&str> = items(&spec["externalIPs"]).iter().map(text).collect();
    match text(&spec["type"]) {
        "ClusterIP" | "NodePort" if externals.is_empty() => NONE.to_owned(),
        "ClusterIP" | "NodePort" => externals.join(","),
        "LoadBalancer" => {
            let balanced: BTreeSet<&str> = items(&obj["status"]["loadBalancer"]["ingress"])
                .iter()
                .map(|i| if text(&i["ip"]).is_empty() { text(&i["hostname"]) } else { text(&i["ip"]) })
                .filter(|s| !s.is_empty())
                .collect();
            let all: Vec<&str> = balanced.into_iter().chain(externals).collect();
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        "ExternalName" => text(&spec["externalName"]).to_owned(),
        _ => crate::table::UNKNOWN.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mut obj: Value, want: &[&str]) {
        Services.set_defaults("v1", &mut obj);
        Services.prepare_create(&Context::at(Timestamp::UNIX_EPOCH), &mut obj);
        let mut e = Errors::new();
        Services.check(&obj, &mut e);
        let got: Vec<String> = e.finish().0.iter().map(ToString::to_string).collect();
        assert_eq!(got, want, "{obj}");
    }

    #[test]
    fn rules_of_creation() {
        check(json!({"spec": {"ports": [{"port": 80}]}}), &[]);
        check(json!({"spec": {}}), &["spec.ports: Required value"]);
        check(json!({"spec": {"clusterIP": "None"}}), &[]);
        check(
            json!({"spec": {"ports": [{"port": 80}, {"port": 80, "name": "b"}]}}),
            &[
                "spec.ports[0].name: Required value",
                "spec.ports[1]: Duplicate value: {\"port\":80,\"protocol\":\"TCP\"}",
            ],
        );
        check(
            json!({"spec": {"type": "X", "ports": [{"port": 0, "targetPort": 1}]}}),
            &[
                "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
                "spec.type: Unsupported value: \"X\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"",
            ],
        );
        check(json!({"spec": {"type": "ExternalName", "externalName": "a.b."}}), &[]);
        check(
            json!({"spec": {"clusterIP": "x", "ports": [{"port": 1}]}}),
            &[
                "spec.clusterIPs[0]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ],
        );
    }

    #[test]
    fn a_service_becomes_an_alias() {
        let mut old = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "clusterIP": "10.0.0.1",
            "clusterIPs": ["10.0.0.1"]}});
        Services.set_defaults("v1", &mut old);
        let mut new = old.clone();
        new["spec"]["type"] = "ExternalName".into();
        new["spec"]["externalName"] = "example.org".into();
        Services.set_defaults("v1", &mut new);
        Services.prepare_update(&Context::at(Timestamp::UNIX_EPOCH), &mut new, &old);
        let mut e = Errors::new();
        Services.check(&new, &mut e);
        assert!(e.finish().0.is_empty());
        assert!(new["spec"].get("internalTrafficPolicy").is_none() && new["spec"].get("clusterIP").is_none(), "{new}");
        check(
            json!({"spec": {"type": "ExternalName", "externalName": "a.b", "internalTrafficPolicy": "X"}}),
            &["spec.internalTrafficPolicy: Unsupported value: \"X\": supported values: \"Cluster\", \"Local\""],
        );
    }

    #[test]
    fn update_keeps_what_was_allocated() {
        let old = json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
            "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30000}]}});
        let mut new = json!({"metadata": {}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
        Services.set_defaults("v1", &mut new);
        Services.prepare_update(&Context::at(Timestamp::UNIX_EPOCH), &mut new, &old);
        assert_eq!(new["spec"]["clusterIPs"], json!(["10.0.0.1"]));
        assert_eq!(new["spec"]["clusterIP"], "10.0.0.1");
        assert_eq!(new["spec"]["ports"][0]["nodePort"], 30000);
        let mut new = json!({"metadata": {}, "spec": {"type": "ClusterIP", "clusterIP": "10.0.0.1",
            "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80, "nodePort": 30000}]}});
        Services.set_defaults("v1", &mut new);
        Services.prepare_update(&Context::at(Timestamp::UNIX_EPOCH), &mut new, &old);
        assert!(new["spec"]["ports"][0].get("nodePort").is_none());
    }
}
