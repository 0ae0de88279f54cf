//! Room: how much of something requests may hold at once, be it places in flight or bytes of bodies. Nobody may hold it
//! all: each user has a share, and a part is kept for the cluster's own components and for nodes, so that leases are
//! renewed whatever others do. It refuses and never queues.
use std::collections::HashMap;
use std::sync::Arc;

use kelson_auth::{UserInfo, user};
use kelson_tasks::Turns;
use parking_lot::Mutex;

/// Whose request it is, for the part of the room that is open to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// May do everything: let in always, for an operator must be able to repair an overloaded server.
    Master,
    /// Nodes and the cluster's own components: all of the room, and half of it each.
    System,
    /// Everybody else: three quarters of the room, and half of that each.
    Ordinary,
}

impl Class {
    /// `in_process`: a component of this process asks.
    pub fn of(who: &UserInfo, in_process: bool) -> Self {
        if who.in_group(user::MASTERS) {
            Self::Master
        } else if in_process || who.in_group(user::NODES) || who.name.starts_with("system:kube-") {
            Self::System
        } else {
            Self::Ordinary
        }
    }

    /// On whose behalf a request computes for long.
    pub fn turns(self, who: &UserInfo) -> Turns {
        match self {
            Self::Master | Self::System => Turns::Reserved,
            Self::Ordinary => Turns::Of(who.name.as_str().into()),
        }
    }
}

/// What may be held at once.
pub struct Room {
    size: usize,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    total: usize,
    ordinary: usize,
    /// By user; who holds nothing is not in it.
    users: HashMap<String, usize>,
}

impl Room {
    /// An empty room.
    pub fn new(size: usize) -> Arc<Self> {
        Arc::new(Self { size, held: Mutex::default() })
    }

    /// How much is held.
    pub fn held(&self) -> usize {
        self.held.lock().total
    }

    /// A place for a request that holds nothing yet.
    pub fn enter(self: &Arc<Self>, who: Arc<UserInfo>, class: Class) -> Place {
        Place { room: Arc::clone(self), who, class, amount: 0 }
    }

    fn part(&self, class: Class) -> usize {
        match class {
            Class::Ordinary => self.size - self.size / 4,
            _ => self.size,
        }
    }
}

/// What one request holds; given back when it is dropped.
pub struct Place {
    room: Arc<Room>,
    who: Arc<UserInfo>,
    class: Class,
    amount: usize,
}

impl Place {
    /// Takes more; whether there was room.
    #[must_use]
    pub fn take(&mut self, amount: usize) -> bool {
        let mut held = self.room.held.lock();
        let part = self.room.part(self.class);
        let own = held.users.get(&self.who.name).copied().unwrap_or(0);
        let fits = match self.class {
            Class::Master => true,
            Class::System => held.total + amount <= part && own + amount <= (part / 2).max(1),
            Class::Ordinary => {
                held.total + amount <= self.room.size
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

impl Drop for Place {
    fn drop(&mut self) {
        if self.amount == 0 {
            return;
        }
        let mut held = self.room.held.lock();
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

    /// Takes one after the other until there is no more room; what is held stays held.
    fn fill(room: &Arc<Room>, who: &Arc<UserInfo>, class: Class) -> Vec<Place> {
        let one = || {
            let mut place = room.enter(Arc::clone(who), class);
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
    fn shares_and_the_reserve() {
        let room = Room::new(80);
        let (a, b, c) = (who("a", ""), who("b", ""), who("c", ""));
        let held = [fill(&room, &a, Class::Ordinary), fill(&room, &b, Class::Ordinary)];
        assert_eq!(held.each_ref().map(Vec::len), [30, 30], "half of three quarters each");
        assert!(fill(&room, &c, Class::Ordinary).is_empty());
        let node = fill(&room, &who("system:node:n", user::NODES), Class::System);
        assert_eq!(node.len(), 20, "the reserve is theirs");
        assert_eq!(fill(&room, &who("admin", user::MASTERS), Class::Master).len(), 1_000);
        drop((held, node));
        assert_eq!(room.held(), 0);
        assert!(room.held.lock().users.is_empty());
        assert_eq!(
            fill(&room, &who("system:node:n", user::NODES), Class::System).len(),
            40,
            "one node is not all nodes"
        );
    }

    #[test]
    fn a_room_of_one_lets_one_in() {
        let room = Room::new(1);
        assert_eq!(fill(&room, &who("a", ""), Class::Ordinary).len(), 1);
    }
}
