//! Kinds of networking.k8s.io: ingresses and their classes, network policies, addresses and service CIDRs.
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::{is_dns1123_label, is_dns1123_subdomain};
use serde_json::{Value, json};

use crate::column::{AGE, Column, NAME};
use crate::metadata::immutable;
use crate::names::NameRule;
use crate::options::{Options, columns, texts};
use crate::path::{Errors, Path};
use crate::rules;
use crate::strategy::Strategy;
use crate::table::{age, name, or_none, selector};
use crate::tree::{default_to, ensure, int, int0, items, items_mut, present, set, text};

const GROUP: &str = "networking.k8s.io";

/// The ingresses resource.
pub struct Ingresses;

static INGRESSES: LazyLock<Options> = LazyLock::new(|| Options {
    generation: true,
    columns: columns![
        NAME,
        Column::text("Class", "Class of the ingress."),
        Column::text("Hosts", "Hosts that are served."),
        Column::text("Address", "Addresses it is served at."),
        Column::text("Ports", "Ports it is served at."),
        AGE,
    ],
    ..Options::of(GROUP, "ingresses")
});

impl Strategy for Ingresses {
    fn options(&self) -> &Options {
        &INGRESSES
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        ensure(obj, "spec");
        if let Some(s) = ensure(obj, "status") {
            ensure(s, "loadBalancer");
        }
    }
    fn initial_status(&self) -> Value {
        json!({"loadBalancer": {}})
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        check_ingress(&obj["spec"], &Path::new("spec"), e);
    }
    fn check_create(&self, obj: &Value, e: &mut Errors) {
        self.check(obj, e);
        const CLASS: &str = "kubernetes.io/ingress.class";
        if let (Some(a), Some(c)) =
            (obj["metadata"]["annotations"][CLASS].as_str(), obj["spec"]["ingressClassName"].as_str())
            && a != c
        {
            let p = Path::new("annotations");
            e.invalid(&p.child(CLASS), a, "must match `ingressClassName` when both are specified");
        }
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, _old: &Value, e: &mut Errors) {
        let status = Path::new("status");
        let lb = status.child("loadBalancer");
        let list = lb.child("ingress");
        for (i, x) in items(&new["status"]["loadBalancer"]["ingress"]).iter().enumerate() {
            let at = list.index(i);
            let (ip, host) = (text(&x["ip"]), text(&x["hostname"]));
            if !ip.is_empty() {
                rules::ip(ip, &at.child("ip"), e);
            }
            if !host.is_empty() {
                e.invalid_each(&at.child("hostname"), host, is_dns1123_subdomain(host));
                if host.parse::<IpAddr>().is_ok() {
                    e.invalid(&at.child("hostname"), host, "must be a DNS name, not an IP address");
                }
            }
        }
    }
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        if old.is_none() && new["metadata"]["annotations"].get("kubernetes.io/ingress.class").is_some() {
            vec![
                "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead"
                    .to_owned(),
            ]
        } else {
            Vec::new()
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &obj["spec"];
        let all = items(&spec["rules"]);
        let mut hosts: Vec<&str> = all.iter().map(|r| text(&r["host"])).filter(|h| !h.is_empty()).collect();
        let more = hosts.len() >= 3 && all.len() > 3;
        hosts.truncate(3);
        let hosts = match (hosts.is_empty(), more) {
            (true, _) => "*".to_owned(),
            (false, true) => format!("{} + {} more...", hosts.join(","), all.len() - 3),
            (false, false) => hosts.join(","),
        };
        let addresses: BTreeSet<&str> = items(&obj["status"]["loadBalancer"]["ingress"])
            .iter()
            .map(|i| if text(&i["ip"]).is_empty() { text(&i["hostname"]) } else { text(&i["ip"]) })
            .filter(|s| !s.is_empty())
            .collect();
        let ports = if items(&spec["tls"]).is_empty() { "80" } else { "80, 443" };
        vec![
            name(obj),
            or_none(text(&spec["ingressClassName"])),
            json!(hosts),
            json!(addresses.into_iter().collect::<Vec<_>>().join(",")),
            json!(ports),
            age(obj, now),
        ]
    }
}

/// A host name, with `*.` before it or not.
fn host_name(h: &str, p: &Path<'_>, e: &mut Errors) {
    if !h.contains('*') {
        return e.invalid_each(p, h, is_dns1123_subdomain(h));
    }
    let ok = h.strip_prefix("*.").is_some_and(|rest| !rest.contains('*') && is_dns1123_subdomain(rest).is_ok());
    if !ok {
        e.invalid(
            p,
            h,
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        );
    }
}

fn check_ingress(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let list = items(&spec["rules"]);
    if list.is_empty() && !present(&spec["defaultBackend"]) {
        e.invalid(p, &spec["rules"], "either `defaultBackend` or `rules` must be specified");
    }
    if present(&spec["defaultBackend"]) {
        backend(&spec["defaultBackend"], &p.child("defaultBackend"), e);
    }
    let at = p.child("rules");
    for (i, r) in list.iter().enumerate() {
        let at = at.index(i);
        let host = text(&r["host"]);
        if !host.is_empty() {
            if host.parse::<IpAddr>().is_ok() {
                e.invalid(&at.child("host"), host, "must be a DNS name, not an IP address");
            }
            host_name(host, &at.child("host"), e);
        }
        if present(&r["http"]) {
            let http = at.child("http");
            let paths = http.child("paths");
            if items(&r["http"]["paths"]).is_empty() {
                e.required(&paths, "");
            }
            for (j, x) in items(&r["http"]["paths"]).iter().enumerate() {
                http_path(x, &paths.index(j), e);
            }
        }
    }
    let at = p.child("tls");
    for (i, t) in items(&spec["tls"]).iter().enumerate() {
        let at = at.index(i);
        let hosts = at.child("hosts");
        for (j, h) in items(&t["hosts"]).iter().map(text).enumerate() {
            host_name(h, &hosts.index(j), e);
        }
        let secret = text(&t["secretName"]);
        if !secret.is_empty() {
            e.invalid_each(&at.child("secretName"), secret, is_dns1123_subdomain(secret));
        }
    }
    if let Some(c) = spec["ingressClassName"].as_str() {
        e.invalid_each(&p.child("ingressClassName"), c, is_dns1123_subdomain(c));
    }
}

fn http_path(x: &Value, p: &Path<'_>, e: &mut Errors) {
    let (path, at) = (text(&x["path"]), p.child("path"));
    let absolute = "must be an absolute path";
    match x["pathType"].as_str() {
        None => return e.required(&p.child("pathType"), "pathType must be specified"),
        Some("Exact" | "Prefix") => {
            if !path.starts_with('/') {
                e.invalid(&at, path, absolute);
            }
            for bad in ["//", "/./", "/../", "%2f", "%2F"] {
                if path.contains(bad) {
                    e.invalid(&at, path, format!("must not contain '{bad}'"));
                }
            }
            for bad in ["/..", "/."] {
                if path.ends_with(bad) {
                    e.invalid(&at, path, format!("cannot end with '{bad}'"));
                }
            }
        }
        Some("ImplementationSpecific") => {
            if !path.is_empty() && !path.starts_with('/') {
                e.invalid(&at, path, absolute);
            }
        }
        Some(other) => {
            e.not_supported(&p.child("pathType"), other, &["Exact", "ImplementationSpecific", "Prefix"]);
        }
    }
    backend(&x["backend"], &p.child("backend"), e);
}

fn backend(b: &Value, p: &Path<'_>, e: &mut Errors) {
    match (present(&b["resource"]), present(&b["service"])) {
        (true, true) => e.invalid(p, "", "cannot set both resource and service backends"),
        (true, false) => {
            let at = p.child("resource");
            rules::required(&b["resource"]["kind"], &at.child("kind"), e);
            rules::required(&b["resource"]["name"], &at.child("name"), e);
        }
        (false, true) => {
            let (s, at) = (&b["service"], p.child("service"));
            let n = text(&s["name"]);
            if n.is_empty() {
                e.required(&at.child("name"), "");
            } else {
                e.invalid_each(&at.child("name"), n, is_dns1123_label(n));
            }
            let port = at.child("port");
            let (by_name, number) = (text(&s["port"]["name"]), int0(&s["port"]["number"]));
            match (by_name.is_empty(), number) {
                (false, 0) => e.invalid_each(&port.child("name"), by_name, rules::port_name(by_name)),
                (false, _) => e.invalid(p, "", "cannot set both port name & port number"),
                (true, 0) => e.required(p, "port name or number is required"),
                (true, _) => rules::port(&s["port"]["number"], &port.child("number"), e),
            }
        }
        (false, false) => e.invalid(p, "", "resource or service backend is required"),
    }
}

/// The ingressclasses resource.
pub struct IngressClasses;

static CLASSES: LazyLock<Options> = LazyLock::new(|| Options {
    generation: true,
    columns: columns![
        NAME,
        Column::text("Controller", "Who serves ingresses of the class."),
        Column::text("Parameters", "Object with more configuration."),
        AGE,
    ],
    ..Options::of(GROUP, "ingressclasses")
});

impl Strategy for IngressClasses {
    fn options(&self) -> &Options {
        &CLASSES
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        if let Some(p) = crate::tree::at_mut(obj, &["spec", "parameters"]) {
            default_to(p, "scope", "Cluster");
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (spec, p) = (&obj["spec"], Path::new("spec"));
        let controller = text(&spec["controller"]);
        let at = p.child("controller");
        if !controller.is_empty() {
            if controller.len() > 250 {
                e.too_long(&at, 250);
            }
            let domain = controller.split_once('/').filter(|(_, path)| !path.is_empty());
            match domain {
                Some((d, _)) => e.invalid_each(&at, controller, is_dns1123_subdomain(d)),
                None => e.invalid(&at, controller, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
            }
        }
        let parameters = &spec["parameters"];
        if !present(parameters) {
            return;
        }
        let at = p.child("parameters");
        rules::required(&parameters["kind"], &at.child("kind"), e);
        rules::required(&parameters["name"], &at.child("name"), e);
        rules::one_of(&parameters["scope"], &at.child("scope"), &["Cluster", "Namespace"], e);
        let namespaced = !text(&parameters["namespace"]).is_empty();
        match text(&parameters["scope"]) {
            "Namespace" if !namespaced => {
                e.required(&at.child("namespace"), "`parameters.scope` is set to 'Namespace'")
            }
            "Cluster" if namespaced => {
                e.forbidden(&at.child("namespace"), "`parameters.scope` is set to 'Cluster'");
            }
            _ => {}
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        let p = Path::new("spec");
        immutable(&new["spec"]["controller"], &old["spec"]["controller"], &p.child("controller"), e);
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let n = text(&obj["metadata"]["name"]);
        let default = text(&obj["metadata"]["annotations"]["ingressclass.kubernetes.io/is-default-class"]) == "true";
        let p = &obj["spec"]["parameters"];
        let parameters = if present(p) {
            let dot = p["apiGroup"].as_str().map(|g| format!(".{g}")).unwrap_or_default();
            format!("{}{dot}/{}", text(&p["kind"]), text(&p["name"]))
        } else {
            String::new()
        };
        vec![
            json!(if default { format!("{n} (default)") } else { n.to_owned() }),
            json!(text(&obj["spec"]["controller"])),
            or_none(&parameters),
            age(obj, now),
        ]
    }
}

/// The networkpolicies resource.
pub struct NetworkPolicies;

static POLICIES: LazyLock<Options> = LazyLock::new(|| Options {
    generation: true,
    columns: columns![NAME, Column::text("Pod-Selector", "Pods the policy is for."), AGE],
    ..Options::of(GROUP, "networkpolicies")
});

impl Strategy for NetworkPolicies {
    fn options(&self) -> &Options {
        &POLICIES
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        let Some(spec) = ensure(obj, "spec") else { return };
        ensure(spec, "podSelector");
        for list in ["ingress", "egress"] {
            for r in items_mut(spec, list) {
                for p in items_mut(r, "ports") {
                    default_to(p, "protocol", "TCP");
                }
            }
        }
        if items(&spec["policyTypes"]).is_empty() {
            let mut types = vec![json!("Ingress")];
            if !items(&spec["egress"]).is_empty() {
                types.push(json!("Egress"));
            }
            set(spec, "policyTypes", types);
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (spec, p) = (&obj["spec"], Path::new("spec"));
        rules::label_selector(&spec["podSelector"], &p.child("podSelector"), e);
        for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
            let list = p.child(direction);
            for (i, r) in items(&spec[direction]).iter().enumerate() {
                let at = list.index(i);
                let ports = at.child("ports");
                for (j, x) in items(&r["ports"]).iter().enumerate() {
                    policy_port(x, &ports.index(j), e);
                }
                let list = at.child(peers);
                for (j, x) in items(&r[peers]).iter().enumerate() {
                    peer(x, &list.index(j), e);
                }
            }
        }
        let types = items(&spec["policyTypes"]);
        let at = p.child("policyTypes");
        if types.len() > 2 {
            e.invalid(&at, types, "may not specify more than two policyTypes");
        }
        for (i, t) in types.iter().enumerate() {
            if !matches!(text(t), "Ingress" | "Egress") {
                e.not_supported(&at.index(i), t, &["Ingress", "Egress"]);
            }
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(obj), json!(selector(&obj["spec"]["podSelector"])), age(obj, now)]
    }
}

fn policy_port(x: &Value, p: &Path<'_>, e: &mut Errors) {
    rules::optional_one_of(&x["protocol"], &p.child("protocol"), &["TCP", "UDP", "SCTP"], e);
    let (end, at) = (int(&x["endPort"]), p.child("endPort"));
    match &x["port"] {
        Value::Number(n) => {
            rules::port(&x["port"], &p.child("port"), e);
            if let Some(end) = end {
                if Some(end) < n.as_i64() {
                    e.invalid(&at, n, "must be greater than or equal to `port`");
                }
                rules::port(&x["endPort"], &at, e);
            }
        }
        Value::String(s) => {
            if let Some(end) = end {
                e.invalid(&at, end, "may not be specified when `port` is non-numeric");
            }
            e.invalid_each(&p.child("port"), s, rules::port_name(s));
        }
        _ => {
            if let Some(end) = end {
                e.invalid(&at, end, "may not be specified when `port` is not specified");
            }
        }
    }
}

fn peer(x: &Value, p: &Path<'_>, e: &mut Errors) {
    let mut peers = 0;
    for f in ["podSelector", "namespaceSelector"] {
        if present(&x[f]) {
            peers += 1;
            rules::label_selector(&x[f], &p.child(f), e);
        }
    }
    let block = &x["ipBlock"];
    if present(block) {
        peers += 1;
        let at = p.child("ipBlock");
        let outer = text(&block["cidr"]);
        if outer.is_empty() {
            e.required(&at.child("cidr"), "");
        } else {
            rules::cidr(outer, &at.child("cidr"), e);
        }
        let list = at.child("except");
        for (i, c) in items(&block["except"]).iter().map(text).enumerate() {
            rules::cidr(c, &list.index(i), e);
            if let (Some(o), Some(i2)) = (rules::parse_cidr(outer), rules::parse_cidr(c))
                && !strictly_within(i2, o)
            {
                e.invalid(&list.index(i), c, "must be a strict subset of `cidr`");
            }
        }
    }
    if peers == 0 {
        e.required(p, "must specify a peer");
    } else if peers > 1 && present(block) {
        e.forbidden(p, "may not specify both ipBlock and another peer");
    }
}

fn strictly_within(inner: (IpAddr, u8), outer: (IpAddr, u8)) -> bool {
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(v) => (u128::from(u32::from(v)) << 96, true),
        IpAddr::V6(v) => (u128::from(v), false),
    };
    let ((a, a4), (b, b4)) = (bits(inner.0), bits(outer.0));
    let mask = if outer.1 == 0 { 0 } else { u128::MAX << (128 - u32::from(outer.1)) };
    a4 == b4 && inner.1 > outer.1 && a & mask == b & mask
}

/// The ipaddresses resource.
pub struct IpAddresses;

static ADDRESSES: LazyLock<Options> = LazyLock::new(|| Options {
    name: NameRule::Ip,
    columns: columns![NAME, Column::text("ParentRef", "Object the address belongs to."), AGE],
    fields: texts!["spec.parentRef.name", "spec.parentRef.namespace", "spec.parentRef.resource"],
    ..Options::of(GROUP, "ipaddresses")
});

impl Strategy for IpAddresses {
    fn options(&self) -> &Options {
        &ADDRESSES
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (parent, p) = (&obj["spec"]["parentRef"], Path::new("spec"));
        let at = p.child("parentRef");
        if !present(parent) {
            return e.required(&at, "");
        }
        rules::required(&parent["resource"], &at.child("resource"), e);
        rules::required(&parent["name"], &at.child("name"), e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        let p = Path::new("spec");
        immutable(&new["spec"]["parentRef"], &old["spec"]["parentRef"], &p.child("parentRef"), e);
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let p = &obj["spec"]["parentRef"];
        let mut parent = text(&p["resource"]).to_lowercase();
        for (f, separator) in [("group", "."), ("namespace", "/"), ("name", "/")] {
            if !text(&p[f]).is_empty() {
                parent = format!("{parent}{separator}{}", text(&p[f]));
            }
        }
        vec![name(obj), or_none(&parent), age(obj, now)]
    }
}

/// The servicecidrs resource.
pub struct ServiceCidrs;

static CIDRS: LazyLock<Options> = LazyLock::new(|| Options {
    columns: columns![NAME, Column::text("CIDRs", "Ranges addresses are taken from."), AGE],
    ..Options::of(GROUP, "servicecidrs")
});

impl Strategy for ServiceCidrs {
    fn options(&self) -> &Options {
        &CIDRS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        ensure(obj, "status");
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let cidrs = items(&obj["spec"]["cidrs"]);
        let spec = Path::new("spec");
        let at = spec.child("cidrs");
        if cidrs.is_empty() {
            return e.required(&at, "at least one CIDR required");
        }
        if cidrs.len() > 2 {
            return e.invalid(&at, cidrs, "may only hold up to 2 values");
        }
        let families: Vec<bool> =
            cidrs.iter().filter_map(|c| rules::parse_cidr(text(c))).map(|(ip, _)| ip.is_ipv4()).collect();
        if families.len() == 2 && families[0] == families[1] {
            e.invalid(
                &at,
                cidrs,
                "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
            );
        }
        for (i, c) in cidrs.iter().enumerate() {
            rules::cidr(text(c), &at.index(i), e);
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        let p = Path::new("spec");
        let (n, o) = (items(&new["spec"]["cidrs"]), items(&old["spec"]["cidrs"]));
        if n.len() < o.len() || n[..o.len().min(n.len())] != o[..o.len().min(n.len())] {
            e.invalid(&p.child("cidrs"), n, "field is immutable");
        }
        self.check(new, e);
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let cidrs: Vec<&str> = items(&obj["spec"]["cidrs"]).iter().map(text).collect();
        vec![name(obj), json!(cidrs.join(",")), age(obj, now)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ingress_backends() {
        let mut e = Errors::new();
        Ingresses.check(
            &json!({"spec": {"rules": [{"host": "*.a.b", "http": {"paths": [
                {"path": "x", "pathType": "Prefix", "backend": {"service": {"name": "s"}}}]}}]}}),
            &mut e,
        );
        assert_eq!(
            e.finish().to_string(),
            "[spec.rules[0].http.paths[0].path: Invalid value: \"x\": must be an absolute path, spec.rules[0].http.paths[0].backend: Required value: port name or number is required]"
        );
    }

    #[test]
    fn policies() {
        let mut p = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"podSelector": {}, "egress": [
            {"ports": [{"port": 80}], "to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}}]}]}});
        NetworkPolicies.set_defaults("v1", &mut p);
        assert_eq!(p["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
        assert_eq!(
            NetworkPolicies.validate_create(&p).to_string(),
            "spec.egress[0].to[0].ipBlock.except[0]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `cidr`"
        );
    }
}
