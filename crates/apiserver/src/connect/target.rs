//! The kubelet's path of a log, exec, attach or port-forward, made from the request's query.
use kelson_meta::url::append_query;
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Status};
use serde_json::{Value, json};

use crate::shared::context::RequestContext;

/// The kubelet's path and the options of a stream.
pub struct Target {
    /// Path and query.
    pub path: String,
    /// Kind of the options, for admission.
    pub kind: &'static str,
    pub options: Value,
}

impl Target {
    /// Parses the query of a log, exec, attach or port-forward of this pod and container.
    ///
    /// # Errors
    /// 400 and 422 for invalid options.
    pub fn new(cx: &RequestContext, pod: &Value, container: &str) -> Result<Self, Status> {
        let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
        let (namespace, name, uid) = (&cx.info.namespace, &cx.info.name, text(&pod["metadata"]["uid"]));
        let subresource = cx.info.subresource.as_str();
        if subresource == "portforward" {
            let ports: Vec<&str> = cx.query.all("ports").collect();
            let mut path = format!("/portForward/{namespace}/{name}/{uid}");
            append_query(&mut path, ports.iter().map(|p| ("port", *p)));
            return Ok(Self { path, kind: "PodPortForwardOptions", options: json!({"ports": ports}) });
        }
        if subresource == "log" {
            return Ok(Self::log(cx, container));
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
            // A terminal combines stdout and stderr.
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

    fn log(cx: &RequestContext, container: &str) -> Self {
        /// `insecureSkipTLSVerifyBackend` is for the API server itself.
        const PASSED: [&str; 8] =
            ["follow", "previous", "sinceSeconds", "sinceTime", "timestamps", "tailLines", "limitBytes", "stream"];
        let i = &cx.info;
        let mut path = format!("/containerLogs/{}/{}/{container}", i.namespace, i.name);
        let pairs = PASSED.iter().filter_map(|name| Some((*name, cx.query.get(name)?))).filter(|(_, v)| !v.is_empty());
        append_query(&mut path, pairs);
        Self { path, kind: "PodLogOptions", options: json!({"container": container}) }
    }
}

/// Validates the options of a log, whether or not the pod has a log (upstream: `ValidatePodLogOptions`).
///
/// # Errors
/// 400 for values that do not parse, 422 for invalid ones.
pub fn check_log_options(cx: &RequestContext) -> Result<(), Status> {
    let mut errors = FieldErrors::new();
    if let Some(n) = cx.query.integer("tailLines")?.filter(|n| *n < 0) {
        errors.invalid(&FieldPath::new("tailLines"), n, "must be greater than or equal to 0");
    }
    let since = cx.query.text("sinceTime");
    if !since.is_empty() && since.parse::<jiff::Timestamp>().is_err() {
        let why =
            format!("parsing time {since:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {since:?} as \"2006\"");
        return Err(Status::bad_request(why));
    }
    if !cx.query.text("stream").is_empty() && !cx.server.config.feature_gates.enabled("PodLogsQuerySplitStreams") {
        errors.forbidden(&FieldPath::new("stream"), "may not be specified");
    }
    let mut positive = |name: &str| -> Result<(), Status> {
        if let Some(n) = cx.query.integer(name)?.filter(|n| *n < 1) {
            errors.invalid(&FieldPath::new(name), n, "must be greater than 0");
        }
        Ok(())
    };
    positive("limitBytes")?;
    if !cx.query.has("sinceTime") {
        positive("sinceSeconds")?;
    } else if cx.query.has("sinceSeconds") {
        errors.forbidden(&FieldPath::new("[]"), "at most one of `sinceTime` or `sinceSeconds` may be specified");
    }
    if errors.is_empty() {
        return Ok(());
    }
    let kind = GroupKind { group: String::new(), kind: "PodLogOptions".into() };
    Err(Status::invalid(&kind, &cx.info.name, &errors))
}

/// The requested container, or the only one of the pod.
///
/// # Errors
/// 400 if the pod has no such container, or several and none was requested.
pub fn container(cx: &RequestContext, pod: &Value) -> Result<String, Status> {
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
