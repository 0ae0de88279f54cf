//! The pure core: from objects to endpoints and rules; and transactions with a model of the kernel that checks the
//! order of names.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use kelson_doubles::lab::{Lab, NODE};
use kelson_meta::ObjectKey;
use kelson_net::table::{Fragment, Item, Table};
use kelson_proxy::Container;
use kelson_proxy::model::{EndpointSlice, Family, Service, slice_type};
use kelson_proxy::render::{self, Options};
use kelson_proxy::service::{NodeInfo, PortPlan, local_ready, plan};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

fn service(spec: Value) -> Service {
    let mut spec = spec;
    let given = spec.as_object_mut().unwrap();
    given.entry("clusterIP").or_insert(json!("10.43.0.9"));
    given.entry("ports").or_insert(json!([{"name": "http", "protocol": "TCP", "port": 80}]));
    let status = given.remove("status").unwrap_or_default();
    let status = if status.is_null() { json!({}) } else { status };
    let object = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec, "status": status});
    serde_json::from_value(object).unwrap()
}

fn slice(endpoints: Value) -> EndpointSlice {
    let labels = json!({"kubernetes.io/service-name": "web"});
    serde_json::from_value(json!({
        "metadata": {"name": "web-1", "namespace": "shop", "labels": labels}, "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}, {"name": "other", "port": 9}],
        "endpoints": endpoints,
    }))
    .unwrap()
}

/// Parses an endpoint such as `a:ready:local`: last octet, then words.
fn endpoint(text: &str) -> Value {
    let mut words = text.split(':');
    let last = words.next().unwrap();
    let mut e = json!({"addresses": [format!("10.42.0.{last}")], "conditions": {"ready": false, "serving": false},
        "nodeName": "far"});
    for word in words {
        match word.split_once('=') {
            None if word == "local" => e["nodeName"] = json!("here"),
            None if word == "ready" => e["conditions"] = json!({"ready": true, "serving": true}),
            None if word == "unset" => e["conditions"] = json!({}),
            None if word == "last" => e["conditions"] = json!({"ready": false, "serving": true, "terminating": true}),
            Some(("zone", z)) => e["hints"]["forZones"] = json!([{"name": z}]),
            Some(("node", n)) => e["hints"]["forNodes"] = json!([{"name": n}]),
            _ => panic!("{word}"),
        }
    }
    e
}

fn here() -> NodeInfo {
    NodeInfo { name: "here".into(), zone: "z1".into(), ..NodeInfo::default() }
}

#[test]
fn a_translated_external_address_arrives_at_an_internal_one() {
    let ingress = json!([{"ip": "192.0.2.7", "ipMode": "VIP"}, {"ip": "192.0.2.8", "ipMode": "VIP"}]);
    let spec = json!({"type": "LoadBalancer", "status": {"loadBalancer": {"ingress": ingress}}});
    let ips = |external: &str| {
        let (internal_ips, external_ips) =
            (vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()], vec![external.parse().unwrap()]);
        let node = NodeInfo { internal_ips, external_ips, ..here() };
        let plans = plan(&service(spec.clone()), [].into_iter(), Family::V4, &node);
        plans[0].load_balancer_ips.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(ips("192.0.2.7"), ["10.0.0.1", "192.0.2.7", "192.0.2.8"]);
    assert_eq!(ips("192.0.2.9"), ["192.0.2.7", "192.0.2.8"], "the address of another node");
}

fn plan_of(spec: Value, endpoints: &[&str]) -> PortPlan {
    let slice = slice(endpoints.iter().map(|e| endpoint(e)).collect());
    let mut plans = plan(&service(spec), [&slice].into_iter(), Family::V4, &here());
    assert_eq!(plans.len(), 1);
    plans.remove(0)
}

fn octets(endpoints: &[SocketAddr]) -> Vec<u8> {
    endpoints
        .iter()
        .map(|at| {
            assert_eq!(at.port(), 8080);
            let std::net::IpAddr::V4(ip) = at.ip() else { panic!() };
            ip.octets()[3]
        })
        .collect()
}

/// Endpoints, those with the policy Cluster, those with Local, and whether there is any at all.
type Choice = (&'static [&'static str], &'static [u8], &'static [u8], bool);

#[test]
fn endpoints_are_chosen() {
    let both = json!({"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local", "type": "NodePort",
        "ports": [{"name": "http", "port": 80, "nodePort": 30080}]});
    let cases: &[Choice] = &[
        (&[], &[], &[], false),
        (&["1"], &[], &[], false),
        (&["1:unset"], &[1], &[], true),
        (&["1:ready", "2:ready:local", "3"], &[1, 2], &[2], true),
        (&["1:ready", "2:last:local"], &[1], &[2], true),
        (&["1:last", "2:last:local"], &[1, 2], &[2], true),
        (&["1:ready:zone=z1", "2:ready:zone=z2"], &[1], &[], true),
        (&["1:ready:zone=z1", "2:ready"], &[1, 2], &[], true),
        (&["1:ready:zone=z2", "2:ready:zone=z3"], &[1, 2], &[], true),
        (&["1:ready:zone=z1:node=far", "2:ready:zone=z1:node=here"], &[2], &[], true),
        (&["1:ready:zone=z1:node=far", "2:ready:zone=z1"], &[1, 2], &[], true),
        (&["1:ready:zone=z1", "2:last"], &[1], &[], true),
    ];
    for (endpoints, cluster, local, any) in cases {
        let p = plan_of(both.clone(), endpoints);
        let found = (octets(&p.cluster_endpoints), octets(&p.local_endpoints), p.has_any_endpoint);
        assert_eq!(found, (cluster.to_vec(), local.to_vec(), *any), "{endpoints:?}");
    }
}

#[test]
fn an_endpoint_in_two_slices_counts_once_and_readier() {
    let (a, b) = (slice(json!([endpoint("1")])), slice(json!([endpoint("1:ready")])));
    for order in [[&a, &b], [&b, &a]] {
        let plans = plan(&service(json!({})), order.into_iter(), Family::V4, &here());
        assert_eq!(octets(&plans[0].cluster_endpoints), [1]);
    }
    let two = slice(json!([endpoint("1:ready:local"), endpoint("2:ready"), endpoint("3:local")]));
    assert_eq!(local_ready([&two, &two].into_iter(), &here()), 1);
}

#[test]
fn other_services_are_left_alone() {
    for spec in [
        json!({"clusterIP": "None"}),
        json!({"clusterIP": ""}),
        json!({"type": "ExternalName"}),
        json!({"clusterIP": "fd43::1"}),
    ] {
        assert!(plan(&service(spec.clone()), [].into_iter(), Family::V4, &here()).is_empty(), "{spec}");
    }
    let mut foreign = service(json!({}));
    foreign.metadata.labels =
        [("service.kubernetes.io/service-proxy-name".to_owned(), "x".to_owned())].into_iter().collect();
    assert!(plan(&foreign, [].into_iter(), Family::V4, &here()).is_empty());
}

fn options() -> Options {
    Options {
        cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap(), "fd42::/56".parse().unwrap()],
        node_ips: vec!["192.0.2.2".parse().unwrap()],
        nodeport_addresses: Vec::new(),
    }
}

fn rendered(p: &PortPlan) -> String {
    let mut rules = Table::new("ip t".into(), String::new());
    rules.replace(&p.key, render::fragment(Family::V4, std::slice::from_ref(p), &options()));
    rules.take_diff().unwrap_or_default().script
}

fn assert_lines(text: &str, present: &[&str], absent: &[&str]) {
    for line in present {
        assert!(text.contains(line), "missing: {line}\n{text}");
    }
    for line in absent {
        assert!(!text.contains(line), "unwanted: {line}\n{text}");
    }
}

#[test]
fn a_cluster_ip_spreads_evenly() {
    let text = rendered(&plan_of(json!({}), &["1:ready", "2:ready:local", "3:ready"]));
    assert_lines(
        &text,
        &[
            "10.43.0.9 . tcp . 80 . 0 : 10.42.0.1 . 8080, 10.43.0.9 . tcp . 80 . 1 : 10.42.0.2 . 8080, 10.43.0.9 . tcp . 80 . 2 : ",
            "add element ip t cluster-ips { 10.43.0.9 }",
            "add element ip t hairpin { 10.42.0.2 . 10.42.0.2 }",
            "add element ip t service-ips { 10.43.0.9 . tcp . 80 : goto spread-tcp-3 }",
        ],
        &["no-endpoint", "external-", "nodeport", "chain"],
    );
    let chain = "chain spread-tcp-3 {\n    meta l4proto tcp dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 map @endpoints\n";
    assert_lines(&render::base(Family::V4, &options()), &[chain], &[]);
    let ports = json!([{"name": "http", "port": 80, "nodePort": 30080}]);
    let node_port = plan_of(json!({"type": "NodePort", "ports": ports}), &["1:ready", "2:ready:local", "3:ready"]);
    assert_lines(
        &rendered(&node_port),
        &[
            "meta l4proto tcp numgen random mod 3 0 dnat ip to 10.42.0.1:8080\n",
            "meta l4proto tcp numgen random mod 2 0 dnat ip to 10.42.0.2:8080\n",
            "meta l4proto tcp dnat ip to 10.42.0.3:8080\n",
            "10.43.0.9 . tcp . 80 : goto service-",
        ],
        &["spread-", "endpoints"],
    );
    let many: Vec<String> = (1..=17).map(|i| format!("{i}:ready")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_lines(&rendered(&plan_of(json!({}), &many)), &["numgen random mod 17 map { 0 : 10.42.0.1 . 8080, "], &[]);
}

#[test]
fn without_endpoints() {
    let lb = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "ports": [{"name": "http", "port": 80, "nodePort": 30080}], "externalIPs": ["198.51.100.7"],
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.8"}, {"ip": "198.51.100.9", "ipMode": "Proxy"}]}}});
    let text = rendered(&plan_of(lb.clone(), &[]));
    assert_lines(
        &text,
        &[
            "10.43.0.9 . tcp . 80 : goto reject-chain",
            "198.51.100.8 . tcp . 80 : goto reject-chain",
            "no-endpoint-nodeports { tcp . 30080 : goto reject-chain }",
        ],
        &["service-ips", "198.51.100.9", "  chain "],
    );
    // Remote endpoints: dropped from outside, used by the node and its pods.
    let text = rendered(&plan_of(lb, &["1:ready"]));
    assert_lines(
        &text,
        &[
            "no-endpoint-nodeports { tcp . 30080 : drop }",
            "198.51.100.7 . tcp . 80 : drop",
            "ip saddr { 10.42.0.0/16 } goto service-",
            "fib saddr type local jump mark-for-masquerade",
            "10.43.0.9 . tcp . 80 : goto service-",
            "tcp . 30080 : goto external-",
        ],
        &["goto local-", "10.43.0.9 . tcp . 80 : drop"],
    );
}

#[test]
fn source_ranges_guard_the_load_balancer_only() {
    let lb = json!({"type": "LoadBalancer", "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
        "loadBalancerSourceRanges": [" 192.0.2.0/24", "192.0.2.128/25", "2001:db8::/32"],
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.8", "ipMode": "VIP"}]}}});
    let text = rendered(&plan_of(lb, &["1:ready"]));
    let guard = "ip saddr { 192.0.2.0/24, 198.51.100.8/32 } return\ndrop";
    assert_lines(&text, &[guard, "firewall-ips { 198.51.100.8 . tcp . 80 : goto firewall-"], &[]);
}

#[test]
fn affinity_remembers_per_endpoint() {
    let spec = json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}});
    let text = rendered(&plan_of(spec, &["1:ready", "2:ready"]));
    assert_eq!(text.matches("flags dynamic,timeout; timeout 60s;").count(), 2, "{text}");
    assert_lines(
        &text,
        &["{ ip saddr }\nmeta l4proto tcp dnat ip to 10.42.0.2:8080", "numgen random mod 2 0 goto endpoint-"],
        &[],
    );
}

#[test]
fn node_ports_answer_on_the_configured_addresses() {
    let base = |nets: &[&str]| {
        let nodeport_addresses = nets.iter().map(|n| n.parse().unwrap()).collect();
        render::base(Family::V4, &Options { nodeport_addresses, ..options() })
    };
    let vmap = "meta l4proto . th dport vmap @service-nodeports";
    assert_lines(&base(&[]), &[&format!("ip daddr {{ 192.0.2.2 }} {vmap}")], &[]);
    assert_lines(&base(&["0.0.0.0/0"]), &[&format!("ip daddr != 127.0.0.0/8 fib daddr type local {vmap}")], &[]);
    assert_lines(&base(&["::/0"]), &[], &["@service-nodeports\n", "@no-endpoint-nodeports"]);
}

/// A model of the kernel's content, and its rules about names.
#[derive(Default, PartialEq, Debug)]
struct Kernel {
    chains: BTreeMap<String, Vec<String>>,
    sets: BTreeSet<String>,
    elements: BTreeMap<(String, String), String>,
}

impl Kernel {
    fn apply(&mut self, script: &str) {
        let mut lines = script.lines().map(str::trim);
        while let Some(line) = lines.next() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["add", "table", ..] | ["table", ..] | ["}"] => {}
                ["delete", "table", ..] => *self = Self::default(),
                ["set", name, "{", ..] => assert!(self.sets.insert((*name).to_owned()), "{line}"),
                ["chain", name, "{"] => {
                    let rules: Vec<String> = lines.by_ref().take_while(|l| *l != "}").map(str::to_owned).collect();
                    let chain = self.chains.entry((*name).to_owned()).or_default();
                    assert!(chain.is_empty(), "rules appended to a chain that was not flushed: {name}");
                    *chain = rules;
                }
                ["flush", "chain", _, _, name] => self.chains.get_mut(*name).unwrap().clear(),
                ["delete", "chain", _, _, name] => {
                    assert!(self.chains.remove(*name).unwrap().is_empty());
                    self.unused(&format!("goto {name}"));
                }
                ["delete", "set", _, _, name] => {
                    assert!(self.sets.remove(*name), "{line}");
                    self.unused(&format!("@{name}"));
                }
                [verb, "element", _, _, container, "{", ..] => {
                    let inside = line.split_once("{ ").unwrap().1.strip_suffix(" }").unwrap();
                    for element in inside.split(", ") {
                        let (key, data) = element.split_once(" : ").unwrap_or((element, ""));
                        let at = ((*container).to_owned(), key.to_owned());
                        if *verb == "add" {
                            assert!(self.elements.insert(at, data.to_owned()).is_none(), "twice: {element}");
                        } else {
                            assert!(self.elements.remove(&at).is_some(), "not there: {element}");
                        }
                    }
                }
                _ => panic!("{line}"),
            }
        }
        // At the end every used name exists.
        for text in self.chains.values().flatten().chain(self.elements.values()) {
            if let Some(name) = text.split("goto ").nth(1) {
                assert!(self.chains.contains_key(name), "no chain {name}");
            }
        }
    }

    fn unused(&self, reference: &str) {
        let ends = |t: &String| t.ends_with(reference) || t.contains(&format!("{reference} "));
        assert!(!self.chains.values().flatten().chain(self.elements.values()).any(ends), "{reference} in use");
    }
}

fn some_fragment(rng: &mut StdRng, owner: usize) -> Fragment {
    let mut fragment = Fragment::new();
    for port in 0..rng.random_range(0..3) {
        let chain = format!("service-{owner}/{port}");
        let sticky = rng.random_bool(0.3);
        let mut rules = Vec::new();
        for e in 0..rng.random_range(1..4) {
            if sticky {
                let (set, inner) = (format!("affinity-{owner}/{port}/{e}"), format!("endpoint-{owner}/{port}/{e}"));
                rules.push(format!("ip saddr @{set} goto {inner}"));
                fragment.insert(Item::Set(set), Arc::from("type ipv4_addr;"));
                fragment.insert(Item::Chain(inner), Arc::from("dnat"));
            } else {
                rules.push(format!("dnat {e}"));
            }
        }
        fragment.insert(Item::Chain(chain.clone()), Arc::from(rules.join("\n")));
        // There are few addresses, so that services conflict.
        let key = format!("10.43.0.{} . tcp . 80", rng.random_range(0..6));
        let (container, verdict) = if rng.random_bool(0.2) {
            (Container::NoEndpointServices, "drop".to_owned())
        } else {
            (Container::ServiceIps, format!("goto {chain}"))
        };
        fragment.insert(container.element(key.clone()), Arc::from(verdict));
        fragment.insert(Container::ClusterIps.element(key), Arc::from(""));
    }
    fragment
}

fn differences_add_up(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut rules = Table::new("ip t".into(), String::new());
    let mut wanted: BTreeMap<ObjectKey, Fragment> = BTreeMap::new();
    let mut kernel = Kernel::default();
    for step in 0..60 {
        for _ in 0..rng.random_range(0..4) {
            let owner = rng.random_range(0..8);
            let key = ObjectKey::new("ns", format!("{owner}"));
            let fragment = some_fragment(&mut rng, owner);
            wanted.insert(key.clone(), fragment.clone());
            rules.replace(&key, fragment);
        }
        if let Some(transaction) = rules.take_diff() {
            kernel.apply(&transaction.script);
        }
        let mut fresh = Table::new("ip t".into(), String::new());
        for (key, fragment) in &wanted {
            fresh.replace(key, fragment.clone());
        }
        let mut full = Kernel::default();
        full.apply(&fresh.take_full().script);
        assert_eq!(kernel, full, "seed {seed}, step {step}");
        assert_eq!(rules.expected(), fresh.expected(), "seed {seed}, step {step}");
        assert!(rules.take_diff().is_none());
    }
}

#[test]
fn differences_add_up_to_the_whole() {
    for seed in 0..40 {
        differences_add_up(seed);
    }
}

#[test]
fn a_change_costs_what_changed() {
    let mut rules = Table::new("ip t".into(), render::base(Family::V4, &options()));
    for i in 0..200 {
        let mut p = plan_of(json!({}), &["1:ready"]);
        p.key.name = format!("s{i}");
        p.cluster_ips = vec![format!("10.43.1.{i}").parse().unwrap()];
        rules.replace(&p.key.clone(), render::fragment(Family::V4, &[p], &options()));
    }
    rules.take_full();
    let mut changed = |endpoints: &[&str]| {
        let mut p = plan_of(json!({}), endpoints);
        p.key.name = "s7".into();
        p.cluster_ips = vec!["10.43.1.7".parse().unwrap()];
        rules.replace(&p.key.clone(), render::fragment(Family::V4, &[p], &options()));
        rules.take_diff().unwrap()
    };
    let more = changed(&["1:ready", "2:ready"]);
    let expected = "delete element ip t service-ips { 10.43.1.7 . tcp . 80 }\n\
        add element ip t endpoints { 10.43.1.7 . tcp . 80 . 1 : 10.42.0.2 . 8080 }\n\
        add element ip t service-ips { 10.43.1.7 . tcp . 80 : goto spread-tcp-2 }\n";
    assert_eq!((more.script.as_str(), more.is_direct()), (expected, true));
    // No rule and no verdict: the kernel has nothing to validate.
    let other = changed(&["1:ready", "3:ready"]);
    let expected = "delete element ip t endpoints { 10.43.1.7 . tcp . 80 . 1 }\n\
        add element ip t endpoints { 10.43.1.7 . tcp . 80 . 1 : 10.42.0.3 . 8080 }\n";
    assert_eq!((other.script.as_str(), other.is_direct()), (expected, true));
}

/// The real `nft` accepts both families' tables with all content, in a namespace that ends with it.
#[test]
fn nft_takes_both_families() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let ports =
        json!([{"name": "http", "port": 80, "nodePort": 30080}, {"name": "other", "protocol": "SCTP", "port": 9}]);
    let spec = json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9", "fd43::9"], "type": "LoadBalancer",
        "sessionAffinity": "ClientIP", "externalTrafficPolicy": "Local", "ports": ports,
        "loadBalancerSourceRanges": ["192.0.2.0/24", "fd00::/8"], "externalIPs": ["198.51.100.7", "2001:db8::7"],
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.8"}, {"ip": "2001:db8::8"}]}}});
    for (family, prefix, name) in
        [(Family::V4, "10.42.0.", "ip kelson-x-proxy"), (Family::V6, "fd42::", "ip6 kelson-x-proxy")]
    {
        let mut rules = Table::new(name.into(), render::base(family, &options()));
        for (count, sticky) in [(3, true), (3, false), (20, true), (20, false), (0, false)] {
            let mut spec = spec.clone();
            spec["sessionAffinity"] = json!(if sticky { "ClientIP" } else { "None" });
            let endpoint = |i| json!({"addresses": [format!("{prefix}{i}")], "nodeName": "here"});
            let mut slice = slice((1..=count).map(endpoint).collect());
            slice.address_type = slice_type(family).into();
            let plans = plan(&service(spec), [&slice].into_iter(), family, &here());
            assert_eq!(plans.len(), 2);
            let before = rules.take_full().script;
            rules.replace(&plans[0].key, render::fragment(family, &plans, &options()));
            nft(&format!("{before}{}", rules.take_diff().unwrap().script));
            nft(&rules.take_full().script);
        }
    }
}

/// Returns the content of a table: rules by chain in their order, elements by set.
async fn content(table: &str) -> BTreeMap<String, Vec<String>> {
    let listing: Value = serde_json::from_slice(&kelson_net::nft::list_table(table).await.unwrap()).unwrap();
    let mut content: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in listing["nftables"].as_array().unwrap() {
        if let Some(rule) = entry.get("rule") {
            let of = content.entry(format!("chain {}", rule["chain"])).or_default();
            of.push(rule["expr"].to_string());
        } else if let Some(chain) = entry.get("chain") {
            content.entry(format!("chain {}", chain["name"])).or_default();
        } else if let Some(set) = entry.get("set").or(entry.get("map")) {
            let elements = set["elem"].as_array().into_iter().flatten().map(Value::to_string);
            content.insert(format!("set {}", set["name"]), elements.collect::<BTreeSet<_>>().into_iter().collect());
        }
    }
    content
}

/// Endpoints that come and go are applied without `nft`, and the table is the one that `nft` makes.
#[test]
fn the_kernel_takes_small_changes_directly() {
    let Some(lab) = Lab::new("knr", [], crate::kernel::enter) else { return };
    lab.inside(NODE, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for (family, prefix) in [(Family::V4, "10.42.0."), (Family::V6, "fd42::")] {
                change_directly(family, prefix).await;
            }
        });
    });
}

async fn change_directly(family: Family, prefix: &str) {
    let mut rng = StdRng::seed_from_u64(7);
    let name = format!("{} kelson-x-proxy", family.as_str());
    let mut rules = Table::new(name.clone(), render::base(family, &options()));
    rules.take_full().apply().await.unwrap();
    let mut direct = 0;
    for step in 0..60 {
        for _ in 0..rng.random_range(1..4) {
            let n = rng.random_range(1..6);
            let ports = json!([{"name": "http", "port": 80, "nodePort": 30080 + n}, {"name": "other", "port": 9}]);
            let kind = if rng.random_bool(0.5) { "NodePort" } else { "ClusterIP" };
            let mut service = service(json!({"clusterIP": format!("10.43.0.{n}"),
                "clusterIPs": [format!("10.43.0.{n}"), format!("fd43::{n}")], "type": kind, "ports": ports}));
            service.metadata.name = format!("s{n}");
            let endpoint = |i| json!({"addresses": [format!("{prefix}{i}")], "nodeName": "here"});
            let mut slice = slice((1..=rng.random_range(0..5)).map(endpoint).collect());
            slice.address_type = slice_type(family).into();
            let plans = plan(&service, [&slice].into_iter(), family, &here());
            let fragment =
                if rng.random_bool(0.2) { Fragment::new() } else { render::fragment(family, &plans, &options()) };
            rules.replace(&service.metadata.key(), fragment);
        }
        let Some(transaction) = rules.take_diff() else { continue };
        direct += usize::from(transaction.is_direct());
        assert!(transaction.is_direct(), "step {step}: {}", transaction.script);
        transaction.apply().await.unwrap();
        let changed = content(&name).await;
        kelson_net::nft::apply(&rules.take_full().script).await.unwrap();
        assert_eq!(changed, content(&name).await, "step {step}: {}", transaction.script);
    }
    assert!(direct > 30, "{direct}");
}

fn nft(script: &str) {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let mut child = Command::new("unshare")
        .args(["-n", "nft", "-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}\n{script}", String::from_utf8_lossy(&out.stderr));
}
