//! Hints on endpoints, by which consumers of slices keep traffic near to where it comes from: `spec.trafficDistribution`
//! (KEP-4444, KEP-3015), and the older annotation `service.kubernetes.io/topology-mode` (KEP-2433). Pure. Upstream
//! `staging/src/k8s.io/endpointslice/trafficdist` and `topologycache`.
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kelson_meta::Quantity;

use crate::views::condition;
use crate::views::{Endpoint, EndpointHints, NodeView, ServiceView};

/// The label of a node with its zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// The maximum overload of an endpoint relative to its share of traffic.
const OVERLOAD_MAX: f64 = 0.2;
/// Annotations that enable hints in proportion to the CPUs of zones; the deprecated one takes precedence.
const MODES: [&str; 2] = ["service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"];
/// Nodes with one of these labels do not count.
const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// The reason and message of the event for enabled hints.
pub const ENABLED: (&str, &str) = ("TopologyAwareHintsEnabled", "Topology Aware Hints has been enabled");
/// The reason and message of the event for disabled hints.
pub const DISABLED: (&str, &str) = ("TopologyAwareHintsDisabled", "Topology Aware Hints has been disabled");

/// The distribution that a service requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closeness {
    /// Any endpoint may be used.
    Anywhere,
    /// Endpoints in the same zone, or on the same node with `nodes`.
    Near { nodes: bool },
    /// Each zone gets endpoints in proportion to its CPUs.
    Auto,
}

/// Returns the requested distribution. The annotation takes precedence over the field.
pub fn closeness(s: &ServiceView) -> Closeness {
    let mode = MODES.iter().find_map(|m| s.metadata.annotations.get(*m));
    if mode.is_some_and(|m| m == "Auto" || m == "auto") {
        return Closeness::Auto;
    }
    match s.spec.traffic_distribution.as_deref() {
        Some("PreferClose" | "PreferSameZone") => Closeness::Near { nodes: false },
        Some("PreferSameNode") => Closeness::Near { nodes: true },
        _ => Closeness::Anywhere,
    }
}

/// Hints that name the zone of each ready endpoint and, where asked for, its node.
pub fn near<'e>(endpoints: impl Iterator<Item = &'e mut Endpoint>, nodes: bool) {
    for e in endpoints.filter(|e| e.conditions.ready == Some(true)) {
        let node = e.node_name.clone().filter(|_| nodes);
        e.hints = EndpointHints::new(e.zone.clone(), node);
    }
}

/// Returns a node's zone and allocatable CPU in millicores, or `None` if the node does not count.
pub fn counted(node: &NodeView) -> Option<(Option<&str>, i128)> {
    let ready = condition::find(&node.status.conditions, "Ready").is_some_and(|c| c.status == "True");
    if !ready || CONTROL_PLANE.iter().any(|l| node.metadata.labels.contains_key(*l)) {
        return None;
    }
    let zone = node.metadata.labels.get(ZONE).map(String::as_str).filter(|z| !z.is_empty());
    let cpu = node.status.allocatable.cpu.parse::<Quantity>().map_or(0, |q| q.milli_value());
    Some((zone, i128::from(cpu)))
}

/// Returns each zone's share of CPUs, or `None` if a node's zone or CPU is unknown or there is only one zone.
pub fn shares(nodes: &[Arc<NodeView>]) -> Option<BTreeMap<String, f64>> {
    let mut by_zone: BTreeMap<String, i128> = BTreeMap::new();
    for (zone, cpu) in nodes.iter().filter_map(|n| counted(n)) {
        if cpu == 0 {
            return None;
        }
        *by_zone.entry(zone?.to_owned()).or_default() += cpu;
    }
    let all: i128 = by_zone.values().sum();
    (by_zone.len() > 1).then(|| by_zone.into_iter().map(|(z, cpu)| (z, cpu as f64 / all as f64)).collect())
}

/// The desired and the maximum number of endpoints of a zone.
struct Allocation {
    desired: f64,
    maximum: usize,
}

fn allocations(total: usize, shares: &BTreeMap<String, f64>) -> Result<BTreeMap<&str, Allocation>, String> {
    let of = |what: &str| Err(format!("{what} ({total} endpoints, {} zones)", shares.len()));
    if shares.len() > total {
        return of("Insufficient number of endpoints");
    }
    let wanted = |share: f64| share * total as f64;
    let minimum = |share: f64| (wanted(share) / (1.0 + OVERLOAD_MAX)).ceil();
    let least: f64 = shares.values().map(|share| minimum(*share)).sum();
    let Some(spare) = total.checked_sub(least as usize) else {
        return of("Unable to allocate minimum required endpoints to each zone without exceeding overload threshold");
    };
    let one = |share: f64| Allocation {
        desired: wanted(share).max(minimum(share)),
        maximum: minimum(share) as usize + spare,
    };
    Ok(shares.iter().map(|(zone, share)| (zone.as_str(), one(*share))).collect())
}

/// The previous zone hints, by UID and address.
pub type Before = HashMap<(String, String), String>;

/// Assigns each zone its share of the ready endpoints of one address family. An endpoint keeps its previous zone if
/// possible, else it gets the zone of its node. Then endpoints move from zones with too many to zones with too few.
///
/// # Errors
/// The distribution is impossible; the error is the event's message. No endpoint has a hint then.
pub fn share_out(
    endpoints: &mut [&mut Endpoint],
    before: &Before,
    shares: Option<&BTreeMap<String, f64>>,
) -> Result<(), String> {
    let mut ready: Vec<&mut Endpoint> = Vec::new();
    for e in endpoints.iter_mut() {
        e.hints = None;
        if e.conditions.ready == Some(true) {
            ready.push(e);
        }
    }
    let insufficient = "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
    let allocations = allocations(ready.len(), shares.ok_or(insufficient)?)?;
    let zones: Option<Vec<String>> = ready.iter().map(|e| e.zone.clone().filter(|z| !z.is_empty())).collect();
    let own = zones.ok_or("One or more endpoints do not have a zone specified")?;
    let mut given: BTreeMap<&str, usize> = BTreeMap::new();
    let mut hints: Vec<&str> = Vec::with_capacity(ready.len());
    for (e, own) in ready.iter().zip(&own) {
        let kept = before.get(&super::core::key_of(e)).and_then(|zone| allocations.get_key_value(zone.as_str()));
        let kept = kept.filter(|(zone, a)| given.get(**zone).is_none_or(|n| *n < a.maximum));
        let hint = kept.map_or(own.as_str(), |(zone, _)| *zone);
        *given.entry(hint).or_default() += 1;
        hints.push(hint);
    }
    let (mut giving, mut receiving) = transfers(&allocations, &given);
    for hint in &mut hints {
        let Some(left) = giving.get_mut(*hint).filter(|n| **n > 0) else { continue };
        let Some((zone, wanted)) = receiving.iter_mut().find(|(_, n)| **n > 0) else { break };
        *left -= 1;
        *wanted -= 1;
        *hint = *zone;
    }
    for (e, hint) in ready.into_iter().zip(hints) {
        e.hints = EndpointHints::new(Some(hint.to_owned()), None);
    }
    Ok(())
}

/// Computes the number of endpoints that each zone gives and gets.
fn transfers<'z>(
    allocations: &BTreeMap<&'z str, Allocation>,
    given: &BTreeMap<&str, usize>,
) -> (BTreeMap<&'z str, usize>, BTreeMap<&'z str, usize>) {
    let (mut too_many, mut too_few) = (BTreeMap::new(), BTreeMap::new());
    for (zone, a) in allocations {
        let surplus = given.get(zone).copied().unwrap_or(0) as f64 - a.desired;
        if surplus > 0.0 {
            too_many.insert(*zone, surplus);
        } else if surplus < 0.0 {
            too_few.insert(*zone, -surplus);
        }
    }
    let most = |zones: &BTreeMap<&'z str, f64>| {
        zones.iter().fold(None, |most: Option<(&'z str, f64)>, (zone, n)| match most {
            Some((_, m)) if m >= *n => most,
            _ => Some((*zone, *n)),
        })
    };
    let (mut giving, mut receiving) = (BTreeMap::new(), BTreeMap::new());
    while let (Some((from, give)), Some((to, get))) = (most(&too_many), most(&too_few)) {
        // A difference of half an endpoint does not justify traffic to another zone.
        if (give < 1.0 && get < 1.0) || give < 0.5 || get < 0.5 {
            break;
        }
        *giving.entry(from).or_default() += 1;
        *receiving.entry(to).or_default() += 1;
        too_many.insert(from, give - 1.0);
        too_few.insert(to, get - 1.0);
    }
    (giving, receiving)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(zone: &str, cpu: &str, more: Value) -> Arc<NodeView> {
        let mut n = json!({"metadata": {"name": "n", "labels": {ZONE: zone}}, "status": {"allocatable": {"cpu": cpu},
            "conditions": [{"type": "Ready", "status": "True"}]}});
        for (path, v) in more.as_object().unwrap() {
            *n.pointer_mut(path).unwrap() = v.clone();
        }
        Arc::new(serde_json::from_value(n).unwrap())
    }

    #[test]
    fn what_zones_have() {
        let two = [node("a", "3", json!({})), node("b", "500m", json!({})), node("b", "500m", json!({}))];
        let found = shares(&two).unwrap();
        assert_eq!((found["a"], found["b"]), (0.75, 0.25));
        let labels = json!({"/metadata/labels": {"node-role.kubernetes.io/control-plane": ""}});
        let unready = json!({"/status/conditions/0/status": "False"});
        for (other, known) in [
            (node("", "1", json!({})), false),
            (node("a", "0", json!({})), false),
            (node("", "1", labels), true),
            (node("", "1", unready), true),
        ] {
            assert_eq!(shares(&[&two[..], &[other]].concat()).is_some(), known);
        }
        assert!(shares(&two[1..]).is_none(), "one zone");
    }

    /// Endpoints in zones `a`, `b`, …; a capital letter is an unready endpoint, a dot one without a zone.
    fn endpoints(zones: &str) -> Vec<Endpoint> {
        let one = |(n, zone): (usize, char)| {
            let ready = zone.is_ascii_lowercase() || zone == '.';
            let zone = (zone != '.').then(|| zone.to_ascii_lowercase().to_string());
            let mut e = Endpoint { addresses: vec![format!("10.0.0.{n}")], zone, ..Endpoint::default() };
            e.conditions.ready = Some(ready);
            e
        };
        zones.chars().enumerate().map(one).collect()
    }

    fn shown(endpoints: &[Endpoint]) -> String {
        let hint = |e: &Endpoint| e.hints.as_ref().map_or("-".to_owned(), |h| h.for_zones[0].name.clone());
        endpoints.iter().map(hint).collect()
    }

    fn shared(zones: &str, before: &str, shares: &[(&str, f64)]) -> Result<String, String> {
        let mut all = endpoints(zones);
        let place = |(n, zone): (usize, char)| ((String::new(), format!("10.0.0.{n}")), zone.to_string());
        let before: Before = before.chars().enumerate().filter(|(_, zone)| *zone != '-').map(place).collect();
        let shares: BTreeMap<String, f64> = shares.iter().map(|(z, s)| ((*z).to_owned(), *s)).collect();
        let mut refs: Vec<&mut Endpoint> = all.iter_mut().collect();
        share_out(&mut refs, &before, Some(&shares).filter(|s| !s.is_empty()))?;
        Ok(shown(&all))
    }

    #[test]
    fn each_zone_gets_its_share() {
        let half = [("a", 0.5), ("b", 0.5)];
        for (zones, before, shares, want) in [
            ("aabb", "", &half[..], Ok("aabb")),
            ("aaaa", "", &half, Ok("bbaa")),
            ("aaaa", "aabb", &half, Ok("aabb")),
            ("aaabA", "", &half, Ok("baab-")),
            ("aaaaaa", "bbbbbb", &half, Ok("bbbaaa")),
            ("aabb", "zzzz", &half, Ok("aabb")),
            ("aaaabbbb", "", &[("a", 0.75), ("b", 0.25)], Ok("aaaaaabb")),
            ("a", "", &half, Err("Insufficient number of endpoints (1 endpoints, 2 zones)")),
            ("a.", "", &half, Err("One or more endpoints do not have a zone specified")),
            (
                "aabb",
                "",
                &[],
                Err("Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"),
            ),
            (
                "aab",
                "",
                &[("a", 0.5), ("b", 0.5)],
                Err("Unable to allocate minimum required endpoints to each zone without exceeding overload threshold \
                     (3 endpoints, 2 zones)"),
            ),
        ] {
            assert_eq!(
                shared(zones, before, shares),
                want.map(str::to_owned).map_err(str::to_owned),
                "{zones} {before}"
            );
        }
    }

    #[test]
    fn what_services_ask_for() {
        for (annotations, field, want) in [
            (json!({}), json!(null), Closeness::Anywhere),
            (json!({}), json!("PreferClose"), Closeness::Near { nodes: false }),
            (json!({}), json!("PreferSameZone"), Closeness::Near { nodes: false }),
            (json!({}), json!("PreferSameNode"), Closeness::Near { nodes: true }),
            (json!({}), json!("Other"), Closeness::Anywhere),
            (json!({MODES[1]: "Auto"}), json!("PreferClose"), Closeness::Auto),
            (json!({MODES[1]: "auto"}), json!(null), Closeness::Auto),
            (json!({MODES[1]: "AUTO"}), json!("PreferClose"), Closeness::Near { nodes: false }),
            (json!({MODES[0]: "Disabled", MODES[1]: "Auto"}), json!(null), Closeness::Anywhere),
        ] {
            let s = json!({"metadata": {"annotations": annotations}, "spec": {"trafficDistribution": field}});
            assert_eq!(closeness(&serde_json::from_value(s.clone()).unwrap()), want, "{s}");
        }
    }

    #[test]
    fn near_names_zone_and_node_of_ready_endpoints() {
        for (nodes, want) in [
            (false, json!({"forZones": [{"name": "a"}]})),
            (true, json!({"forZones": [{"name": "a"}], "forNodes": [{"name": "n"}]})),
        ] {
            let mut all = endpoints("aA.");
            all.iter_mut().for_each(|e| e.node_name = Some("n".into()));
            near(all.iter_mut(), nodes);
            assert_eq!(serde_json::to_value(&all[0].hints).unwrap(), want);
            assert_eq!(all[1].hints, None, "not ready");
            assert_eq!(all[2].hints.is_some(), nodes, "no zone");
        }
    }
}
