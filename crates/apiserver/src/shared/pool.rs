//! Limits with fair shares: how much of something requests may hold at once, such as requests in flight or bytes of bodies. No user may
//! hold all of it. A part is reserved for nodes and the cluster's own components, so that leases are renewed under any load. Requests
//! beyond the limit are rejected, never queued.
use std::collections::HashMap;
use std::sync::Arc;

use kelson_auth::{UserInfo, user};
use kelson_tasks::Turns;
use parking_lot::Mutex;

/// The class of a user, which determines the share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `system:masters`: always admitted, because an operator must be able to repair an overloaded server.
    Master,
    /// Nodes and the cluster's own components: the whole limit, half of it per user.
    System,
    /// All other users: three quarters of the limit, half of that per user.
    Ordinary,
}

impl Class {
    /// The class of a user. `in_process`: the request comes from a component of this process.
    pub fn of(who: &UserInfo, in_process: bool) -> Self {
        if who.in_group(user::MASTERS) {
            Self::Master
        } else if in_process || who.in_group(user::NODES) || who.name.starts_with("system:kube-") {
            Self::System
        } else {
            Self::Ordinary
        }
    }

    /// The queue in which a heavy request of this user waits.
    pub fn turns(self, who: &UserInfo) -> Turns {
        match self {
            Self::Master | Self::System => Turns::Reserved,
            Self::Ordinary => Turns::Of(who.name.as_str().into()),
        }
    }
}

/// A limit and what is held of it.
pub struct Pool {
    size: usize,
    held: Mutex<SeatCounts>,
}

#[derive(Default)]
struct SeatCounts {
    total: usize,
    ordinary: usize,
    /// Amounts by user; users who hold nothing are not in the map.
    users: HashMap<String, usize>,
}

impl Pool {
    /// A limit of which nothing is held.
    pub fn new(size: usize) -> Arc<Self> {
        Arc::new(Self { size, held: Mutex::default() })
    }

    /// The total amount that is held.
    pub fn held(&self) -> usize {
        self.held.lock().total
    }

    /// A share for one request, which holds nothing yet.
    pub fn share(self: &Arc<Self>, who: Arc<UserInfo>, class: Class) -> PoolShare {
        PoolShare { pool: Arc::clone(self), who, class, amount: 0 }
    }

    fn part(&self, class: Class) -> usize {
        match class {
            Class::Ordinary => self.size - self.size / 4,
            _ => self.size,
        }
    }
}

/// The share of the pool that one request holds. Dropping it returns the share.
pub struct PoolShare {
    pool: Arc<Pool>,
    who: Arc<UserInfo>,
    class: Class,
    amount: usize,
}

impl PoolShare {
    /// Takes more; `false` if that exceeds a limit.
    #[must_use]
    pub fn take(&mut self, amount: usize) -> bool {
        let mut held = self.pool.held.lock();
        let part = self.pool.part(self.class);
        let own = held.users.get(&self.who.name).copied().unwrap_or(0);
        let fits = match self.class {
            Class::Master => true,
            Class::System => held.total + amount <= part && own + amount <= (part / 2).max(1),
            Class::Ordinary => {
                held.total + amount <= self.pool.size
                    && held.ordinary + amount <= part
                    && own + amount <= (part / 2).max(1)
            }
        };
        if !fits {
            return false;
        }
        held.total += amount;
        if self.class == Class::Ordinary {
            held.ordinary += amount;
        }
        match held.users.get_mut(&self.who.name) {
            Some(own) => *own += amount,
            None => drop(held.users.insert(self.who.name.clone(), amount)),
        }
        drop(held);
        self.amount += amount;
        true
    }
}

impl Drop for PoolShare {
    fn drop(&mut self) {
        if self.amount == 0 {
            return;
        }
        let mut held = self.pool.held.lock();
        held.total -= self.amount;
        if self.class == Class::Ordinary {
            held.ordinary -= self.amount;
        }
        if let Some(own) = held.users.get_mut(&self.who.name) {
            *own -= self.amount;
            if *own == 0 {
                held.users.remove(&self.who.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(name: &str, group: &str) -> Arc<UserInfo> {
        Arc::new(UserInfo::new(name, [group]))
    }

    /// Takes one after the other until the limit is reached. They stay held.
    fn fill(pool: &Arc<Pool>, who: &Arc<UserInfo>, class: Class) -> Vec<PoolShare> {
        let one = || {
            let mut place = pool.share(Arc::clone(who), class);
            place.take(1).then_some(place)
        };
        std::iter::from_fn(one).take(1_000).collect()
    }

    #[test]
    fn classes() {
        for (who, in_process, class) in [
            (who("admin", user::MASTERS), false, Class::Master),
            (who("system:node:n", user::NODES), false, Class::System),
            (who("system:kube-scheduler", ""), false, Class::System),
            (who("system:serviceaccount:kube-system:x", ""), true, Class::System),
            (who("system:serviceaccount:kube-system:x", ""), false, Class::Ordinary),
            (who("system:anonymous", ""), false, Class::Ordinary),
        ] {
            assert_eq!(Class::of(&who, in_process), class, "{}", who.name);
        }
    }

    #[test]
    fn users_have_shares_and_nodes_a_reserve() {
        let pool = Pool::new(80);
        let (a, b, c) = (who("a", ""), who("b", ""), who("c", ""));
        let held = [fill(&pool, &a, Class::Ordinary), fill(&pool, &b, Class::Ordinary)];
        assert_eq!(held.each_ref().map(Vec::len), [30, 30], "half of three quarters each");
        assert!(fill(&pool, &c, Class::Ordinary).is_empty());
        let node = fill(&pool, &who("system:node:n", user::NODES), Class::System);
        assert_eq!(node.len(), 20, "the reserve");
        assert_eq!(fill(&pool, &who("admin", user::MASTERS), Class::Master).len(), 1_000);
        drop((held, node));
        assert_eq!(pool.held(), 0);
        assert!(pool.held.lock().users.is_empty());
        assert_eq!(
            fill(&pool, &who("system:node:n", user::NODES), Class::System).len(),
            40,
            "one node cannot take all"
        );
    }

    #[test]
    fn a_limit_of_one_admits_one() {
        let pool = Pool::new(1);
        assert_eq!(fill(&pool, &who("a", ""), Class::Ordinary).len(), 1);
    }
}
