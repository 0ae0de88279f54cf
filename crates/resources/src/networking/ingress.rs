//! Ingresses and their classes.
use std::collections::BTreeSet;
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::{is_dns1123_label, is_dns1123_subdomain, is_path_segment_name};
use serde_json::{Value, json};

use super::GROUP;
use crate::addresses;
use crate::column::{AGE, Column, NAME};
use crate::metadata::immutable;
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::rules;
use crate::strategy::Strategy;
use crate::table::{age, name, or_none};
use crate::tree::{default_to, ensure, int0, items, present, text};

/// The strategy of ingresses.
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
    fn check_subresource_update(&self, _subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        let status = Path::new("status");
        let lb = status.child("loadBalancer");
        let kept: Vec<&str> = items(&old["status"]["loadBalancer"]["ingress"]).iter().map(|x| text(&x["ip"])).collect();
        let list = lb.child("ingress");
        for (i, x) in items(&new["status"]["loadBalancer"]["ingress"]).iter().enumerate() {
            let at = list.index(i);
            let (ip, host) = (text(&x["ip"]), text(&x["hostname"]));
            if !ip.is_empty() {
                addresses::ip(ip, &kept, &at.child("ip"), e);
            }
            if !host.is_empty() {
                e.invalid_each(&at.child("hostname"), host, is_dns1123_subdomain(host));
                if addresses::parse_ip(host).is_some() {
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

/// Validates a host name, with or without a leading `*.`.
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
            if addresses::parse_ip(host).is_some() {
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
            local_reference(&b["resource"], &p.child("resource"), e);
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

/// Validates a reference to an object by group, kind and name.
fn local_reference(r: &Value, p: &Path<'_>, e: &mut Errors) {
    if let Some(group) = r["apiGroup"].as_str() {
        e.invalid_each(&p.child("apiGroup"), group, is_dns1123_subdomain(group));
    }
    for f in ["kind", "name"] {
        if rules::required(&r[f], &p.child(f), e) {
            e.invalid_each(&p.child(f), text(&r[f]), is_path_segment_name(text(&r[f])));
        }
    }
}

/// The strategy of ingressclasses.
pub struct IngressClasses;

static CLASSES: LazyLock<Options> = LazyLock::new(|| Options {
    generation: true,
    columns: columns![
        NAME,
        Column::text("Controller", "Controller of the ingress class."),
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
        if controller.len() > 250 {
            e.too_long(&at, 250);
        }
        rules::domain_prefixed_path(controller, &at, e);
        let parameters = &spec["parameters"];
        if !present(parameters) {
            return;
        }
        let at = p.child("parameters");
        local_reference(parameters, &at, e);
        let (scope, namespace) = (parameters["scope"].as_str(), parameters["namespace"].as_str());
        match (scope, namespace) {
            (None, _) => e.required(&at.child("scope"), ""),
            (Some("Namespace"), None) => {
                e.required(&at.child("namespace"), "`parameters.scope` is set to 'Namespace'");
            }
            (Some("Namespace"), Some(name)) => e.invalid_each(&at.child("namespace"), name, is_dns1123_label(name)),
            (Some("Cluster"), Some(_)) => {
                e.forbidden(&at.child("namespace"), "`parameters.scope` is set to 'Cluster'");
            }
            (Some("Cluster"), None) => {}
            (Some(other), _) => e.not_supported(&at.child("scope"), other, &["Cluster", "Namespace"]),
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
}
