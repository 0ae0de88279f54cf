//! Connections to kubelets and pods: logs, exec, attach, port-forward and proxy. A client's upgraded connection is spliced only after
//! the verified backend has answered 101. Redirects are neither followed nor passed on, except within the proxy's path.
pub mod address;
pub mod backend_limit;
pub mod backend_tls;
pub mod kubelet;
pub mod links;
pub mod proxy;
pub mod stream;
pub mod target;

use std::sync::Arc;

use kelson_meta::Status;
use kelson_resources::Connects;
use serde_json::Value;

use crate::catalog::Served;
use crate::catalog::record::parse;
use crate::connect::target::{Target, check_log_options};

use crate::read::websocket;
use crate::request::answer::Answer;
use crate::request::body::{ApiBody, RequestBody};
use crate::shared::context::RequestContext;
use crate::write::admit;

/// Serves a connection.
///
/// # Errors
/// 400, 404, 409, 503, and errors of the backend.
pub async fn serve(cx: &RequestContext, served: &Arc<Served>, body: RequestBody) -> Result<Answer, Status> {
    let name = cx.info.name.as_str();
    match served.options().connects {
        Connects::Service => proxy::service(cx, served, body).await,
        Connects::Node => {
            if !proxy::is_normal(cx) {
                return Err(Status::bad_request("the path to a node has empty or relative elements"));
            }
            admit::connect(cx, served, "NodeProxyOptions", Value::Null).await?;
            let (name, _) = proxy::name_and_port(cx, "node")?;
            let node = kubelet::Node::find(&cx.server, name)?;
            proxy::to_kubelet(cx, &node, body).await
        }
        Connects::Pod if cx.info.subresource == "proxy" => proxy::pod(cx, served, body).await,
        Connects::Pod => pod(cx, served, name).await,
        Connects::Nowhere => Err(Status::no_such_path()),
    }
}

/// Log, exec, attach or port-forward of a pod, served by its kubelet.
async fn pod(cx: &RequestContext, served: &Arc<Served>, name: &str) -> Result<Answer, Status> {
    if cx.info.subresource == "log" {
        check_log_options(cx)?;
    }
    let pod = parse(&*cx.stored(served, name)?);
    let container = match cx.info.subresource.as_str() {
        "portforward" => String::new(),
        _ => target::container(cx, &pod)?,
    };
    // Errors in the query are reported after errors of the node; admission comes before both.
    let target = Target::new(cx, &pod, &container);
    // Reading a log is a get, which does not pass admission.
    if let (Ok(target), true) = (&target, cx.info.subresource != "log") {
        admit::connect(cx, served, target.kind, target.options.clone()).await?;
    }
    let node_name = pod["spec"]["nodeName"].as_str().unwrap_or("");
    if node_name.is_empty() {
        if cx.info.subresource == "log" {
            // There is no output yet.
            let mut nothing = http::Response::new(ApiBody::empty());
            *nothing.status_mut() = http::StatusCode::NO_CONTENT;
            return Ok(nothing);
        }
        return Err(Status::bad_request(format!("pod {name} does not have a host assigned")));
    }
    // Upstream reports a missing node with the request's resource.
    let node = kubelet::Node::find(&cx.server, node_name).map_err(|status| match status.code {
        404 => Status::not_found(&served.gr, node_name),
        _ => status,
    })?;
    let target = target?;
    if cx.info.subresource == "log" {
        let insecure = cx.query.flag("insecureSkipTLSVerifyBackend");
        let node = if insecure { node.unverified() } else { node };
        let answer = stream::log(cx, &node, &target).await?;
        if websocket::is_wanted(cx) { websocket::log(cx, answer) } else { Ok(answer) }
    } else {
        stream::upgrade(cx, &node, &target).await
    }
}
