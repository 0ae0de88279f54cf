//! Services: cluster IPs and node ports, handed out from what the stored Services leave free. The sets live in memory
//! and are made anew at start, so that they cannot leak (upstream `registry/core/service/{ip,port}allocator`). Who has an address is told
//! by an IPAddress object before the Service is stored, by which servers that share a storage take none twice.
mod addresses;
mod book;
mod pools;
mod ports;
mod ranges;

use std::collections::{HashMap, HashSet};
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
use pools::{Used, ports_of};
use ports::take_ports;
use ranges::Ranges;

use crate::catalog::Served;
use crate::config::{Config, StartError};

pub use book::{AddressBook, AddressOwner};
pub use pools::{Reservation, ips_of};

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

/// Addresses tried before a Service that wants any is refused: all of them were others', who told it meanwhile.
const ADDRESSES_TRIED_MAX: usize = 16;

impl Services {
    /// From the stored Services.
    ///
    /// # Errors
    /// [`StartError::Config`] without a range.
    pub fn new(config: &Config, store: &Store) -> Result<Self, StartError> {
        if config.service_cidrs.is_empty() {
            return Err(StartError::Config("--service-cluster-ip-range must be specified".into()));
        }
        let mut used = Used { ips: HashSet::new(), ports: HashMap::new(), port_range: config.node_ports };
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
        let ips = ips_of(last);
        if let Some(book) = self.book.get() {
            book.strike(&ips, &AddressOwner::of(last)).await;
        }
        if !self.store.is_mirror() {
            self.used.lock().release(&ips, &ports_of(last));
        }
    }

    /// Takes what a Service asks for, and enters its addresses. An address that turns out to be another's is exchanged for a free one
    /// unless it was asked for.
    async fn reserve(&self, service: &mut Value, old: Option<&Value>, dry_run: bool) -> Result<Reservation, Status> {
        let Some(book) = self.book.get().filter(|_| !dry_run) else { return self.take(service, old, dry_run) };
        let asked = ips_of(service);
        for attempt in 1.. {
            let mut candidate = service.clone();
            let mut taken = self.take(&mut candidate, old, dry_run)?;
            match taken.enter(book, AddressOwner::of(&candidate)).await? {
                None => {
                    *service = candidate;
                    return Ok(taken);
                }
                Some(ip) if attempt < ADDRESSES_TRIED_MAX && !asked.contains(&ip) => {}
                Some(ip) => return Err(allocated(&candidate, ip)),
            }
        }
        Err(Status::internal("no address could be taken"))
    }

    #[allow(clippy::field_reassign_with_default)] // it has a Drop, so struct update cannot build it
    fn take(&self, service: &mut Value, old: Option<&Value>, dry_run: bool) -> Result<Reservation, Status> {
        let none = Value::Null;
        let old = old.unwrap_or(&none);
        let (had_ips, had_ports) = (ips_of(old), ports_of(old));
        let mut under_way = self.used.lock();
        let mut taken = Reservation::default();
        taken.stored = self.store.is_mirror();
        let mut with_stored = taken.stored.then(|| under_way.clone());
        if let Some(used) = &mut with_stored {
            add_stored(&self.store, used);
        }
        let used = with_stored.as_mut().unwrap_or(&mut under_way);
        taken.used = Some(Arc::clone(&self.used));
        let mut errors = FieldErrors::new();
        let ranges = Ranges::now(&self.ranges, &self.store);
        families(&ranges.families(), service, old);
        take_ips(used, &ranges, service, &had_ips, &mut taken, &mut errors);
        if errors.is_empty() {
            take_ports(used, service, &had_ports, &mut taken, &mut errors);
        }
        if taken.stored {
            under_way.take(&taken.ips, &taken.ports);
        }
        drop(under_way);
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

/// Another has the address.
fn allocated(service: &Value, ip: IpAddr) -> Status {
    let mut errors = FieldErrors::new();
    let why = format!("failed to allocate IP {ip}: provided IP is already allocated");
    let shown: Vec<String> = ips_of(service).iter().map(ToString::to_string).collect();
    errors.invalid(&FieldPath::new("spec").child("clusterIPs"), &shown, why);
    Status::invalid(
        &GroupKind { group: String::new(), kind: "Service".into() },
        text(&service["metadata"]["name"]),
        &errors,
    )
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

    fn service(spec: Value) -> Value {
        json!({"metadata": {"name": "s"}, "spec": spec})
    }

    #[tokio::test]
    async fn addresses_run_out_and_come_back() {
        let s = services("10.0.0.0/29");
        let mut kept = Vec::new();
        for _ in 0..6 {
            let mut v = service(json!({"type": "ClusterIP"}));
            s.take(&mut v, None, false).unwrap().keep().await;
            kept.push(v);
        }
        let mut v = service(json!({"type": "ClusterIP"}));
        assert_eq!(s.take(&mut v, None, false).err().map(|e| e.code), Some(422));
        let last = kept.pop().unwrap();
        s.used.lock().release(&ips_of(&last), &ports_of(&last));
        let mut v = service(json!({"type": "ClusterIP", "clusterIP": last["spec"]["clusterIP"]}));
        s.take(&mut v, None, false).unwrap().keep().await;
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

    #[tokio::test]
    async fn node_ports() {
        let s = services("10.0.0.0/24");
        let mut v = service(
            json!({"type": "NodePort", "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}),
        );
        s.take(&mut v, None, false).unwrap().keep().await;
        let ports = &v["spec"]["ports"];
        assert_eq!(ports[0]["nodePort"], ports[1]["nodePort"]);
        let taken = ports[0]["nodePort"].clone();
        let mut w = service(json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": taken}]}));
        assert!(s.take(&mut w, None, false).err().unwrap().message.contains("provided port is already allocated"));
        let mut w = service(json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 80}]}));
        assert!(s.take(&mut w, None, false).err().unwrap().message.contains("30000-32767"));
    }

    #[tokio::test]
    async fn an_update_keeps_what_it_has_and_gives_back_what_it_leaves() {
        let s = services("10.0.0.0/24");
        let mut old = service(json!({"type": "NodePort", "ports": [{"port": 80}]}));
        s.take(&mut old, None, false).unwrap().keep().await;
        let mut new = old.clone();
        new["spec"]["type"] = "ClusterIP".into();
        new["spec"]["ports"][0].as_object_mut().unwrap().remove("nodePort");
        s.take(&mut new, Some(&old), false).unwrap().keep().await;
        assert_eq!(new["spec"]["clusterIP"], old["spec"]["clusterIP"]);
        assert!(s.used.lock().ports.is_empty());
        let mut gone = new.clone();
        gone["spec"] = json!({"type": "ExternalName", "externalName": "x"});
        s.take(&mut gone, Some(&new), false).unwrap().keep().await;
        assert!(s.used.lock().ips.is_empty());
    }

    #[tokio::test]
    async fn headless_takes_nothing() {
        let s = services("10.0.0.0/24");
        let mut v = service(json!({"clusterIP": "None", "selector": {"a": "b"}}));
        s.take(&mut v, None, false).unwrap().keep().await;
        assert_eq!(v["spec"]["clusterIPs"], json!(["None"]));
        assert_eq!(v["spec"]["ipFamilyPolicy"], "SingleStack");
        assert!(s.used.lock().ips.is_empty());
    }
}
