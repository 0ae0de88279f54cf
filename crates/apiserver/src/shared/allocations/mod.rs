//! Allocation of cluster IPs and node ports of Services. The sets in use are in memory and are built from the stored Services at
//! start, so that nothing leaks (upstream `registry/core/service/{ip,port}allocator`). Before a Service is stored, an IPAddress object
//! records who has an address, so that servers with a shared storage allocate none twice; such servers record node ports as well.
mod addresses;
mod pools;
mod ports;
mod ranges;
mod registry;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use ipnet::IpNet;
use kelson_meta::tree::text;
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Status};
use kelson_resources::Allocation;
use kelson_store::{Resource, Store};
use parking_lot::Mutex;
use serde_json::Value;

use addresses::{families, take_ips};
use pools::{Conflict, Used};
use ports::{may_have_node_ports, take_ports};
use ranges::Ranges;

use crate::catalog::Served;
use crate::config::{Config, StartError};

pub use pools::{Reservation, ips_of, ports_of};
pub use registry::{AddressOwner, AddressRegistry};

/// Allocates cluster IPs and node ports. A write takes what its Service requests and gets a [`Reservation`], which returns it if the
/// write fails. Addresses are checked against the stored Services, the IPAddress objects and the writes in progress.
pub struct Services {
    used: Arc<Mutex<Used>>,
    /// The configured ranges.
    ranges: Vec<IpNet>,
    /// The storage, which has the ServiceCIDR objects with further ranges.
    store: Store,
    /// Records who has an address.
    registry: OnceLock<Arc<dyn AddressRegistry>>,
}

/// Tries before a Service without specific requests is rejected because other servers took every candidate meanwhile.
const TRIES_MAX: usize = 16;

impl Services {
    /// Builds the sets from the stored Services.
    ///
    /// # Errors
    /// [`StartError::Config`] without a configured range.
    pub fn new(config: &Config, store: &Store) -> Result<Self, StartError> {
        if config.service_cidrs.is_empty() {
            return Err(StartError::Config("--service-cluster-ip-range must be specified".into()));
        }
        let mut used = Used { ips: HashSet::new(), ports: HashSet::new(), port_range: config.node_ports };
        if !store.is_mirror() {
            add_stored(store, &mut used);
        }
        let ranges = config.service_cidrs.iter().map(IpNet::trunc).collect();
        Ok(Self { used: Arc::new(Mutex::new(used)), ranges, store: store.clone(), registry: OnceLock::new() })
    }

    /// Sets the registry of addresses.
    pub fn connect(&self, registry: Arc<dyn AddressRegistry>) {
        // The first registry stays: a second server would have its own `Services`.
        let _ = self.registry.set(registry);
    }

    /// The first address of the primary range, which the `kubernetes` service has.
    pub fn first_address(&self) -> Option<IpAddr> {
        self.ranges.first().map(|net| ranges::at(net, 1))
    }

    /// Allocates what a new Service requests.
    ///
    /// # Errors
    /// 422 if it cannot be allocated.
    pub async fn before_create(
        &self,
        served: &Served,
        value: &mut Value,
        dry_run: bool,
    ) -> Result<Reservation, Status> {
        if !is_allocated(served) {
            return Ok(Reservation::default());
        }
        self.reserve(value, None, dry_run).await
    }

    /// Allocates what a changed Service requests beyond what it has.
    ///
    /// # Errors
    /// 422 if it cannot be allocated.
    pub async fn before_update(
        &self,
        served: &Served,
        new: &mut Value,
        old: &Value,
        dry_run: bool,
    ) -> Result<Reservation, Status> {
        if !is_allocated(served) {
            return Ok(Reservation::default());
        }
        self.reserve(new, Some(old), dry_run).await
    }

    /// Releases what a deleted Service had.
    pub async fn after_delete(&self, served: &Served, last: &Value) {
        if !is_allocated(served) {
            return;
        }
        let (ips, ports) = (ips_of(last), ports_of(last));
        if let Some(registry) = self.registry.get() {
            registry.release(&ips, &AddressOwner::of(last)).await;
            if self.store.is_mirror() && !ports.is_empty() {
                registry.give_back_ports(&ports).await;
            }
        }
        if !self.store.is_mirror() {
            self.used.lock().release(&ips, &ports);
        }
    }

    /// Allocates what a Service requests and registers it. If another server has registered an address or port meanwhile, another one
    /// is tried, unless the Service requested it explicitly.
    async fn reserve(&self, service: &mut Value, old: Option<&Value>, dry_run: bool) -> Result<Reservation, Status> {
        let Some(registry) = self.registry.get().filter(|_| !dry_run) else {
            return self.take(service, old, dry_run, &[]);
        };
        let asked = ips_of(service);
        for attempt in 1..=TRIES_MAX {
            let shares_ports = self.store.is_mirror() && may_have_node_ports(&service["spec"]);
            let recorded = if shares_ports { registry.ports().await? } else { Vec::new() };
            let mut candidate = service.clone();
            let mut taken = self.take(&mut candidate, old, dry_run, &recorded)?;
            match taken.register(registry, AddressOwner::of(&candidate)).await? {
                None => {
                    *service = candidate;
                    return Ok(taken);
                }
                Some(Conflict::Address(ip)) if attempt == TRIES_MAX || asked.contains(&ip) => {
                    return Err(allocated(&candidate, ip));
                }
                // A requested port is rejected at the next try, because it is in use then.
                Some(_) => {}
            }
        }
        Err(Status::internal("failed to allocate a nodePort: too many conflicting allocations"))
    }

    #[allow(clippy::field_reassign_with_default)] // it has a Drop, so struct update cannot build it
    fn take(
        &self,
        service: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
        recorded: &[u16],
    ) -> Result<Reservation, Status> {
        let created = old.is_none();
        let none = Value::Null;
        let old = old.unwrap_or(&none);
        let (had_ips, had_ports) = (ips_of(old), ports_of(old));
        let faults = kelson_resources::cluster_ip_faults(&service["spec"], &old["spec"]);
        if !faults.is_empty() {
            return Err(invalid(service, &faults));
        }
        let mut under_way = self.used.lock();
        let mut taken = Reservation::default();
        taken.stored = self.store.is_mirror();
        taken.dry_run = dry_run;
        // A dry run takes nothing from others, not even temporarily.
        let mut apart = (taken.stored || dry_run).then(|| under_way.clone());
        if let Some(used) = apart.as_mut().filter(|_| taken.stored) {
            add_stored(&self.store, used);
            used.take(&[], recorded);
        }
        let used = apart.as_mut().unwrap_or(&mut under_way);
        taken.used = (!dry_run).then(|| Arc::clone(&self.used));
        let mut errors = FieldErrors::new();
        let ranges = Ranges::now(&self.ranges, &self.store);
        families(&ranges.families(), service, old, &mut errors);
        if errors.is_empty() {
            take_ips(used, &ranges, service, &had_ips, &mut taken, &mut errors);
        }
        let ports = match errors.is_empty() {
            true => take_ports(used, service, (!created).then_some(&had_ports), &mut taken),
            false => Ok(()),
        };
        if taken.stored && !dry_run {
            under_way.take(&taken.ips, &taken.ports);
        }
        // Release the lock before dropping `taken`, which locks it again.
        drop(under_way);
        ports?;
        if !errors.is_empty() {
            return Err(invalid(service, &errors));
        }
        if !dry_run {
            let (ips, ports) = (ips_of(service), ports_of(service));
            taken.old_ips = had_ips.into_iter().filter(|ip| !ips.contains(ip)).collect();
            taken.old_ports = had_ports.into_iter().filter(|p| !ports.contains(p)).collect();
        }
        Ok(taken)
    }
}

/// The error for an address that another owner has.
fn allocated(service: &Value, ip: IpAddr) -> Status {
    let mut errors = FieldErrors::new();
    let why = format!("failed to allocate IP {ip}: provided IP is already allocated");
    let shown: Vec<String> = ips_of(service).iter().map(ToString::to_string).collect();
    errors.invalid(&FieldPath::new("spec").child("clusterIPs"), &shown, why);
    invalid(service, &errors)
}

fn invalid(service: &Value, errors: &FieldErrors) -> Status {
    let kind = GroupKind { group: String::new(), kind: "Service".into() };
    Status::invalid(&kind, text(&service["metadata"]["name"]), errors)
}

/// Adds the addresses and ports of the stored Services.
fn add_stored(store: &Store, used: &mut Used) {
    for record in store.list(Resource::new("", "services"), None, None, None).iter() {
        used.add(&crate::catalog::record::parse(record));
    }
}

/// Whether addresses or ports are allocated to objects of the kind.
pub fn is_allocated(served: &Served) -> bool {
    served.options().allocation == Allocation::ServiceAddresses
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use kelson_store::StoreOptions;

    fn services(cidr: &str) -> Services {
        let store = Store::in_memory(StoreOptions::default());
        let mut config = Config::new(store.clone());
        config.service_cidrs = vec![cidr.parse().unwrap()];
        Services::new(&config, &store).unwrap()
    }

    /// A service as its strategy prepares it: `clusterIPs` begins with `clusterIP`.
    fn service(mut spec: Value) -> Value {
        if spec["clusterIP"].is_string() && spec["clusterIPs"].is_null() {
            spec["clusterIPs"] = json!([spec["clusterIP"]]);
        }
        json!({"metadata": {"name": "s"}, "spec": spec})
    }

    #[tokio::test]
    async fn addresses_run_out_and_come_back() {
        let s = services("10.0.0.0/29");
        let mut kept = Vec::new();
        for _ in 0..6 {
            let mut v = service(json!({"type": "ClusterIP"}));
            s.take(&mut v, None, false, &[]).unwrap().confirm().await;
            kept.push(v);
        }
        let mut v = service(json!({"type": "ClusterIP"}));
        assert_eq!(s.take(&mut v, None, false, &[]).err().map(|e| e.code), Some(422));
        let last = kept.pop().unwrap();
        s.used.lock().release(&ips_of(&last), &ports_of(&last));
        let mut v = service(json!({"type": "ClusterIP", "clusterIP": last["spec"]["clusterIP"]}));
        s.take(&mut v, None, false, &[]).unwrap().confirm().await;
        assert_eq!(v["spec"]["clusterIPs"], last["spec"]["clusterIPs"]);
    }

    #[tokio::test]
    async fn a_dry_run_holds_nothing() {
        let s = services("10.0.0.0/24");
        let asked = || {
            service(json!({"type": "NodePort", "clusterIP": "10.0.0.9", "clusterIPs": ["10.0.0.9"],
            "ports": [{"port": 80, "nodePort": 30009}]}))
        };
        let dry = s.take(&mut asked(), None, true, &[]).unwrap();
        s.take(&mut asked(), None, false, &[]).expect("the dry run holds neither address nor port").confirm().await;
        drop(dry);
        let held = {
            let used = s.used.lock();
            (used.ips.len(), used.ports.len())
        };
        assert_eq!(held, (1, 1), "the end of the dry run releases nothing of the create");
        assert_eq!(s.take(&mut asked(), None, true, &[]).err().map(|e| e.code), Some(422), "it sees what is in use");
    }

    #[test]
    fn a_failed_write_releases_its_allocations() {
        let s = services("10.0.0.0/30");
        for _ in 0..5 {
            let mut v = service(json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30001}]}));
            let taken = s.take(&mut v, None, false, &[]).unwrap();
            assert_eq!(v["spec"]["ipFamilies"], json!(["IPv4"]));
            drop(taken);
        }
    }

    #[tokio::test]
    async fn node_ports() {
        let s = services("10.0.0.0/24");
        let mut v = service(
            json!({"type": "NodePort", "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}),
        );
        s.take(&mut v, None, false, &[]).unwrap().confirm().await;
        let ports = &v["spec"]["ports"];
        assert_eq!(ports[0]["nodePort"], ports[1]["nodePort"]);
        let taken = ports[0]["nodePort"].clone();
        let mut w = service(json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": taken}]}));
        assert!(s.take(&mut w, None, false, &[]).err().unwrap().message.contains("provided port is already allocated"));
        let mut w = service(json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 80}]}));
        assert!(s.take(&mut w, None, false, &[]).err().unwrap().message.contains("30000-32767"));
        assert!(s.take(&mut w, None, true, &[]).is_ok(), "a dry run takes nothing out of the range");
    }

    fn refusal(services: &Services, service: &mut Value, old: Option<&Value>) -> Status {
        services.take(service, old, false, &[]).err().unwrap()
    }

    #[tokio::test]
    async fn a_node_port_belongs_to_one_service_for_all_protocols() {
        let s = services("10.0.0.0/24");
        // A port requested for one protocol is used for the other as well.
        let mut first = service(json!({"type": "NodePort", "ports": [{"port": 53, "protocol": "UDP"},
            {"port": 53, "protocol": "TCP", "nodePort": 30053}, {"port": 80}]}));
        s.take(&mut first, None, false, &[]).unwrap().confirm().await;
        assert_eq!(first["spec"]["ports"][0]["nodePort"], 30053);
        let mut other =
            service(json!({"type": "NodePort", "ports": [{"port": 1, "protocol": "SCTP", "nodePort": 30053}]}));
        let refused = refusal(&s, &mut other, None);
        assert_eq!(refused.code, 422);
        assert!(
            refused
                .message
                .contains("spec.ports[0].nodePort: Invalid value: 30053: provided port is already allocated")
        );
        // A new service may not request one number for two of its ports; a changed one may.
        let twice = json!({"type": "NodePort", "ports": [{"port": 1, "protocol": "TCP", "nodePort": 30900},
            {"port": 2, "protocol": "UDP", "nodePort": 30900}]});
        assert_eq!(refusal(&s, &mut service(twice.clone()), None).code, 422);
        let mut changed = service(twice);
        s.take(&mut changed, Some(&first), false, &[]).unwrap().confirm().await;
        assert_eq!(s.used.lock().ports, HashSet::from([30900]), "the old ports are free");
    }

    #[tokio::test]
    async fn ports_reserved_for_static_choice_are_allocated_last() {
        let store = Store::in_memory(StoreOptions::default());
        let mut config = Config::new(store.clone());
        config.service_cidrs = vec!["10.0.0.0/24".parse().unwrap()];
        config.node_ports = (30000, 30019);
        let s = Services::new(&config, &store).unwrap();
        let mut ports = Vec::new();
        for _ in 0..20 {
            let mut v = service(json!({"type": "NodePort", "ports": [{"port": 80}]}));
            s.take(&mut v, None, false, &[]).unwrap().confirm().await;
            ports.push(v["spec"]["ports"][0]["nodePort"].as_u64().unwrap());
        }
        let chosen: Vec<bool> = ports.iter().map(|port| *port < 30016).collect();
        assert_eq!(chosen, [vec![false; 4], vec![true; 16]].concat());
        let mut v = service(json!({"type": "NodePort", "ports": [{"port": 80}]}));
        let full = refusal(&s, &mut v, None);
        assert_eq!((full.code, full.message.contains("failed to allocate a nodePort: range is full")), (500, true));
        let mut v =
            service(json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30003,
            "allocateLoadBalancerNodePorts": false, "ports": [{"port": 80}]}));
        let full = refusal(&s, &mut v, None);
        assert_eq!(full.code, 500);
        assert!(
            full.message.ends_with(
                "failed to allocate requested HealthCheck NodePort 30003: provided port is already allocated"
            )
        );
    }

    #[tokio::test]
    async fn an_update_keeps_its_allocations_and_releases_dropped_ones() {
        let s = services("10.0.0.0/24");
        let mut old = service(json!({"type": "NodePort", "ports": [{"port": 80}]}));
        s.take(&mut old, None, false, &[]).unwrap().confirm().await;
        let mut new = old.clone();
        new["spec"]["type"] = "ClusterIP".into();
        new["spec"]["ports"][0].as_object_mut().unwrap().remove("nodePort");
        s.take(&mut new, Some(&old), false, &[]).unwrap().confirm().await;
        assert_eq!(new["spec"]["clusterIP"], old["spec"]["clusterIP"]);
        // Validation rejects another address later; it is not taken here.
        let mut other = new.clone();
        (other["spec"]["clusterIP"], other["spec"]["clusterIPs"]) = ("1.2.3.4".into(), json!(["1.2.3.4"]));
        drop(s.take(&mut other, Some(&new), false, &[]).unwrap());
        assert_eq!(s.used.lock().ips.len(), 1);
        assert!(s.used.lock().ports.is_empty());
        let mut gone = new.clone();
        gone["spec"] = json!({"type": "ExternalName", "externalName": "x"});
        s.take(&mut gone, Some(&new), false, &[]).unwrap().confirm().await;
        assert!(s.used.lock().ips.is_empty());
    }

    #[tokio::test]
    async fn headless_services_take_no_address() {
        let s = services("10.0.0.0/24");
        let mut v = service(json!({"clusterIP": "None", "selector": {"a": "b"}}));
        s.take(&mut v, None, false, &[]).unwrap().confirm().await;
        assert_eq!(v["spec"]["clusterIPs"], json!(["None"]));
        assert_eq!(v["spec"]["ipFamilyPolicy"], "SingleStack");
        assert!(s.used.lock().ips.is_empty());
    }
}
