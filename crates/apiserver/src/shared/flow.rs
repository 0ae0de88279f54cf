//! Flow control: how many requests run at once, and who waits. Two rules stand behind one trait: [`InFlight`], fixed limits of
//! reads and writes, and `fairness`, priority and fairness as objects of the API say.
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::HeaderValue;
use kelson_auth::{Attributes, UserInfo};
use kelson_meta::url::Query;
use kelson_tasks::{OnPanic, Tasks};
use tokio::sync::oneshot;

use crate::request::body::RETRY_AFTER_S;
use crate::request::route::RequestInfo;
use crate::request::routes::Route;
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
    /// The path as it came.
    pub path: &'a str,
    /// The request's parameters, which tell a list from a watch.
    pub query: &'a Query,
    /// Where it ends.
    pub route: Option<&'a Route>,
}

impl FlowRequest<'_> {
    /// As authorization sees it.
    pub fn attributes(&self) -> Attributes<'_> {
        let i = self.info;
        Attributes {
            subresource: &i.subresource,
            version: &i.version,
            path: self.path,
            is_resource: i.is_resource,
            ..Attributes::resource(self.user, i.verb, &i.group, &i.resource, &i.namespace, &i.name)
        }
    }
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

/// Keeps a permit that was lent for as long as the answer is being made.
pub struct Lent(#[allow(dead_code, reason = "is only dropped")] oneshot::Sender<()>);

impl Permit {
    /// Lends it until the handle is dropped, but for no longer than `limit`: one that reads an answer slowly must not hold seats
    /// for as long as it likes.
    pub fn lend(self, tasks: &Tasks, limit: Duration) -> Lent {
        let (held, over) = oneshot::channel();
        tasks.spawn("flow-answer", OnPanic::Contain, async move {
            let _ = tokio::time::timeout(limit, over).await;
            drop(self);
        });
        Lent(held)
    }
}

/// There is no room for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy {
    /// Seconds after which it may come again.
    pub retry_after_s: i32,
}

/// Whether a request may run.
pub enum Decision {
    /// It runs now, and holds its place as long as the permit lives.
    Run(Permit),
    /// When its turn comes, unless that is too late.
    Wait(BoxFuture<'static, Result<Permit, Busy>>),
    /// There is no room.
    Full(Busy),
}

/// What became of a request, and what its answer says of it.
pub struct Admittance {
    /// Whether it may run.
    pub decision: Decision,
    /// UIDs of the flow schema and of the priority level that it was sorted into.
    pub sorted: Option<[HeaderValue; 2]>,
}

/// Decides when requests run.
pub trait Flow: Send + Sync {
    /// Judges one request. Of those that last, only watches are asked about: they hold their permit until they have begun.
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
        if request.info.verb == "watch" {
            return Admittance { decision: Decision::Run(Permit::uncounted()), sorted: None };
        }
        let room = if request.read { &self.reads } else { &self.writes };
        let mut place = room.enter(Arc::clone(request.user), request.class);
        let decision = match place.take(1) {
            true => Decision::Run(Permit::holding(place)),
            false => Decision::Full(Busy { retry_after_s: RETRY_AFTER_S }),
        };
        Admittance { decision, sorted: None }
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
        let ask = |user: &Arc<UserInfo>, read, class| {
            let (query, path) = (&Query::default(), "/");
            let request = FlowRequest { read, user, class, info: &info, path, query, route: None };
            flow.admit(&request).decision
        };
        let Decision::Run(one) = ask(&user, true, Class::System) else { panic!("a read fits") };
        let Decision::Run(_two) = ask(&other, true, Class::System) else { panic!("another fits") };
        assert!(matches!(ask(&user, true, Class::System), Decision::Full(_)));
        assert!(matches!(ask(&user, false, Class::System), Decision::Full(_)));
        assert!(matches!(ask(&user, false, Class::Master), Decision::Run(_)));
        assert_eq!(flow.under_way(), (2, 0));
        drop(one);
        assert!(matches!(ask(&user, true, Class::System), Decision::Run(_)));
    }
}
