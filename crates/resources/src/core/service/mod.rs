//! Services: the union by `type`, ports, addresses, traffic policies. The API server allocates addresses and node
//! ports; here are the rules before and after that.
mod check;
mod spec;
mod warnings;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::{FieldErrors, is_dns1123_subdomain};
use serde_json::{Value, json};

use crate::addresses;
use crate::column::{AGE, Column, NAME, SELECTOR};
use crate::names::NameRule;
use crate::options::{Allocation, Connects, Options, columns, texts};
use crate::path::{Errors, Path};
use crate::rules;
use crate::strategy::{Context, Strategy, base_update};
use crate::table::{NONE, age, label_map, name};
use crate::tree::{default_to, ensure, int0, items, items_mut, present, same, set, text};

use check::{check_addresses_update, check_spec};
use spec::{
    default_spec, drop_policy_of_alias, drop_type_dependent, keep_allocated, needs_health_port, sync_cluster_ips,
};

/// The strategy of services.
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
        check_spec(&obj["spec"], &Value::Null, e);
    }
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        base_update(&OPTIONS, new, old);
        if let Some(spec) = new.get_mut("spec") {
            drop_type_dependent(spec, &old["spec"]);
            drop_policy_of_alias(spec);
            keep_allocated(spec, &old["spec"]);
            sync_cluster_ips(spec, Some(&old["spec"]));
        }
        // The addresses of a load balancer go with the type, before the load balancer itself is gone.
        if text(&new["spec"]["type"]) != "LoadBalancer"
            && let Some(status) = new.get_mut("status")
        {
            set(status, "loadBalancer", json!({}));
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
        check_spec(&new["spec"], &old["spec"], e);
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        let status = Path::new("status");
        let lb = status.child("loadBalancer");
        let list = lb.child("ingress");
        let ingress = items(&new["status"]["loadBalancer"]["ingress"]);
        if !ingress.is_empty() && text(&new["spec"]["type"]) != "LoadBalancer" {
            return e.forbidden(&list, "may only be used when `spec.type` is 'LoadBalancer'");
        }
        let kept: Vec<&str> = items(&old["status"]["loadBalancer"]["ingress"]).iter().map(|x| text(&x["ip"])).collect();
        for (i, x) in ingress.iter().enumerate() {
            let at = list.index(i);
            if !text(&x["ip"]).is_empty() {
                addresses::ip(text(&x["ip"]), &kept, &at.child("ip"), e);
            }
            let mode = at.child("ipMode");
            match (present(&x["ipMode"]), text(&x["ip"]).is_empty()) {
                (false, false) => e.required(&mode, "must be specified when `ip` is set"),
                (true, true) => e.forbidden(&mode, "may not be specified when `ip` is not set"),
                (true, false) => rules::optional_one_of(&x["ipMode"], &mode, &["Proxy", "VIP"], e),
                (false, true) => {}
            }
            let host = text(&x["hostname"]);
            if !host.is_empty() {
                e.invalid_each(&at.child("hostname"), host, is_dns1123_subdomain(host));
                if addresses::parse_ip(host).is_some() {
                    e.invalid(&at.child("hostname"), host, "must be a DNS name, not an IP address");
                }
            }
        }
    }
    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        warnings::of(new)
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

/// Validates a service's cluster addresses and families, given the old service (null for a new one). If there are
/// errors before addresses are allocated, the client gets only these.
pub fn cluster_ip_faults(spec: &Value, old: &Value) -> FieldErrors {
    let mut e = Errors::new();
    check::check_families(spec, old, &mut e);
    e.finish()
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
                "spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":80,\"TargetPort\":0,\"NodePort\":0}",
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
