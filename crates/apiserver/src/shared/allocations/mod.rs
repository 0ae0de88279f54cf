//! Services: cluster IPs and node ports, handed out from what the stored Services leave free. The sets live in memory
//! and are made anew at start, so that they cannot leak (upstream `registry/core/service/{ip,port}allocator`). Who has an address is told
//! by an IPAddress object before the Service is stored, by which servers that share a storage take none twice; such servers note the
//! node ports as well.
mod addresses;
mod book;
mod pools;
mod ports;
mod ranges;

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
use pools::{Elsewhere, Used};
use ports::{may_have_node_ports, take_ports};
use ranges::Ranges;

use crate::catalog::Served;
use crate::config::{Config, StartError};

pub use book::{AddressBook, AddressOwner};
pub use pools::{Reservation, ips_of, ports_of};

/// What is in use.
pub struct Services {
    used: Arc<Mutex<Used>>,
    /// The ranges the server was told of.
    ranges: Vec<IpNet>,
    /// Where the other ranges are.
    store: Store,
    /// Where it is told who has an address.
    book: OnceLock<Arc<dyn AddressBook>>,
}

/// Tries before a Service that wants any address or port is refused: all of them were others', who told it meanwhile.
const TRIES_MAX: usize = 16;

impl Services {
    /// From the stored Services.
    ///
    /// # Errors
    /// [`StartError::Config`] without a range.
    pub fn new(config: &Config, store: &Store) -> Result<Self, StartError> {
        if config.service_cidrs.is_empty() {
            return Err(StartError::Config("--service-cluster-ip-range must be specified".into()));
        }
        let mut used = Used { ips: HashSet::new(), ports: HashSet::new(), port_range: config.node_ports };
        if !store.is_mirror() {
            add_stored(store, &mut used);
        }
        let ranges = config.service_cidrs.iter().map(IpNet::trunc).collect();
        Ok(Self { used: Arc::new(Mutex::new(used)), ranges, store: store.clone(), book: OnceLock::new() })
    }

    /// From now on it is told there who has an address.
    pub fn connect(&self, book: Arc<dyn AddressBook>) {
        // A second server would need allocations of its own: the first book stays.
        let _ = self.book.set(book);
    }

    /// The first address of the primary range: the `kubernetes` service's.
    pub fn first_address(&self) -> Option<IpAddr> {
        self.ranges.first().map(|net| ranges::at(net, 1))
    }

    /// Takes what a new Service asks for.
    ///
    /// # Errors
    /// 422.
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

    /// Takes what a changed Service asks for beyond what it has.
    ///
    /// # Errors
    /// 422.
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

    /// Gives back what a Service had.
    pub async fn after_delete(&self, served: &Served, last: &Value) {
        if !is_allocated(served) {
            return;
        }
        let (ips, ports) = (ips_of(last), ports_of(last));
        if let Some(book) = self.book.get() {
            book.strike(&ips, &AddressOwner::of(last)).await;
            if self.store.is_mirror() && !ports.is_empty() {
                book.give_back_ports(&ports).await;
            }
        }
        if !self.store.is_mirror() {
            self.used.lock().release(&ips, &ports);
        }
    }

    /// Takes what a Service asks for, and enters it. What turns out to be another's is exchanged for something free unless it was
    /// asked for.
    async fn reserve(&self, service: &mut Value, old: Option<&Value>, dry_run: bool) -> Result<Reservation, Status> {
        let Some(book) = self.book.get().filter(|_| !dry_run) else { return self.take(service, old, dry_run, &[]) };
        let asked = ips_of(service);
        for attempt in 1..=TRIES_MAX {
            let shares_ports = self.store.is_mirror() && may_have_node_ports(&service["spec"]);
            let elsewhere = if shares_ports { book.ports().await? } else { Vec::new() };
            let mut candidate = service.clone();
            let mut taken = self.take(&mut candidate, old, dry_run, &elsewhere)?;
            match taken.enter(book, AddressOwner::of(&candidate)).await? {
                None => {
                    *service = candidate;
                    return Ok(taken);
                }
                Some(Elsewhere::Address(ip)) if attempt == TRIES_MAX || asked.contains(&ip) => {
                    return Err(allocated(&candidate, ip));
                }
                // One that was asked for is refused at the next try, by what is in use then.
                Some(_) => {}
            }
        }
        Err(Status::internal("failed to allocate a nodePort: others were faster each time"))
    }

    #[allow(clippy::field_reassign_with_default)] // it has a Drop, so struct update cannot build it
    fn take(
        &self,
        service: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
        elsewhere: &[u16],
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
        // A dry run takes nothing from others, not even while it lasts.
        let mut apart = (taken.stored || dry_run).then(|| under_way.clone());
        if let Some(used) = apart.as_mut().filter(|_| taken.stored) {
            add_stored(&self.store, used);
            used.take(&[], elsewhere);
        }
        let used = apart.as_mut().unwrap_or(&mut under_way);
        taken.used = (!dry_run).then(|| Arc::clone(&self.used));
        let mut errors = FieldErrors::new();
        let ranges = Ranges::now(&self.ranges, &self.store);
        families(&ranges.families(), service, old);
        take_ips(used, &ranges, service, &had_ips, &mut taken, &mut errors);
        let ports = match errors.is_empty() {
            true => take_ports(used, service, (!created).then_some(&had_ports), &mut taken),
            false => Ok(()),
        };
        if taken.stored && !dry_run {
            under_way.take(&taken.ips, &taken.ports);
        }
        // Before what was taken is given back, for which it is locked again.
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

/// Another has the address.
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

/// Adds what the stored Services have.
fn add_stored(store: &Store, used: &mut Used) {
    for record in store.list(Resource::new("", "services"), None, None, None).iter() {
        used.add(&crate::catalog::record::parse(record));
    }
}

fn is_allocated(served: &Served) -> bool {
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
            s.take(&mut v, None, false, &[]).unwrap().keep().await;
            kept.push(v);
        }
        let mut v = service(json!({"type": "ClusterIP"}));
        assert_eq!(s.take(&mut v, None, false, &[]).err().map(|e| e.code), Some(422));
        let last = kept.pop().unwrap();
        s.used.lock().release(&ips_of(&last), &ports_of(&last));
        let mut v = service(json!({"type": "ClusterIP", "clusterIP": last["spec"]["clusterIP"]}));
        s.take(&mut v, None, false, &[]).unwrap().keep().await;
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
        s.take(&mut asked(), None, false, &[]).expect("the dry run holds neither address nor port").keep().await;
        drop(dry);
        let held = {
            let used = s.used.lock();
            (used.ips.len(), used.ports.len())
        };
        assert_eq!(held, (1, 1), "the end of the dry run releases nothing of the create");
        assert_eq!(s.take(&mut asked(), None, true, &[]).err().map(|e| e.code), Some(422), "it sees what is in use");
    }

    #[test]
    fn what_a_failed_write_took_is_free_again() {
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
        s.take(&mut v, None, false, &[]).unwrap().keep().await;
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
    async fn a_node_port_is_one_service_s_whatever_its_protocol() {
        let s = services("10.0.0.0/24");
        // One that is named for one protocol is the other's as well.
        let mut first = service(json!({"type": "NodePort", "ports": [{"port": 53, "protocol": "UDP"},
            {"port": 53, "protocol": "TCP", "nodePort": 30053}, {"port": 80}]}));
        s.take(&mut first, None, false, &[]).unwrap().keep().await;
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
        // A new service may not name one for two of its ports; a changed one may.
        let twice = json!({"type": "NodePort", "ports": [{"port": 1, "protocol": "TCP", "nodePort": 30900},
            {"port": 2, "protocol": "UDP", "nodePort": 30900}]});
        assert_eq!(refusal(&s, &mut service(twice.clone()), None).code, 422);
        let mut changed = service(twice);
        s.take(&mut changed, Some(&first), false, &[]).unwrap().keep().await;
        assert_eq!(s.used.lock().ports, HashSet::from([30900]), "what it left is free");
    }

    #[tokio::test]
    async fn ports_for_people_who_choose_are_the_last_that_are_handed_out() {
        let store = Store::in_memory(StoreOptions::default());
        let mut config = Config::new(store.clone());
        config.service_cidrs = vec!["10.0.0.0/24".parse().unwrap()];
        config.node_ports = (30000, 30019);
        let s = Services::new(&config, &store).unwrap();
        let mut ports = Vec::new();
        for _ in 0..20 {
            let mut v = service(json!({"type": "NodePort", "ports": [{"port": 80}]}));
            s.take(&mut v, None, false, &[]).unwrap().keep().await;
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
    async fn an_update_keeps_what_it_has_and_gives_back_what_it_leaves() {
        let s = services("10.0.0.0/24");
        let mut old = service(json!({"type": "NodePort", "ports": [{"port": 80}]}));
        s.take(&mut old, None, false, &[]).unwrap().keep().await;
        let mut new = old.clone();
        new["spec"]["type"] = "ClusterIP".into();
        new["spec"]["ports"][0].as_object_mut().unwrap().remove("nodePort");
        s.take(&mut new, Some(&old), false, &[]).unwrap().keep().await;
        assert_eq!(new["spec"]["clusterIP"], old["spec"]["clusterIP"]);
        // What is checked later refuses another address, which is not taken before.
        let mut other = new.clone();
        (other["spec"]["clusterIP"], other["spec"]["clusterIPs"]) = ("1.2.3.4".into(), json!(["1.2.3.4"]));
        drop(s.take(&mut other, Some(&new), false, &[]).unwrap());
        assert_eq!(s.used.lock().ips.len(), 1);
        assert!(s.used.lock().ports.is_empty());
        let mut gone = new.clone();
        gone["spec"] = json!({"type": "ExternalName", "externalName": "x"});
        s.take(&mut gone, Some(&new), false, &[]).unwrap().keep().await;
        assert!(s.used.lock().ips.is_empty());
    }

    #[tokio::test]
    async fn headless_takes_nothing() {
        let s = services("10.0.0.0/24");
        let mut v = service(json!({"clusterIP": "None", "selector": {"a": "b"}}));
        s.take(&mut v, None, false, &[]).unwrap().keep().await;
        assert_eq!(v["spec"]["clusterIPs"], json!(["None"]));
        assert_eq!(v["spec"]["ipFamilyPolicy"], "SingleStack");
        assert!(s.used.lock().ips.is_empty());
    }
}
