//! Flow control: how many requests run at once, and which wait. The trait has two implementations: [`InFlight`], with fixed limits of
//! reads and writes, and `fairness`, priority and fairness as API objects configure it.
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
use crate::shared::pool::{Class, Pool};

/// The properties of a request that flow control uses.
pub struct FlowRequest<'a> {
    /// Whether the request only reads.
    pub read: bool,
    /// The user after impersonation.
    pub user: &'a Arc<UserInfo>,
    /// The class that determines the user's share.
    pub class: Class,
    /// The parsed path and verb.
    pub info: &'a RequestInfo,
    /// The path as it arrived.
    pub path: &'a str,
    /// The query, which distinguishes a list from a watch.
    pub query: &'a Query,
    /// The target of the request.
    pub route: Option<&'a Route>,
}

impl FlowRequest<'_> {
    /// The attributes by which flow schemas match.
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

/// Permission for one request to run, until it is dropped.
pub struct Permit(#[allow(dead_code, reason = "is only dropped")] Option<Box<dyn Any + Send>>);

impl Permit {
    /// Keeps `held`, such as seats, until the permit is dropped.
    pub fn hold(held: impl Any + Send) -> Self {
        Self(Some(Box::new(held)))
    }
    /// A permit for a request that is not counted.
    pub fn uncounted() -> Self {
        Self(None)
    }
}

/// Returns a lent permit when it is dropped.
pub struct LentPermit(#[allow(dead_code, reason = "is only dropped")] oneshot::Sender<()>);

impl Permit {
    /// Lends the permit until the returned handle is dropped, but at most for `limit`, so that a slow reader of a response cannot hold
    /// seats as long as it likes.
    pub fn lend(self, tasks: &Tasks, limit: Duration) -> LentPermit {
        let (held, over) = oneshot::channel();
        tasks.spawn("flow-answer", OnPanic::Contain, async move {
            let _ = tokio::time::timeout(limit, over).await;
            drop(self);
        });
        LentPermit(held)
    }
}

/// The request is rejected because there is no capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy {
    /// Seconds after which the client may retry.
    pub retry_after_s: i32,
}

/// Whether a request may run.
pub enum Decision {
    /// It runs now, as long as the permit exists.
    Run(Permit),
    /// It waits; the future resolves when it may run, or when it has waited too long.
    Wait(BoxFuture<'static, Result<Permit, Busy>>),
    /// It is rejected.
    Full(Busy),
}

/// The decision about a request, and its classification.
pub struct Admittance {
    /// Whether it may run.
    pub decision: Decision,
    /// UIDs of the flow schema and the priority level.
    pub classification: Option<[HeaderValue; 2]>,
}

/// Decides when requests run.
pub trait Flow: Send + Sync {
    /// Decides about one request. Of long-running requests only watches are passed here; they hold their permit until they have begun.
    fn admit(&self, request: &FlowRequest<'_>) -> Admittance;
    /// The numbers of reads and writes in progress.
    fn in_flight(&self) -> (usize, usize);
}

/// Fixed limits of reads and writes (`--max-requests-inflight`, `--max-mutating-requests-inflight`). Requests never wait, and one user
/// cannot use the whole limit: see [`Pool`].
pub struct InFlight {
    reads: Arc<Pool>,
    writes: Arc<Pool>,
}

impl InFlight {
    /// Limits of this size.
    pub fn new(reads_max: usize, writes_max: usize) -> Self {
        Self { reads: Pool::new(reads_max), writes: Pool::new(writes_max) }
    }
}

impl Flow for InFlight {
    fn admit(&self, request: &FlowRequest<'_>) -> Admittance {
        if request.info.verb == "watch" {
            return Admittance { decision: Decision::Run(Permit::uncounted()), classification: None };
        }
        let pool = if request.read { &self.reads } else { &self.writes };
        let mut place = pool.share(Arc::clone(request.user), request.class);
        let decision = match place.take(1) {
            true => Decision::Run(Permit::hold(place)),
            false => Decision::Full(Busy { retry_after_s: RETRY_AFTER_S }),
        };
        Admittance { decision, classification: None }
    }
    fn in_flight(&self) -> (usize, usize) {
        (self.reads.held(), self.writes.held())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_except_for_masters() {
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
        assert_eq!(flow.in_flight(), (2, 0));
        drop(one);
        assert!(matches!(ask(&user, true, Class::System), Decision::Run(_)));
    }
}
