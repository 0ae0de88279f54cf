//! Services: cluster IPs and node ports, handed out from what the stored Services leave free. The sets live in memory
//! and are made anew at start, so that they cannot leak (upstream `registry/core/service/{ip,port}allocator`).
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Status};
use kelson_resources::Allocation;
use kelson_store::{Resource, Store};
use parking_lot::Mutex;
use rand::Rng as _;
use serde_json::{Value, json};

use crate::catalog::Served;
use crate::config::{Config, StartError};

/// Addresses considered of a range; the rest of a larger one is not handed out by itself.
const POOL_MAX: u128 = 1 << 20;
/// Random places tried before the range is searched.
const RANDOM_TRIES: usize = 16;

/// What is in use.
pub struct Services {
    used: Arc<Mutex<Used>>,
}

struct Used {
    pools: Vec<Pool>,
    ports: HashMap<u16, HashSet<&'static str>>,
    port_range: (u16, u16),
}

struct Pool {
    net: IpNet,
    taken: HashSet<IpAddr>,
}

/// What a write took; given back when the write does not happen.
#[derive(Default)]
pub struct Reservation {
    used: Option<Arc<Mutex<Used>>>,
    ips: Vec<IpAddr>,
    ports: Vec<(u16, &'static str)>,
    /// Given back when the write did happen.
    old_ips: Vec<IpAddr>,
    old_ports: Vec<(u16, &'static str)>,
}

impl Reservation {
    /// The write happened.
    pub fn keep(mut self) {
        let (ips, ports) = (std::mem::take(&mut self.old_ips), std::mem::take(&mut self.old_ports));
        (self.ips, self.ports) = (ips, ports);
        // Dropping gives back what the object had and has no more.
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(used) = &self.used {
            used.lock().release(&self.ips, &self.ports);
        }
    }
}

fn protocol(port: &Value) -> &'static str {
    match port["protocol"].as_str() {
        Some("UDP") => "UDP",
        Some("SCTP") => "SCTP",
        _ => "TCP",
    }
}

fn list(v: &Value) -> &[Value] {
    v.as_array().map_or(&[], Vec::as_slice)
}

fn ips_of(service: &Value) -> Vec<IpAddr> {
    list(&service["spec"]["clusterIPs"]).iter().filter_map(|v| v.as_str()?.parse().ok()).collect()
}

fn ports_of(service: &Value) -> Vec<(u16, &'static str)> {
    let port = |v: &Value| v.as_u64().and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0);
    let mut ports: Vec<_> =
        list(&service["spec"]["ports"]).iter().filter_map(|p| Some((port(&p["nodePort"])?, protocol(p)))).collect();
    ports.extend(port(&service["spec"]["healthCheckNodePort"]).map(|p| (p, "TCP")));
    ports
}

impl Services {
    /// From the stored Services.
    ///
    /// # Errors
    /// [`StartError::Config`] without a range.
    pub fn new(config: &Config, store: &Store) -> Result<Self, StartError> {
        if config.service_cidrs.is_empty() {
            return Err(StartError::Config("--service-cluster-ip-range must be specified".into()));
        }
        let pool = |net: &IpNet| Pool { net: net.trunc(), taken: HashSet::new() };
        let mut used = Used {
            pools: config.service_cidrs.iter().map(pool).collect(),
            ports: HashMap::new(),
            port_range: config.node_ports,
        };
        for record in store.list(Resource::new("", "services"), None, None, None).iter() {
            let service = crate::catalog::record::parse(record);
            for ip in ips_of(&service) {
                if let Some(pool) = used.pools.iter_mut().find(|p| p.net.contains(&ip)) {
                    pool.taken.insert(ip);
                }
            }
            for (port, protocol) in ports_of(&service) {
                used.ports.entry(port).or_default().insert(protocol);
            }
        }
        Ok(Self { used: Arc::new(Mutex::new(used)) })
    }

    /// The first address of the primary range: the `kubernetes` service's.
    pub fn first_address(&self) -> Option<IpAddr> {
        self.used.lock().pools.first().map(|p| p.at(1))
    }

    /// Takes what a new Service asks for.
    ///
    /// # Errors
    /// 422.
    pub fn before_create(&self, served: &Served, value: &mut Value, dry_run: bool) -> Result<Reservation, Status> {
        if !is_allocated(served) {
            return Ok(Reservation::default());
        }
        self.take(value, None, dry_run)
    }

    /// Takes what a changed Service asks for beyond what it has.
    ///
    /// # Errors
    /// 422.
    pub fn before_update(
        &self,
        served: &Served,
        new: &mut Value,
        old: &Value,
        dry_run: bool,
    ) -> Result<Reservation, Status> {
        if !is_allocated(served) {
            return Ok(Reservation::default());
        }
        self.take(new, Some(old), dry_run)
    }

    /// Gives back what a Service had.
    pub fn after_delete(&self, served: &Served, last: &Value) {
        if is_allocated(served) {
            self.used.lock().release(&ips_of(last), &ports_of(last));
        }
    }

    #[allow(clippy::field_reassign_with_default)] // it has a Drop, so struct update cannot build it
    fn take(&self, service: &mut Value, old: Option<&Value>, dry_run: bool) -> Result<Reservation, Status> {
        let none = Value::Null;
        let old = old.unwrap_or(&none);
        let (had_ips, had_ports) = (ips_of(old), ports_of(old));
        let mut used = self.used.lock();
        let mut taken = Reservation::default();
        taken.used = Some(Arc::clone(&self.used));
        let mut errors = FieldErrors::new();
        families(&used, service, old);
        take_ips(&mut used, service, &had_ips, &mut taken, &mut errors);
        if errors.is_empty() {
            take_ports(&mut used, service, &had_ports, &mut taken, &mut errors);
        }
        drop(used);
        if !errors.is_empty() {
            let name = service["metadata"]["name"].as_str().unwrap_or("");
            return Err(Status::invalid(&GroupKind { group: String::new(), kind: "Service".into() }, name, &errors));
        }
        if !dry_run {
            let (ips, ports) = (ips_of(service), ports_of(service));
            taken.old_ips = had_ips.into_iter().filter(|ip| !ips.contains(ip)).collect();
            taken.old_ports = had_ports.into_iter().filter(|p| !ports.contains(p)).collect();
        }
        Ok(taken)
    }
}

fn is_allocated(served: &Served) -> bool {
    served.options().allocation == Allocation::ServiceAddresses
}

fn family(ip: &IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn net_family(net: &IpNet) -> &'static str {
    if net.addr().is_ipv4() { "IPv4" } else { "IPv6" }
}

/// Fills in `ipFamilyPolicy` and `ipFamilies` from what is asked and what there is.
fn families(used: &Used, service: &mut Value, old: &Value) {
    let spec = &mut service["spec"];
    if spec["type"] == "ExternalName" {
        return;
    }
    let headless = spec["clusterIP"] == "None" || spec["clusterIPs"][0] == "None";
    let selects = spec["selector"].as_object().is_some_and(|s| !s.is_empty());
    let own: Vec<&'static str> = used.pools.iter().map(|p| net_family(&p.net)).collect();
    if spec["ipFamilyPolicy"].is_null() {
        let dual = list(&spec["ipFamilies"]).len() == 2 || list(&spec["clusterIPs"]).len() == 2;
        let policy = if dual || (headless && !selects && old.is_null()) { "RequireDualStack" } else { "SingleStack" };
        spec["ipFamilyPolicy"] = policy.into();
    }
    let dual = spec["ipFamilyPolicy"] != "SingleStack";
    if list(&spec["ipFamilies"]).is_empty() {
        let asked: Vec<IpAddr> = list(&spec["clusterIPs"]).iter().filter_map(|v| v.as_str()?.parse().ok()).collect();
        let first = asked.first().map_or(own[0], family);
        let mut all = vec![first];
        let other = if first == "IPv4" { "IPv6" } else { "IPv4" };
        let anywhere = headless && !selects;
        if dual && (own.contains(&other) || anywhere) {
            all.push(other);
        }
        spec["ipFamilies"] = json!(all);
    } else if dual && list(&spec["ipFamilies"]).len() == 1 && used.pools.len() == 2 {
        let other = if spec["ipFamilies"][0] == "IPv4" { "IPv6" } else { "IPv4" };
        spec["ipFamilies"] = json!([spec["ipFamilies"][0], other]);
    } else if !dual && list(&spec["ipFamilies"]).len() == 2 && !old.is_null() {
        spec["ipFamilies"] = json!([spec["ipFamilies"][0]]);
    }
}

fn take_ips(used: &mut Used, service: &mut Value, had: &[IpAddr], taken: &mut Reservation, errors: &mut FieldErrors) {
    let path = FieldPath::new("spec").child("clusterIPs");
    let spec = &mut service["spec"];
    if spec["type"] == "ExternalName" {
        return;
    }
    if spec["clusterIP"] == "None" || spec["clusterIPs"][0] == "None" {
        spec["clusterIP"] = "None".into();
        spec["clusterIPs"] = json!(["None"]);
        return;
    }
    let mut asked: Vec<String> = list(&spec["clusterIPs"])
        .iter()
        .map(|v| v.as_str().unwrap_or("").to_owned())
        .filter(|s| !s.is_empty())
        .collect();
    if asked.is_empty()
        && let Some(one) = spec["clusterIP"].as_str().filter(|s| !s.is_empty())
    {
        asked.push(one.to_owned());
    }
    let families: Vec<String> = list(&spec["ipFamilies"]).iter().map(|v| v.as_str().unwrap_or("").to_owned()).collect();
    let shown = asked.clone();
    let mut all: Vec<String> = Vec::new();
    for (i, family) in families.iter().enumerate() {
        let Some(pool) = used.pools.iter_mut().find(|p| net_family(&p.net) == family) else {
            if spec["ipFamilyPolicy"] == "PreferDualStack" && i > 0 {
                continue;
            }
            let path = FieldPath::new("spec").child("ipFamilies").index(i);
            errors.invalid(&path, family, "not configured on this cluster");
            return;
        };
        match asked.get(i) {
            Some(text) => {
                let Ok(ip) = text.parse::<IpAddr>() else { return };
                if !had.contains(&ip) {
                    if let Err(why) = pool.claim(ip) {
                        errors.invalid(&path, &shown, format!("failed to allocate IP {ip}: {why}"));
                        return;
                    }
                    taken.ips.push(ip);
                }
                all.push(text.clone());
            }
            None => match pool.any() {
                Some(ip) => {
                    taken.ips.push(ip);
                    all.push(ip.to_string());
                }
                None => {
                    errors.invalid(&path, &shown, "failed to allocate IP: range is full");
                    return;
                }
            },
        }
    }
    if all.len() == 1 && spec["ipFamilyPolicy"] == "PreferDualStack" {
        spec["ipFamilies"] = json!([families[0]]);
    }
    if let Some(first) = all.first() {
        spec["clusterIP"] = first.as_str().into();
        spec["clusterIPs"] = json!(all);
    }
}

fn wants_node_ports(spec: &Value) -> bool {
    match spec["type"].as_str() {
        Some("NodePort") => true,
        Some("LoadBalancer") => spec["allocateLoadBalancerNodePorts"].as_bool().unwrap_or(true),
        _ => false,
    }
}

fn take_ports(
    used: &mut Used,
    service: &mut Value,
    had: &[(u16, &'static str)],
    taken: &mut Reservation,
    errors: &mut FieldErrors,
) {
    let spec = &mut service["spec"];
    let allocate = wants_node_ports(spec);
    let may = allocate || spec["type"] == "LoadBalancer";
    let range = used.port_range;
    let claim = |used: &mut Used, number: u16, protocol: &'static str, path: &FieldPath, errors: &mut FieldErrors| {
        if number < range.0 || number > range.1 {
            let why =
                format!("provided port is not in the valid range. The range of valid ports is {}-{}", range.0, range.1);
            errors.invalid(path, number, why);
            return false;
        }
        if !used.ports.entry(number).or_default().insert(protocol) {
            errors.invalid(path, number, "provided port is already allocated");
            return false;
        }
        true
    };
    // One service may use one number for several protocols.
    let mut by_port: HashMap<u64, u16> = HashMap::new();
    if let Some(ports) = spec["ports"].as_array_mut().filter(|_| may) {
        for (i, port) in ports.iter_mut().enumerate() {
            let path = FieldPath::new("spec").child("ports").index(i).child("nodePort");
            let protocol = protocol(port);
            let service_port = port["port"].as_u64().unwrap_or(0);
            let asked = port["nodePort"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(0);
            if asked > 0 {
                if !had.contains(&(asked, protocol)) {
                    if !claim(used, asked, protocol, &path, errors) {
                        return;
                    }
                    taken.ports.push((asked, protocol));
                }
                by_port.insert(service_port, asked);
                continue;
            }
            if !allocate {
                continue;
            }
            let shared =
                by_port.get(&service_port).copied().filter(|p| used.ports.entry(*p).or_default().insert(protocol));
            let Some(number) = shared.or_else(|| used.any_port(protocol)) else {
                errors.invalid(&path, 0, "failed to allocate a nodePort: range is full");
                return;
            };
            taken.ports.push((number, protocol));
            by_port.insert(service_port, number);
            port["nodePort"] = number.into();
        }
    }
    if spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local" {
        let path = FieldPath::new("spec").child("healthCheckNodePort");
        let asked = spec["healthCheckNodePort"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(0);
        if asked == 0 {
            match used.any_port("TCP") {
                Some(number) => {
                    taken.ports.push((number, "TCP"));
                    spec["healthCheckNodePort"] = number.into();
                }
                None => errors.invalid(&path, 0, "failed to allocate a nodePort: range is full"),
            }
        } else if !had.contains(&(asked, "TCP")) && claim(used, asked, "TCP", &path, errors) {
            taken.ports.push((asked, "TCP"));
        }
    }
}

impl Used {
    fn release(&mut self, ips: &[IpAddr], ports: &[(u16, &'static str)]) {
        for ip in ips {
            for pool in &mut self.pools {
                pool.taken.remove(ip);
            }
        }
        for (port, protocol) in ports {
            if let Some(protocols) = self.ports.get_mut(port) {
                protocols.remove(protocol);
                if protocols.is_empty() {
                    self.ports.remove(port);
                }
            }
        }
    }

    fn any_port(&mut self, protocol: &'static str) -> Option<u16> {
        let (low, high) = self.port_range;
        let mut rng = rand::rng();
        let random = (0..RANDOM_TRIES).map(|_| rng.random_range(low..=high)).find(|p| !self.ports.contains_key(p));
        let number = random.or_else(|| (low..=high).find(|p| !self.ports.contains_key(p)))?;
        self.ports.entry(number).or_default().insert(protocol);
        Some(number)
    }
}

impl Pool {
    /// How many addresses are handed out; network and (IPv4) broadcast address are not.
    fn size(&self) -> u128 {
        let bits = self.net.max_prefix_len() - self.net.prefix_len();
        let all = 1u128.checked_shl(u32::from(bits)).unwrap_or(u128::MAX);
        let reserved = if self.net.addr().is_ipv4() { 2 } else { 1 };
        all.saturating_sub(reserved).min(POOL_MAX)
    }

    fn at(&self, offset: u128) -> IpAddr {
        match self.net.network() {
            IpAddr::V4(base) => IpAddr::V4(Ipv4Addr::from(u32::from(base).wrapping_add(offset as u32))),
            IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from(u128::from(base).wrapping_add(offset))),
        }
    }

    fn claim(&mut self, ip: IpAddr) -> Result<(), String> {
        let broadcast = ip.is_ipv4() && ip == self.net.broadcast();
        if !self.net.contains(&ip) || ip == self.net.network() || broadcast {
            return Err(format!(
                "the provided IP ({ip}) is not in the valid range. The range of valid IPs is {}",
                self.net
            ));
        }
        if self.taken.insert(ip) { Ok(()) } else { Err("provided IP is already allocated".into()) }
    }

    /// A free address; those at the beginning are kept for people who choose one.
    fn any(&mut self) -> Option<IpAddr> {
        let size = self.size();
        let lower = (size / 16).clamp(16, 256).min(size / 2);
        let mut rng = rand::rng();
        let random = (0..RANDOM_TRIES)
            .filter(|_| lower < size)
            .map(|_| self.at(rng.random_range(lower + 1..=size)))
            .find(|ip| !self.taken.contains(ip));
        let search =
            |range: std::ops::RangeInclusive<u128>| range.map(|o| self.at(o)).find(|ip| !self.taken.contains(ip));
        let ip = random.or_else(|| search(lower + 1..=size)).or_else(|| search(1..=lower))?;
        self.taken.insert(ip);
        Some(ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_store::StoreOptions;

    fn services(cidr: &str) -> Services {
        let store = Store::in_memory(StoreOptions::default());
        let mut config = Config::new(store.clone());
        config.service_cidrs = vec![cidr.parse().unwrap()];
        Services::new(&config, &store).unwrap()
    }

    fn service(spec: Value) -> Value {
        json!({"metadata": {"name": "s"}, "spec": spec})
    }

    #[test]
    fn addresses_run_out_and_come_back() {
        let s = services("10.0.0.0/29");
        let mut kept = Vec::new();
        for _ in 0..6 {
            let mut v = service(json!({"type": "ClusterIP"}));
            s.take(&mut v, None, false).unwrap().keep();
            kept.push(v);
        }
        let mut v = service(json!({"type": "ClusterIP"}));
        assert_eq!(s.take(&mut v, None, false).err().map(|e| e.code), Some(422));
        let last = kept.pop().unwrap();
        s.used.lock().release(&ips_of(&last), &ports_of(&last));
        let mut v = service(json!({"type": "ClusterIP", "clusterIP": last["spec"]["clusterIP"]}));
        s.take(&mut v, None, false).unwrap().keep();
        assert_eq!(v["spec"]["clusterIPs"], last["spec"]["clusterIPs"]);
    }

    #[test]
    fn what_a_failed_write_took_is_free_again() {
        let s = services("10.0.0.0/30");
        for _ in 0..5 {
            let mut v = service(json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30001}]}));
            let taken = s.take(&mut v, None, false).unwrap();
            assert_eq!(v["spec"]["ipFamilies"], json!(["IPv4"]));
            drop(taken);
        }
    }

    #[test]
    fn node_ports() {
        let s = services("10.0.0.0/24");
        let mut v = service(
            json!({"type": "NodePort", "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}),
        );
        s.take(&mut v, None, false).unwrap().keep();
        let ports = &v["spec"]["ports"];
        assert_eq!(ports[0]["nodePort"], ports[1]["nodePort"]);
        let taken = ports[0]["nodePort"].clone();
        let mut w = service(json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": taken}]}));
        assert!(s.take(&mut w, None, false).err().unwrap().message.contains("provided port is already allocated"));
        let mut w = service(json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 80}]}));
        assert!(s.take(&mut w, None, false).err().unwrap().message.contains("30000-32767"));
    }

    #[test]
    fn an_update_keeps_what_it_has_and_gives_back_what_it_leaves() {
        let s = services("10.0.0.0/24");
        let mut old = service(json!({"type": "NodePort", "ports": [{"port": 80}]}));
        s.take(&mut old, None, false).unwrap().keep();
        let mut new = old.clone();
        new["spec"]["type"] = "ClusterIP".into();
        new["spec"]["ports"][0].as_object_mut().unwrap().remove("nodePort");
        s.take(&mut new, Some(&old), false).unwrap().keep();
        assert_eq!(new["spec"]["clusterIP"], old["spec"]["clusterIP"]);
        assert!(s.used.lock().ports.is_empty());
        let mut gone = new.clone();
        gone["spec"] = json!({"type": "ExternalName", "externalName": "x"});
        s.take(&mut gone, Some(&new), false).unwrap().keep();
        assert!(s.used.lock().pools[0].taken.is_empty());
    }

    #[test]
    fn headless_takes_nothing() {
        let s = services("10.0.0.0/24");
        let mut v = service(json!({"clusterIP": "None", "selector": {"a": "b"}}));
        s.take(&mut v, None, false).unwrap().keep();
        assert_eq!(v["spec"]["clusterIPs"], json!(["None"]));
        assert_eq!(v["spec"]["ipFamilyPolicy"], "SingleStack");
        assert!(s.used.lock().pools[0].taken.is_empty());
    }
}
