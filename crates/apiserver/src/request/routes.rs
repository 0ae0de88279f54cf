//! Routes: which handler serves a resource request. Most requests are for kinds in the catalog, whose objects are in the store. An
//! aggregated API server may serve a whole group version.
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use http::{HeaderMap, Method, Uri};
use kelson_auth::UserInfo;
use kelson_meta::Status;
use parking_lot::{Mutex, RwLock};

use crate::catalog::{Catalog, Served};
use crate::request::answer::Answer;
use crate::request::body::RequestBody;
use crate::request::route::RequestInfo;

/// An authorized request that is passed on to another server.
pub struct RemoteRequest<'a> {
    /// The client's method.
    pub method: &'a Method,
    /// Path and query as they arrived.
    pub uri: &'a Uri,
    /// Headers as they arrived. They may contain the client's credentials, which the backend must not see.
    pub headers: &'a HeaderMap,
    /// The parsed path.
    pub info: &'a RequestInfo,
    /// The authenticated user, after impersonation.
    pub user: &'a UserInfo,
    /// The pending upgrade of the connection.
    pub upgrade: &'a Mutex<Option<hyper::upgrade::OnUpgrade>>,
    /// A reservation among the connections to other servers, held until the response was sent or its stream ended.
    pub reservation: Arc<dyn Any + Send + Sync>,
    /// The request's body, already read, so that the limits of bodies apply.
    pub body: RequestBody,
}

/// Answers all requests for one group version, including discovery of its resources.
pub trait RemoteHandler: Send + Sync {
    /// Answers an authorized request.
    fn serve<'a>(&'a self, request: RemoteRequest<'a>) -> BoxFuture<'a, Result<Answer, Status>>;
}

/// The target of a request.
#[derive(Clone)]
pub enum Route {
    /// A kind in the catalog, whose objects are in the store.
    Stored(Arc<Served>),
    /// Another server, such as an aggregated API server.
    Remote(Arc<dyn RemoteHandler>),
}

/// The target of the requests for each group version.
pub struct Routes {
    catalog: Arc<Catalog>,
    remotes: RwLock<HashMap<String, HashMap<String, Arc<dyn RemoteHandler>>>>,
}

impl Routes {
    /// All group versions go to the catalog.
    pub fn new(catalog: Arc<Catalog>) -> Self {
        Self { catalog, remotes: RwLock::default() }
    }
    /// Sends a group version to `handler` from now on, also if the catalog serves it.
    pub fn insert(&self, group: &str, version: &str, handler: Arc<dyn RemoteHandler>) {
        self.remotes.write().entry(group.to_owned()).or_default().insert(version.to_owned(), handler);
    }
    /// Removes the handler of a group version.
    pub fn remove(&self, group: &str, version: &str) {
        if let Some(versions) = self.remotes.write().get_mut(group) {
            versions.remove(version);
        }
    }
    /// The target of a request; `None` for the server's own paths, and for group versions or resources that are not served.
    pub fn find(&self, info: &RequestInfo, path: &str) -> Option<Route> {
        if !info.is_resource {
            let mut segments = path.split('/').filter(|s| !s.is_empty());
            let ("apis", group, version, None) =
                (segments.next()?, segments.next()?, segments.next()?, segments.next())
            else {
                return None;
            };
            return self.remote(group, version).map(Route::Remote);
        }
        // Only the legacy group is below `/api`.
        if (info.prefix == "api") != info.group.is_empty() {
            return None;
        }
        if let Some(remote) = self.remote(&info.group, &info.version) {
            return Some(Route::Remote(remote));
        }
        self.catalog.find(&info.group, &info.version, &info.resource).map(Route::Stored)
    }

    fn remote(&self, group: &str, version: &str) -> Option<Arc<dyn RemoteHandler>> {
        self.remotes.read().get(group)?.get(version).cloned()
    }
}
