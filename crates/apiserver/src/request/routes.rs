//! Routes: where a request for a resource ends. Most end at what the catalog serves and the store keeps; a whole group
//! version may be somebody else's.
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

/// An authorized request on its way to somebody else.
pub struct RemoteRequest<'a> {
    /// As the client sent it.
    pub method: &'a Method,
    /// Path and query as they came.
    pub uri: &'a Uri,
    /// Headers as they came, the client's credentials among them: they are not the backend's to see.
    pub headers: &'a HeaderMap,
    /// What is asked.
    pub info: &'a RequestInfo,
    /// The sender, proven and after impersonation.
    pub user: &'a UserInfo,
    /// The pending upgrade of the connection.
    pub upgrade: &'a Mutex<Option<hyper::upgrade::OnUpgrade>>,
    /// A place among the connections to other servers: kept until the answer was sent, or its stream ended.
    pub place: Arc<dyn Any + Send + Sync>,
    /// Read whole: the limits of bodies hold for them as for all others.
    pub body: RequestBody,
}

/// Answers every request for one group version, discovery of its resources included.
pub trait RemoteHandler: Send + Sync {
    /// Answers an authorized request.
    fn serve<'a>(&'a self, request: RemoteRequest<'a>) -> BoxFuture<'a, Result<Answer, Status>>;
}

/// Where a request ends.
#[derive(Clone)]
pub enum Route {
    /// At a resource of the catalog.
    Stored(Arc<Served>),
    /// At somebody else's, as for an aggregated API.
    Remote(Arc<dyn RemoteHandler>),
}

/// Where the requests for each group version end.
pub struct Routes {
    catalog: Arc<Catalog>,
    remotes: RwLock<HashMap<String, HashMap<String, Arc<dyn RemoteHandler>>>>,
}

impl Routes {
    /// To the catalog alone.
    pub fn new(catalog: Arc<Catalog>) -> Self {
        Self { catalog, remotes: RwLock::default() }
    }
    /// Sends a group version elsewhere from now on, also what the catalog serves of it.
    pub fn insert(&self, group: &str, version: &str, handler: Arc<dyn RemoteHandler>) {
        self.remotes.write().entry(group.to_owned()).or_default().insert(version.to_owned(), handler);
    }
    /// Takes a group version back.
    pub fn remove(&self, group: &str, version: &str) {
        if let Some(versions) = self.remotes.write().get_mut(group) {
            versions.remove(version);
        }
    }
    /// Where a request ends; `None` for paths that are the server's own, and for what nobody serves.
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
        // The legacy group alone lies under `/api`.
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
