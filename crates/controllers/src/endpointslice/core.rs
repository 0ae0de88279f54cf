//! Computes the endpoints of a service from its pods, and the fewest writes of slices. Pure. Upstream
//! `staging/src/k8s.io/endpointslice`.
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::views::{
    Endpoint, EndpointConditions, EndpointSliceView, IntOrString, PodView, Port, ServicePortView, ServiceView,
    TargetRef,
};

/// Slices are grouped by address family and set of ports.
pub type Group = (String, Vec<Port>);

/// Whether a service is headless.
pub fn is_headless(s: &ServiceView) -> bool {
    s.spec.cluster_ip == "None"
}

/// Returns the port of a pod for a port of the service.
pub fn find_port(pod: &PodView, port: &ServicePortView) -> Option<i32> {
    match &port.target_port {
        None | Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(n)) => Some(*n),
        Some(IntOrString::Text(name)) => {
            let protocol = |p: &str| if p.is_empty() { "TCP".to_owned() } else { p.to_owned() };
            let wanted = protocol(&port.protocol);
            let sidecars = pod.spec.init_containers.iter().filter(|c| c.restart_policy == "Always");
            pod.spec
                .containers
                .iter()
                .chain(sidecars)
                .flat_map(|c| &c.ports)
                .find(|p| p.name == *name && protocol(&p.protocol) == wanted)
                .map(|p| p.container_port)
        }
    }
}

/// A pod's addresses of one family (`IPv4`, `IPv6`).
pub fn addresses(pod: &PodView, family: &str) -> Vec<String> {
    let mut all: Vec<&str> = pod.status.pod_ips.iter().map(|i| i.ip.as_str()).collect();
    if all.is_empty() && !pod.status.pod_ip.is_empty() {
        all.push(&pod.status.pod_ip);
    }
    all.retain(|a| a.contains(':') == (family == "IPv6"));
    all.into_iter().map(str::to_owned).collect()
}

/// Returns the address families for which a service has slices.
pub fn families(s: &ServiceView) -> Vec<String> {
    if !s.spec.ip_families.is_empty() {
        return s.spec.ip_families.clone();
    }
    if s.spec.cluster_ip.contains(':') { vec!["IPv6".into()] } else { vec!["IPv4".into()] }
}

/// Host name of a pod under the service's domain, where it has one.
pub fn hostname(s: &ServiceView, pod: &PodView) -> Option<String> {
    let of_service = !pod.spec.hostname.is_empty() && pod.spec.subdomain == s.metadata.name;
    of_service.then(|| pod.spec.hostname.clone())
}

/// Returns the desired endpoints of a service. `zone` returns a node's zone, or `Err` if the node is unknown. A pod of
/// an unknown node is left out, and the caller retries, unless the service publishes unready addresses.
pub fn desired(
    s: &ServiceView,
    pods: &[Arc<PodView>],
    zone: impl Fn(&str) -> Result<Option<String>, ()>,
) -> (BTreeMap<Group, Vec<Endpoint>>, bool) {
    let mut groups: BTreeMap<Group, Vec<Endpoint>> = BTreeMap::new();
    let mut missing_node = false;
    for family in families(s) {
        for pod in pods {
            let addresses = addresses(pod, &family);
            if addresses.is_empty() || pod.is_terminal() {
                continue;
            }
            let zone = match zone(&pod.spec.node_name) {
                Ok(z) => z,
                Err(()) if s.spec.publish_not_ready_addresses => None,
                Err(()) => {
                    missing_node = true;
                    continue;
                }
            };
            let terminating = pod.metadata.is_deleting();
            let serving = pod.is_ready();
            let ready = s.spec.publish_not_ready_addresses || (serving && !terminating);
            let endpoint = Endpoint {
                addresses,
                conditions: EndpointConditions {
                    ready: Some(ready),
                    serving: Some(serving),
                    terminating: Some(terminating),
                },
                hostname: hostname(s, pod),
                target_ref: Some(TargetRef::pod(pod)),
                node_name: (!pod.spec.node_name.is_empty()).then(|| pod.spec.node_name.clone()),
                zone,
                hints: None,
            };
            groups.entry((family.clone(), ports_of(s, pod))).or_default().push(endpoint);
        }
    }
    (groups, missing_node)
}

fn ports_of(s: &ServiceView, pod: &PodView) -> Vec<Port> {
    let mut ports: Vec<Port> = s
        .spec
        .ports
        .iter()
        .filter_map(|p| {
            Some(Port {
                name: Some(p.name.clone()),
                protocol: Some(if p.protocol.is_empty() { "TCP".into() } else { p.protocol.clone() }),
                port: Some(find_port(pod, p)?),
                app_protocol: p.app_protocol.clone(),
            })
        })
        .collect();
    ports.sort();
    ports
}

/// The writes of slices.
#[derive(Debug, Default, PartialEq)]
pub struct SlicePlan {
    /// The endpoints of slices to create.
    pub create: Vec<(Group, Vec<Endpoint>)>,
    /// Slices by name with their new endpoints.
    pub update: Vec<(String, Vec<Endpoint>)>,
    /// Slices to remove, by name.
    pub delete: Vec<String>,
    /// The number of added endpoints.
    pub added: usize,
    /// The number of removed endpoints.
    pub removed: usize,
}

/// Returns the fewest writes that change `existing` to `desired`. Correct endpoints stay in their slice. New endpoints
/// fill slices that change anyway, then the fullest slices with room, then new slices. `outdated` returns whether a
/// slice's metadata is wrong. A service without endpoints keeps one empty slice per family. `most` is the maximum
/// number of endpoints per slice.
pub fn plan(
    families: &[String],
    mut desired: BTreeMap<Group, Vec<Endpoint>>,
    existing: &[Arc<EndpointSliceView>],
    outdated: impl Fn(&EndpointSliceView) -> bool,
    most: usize,
) -> SlicePlan {
    for family in families {
        if !desired.keys().any(|(f, _)| f == family) {
            desired.insert((family.clone(), Vec::new()), Vec::new());
        }
    }
    let mut plan = SlicePlan::default();
    for slice in existing {
        if !desired.contains_key(&group_of(slice)) {
            plan.delete.push(slice.metadata.name.clone());
            plan.removed += slice.endpoints.len();
        }
    }
    for (group, endpoints) in desired {
        let mut slices: Vec<&Arc<EndpointSliceView>> = existing.iter().filter(|s| group_of(s) == group).collect();
        slices.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        plan_group(&mut plan, (group, endpoints), &slices, &outdated, most);
    }
    plan
}

fn group_of(s: &EndpointSliceView) -> Group {
    let mut ports = s.ports.clone();
    ports.sort();
    (s.address_type.clone(), ports)
}

struct Draft {
    name: String,
    endpoints: Vec<Endpoint>,
    changed: bool,
}

fn identity(e: &Endpoint) -> (&str, &str) {
    let uid = e.target_ref.as_ref().map_or("", |t| t.uid.as_str());
    (uid, e.addresses.first().map_or("", String::as_str))
}

/// Returns the identity of an endpoint in existing slices: its pod's UID and its address.
pub fn key_of(e: &Endpoint) -> (String, String) {
    let (uid, address) = identity(e);
    (uid.to_owned(), address.to_owned())
}

fn plan_group(
    plan: &mut SlicePlan,
    (group, endpoints): (Group, Vec<Endpoint>),
    slices: &[&Arc<EndpointSliceView>],
    outdated: &impl Fn(&EndpointSliceView) -> bool,
    most: usize,
) {
    let had_any = !endpoints.is_empty();
    let mut left: BTreeMap<(String, String), Endpoint> = endpoints.into_iter().map(|e| (key_of(&e), e)).collect();
    let mut drafts = Vec::with_capacity(slices.len());
    for s in slices {
        let mut kept = Vec::with_capacity(s.endpoints.len());
        for e in &s.endpoints {
            let (uid, address) = identity(e);
            if let Some(want) = left.remove(&(uid.to_owned(), address.to_owned())) {
                kept.push(want);
            }
        }
        plan.removed += s.endpoints.len() - kept.len();
        let changed = kept != s.endpoints || outdated(s);
        drafts.push(Draft { name: s.metadata.name.clone(), endpoints: kept, changed });
    }
    plan.added += left.len();
    let mut rest = left.into_values().collect::<Vec<_>>().into_iter().peekable();
    drafts.sort_by_key(|d| (!d.changed, std::cmp::Reverse(d.endpoints.len())));
    for d in &mut drafts {
        while d.endpoints.len() < most && rest.peek().is_some() {
            d.endpoints.extend(rest.next());
            d.changed = true;
        }
    }
    while rest.peek().is_some() {
        plan.create.push((group.clone(), rest.by_ref().take(most).collect()));
    }
    if !had_any && drafts.is_empty() {
        plan.create.push((group, Vec::new()));
    }
    let mut keep_one_empty = !had_any;
    for d in drafts {
        if d.endpoints.is_empty() && !std::mem::take(&mut keep_one_empty) {
            plan.delete.push(d.name);
        } else if d.changed {
            plan.update.push((d.name, d.endpoints));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(spec: Value) -> ServiceView {
        serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "n"}, "spec": spec})).unwrap()
    }
    fn pod(name: &str, ip: &str, ready: bool, more: Value) -> Arc<PodView> {
        let mut p = json!({"metadata": {"name": name, "uid": name, "namespace": "n"},
            "spec": {"nodeName": "n1", "containers": [{"ports": [{"name": "http", "containerPort": 8080}]}]},
            "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}, {"ip": "fd00::1"}],
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}});
        for (k, v) in more.as_object().unwrap() {
            let (section, field) = k.split_once('.').unwrap();
            p[section][field] = v.clone();
        }
        Arc::new(serde_json::from_value(p).unwrap())
    }
    fn zone(_: &str) -> Result<Option<String>, ()> {
        Ok(Some("z1".into()))
    }

    #[test]
    fn conditions_of_endpoints() {
        let s = |publish: bool| {
            service(
                json!({"ports": [{"name": "p", "port": 80, "targetPort": "http"}], "publishNotReadyAddresses": publish}),
            )
        };
        let going = json!({"metadata.deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (publish, ready, more, want) in [
            (false, true, json!({}), (true, true, false)),
            (false, false, json!({}), (false, false, false)),
            (false, true, going.clone(), (false, true, true)),
            (true, false, json!({}), (true, false, false)),
            (true, true, going, (true, true, true)),
        ] {
            let (groups, missing) = desired(&s(publish), &[pod("a", "10.0.0.1", ready, more)], zone);
            let ((family, ports), endpoints) = groups.into_iter().next().unwrap();
            let c = endpoints[0].conditions;
            assert_eq!((c.ready, c.serving, c.terminating), (Some(want.0), Some(want.1), Some(want.2)));
            assert_eq!((family.as_str(), ports[0].port, missing), ("IPv4", Some(8080), false));
            assert_eq!(endpoints[0].zone.as_deref(), Some("z1"));
        }
    }

    #[test]
    fn who_is_an_endpoint() {
        let s = service(
            json!({"ports": [{"port": 80, "targetPort": "http"}, {"name": "x", "port": 9, "targetPort": "no"}]}),
        );
        let done = pod("d", "10.0.0.4", true, json!({"status.phase": "Succeeded"}));
        let unborn = pod("u", "", true, json!({"status.podIPs": []}));
        let named = pod("h", "10.0.0.5", true, json!({"spec.hostname": "h0", "spec.subdomain": "web"}));
        let (groups, _) = desired(&s, &[done, unborn, named], zone);
        let ((_, ports), endpoints) = groups.iter().next().unwrap();
        assert_eq!((ports.len(), endpoints.len()), (1, 1));
        assert_eq!(endpoints[0].hostname.as_deref(), Some("h0"));
        let (none, missing) = desired(&s, &[pod("a", "10.0.0.1", true, json!({}))], |_| Err(()));
        assert!(none.is_empty() && missing);
        let dual = service(json!({"ipFamilies": ["IPv4", "IPv6"], "ports": [{"port": 80}]}));
        let (groups, _) = desired(&dual, &[pod("a", "10.0.0.1", true, json!({}))], zone);
        assert_eq!(groups.keys().map(|k| k.0.as_str()).collect::<Vec<_>>(), ["IPv4", "IPv6"]);
    }

    fn slice(name: &str, endpoints: Vec<Endpoint>, ports: &[Port]) -> Arc<EndpointSliceView> {
        let mut s =
            EndpointSliceView { address_type: "IPv4".into(), endpoints, ports: ports.to_vec(), ..Default::default() };
        s.metadata.name = name.into();
        Arc::new(s)
    }
    fn endpoint(n: usize) -> Endpoint {
        let target_ref = Some(TargetRef { uid: format!("{n:04}"), ..TargetRef::default() });
        Endpoint { addresses: vec![format!("10.0.0.{n}")], target_ref, ..Endpoint::default() }
    }

    #[test]
    fn fewest_writes() {
        let four = ["IPv4".to_owned()];
        let ports = [Port { port: Some(80), ..Port::default() }];
        let group: Group = ("IPv4".into(), ports.to_vec());
        let want =
            |range: std::ops::Range<usize>| BTreeMap::from([(group.clone(), range.map(endpoint).collect::<Vec<_>>())]);
        let right = |_: &EndpointSliceView| false;

        let plan = |families: &[String], desired, existing: &[_], outdated: fn(&EndpointSliceView) -> bool| {
            plan(families, desired, existing, outdated, 100)
        };
        let p = plan(&four, want(0..250), &[], right);
        assert_eq!(p.create.iter().map(|c| c.1.len()).collect::<Vec<_>>(), [100, 100, 50]);
        let full = slice("a", (0..100).map(endpoint).collect(), &ports);
        let part = slice("b", (100..150).map(endpoint).collect(), &ports);
        assert_eq!(
            plan(&four, want(0..150), &[full.clone(), part.clone()], right),
            SlicePlan::default(),
            "nothing to do"
        );
        let p = plan(&four, want(0..151), &[full.clone(), part.clone()], right);
        assert_eq!((p.create.len(), p.update.len(), p.update[0].0.as_str()), (0, 1, "b"));
        let p = plan(&four, want(0..100), &[full.clone(), part.clone()], right);
        assert_eq!((p.delete, p.update.len()), (vec!["b".to_owned()], 0));
        let p = plan(&four, want(1..151), &[full.clone(), part.clone()], right);
        assert_eq!((p.update.len(), p.update[0].0.as_str()), (1, "a"), "the freed place is used");
        let p = plan(&four, want(0..100), std::slice::from_ref(&full), |_| true);
        assert_eq!(p.update.len(), 1, "metadata alone");
        // Without endpoints, one empty slice without ports replaces all others.
        let p = plan(&four, BTreeMap::new(), &[full, part], right);
        assert_eq!((p.create.len(), p.delete.len()), (1, 2));
        let empty = slice("e", vec![], &[]);
        assert_eq!(plan(&four, BTreeMap::new(), std::slice::from_ref(&empty), right), SlicePlan::default());
        let p = plan(&four, want(0..1), &[empty], right);
        assert_eq!((p.create.len(), p.delete), (1, vec!["e".to_owned()]));
    }
}
