//! The transport of components in this process: requests take the whole request path except TLS and sockets.
use std::sync::Arc;

use http_body_util::BodyExt as _;
use kelson_auth::{UserInfo, user};
use kelson_transport::{Request, Response, Transport, TransportError};

use crate::front::handle;
use crate::front::identify::Identity;
use crate::request::body::RequestBody;
use crate::shared::Server;

/// A transport whose requests all have the same user.
pub struct InProcess {
    server: Arc<Server>,
    user: Arc<UserInfo>,
}

impl InProcess {
    /// Requests of this user; `system:authenticated` is added to the groups.
    pub fn new(server: Arc<Server>, mut identity: UserInfo) -> Self {
        if identity.name != user::ANONYMOUS && !identity.in_group(user::AUTHENTICATED) {
            identity.groups.push(user::AUTHENTICATED.to_owned());
        }
        Self { server, user: Arc::new(identity) }
    }
}

type ResponseFuture = std::pin::Pin<Box<dyn Future<Output = Result<Response, TransportError>> + Send + 'static>>;

impl Transport for InProcess {
    fn send(&self, request: Request) -> ResponseFuture {
        let server = Arc::clone(&self.server);
        let identity = Identity::Known(Arc::clone(&self.user));
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let answer = handle::handle(&server, parts, RequestBody::Whole(body), identity).await;
            Ok(answer.map(|body| body.boxed_unsync()))
        })
    }
}
