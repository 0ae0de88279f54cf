//! Network policies.
use std::net::IpAddr;
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::GROUP;
use crate::addresses;
use crate::column::{AGE, Column, NAME};
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::rules;
use crate::strategy::Strategy;
use crate::table::{age, name, selector};
use crate::tree::{default_to, ensure, int, items, items_mut, present, set, text};

/// The strategy of networkpolicies.
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
        policy(&obj["spec"], &[], e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        policy(&new["spec"], &ranges(&old["spec"]), e);
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(obj), json!(selector(&obj["spec"]["podSelector"])), age(obj, now)]
    }
}

/// Returns all CIDRs of a policy. Those of the old policy are not validated again.
fn ranges(spec: &Value) -> Vec<&str> {
    let rules = [("ingress", "from"), ("egress", "to")];
    let peers = rules.iter().flat_map(|(list, peers)| items(&spec[*list]).iter().flat_map(|r| items(&r[*peers])));
    let blocks = peers.map(|peer| &peer["ipBlock"]);
    let cidrs = blocks.flat_map(|b| std::iter::once(&b["cidr"]).chain(items(&b["except"]))).map(text);
    // An empty string is not a CIDR that may stay.
    cidrs.filter(|cidr| !cidr.is_empty()).collect()
}

/// Validates the spec of a policy; `kept` are CIDRs that may stay.
fn policy(spec: &Value, kept: &[&str], e: &mut Errors) {
    let p = Path::new("spec");
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
                peer(x, kept, &list.index(j), e);
            }
        }
    }
    let types = items(&spec["policyTypes"]);
    let at = p.child("policyTypes");
    if types.len() > 2 {
        return e.invalid(&at, types, "may not specify more than two policyTypes");
    }
    for (i, t) in types.iter().enumerate() {
        if !matches!(text(t), "Ingress" | "Egress") {
            e.not_supported(&at.index(i), t, &["Ingress", "Egress"]);
        }
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

fn peer(x: &Value, kept: &[&str], p: &Path<'_>, e: &mut Errors) {
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
            addresses::cidr(outer, kept, &at.child("cidr"), e);
        }
        let list = at.child("except");
        for (i, c) in items(&block["except"]).iter().map(text).enumerate() {
            // Upstream compares an exception with the address of the CIDR.
            let Some(outer) = addresses::parse_cidr(outer) else { break };
            addresses::cidr(c, kept, &list.index(i), e);
            if let Some(inner) = addresses::parse_cidr(c)
                && !strictly_within(inner, outer)
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

#[cfg(test)]
mod tests {
    use super::*;

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
