//! `/statusz`: since when the server runs and what it is, for people and, by version, for programs (KEP-4827,
//! `component-base/zpages/statusz`).
use http::{HeaderValue, StatusCode};
use kelson_meta::version::{GIT_VERSION, MAJOR, MINOR};
use kelson_meta::{Status, format_seconds};
use serde_json::{Value, json};

use crate::request::answer::{Answer, answer, warning};
use crate::request::body::ApiBody;
use crate::shared::context::RequestContext;

const GROUP: &str = "config.k8s.io";
const KIND: &str = "Statusz";
const COMPONENT: &str = "apiserver";
const OFFERED: [&str; 3] = ["application/json", "application/yaml", "text/plain"];
/// What a component has besides an API.
const PATHS: [&str; 6] = ["/healthz", "/livez", "/metrics", "/readyz", "/statusz", "/version"];
const HEAD: &str = "apiserver statusz\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
                    compatibility guarantees and is for debugging purposes only.\n";

enum Form {
    Text,
    /// The media type, and the version of the kind.
    Kind(&'static str, &'static str),
}

/// The first form of an `Accept` header that there is.
fn form(accept: &str) -> Option<Form> {
    if accept.is_empty() {
        return Some(Form::Text);
    }
    accept.split(',').find_map(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        let media = parts.next()?;
        let given: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
        let asked = |name: &str| given.iter().find(|(n, _)| *n == name).map_or("", |(_, value)| *value);
        let version = ["v1beta1", "v1alpha1"].into_iter().find(|v| *v == asked("v"));
        let version = version.filter(|_| asked("g") == GROUP && asked("as") == KIND);
        match media {
            "*/*" | "text/*" | "text/plain" => Some(Form::Text),
            "application/json" => version.map(|v| Form::Kind("application/json", v)),
            "application/yaml" => version.map(|v| Form::Kind("application/yaml", v)),
            _ => None,
        }
    })
}

/// Answers in the first form of `Accept` that there is.
///
/// # Errors
/// 406.
pub fn serve(cx: &RequestContext) -> Result<Answer, Status> {
    let accept = cx.headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let form = form(accept).ok_or_else(|| Status::not_acceptable(&OFFERED))?;
    let (started, now) = (cx.server.started_at, cx.server.clock.now());
    let up_s = now.duration_since(started).as_secs().max(0);
    let binary = GIT_VERSION.split('+').next().unwrap_or_default().trim_start_matches('v');
    let emulated = format!("{MAJOR}.{MINOR}");
    let (media, version) = match form {
        Form::Kind(media, version) => (media, version),
        Form::Text => {
            let (hours, minutes, seconds) = (up_s / 3600, up_s / 60 % 60, up_s % 60);
            let started = started.strftime("%a %b %e %H:%M:%S UTC %Y");
            let text = format!(
                "\n{HEAD}\nStarted: {started}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\nGo version: none\n\
                 Binary version: {binary}\nEmulation version: {emulated}\nPaths: {}\n",
                PATHS.join(" ")
            );
            return Ok(answer(StatusCode::OK, "text/plain; charset=utf-8", ApiBody::full(text)));
        }
    };
    let object = json!({
        "kind": KIND,
        "apiVersion": format!("{GROUP}/{version}"),
        "metadata": {"name": COMPONENT},
        "startTime": format_seconds(started),
        "uptimeSeconds": up_s,
        "goVersion": "none",
        "binaryVersion": binary,
        "emulationVersion": emulated,
        "paths": PATHS,
    });
    let mut made = answer(StatusCode::OK, media, body(media, &object)?);
    if let Ok(kind) = HeaderValue::from_str(&format!("{media};g={GROUP};v={version};as={KIND}")) {
        made.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    }
    if version == "v1alpha1"
        && let Some(text) = warning("This version of the statusz endpoint is deprecated. Please use a newer version.")
    {
        made.headers_mut().append(http::header::WARNING, text);
    }
    Ok(made)
}

fn body(media: &str, object: &Value) -> Result<ApiBody, Status> {
    let bytes = match media {
        "application/yaml" => kelson_codec::encode(kelson_codec::Encoding::Yaml, None, object),
        _ => kelson_codec::encode(kelson_codec::Encoding::Json, None, object),
    };
    bytes.map(ApiBody::full).map_err(|e| Status::internal(e.to_string()))
}
