//! Connect: logs, exec, attach, port-forward and proxy, carried to the pod's kubelet or to the pod itself.
//! What a client upgrades is spliced only after the backend's verified 101; no redirect is followed or passed on.
pub mod backend_tls;
pub mod kubelet;
pub mod links;
pub mod proxy;
pub mod stream;

use std::sync::Arc;

use kelson_admission::Operation;
use kelson_meta::{Gvk, Status};
use serde_json::{Value, json};

use crate::catalog::Served;
use crate::read::encode::{Answer, parse};
use crate::read::websocket;
use crate::request::body::RequestBody;
use crate::shared::context::Cx;
use crate::write::admit::Admission;

/// Serves a connection.
///
/// # Errors
/// 400, 404, 409, 503, and what the backend's failure is made into.
pub async fn serve(cx: &Cx, served: &Arc<Served>, body: RequestBody) -> Result<Answer, Status> {
    let name = cx.info.name.as_str();
    if served.is("", "services") {
        return proxy::service(cx, served, body).await;
    }
    if served.is("", "nodes") {
        admit(cx, served, "NodeProxyOptions", Value::Null).await?;
        let (name, _) = proxy::split_scheme(name);
        let node = kubelet::Node::find(cx, name)?;
        return proxy::to_kubelet(cx, &node, body).await;
    }
    if cx.info.subresource == "proxy" {
        return proxy::pod(cx, served, body).await;
    }
    let found = cx.server.store.get(served.store, &cx.info.namespace, name);
    let pod = parse(&*found.ok_or_else(|| Status::not_found(&served.gr, name))?);
    let target = Target::new(cx, &pod)?;
    // Reading a log is a get, and gets are not admitted.
    if cx.info.subresource != "log" {
        admit(cx, served, target.kind, target.options.clone()).await?;
    }
    let node_name = pod["spec"]["nodeName"].as_str().unwrap_or("");
    if node_name.is_empty() {
        if cx.info.subresource == "log" {
            // Nothing was ever written.
            return Ok(crate::read::encode::answer(
                http::StatusCode::OK,
                "text/plain",
                crate::request::body::ApiBody::empty(),
            ));
        }
        return Err(Status::bad_request(format!("pod {name} does not have a host assigned")));
    }
    let node = kubelet::Node::find(cx, node_name)?;
    if cx.info.subresource == "log" {
        let answer = stream::log(cx, &node, &target).await?;
        if websocket::is_wanted(cx) { websocket::log(cx, answer) } else { Ok(answer) }
    } else {
        stream::upgrade(cx, &node, &target).await
    }
}

/// CONNECT's admission, with the options as its object.
pub async fn admit(cx: &Cx, served: &Served, kind: &str, options: Value) -> Result<(), Status> {
    let gvk = Gvk::new("", "v1", kind);
    let admission = Admission {
        cx,
        served,
        kind: &gvk,
        operation: Operation::Connect,
        name: &cx.info.name,
        dry_run: false,
        options: None,
    };
    let object = admission.mutate(Some(options), None).await?;
    admission.validate(object, None).await.map(|_| ())
}

/// Where a pod's stream goes at its kubelet.
pub struct Target {
    /// Path and query.
    pub path: String,
    /// Kind of the options, for admission.
    pub kind: &'static str,
    /// The options.
    pub options: Value,
}

impl Target {
    fn new(cx: &Cx, pod: &Value) -> Result<Self, Status> {
        let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
        let (namespace, name, uid) = (&cx.info.namespace, &cx.info.name, text(&pod["metadata"]["uid"]));
        let subresource = cx.info.subresource.as_str();
        if subresource == "portforward" {
            let ports: Vec<&str> = cx.query.all("ports").collect();
            let mut path = format!("/portForward/{namespace}/{name}/{uid}");
            append(&mut path, ports.iter().map(|p| ("port", *p)));
            return Ok(Self { path, kind: "PodPortForwardOptions", options: json!({"ports": ports}) });
        }
        let container = container(cx, pod)?;
        if subresource == "log" {
            return Self::log(cx, &container);
        }
        let mut path = format!("/{subresource}/{namespace}/{name}/{uid}/{container}");
        let (kind, mut pairs) = match subresource {
            "attach" => ("PodAttachOptions", Vec::new()),
            _ => ("PodExecOptions", cx.query.all("command").map(|c| ("command", c)).collect()),
        };
        let streams = [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")];
        let mut options = json!({"container": container});
        if kind == "PodExecOptions" {
            if pairs.is_empty() {
                return Err(Status::bad_request("you must specify at least 1 command for the container"));
            }
            options["command"] = pairs.iter().map(|(_, c)| *c).collect();
        }
        let tty = cx.query.flag("tty");
        let mut any = false;
        for (name, kubelet_name) in streams {
            // A terminal has one output.
            if cx.query.flag(name) && !(tty && name == "stderr") {
                any |= name != "tty";
                pairs.push((kubelet_name, "1"));
                options[name] = true.into();
            }
        }
        if !any {
            return Err(Status::bad_request("you must specify at least one of stdin, stdout, stderr"));
        }
        append(&mut path, pairs.into_iter());
        Ok(Self { path, kind, options })
    }

    fn log(cx: &Cx, container: &str) -> Result<Self, Status> {
        const PASSED: [&str; 9] = [
            "follow",
            "previous",
            "sinceSeconds",
            "sinceTime",
            "timestamps",
            "tailLines",
            "limitBytes",
            "stream",
            "insecureSkipTLSVerifyBackend",
        ];
        let i = &cx.info;
        let mut path = format!("/containerLogs/{}/{}/{container}", i.namespace, i.name);
        if cx.query.has("sinceSeconds") && cx.query.has("sinceTime") {
            return Err(invalid_log("at most one of `sinceTime` or `sinceSeconds` may be specified"));
        }
        for number in ["sinceSeconds", "tailLines", "limitBytes"] {
            let least = i64::from(number != "tailLines");
            if cx.query.integer(number)?.is_some_and(|n| n < least) {
                return Err(invalid_log(&format!("{number} must be greater than or equal to {least}")));
            }
        }
        let pairs =
            PASSED.iter().take(8).filter_map(|name| Some((*name, cx.query.get(name)?))).filter(|(_, v)| !v.is_empty());
        append(&mut path, pairs);
        Ok(Self { path, kind: "PodLogOptions", options: json!({"container": container}) })
    }
}

fn invalid_log(why: &str) -> Status {
    let mut status = Status::failure(422, kelson_meta::Reason::Invalid, format!("PodLogOptions is invalid: {why}"));
    status.details = Some(Box::default());
    status
}

/// Appends a query, escaped.
pub fn append<'a>(path: &mut String, pairs: impl Iterator<Item = (&'a str, &'a str)>) {
    use std::fmt::Write as _;
    let mut first = true;
    for (name, value) in pairs {
        path.push(if std::mem::take(&mut first) { '?' } else { '&' });
        path.push_str(name);
        path.push('=');
        for b in value.bytes() {
            if b.is_ascii_alphanumeric() || b"-._~".contains(&b) {
                path.push(char::from(b));
            } else {
                // Writing to a String cannot fail.
                let _ = write!(path, "%{b:02X}");
            }
        }
    }
}

/// The container that is meant: named, or the only one, or the one the pod's annotation prefers.
fn container(cx: &Cx, pod: &Value) -> Result<String, Status> {
    let names = |list: &str| -> Vec<String> {
        let all = pod["spec"][list].as_array().map_or(&[][..], Vec::as_slice);
        all.iter().filter_map(|c| c["name"].as_str().map(str::to_owned)).collect()
    };
    let (main, init, ephemeral) = (names("containers"), names("initContainers"), names("ephemeralContainers"));
    let pod_name = &cx.info.name;
    let asked = cx.query.text("container");
    if !asked.is_empty() {
        if [&main, &init, &ephemeral].iter().any(|l| l.iter().any(|n| n == asked)) {
            return Ok(asked.to_owned());
        }
        return Err(Status::bad_request(format!("container {asked} is not valid for pod {pod_name}")));
    }
    match main.as_slice() {
        [only] => return Ok(only.clone()),
        [] => return Err(Status::bad_request(format!("a container name must be specified for pod {pod_name}"))),
        _ => {}
    }
    let choices = main.join(" ");
    let inits =
        if init.is_empty() { String::new() } else { format!(" or one of the init containers: [{}]", init.join(" ")) };
    Err(Status::bad_request(format!(
        "a container name must be specified for pod {pod_name}, choose one of: [{choices}]{inits}"
    )))
}
