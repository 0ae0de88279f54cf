//! Service addresses as objects: `IPAddress` and `ServiceCIDR`.
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::{is_dns1123_subdomain, is_path_segment_name};
use serde_json::{Value, json};

use super::GROUP;
use crate::addresses;
use crate::column::{AGE, Column, NAME};
use crate::metadata::{IMMUTABLE, immutable};
use crate::names::NameRule;
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::rules;
use crate::strategy::Strategy;
use crate::table::{age, name, or_none};
use crate::tree::{ensure, items, present, text};

/// The strategy of ipaddresses.
pub struct IpAddresses;

static ADDRESSES: LazyLock<Options> = LazyLock::new(|| Options {
    name: NameRule::Ip,
    columns: columns![NAME, Column::text("ParentRef", "Object the address belongs to.")],
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
        for f in ["resource", "name"] {
            if rules::required(&parent[f], &at.child(f), e) {
                e.invalid_each(&at.child(f), text(&parent[f]), is_path_segment_name(text(&parent[f])));
            }
        }
        for (f, rule) in [("group", is_dns1123_subdomain as fn(&str) -> _), ("namespace", is_path_segment_name)] {
            let name = text(&parent[f]);
            if !name.is_empty() {
                e.invalid_each(&at.child(f), name, rule(name));
            }
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        let p = Path::new("spec");
        immutable(&new["spec"]["parentRef"], &old["spec"]["parentRef"], &p.child("parentRef"), e);
    }
    fn row(&self, obj: &Value, _: Timestamp) -> Vec<Value> {
        let p = &obj["spec"]["parentRef"];
        let mut parent = text(&p["resource"]).to_lowercase();
        for (f, separator) in [("group", "."), ("namespace", "/"), ("name", "/")] {
            if !text(&p[f]).is_empty() {
                parent = format!("{parent}{separator}{}", text(&p[f]));
            }
        }
        vec![name(obj), or_none(&parent)]
    }
}

/// The strategy of servicecidrs.
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
        let families: Vec<bool> = cidrs
            .iter()
            .filter_map(|c| addresses::parse_cidr(text(c)))
            .map(|(ip, _)| ip.to_canonical().is_ipv4())
            .collect();
        if families.len() == 2 && families[0] == families[1] {
            e.invalid(
                &at,
                cidrs,
                "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
            );
        }
        for (i, c) in cidrs.iter().enumerate() {
            addresses::canonical_cidr(text(c), &at.index(i), e);
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        let spec = Path::new("spec");
        let p = spec.child("cidrs");
        let (n, o) = (items(&new["spec"]["cidrs"]), items(&old["spec"]["cidrs"]));
        // A second range may be added; nothing else may change.
        let grows = (o.len(), n.len()) == (1, 2);
        if n.len() != o.len() && !grows {
            return e.invalid(&p, n, IMMUTABLE);
        }
        for (i, (now, _)) in n.iter().zip(o).enumerate().filter(|(_, (now, was))| now != was) {
            e.invalid(&p.index(i), now, IMMUTABLE);
        }
        if grows {
            self.check(new, e);
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let cidrs: Vec<&str> = items(&obj["spec"]["cidrs"]).iter().map(text).collect();
        vec![name(obj), json!(cidrs.join(",")), age(obj, now)]
    }
}
