//! Where a pod's log, exec, attach or port-forward goes at its kubelet, from the request's query.
use kelson_meta::Status;
use kelson_meta::url::append_query;
use serde_json::{Value, json};

use crate::shared::context::RequestContext;

/// Where a pod's stream goes at its kubelet.
pub struct Target {
    /// Path and query.
    pub path: String,
    /// Kind of the options, for admission.
    pub kind: &'static str,
    pub options: Value,
}

impl Target {
    /// Reads the query of a log, exec, attach or port-forward of this pod.
    ///
    /// # Errors
    /// 400 and 422 for what the query asks wrongly.
    pub fn new(cx: &RequestContext, pod: &Value) -> Result<Self, Status> {
        let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
        let (namespace, name, uid) = (&cx.info.namespace, &cx.info.name, text(&pod["metadata"]["uid"]));
        let subresource = cx.info.subresource.as_str();
        if subresource == "portforward" {
            let ports: Vec<&str> = cx.query.all("ports").collect();
            let mut path = format!("/portForward/{namespace}/{name}/{uid}");
            append_query(&mut path, ports.iter().map(|p| ("port", *p)));
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
        append_query(&mut path, pairs);
        Ok(Self { path, kind, options })
    }

    fn log(cx: &RequestContext, container: &str) -> Result<Self, Status> {
        /// `insecureSkipTLSVerifyBackend` is for the API server itself.
        const PASSED: [&str; 8] =
            ["follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes", "stream"];
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
        let pairs = PASSED.iter().filter_map(|name| Some((*name, cx.query.get(name)?))).filter(|(_, v)| !v.is_empty());
        append_query(&mut path, pairs);
        Ok(Self { path, kind: "PodLogOptions", options: json!({"container": container}) })
    }
}

fn invalid_log(why: &str) -> Status {
    let mut status = Status::failure(422, kelson_meta::Reason::Invalid, format!("PodLogOptions is invalid: {why}"));
    status.details = Some(Box::default());
    status
}

/// The container that is meant: named, or the only one, or the one the pod's annotation prefers.
fn container(cx: &RequestContext, pod: &Value) -> Result<String, Status> {
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
