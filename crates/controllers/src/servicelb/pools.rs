//! Which addresses of the pools each service of type LoadBalancer gets. Everything here is pure.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use kelson_meta::ObjectKey;

use crate::shared::address_pool::AddressPool;

/// A service, with what it has and wants of the pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolClaim {
    pub key: ObjectKey,
    /// Creation time as in the object. It precedes the key in the order in which addresses are given.
    pub created: String,
    /// Whether it gets addresses here. Other services keep what their status has.
    pub is_ours: bool,
    /// `IPv4` and `IPv6`, in order of preference.
    pub families: Vec<String>,
    /// The addresses that it asks for, at most one of each family; empty for any.
    pub requested: Vec<IpAddr>,
    /// The addresses of its status.
    pub status: Vec<IpAddr>,
}

/// Why a service lacks an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// All addresses of a family are given.
    Exhausted {
        /// The pools of that family.
        pools: Vec<AddressPool>,
    },
    /// No pool has addresses of its families.
    NoPool {
        /// The families of the service.
        families: Vec<String>,
    },
    /// No pool contains the requested address.
    NotInPool(IpAddr),
    /// Another service has the requested address.
    InUse {
        /// The requested address.
        ip: IpAddr,
        /// The service that has it.
        by: ObjectKey,
    },
    /// The request is invalid.
    Invalid(AddressRequestError),
}

/// Why the addresses that a service asks for cannot be looked up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressRequestError {
    /// Field and annotation are set.
    #[error("spec.loadBalancerIP and the annotation {annotation} must not both be set")]
    Ambiguous {
        /// The name of the annotation.
        annotation: &'static str,
    },
    /// A requested address is no IP address.
    #[error("the requested address {0:?} must be an IP address")]
    NotAnAddress(String),
    /// Two addresses of one family are requested.
    #[error("at most one address of each family can be requested")]
    SeveralOfFamily,
    /// A requested address is of no family of the service.
    #[error("the requested address {ip} is of no family of the service ({})", families.join(", "))]
    OtherFamily {
        /// The requested address.
        ip: IpAddr,
        /// The families of the service.
        families: Vec<String>,
    },
}

impl Shortage {
    /// Returns the reason for a condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Exhausted { .. } => "AddressPoolExhausted",
            Self::NoPool { .. } => "NoAddressPool",
            Self::NotInPool(_) => "AddressNotInPool",
            Self::InUse { .. } => "AddressInUse",
            Self::Invalid(_) => "InvalidAddress",
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted { pools } => {
                let pools: Vec<String> = pools.iter().map(ToString::to_string).collect();
                write!(f, "no address is free in the pools {}", pools.join(", "))
            }
            Self::NoPool { families } => write!(f, "no address pool has addresses of {}", families.join(" or ")),
            Self::NotInPool(ip) => write!(f, "the requested address {ip} is in no address pool"),
            Self::InUse { ip, by } => write!(f, "the requested address {ip} is in use by service {by}"),
            Self::Invalid(error) => write!(f, "{error}"),
        }
    }
}

/// What a service gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// At most one address of each family, in the order of its families.
    pub addresses: Vec<IpAddr>,
    /// Why it did not get all.
    pub shortage: Option<Shortage>,
}

/// The addresses that were decided. The record is the status of the services; this has what may have been written and is
/// not in the cache yet, so that no address is given to another service meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Ledger(BTreeMap<ObjectKey, Vec<IpAddr>>);

impl Ledger {
    /// Gives addresses to all services that are ours: what they have, else what they ask for, else the first free address.
    /// `claims` has every service of the cache.
    pub fn grant(&mut self, mut claims: Vec<PoolClaim>, pools: &[AddressPool]) -> BTreeMap<ObjectKey, Grant> {
        let keys: BTreeSet<&ObjectKey> = claims.iter().map(|claim| &claim.key).collect();
        self.0.retain(|key, _| keys.contains(key));
        claims.sort_by(|a, b| (&a.created, &a.key).cmp(&(&b.created, &b.key)));
        let mut round = Round { pools, holders: BTreeMap::new() };
        for claim in &claims {
            let decided = self.0.get(&claim.key).into_iter().flatten();
            for ip in claim.status.iter().chain(decided) {
                round.holders.entry(*ip).or_default().insert(claim.key.clone());
            }
        }
        let mut grants = BTreeMap::new();
        for claim in claims.iter().filter(|claim| claim.is_ours) {
            let had = self.0.get(&claim.key).unwrap_or(&claim.status).clone();
            let grant = round.grant(claim, &had);
            self.0.insert(claim.key.clone(), grant.addresses.clone());
            grants.insert(claim.key.clone(), grant);
        }
        grants
    }

    /// Forgets a service whose status was emptied.
    pub fn release(&mut self, key: &ObjectKey) {
        self.0.remove(key);
    }
}

/// One decision about all services.
struct Round<'a> {
    pools: &'a [AddressPool],
    /// The services that have an address by status or ledger, or got it now.
    holders: BTreeMap<IpAddr, BTreeSet<ObjectKey>>,
}

fn is_family(ip: IpAddr, family: &str) -> bool {
    family == if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

impl Round<'_> {
    fn grant(&mut self, claim: &PoolClaim, had: &[IpAddr]) -> Grant {
        let mut grant = Grant::default();
        let has_pool = |family: &str| self.pools.iter().any(|pool| (family == "IPv4") == pool.is_ipv4());
        let families: Vec<&String> = claim.families.iter().filter(|family| has_pool(family)).collect();
        if families.is_empty() {
            grant.shortage = Some(Shortage::NoPool { families: claim.families.clone() });
        }
        let unfit = claim.requested.iter().find(|ip| !claim.families.iter().any(|family| is_family(**ip, family)));
        if let Some(ip) = unfit {
            let error = AddressRequestError::OtherFamily { ip: *ip, families: claim.families.clone() };
            grant.shortage = Some(Shortage::Invalid(error));
            return grant;
        }
        for family in families {
            let requested = claim.requested.iter().find(|ip| is_family(**ip, family)).copied();
            let chosen = match (requested, had.iter().find(|ip| is_family(**ip, family))) {
                (Some(ip), _) => self.requested(claim, ip),
                (None, Some(ip)) if self.is_free(claim, *ip) && self.is_pooled(*ip) => Ok(*ip),
                (None, _) => self.first_free(claim, family),
            };
            match chosen {
                Ok(ip) => {
                    self.holders.insert(ip, BTreeSet::from([claim.key.clone()]));
                    grant.addresses.push(ip);
                }
                Err(shortage) => grant.shortage = grant.shortage.or(Some(shortage)),
            }
        }
        grant
    }

    fn is_pooled(&self, ip: IpAddr) -> bool {
        self.pools.iter().any(|pool| pool.contains(ip))
    }

    fn is_free(&self, claim: &PoolClaim, ip: IpAddr) -> bool {
        self.holders.get(&ip).is_none_or(|keys| keys.iter().all(|key| *key == claim.key))
    }

    fn requested(&self, claim: &PoolClaim, ip: IpAddr) -> Result<IpAddr, Shortage> {
        if !self.is_pooled(ip) {
            return Err(Shortage::NotInPool(ip));
        }
        match self.holders.get(&ip).and_then(|keys| keys.iter().find(|key| **key != claim.key)) {
            Some(by) => Err(Shortage::InUse { ip, by: by.clone() }),
            None => Ok(ip),
        }
    }

    fn first_free(&self, claim: &PoolClaim, family: &str) -> Result<IpAddr, Shortage> {
        let pools = || self.pools.iter().filter(|pool| pool.is_ipv4() == (family == "IPv4"));
        let free = pools().flat_map(AddressPool::addresses).find(|ip| self.is_free(claim, *ip));
        free.ok_or_else(|| Shortage::Exhausted { pools: pools().copied().collect() })
    }
}

#[cfg(test)]
mod tests;
