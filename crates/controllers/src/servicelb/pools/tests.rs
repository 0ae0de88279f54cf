//! Allocation by table, and random histories in which caches are late, writes fail and the controller restarts.
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn pools(texts: &[&str]) -> Vec<AddressPool> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn claim(name: &str, created: u32) -> PoolClaim {
    PoolClaim {
        key: ObjectKey::new("n", name),
        created: format!("2026-01-01T00:00:{created:02}Z"),
        is_ours: true,
        families: vec!["IPv4".into()],
        ..PoolClaim::default()
    }
}

/// Each service's addresses and reason as text.
fn shown(claims: Vec<PoolClaim>, pools: &[AddressPool]) -> Vec<String> {
    let show = |(key, grant): (ObjectKey, Grant)| {
        let addresses: Vec<String> = grant.addresses.iter().map(ToString::to_string).collect();
        let reason = grant.shortage.as_ref().map_or("", Shortage::reason);
        format!("{}: {} {reason}", key.name, addresses.join(",")).trim_end().to_owned()
    };
    Ledger::default().grant(claims, pools).into_iter().map(show).collect()
}

#[test]
fn the_older_service_gets_the_first_address_until_none_is_left() {
    let pools = pools(&["192.0.2.10-192.0.2.11"]);
    let all = vec![claim("new", 3), claim("old", 1), claim("middle", 2)];
    assert_eq!(shown(all, &pools), ["middle: 192.0.2.11", "new:  AddressPoolExhausted", "old: 192.0.2.10"]);
    let mut kept = claim("kept", 9);
    kept.status = vec![ip("192.0.2.10")];
    assert_eq!(shown(vec![claim("old", 1), kept], &pools), ["kept: 192.0.2.10", "old: 192.0.2.11"]);
}

#[test]
fn requested_addresses() {
    let pools = pools(&["192.0.2.10-192.0.2.12", "2001:db8::/64"]);
    let asking = |name: &str, created: u32, requested: &[&str]| PoolClaim {
        requested: requested.iter().map(|text| ip(text)).collect(),
        families: vec!["IPv4".into(), "IPv6".into()],
        ..claim(name, created)
    };
    let mut moved = asking("moved", 4, &["192.0.2.11"]);
    moved.status = vec![ip("192.0.2.10"), ip("2001:db8::9")];
    let all = vec![
        asking("a", 1, &["192.0.2.12"]),
        asking("b", 2, &["192.0.2.12", "2001:db8::99"]),
        asking("c", 3, &["198.51.100.1"]),
        moved,
    ];
    let want = [
        "a: 192.0.2.12,2001:db8::",
        "b: 2001:db8::99 AddressInUse",
        "c: 2001:db8::1 AddressNotInPool",
        "moved: 192.0.2.11,2001:db8::9",
    ];
    assert_eq!(shown(all, &pools), want);
    let unfit = PoolClaim { requested: vec![ip("2001:db8::1")], ..claim("unfit", 1) };
    assert_eq!(shown(vec![unfit], &pools), ["unfit:  InvalidAddress"]);
}

#[test]
fn families_without_a_pool() {
    let pools = pools(&["192.0.2.10"]);
    let of =
        |families: &[&str]| PoolClaim { families: families.iter().map(|f| (*f).into()).collect(), ..claim("web", 1) };
    assert_eq!(shown(vec![of(&["IPv6", "IPv4"])], &pools), ["web: 192.0.2.10"]);
    assert_eq!(shown(vec![of(&["IPv6"])], &pools), ["web:  NoAddressPool"]);
}

#[test]
fn what_another_load_balancer_gave_is_not_given() {
    let theirs = PoolClaim { is_ours: false, status: vec![ip("192.0.2.10")], ..claim("theirs", 9) };
    let mut ours = claim("ours", 1);
    assert_eq!(shown(vec![theirs.clone(), ours.clone()], &pools(&["192.0.2.10-192.0.2.20"])), ["ours: 192.0.2.11"]);
    ours.status = vec![ip("192.0.2.10")];
    assert_eq!(shown(vec![theirs, ours], &pools(&["192.0.2.10-192.0.2.20"])), ["ours: 192.0.2.11"]);
}

#[test]
fn an_address_outside_of_changed_pools_is_replaced() {
    let had = PoolClaim { status: vec![ip("192.0.2.10")], ..claim("web", 1) };
    assert_eq!(shown(vec![had], &pools(&["192.0.2.20"])), ["web: 192.0.2.20"]);
}

/// A cluster in which the controller's cache is behind the store.
struct World {
    rng: StdRng,
    pools: Vec<AddressPool>,
    /// The services as they are stored.
    store: BTreeMap<ObjectKey, PoolClaim>,
    /// The services as the controller sees them; each follows the store at its own time.
    cache: BTreeMap<ObjectKey, PoolClaim>,
    ledger: Ledger,
    created: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let pools = pools(&["192.0.2.10-192.0.2.13", "2001:db8::/127"]);
        let rng = StdRng::seed_from_u64(seed);
        Self { rng, pools, store: BTreeMap::new(), cache: BTreeMap::new(), ledger: Ledger::default(), created: 0 }
    }

    fn step(&mut self) {
        let key = ObjectKey::new("n", format!("s{}", self.rng.random_range(0..7)));
        match self.rng.random_range(0..12) {
            0 | 1 => {
                self.created += 1;
                let families = [&["IPv4"][..], &["IPv6"], &["IPv6", "IPv4"]][self.rng.random_range(0..3)];
                let families = families.iter().map(|f| (*f).to_owned()).collect();
                let new = PoolClaim { key: key.clone(), families, ..claim("", self.created) };
                self.store.entry(key).or_insert(new);
            }
            2 => {
                // The finalizer keeps a service until its addresses are released, so only services without one vanish.
                if self.store.get(&key).is_some_and(|claim| claim.status.is_empty()) {
                    self.store.remove(&key);
                }
            }
            3 => {
                let is_ours = self.rng.random_bool(0.7);
                self.store.entry(key).and_modify(|claim| claim.is_ours = is_ours);
            }
            4 => {
                let requested = [ip("192.0.2.12"), ip("2001:db8::1"), ip("198.51.100.1")][self.rng.random_range(0..3)];
                let requested = if self.rng.random() { vec![requested] } else { Vec::new() };
                self.store.entry(key).and_modify(|claim| claim.requested = requested);
            }
            5 => {
                // A new controller reads everything at its start.
                (self.ledger, self.cache) = (Ledger::default(), self.store.clone());
            }
            6..=8 => match self.store.get(&key) {
                Some(claim) => drop(self.cache.insert(key, claim.clone())),
                None => drop(self.cache.remove(&key)),
            },
            _ => self.sync(),
        }
    }

    /// What the controller does: it writes only services that did not change since they were read, and a write may fail.
    fn sync(&mut self) {
        let grants = self.ledger.grant(self.cache.values().cloned().collect(), &self.pools);
        for (key, seen) in self.cache.clone() {
            if self.store.get(&key) != Some(&seen) || self.rng.random_bool(0.2) {
                continue;
            }
            let status = match grants.get(&key) {
                Some(grant) => grant.addresses.clone(),
                None => Vec::new(),
            };
            self.store.entry(key.clone()).and_modify(|claim| claim.status = status);
            if !seen.is_ours {
                self.ledger.release(&key);
            }
        }
    }

    fn check(&self) {
        let mut given = BTreeMap::new();
        for claim in self.store.values() {
            for ip in &claim.status {
                let other = given.insert(*ip, &claim.key);
                assert_eq!(other, None, "{ip} is given to {} as well", claim.key);
                assert!(self.pools.iter().any(|pool| pool.contains(*ip)), "{ip}");
            }
        }
    }
}

#[test]
fn random_histories_never_give_an_address_twice() {
    let mut given = 0;
    for seed in 0..300 {
        let mut world = World::new(seed);
        for _ in 0..200 {
            world.step();
            world.check();
            given += world.store.values().filter(|claim| !claim.status.is_empty()).count();
        }
        // When nothing changes any more, every service gets what there is, and keeps it.
        world.cache = world.store.clone();
        for _ in 0..40 {
            world.sync();
            world.cache = world.store.clone();
        }
        let settled = world.store.clone();
        world.ledger = Ledger::default();
        let grants = world.ledger.grant(world.cache.values().cloned().collect(), &world.pools);
        for (key, grant) in grants {
            assert_eq!(settled[&key].status, grant.addresses, "seed {seed}: {key} after a restart");
        }
    }
    assert!(given > 10_000, "the histories give addresses: {given}");
}
