//! Flow control: how many requests run at once, and who waits. The limits of reads and writes in flight are its first
//! tenant; whatever sorts requests by their senders comes through the same trait.
use std::any::Any;
use std::sync::Arc;

use futures::future::BoxFuture;
use kelson_auth::UserInfo;

use crate::request::route::RequestInfo;
use crate::shared::room::{Class, Room};

/// What flow control sees of a request.
pub struct FlowRequest<'a> {
    /// Whether it only reads.
    pub read: bool,
    /// Its sender, after impersonation, by which it is sorted.
    pub user: &'a Arc<UserInfo>,
    /// What part of the room is open to them.
    pub class: Class,
    /// What is asked.
    pub info: &'a RequestInfo,
}

/// Lets one request run for as long as it is kept.
pub struct Permit(#[allow(dead_code, reason = "is only dropped")] Option<Box<dyn Any + Send>>);

impl Permit {
    /// Takes something up that is given back when the request is over.
    pub fn holding(held: impl Any + Send) -> Self {
        Self(Some(Box::new(held)))
    }
    /// For requests that are not counted.
    pub fn uncounted() -> Self {
        Self(None)
    }
}

/// Whether a request may run.
pub enum Admittance {
    /// It runs now, and holds its place as long as the permit lives.
    Run(Permit),
    /// When its turn comes; `None` when it comes too late.
    Wait(BoxFuture<'static, Option<Permit>>),
    /// There is no room.
    Full,
}

/// Decides when requests run.
pub trait Flow: Send + Sync {
    /// Judges one request that does not last (watches and streams are never asked about).
    fn admit(&self, request: &FlowRequest<'_>) -> Admittance;
    /// Reads and writes under way.
    fn under_way(&self) -> (usize, usize);
}

/// Fixed limits of reads and writes (`--max-requests-inflight`, `--max-mutating-requests-inflight`). Nobody waits, and
/// nobody may hold all of the room: see [`Room`].
pub struct InFlight {
    reads: Arc<Room>,
    writes: Arc<Room>,
}

impl InFlight {
    /// With these limits.
    pub fn new(reads_max: usize, writes_max: usize) -> Self {
        Self { reads: Room::new(reads_max), writes: Room::new(writes_max) }
    }
}

impl Flow for InFlight {
    fn admit(&self, request: &FlowRequest<'_>) -> Admittance {
        let room = if request.read { &self.reads } else { &self.writes };
        let mut place = room.enter(Arc::clone(request.user), request.class);
        if place.take(1) { Admittance::Run(Permit::holding(place)) } else { Admittance::Full }
    }
    fn under_way(&self) -> (usize, usize) {
        (self.reads.held(), self.writes.held())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_run_than_there_is_room_but_for_operators() {
        let flow = InFlight::new(2, 0);
        let (user, other, info) =
            (Arc::new(UserInfo::new("a", ["g"])), Arc::new(UserInfo::new("b", ["g"])), RequestInfo::default());
        let ask = |user: &Arc<UserInfo>, read, class| flow.admit(&FlowRequest { read, user, class, info: &info });
        let Admittance::Run(one) = ask(&user, true, Class::System) else { panic!("a read fits") };
        let Admittance::Run(_two) = ask(&other, true, Class::System) else { panic!("another fits") };
        assert!(matches!(ask(&user, true, Class::System), Admittance::Full));
        assert!(matches!(ask(&user, false, Class::System), Admittance::Full));
        assert!(matches!(ask(&user, false, Class::Master), Admittance::Run(_)));
        assert_eq!(flow.under_way(), (2, 0));
        drop(one);
        assert!(matches!(ask(&user, true, Class::System), Admittance::Run(_)));
    }
}
