//! OpenAPI documents v2 and v3, built on request from the catalog and the schema table. Descriptions come from
//! `kelson_schema::description`.
mod merge;
mod operation;
mod others;
mod parameters;
mod paths;
mod proto;
mod schema;
mod version;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use kelson_auth::{UserInfo, user};
use kelson_meta::Status;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::aggregate::forward::Unreachable;
use crate::aggregate::remote::Remote;
use crate::catalog::Catalog;
use crate::request::answer::{Answer, answer};
use crate::request::body::ApiBody;
use crate::request::negotiate::clauses;
use crate::request::order::{Order, Ordered};
use crate::shared::Server;
use crate::shared::context::RequestContext;
use crate::shared::documents::Document;
use schema::Collector;
use version::OpenApiVersion;

/// Serves `/openapi/v2`, `/openapi/v3` and `/openapi/v3/GROUP-VERSION`.
///
/// # Errors
/// 404, 406.
pub async fn serve(cx: &RequestContext) -> Result<Answer, Status> {
    let path = cx.uri.path().trim_end_matches('/');
    let catalog = &cx.server.catalog;
    if path == "/openapi/v2" {
        return whole(cx, v2_form(cx)?).await;
    }
    if path != "/openapi/v3" && !accepts_json(cx) {
        return Err(Status::not_acceptable(&["application/json"]));
    }
    match path.strip_prefix("/openapi/") {
        Some("v3") => {
            let mut answer = json_answer(index(&cx.server).to_string().into());
            answer.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
            Ok(answer)
        }
        Some(rest) => {
            let name = rest.strip_prefix("v3/").ok_or_else(Status::no_such_path)?;
            if let Some(remote) = named_group_version(name).and_then(|(g, v)| cx.server.aggregation.find(g, v)) {
                return of_remote(cx, &remote, path).await;
            }
            let mut answer = document(cx, name, JSON, || v3(catalog, name).map(|d| text(&d))).await?;
            if cx.query.get("hash").is_some_and(|h| h == hash(catalog, name)) {
                let forever = HeaderValue::from_static("public, immutable, max-age=31536000");
                answer.headers_mut().insert(header::CACHE_CONTROL, forever);
            }
            Ok(answer)
        }
        None => Err(Status::no_such_path()),
    }
}

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The encoding of the v2 document. Clients write the name of the protobuf form in two ways.
fn v2_form(cx: &RequestContext) -> Result<&'static str, Status> {
    let clauses = clauses(&cx.headers);
    if clauses.is_empty() {
        return Ok(JSON);
    }
    let form = |media: &str| match media {
        "application/json" | "*/*" | "application/*" => Some(JSON),
        PROTOBUF | "application/com.github.proto-openapi.spec.v2@v1.0+protobuf" => Some(PROTOBUF),
        _ => None,
    };
    clauses.iter().find_map(|c| form(c.media)).ok_or_else(|| Status::not_acceptable(&[JSON, PROTOBUF]))
}

/// Whether JSON is accepted. The v3 documents have no protobuf form here; clients fall back to JSON.
fn accepts_json(cx: &RequestContext) -> bool {
    let clauses = clauses(&cx.headers);
    clauses.is_empty() || clauses.iter().any(|c| matches!(c.media, "application/json" | "*/*" | "application/*"))
}

/// The document of everything that is served, including aggregated API servers.
async fn whole(cx: &RequestContext, form: &'static str) -> Result<Answer, Status> {
    let server = &cx.server;
    let remotes: Vec<Arc<Remote>> = server.aggregation.remotes().into_iter().filter(|r| r.is_available()).collect();
    let mut generation = server.catalog.generation();
    if !remotes.is_empty() {
        // Documents of aggregated API servers may change without notice.
        generation += server.aggregation.generation() + age(cx);
    }
    let name = if form == JSON { "v2" } else { "v2.pb" };
    if let Some(document) = server.openapi.find(name, generation) {
        return Ok(with_etag(cx, form, document));
    }
    let others = documents_of(&remotes).await;
    let make = || {
        let mut whole = v2(&server.catalog);
        for (remote, theirs) in others {
            let spec = remote.spec();
            merge::add_paths(&mut whole, theirs, &format!("/apis/{}/{}/", spec.group, spec.version));
        }
        Some(if form == JSON { text(&whole) } else { proto::document(&whole).into() })
    };
    let made = server.openapi.get(name, generation, make).await;
    Ok(with_etag(cx, form, made.ok_or_else(Status::no_such_path)?))
}

/// The time for which the v2 document of an aggregated API server is cached, in seconds (as upstream's downloader).
const REMOTE_AGE_S: i64 = 60;
/// Timeout of fetching it.
const REMOTE_TIMEOUT: Duration = Duration::from_secs(5);
/// The user of these requests, as in upstream's aggregator.
const AGGREGATOR: &str = "system:aggregator";
/// Largest document of an aggregated API server in bytes.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;

/// A number that changes when aggregated API servers must be asked again.
fn age(cx: &RequestContext) -> u64 {
    u64::try_from(cx.server.clock.now().as_second() / REMOTE_AGE_S).unwrap_or(0)
}

/// The documents of aggregated API servers. A server that does not answer is omitted.
async fn documents_of(remotes: &[Arc<Remote>]) -> Vec<(Arc<Remote>, Value)> {
    // The document is cached for all clients, so it must not depend on the rights of one.
    let asking = UserInfo::new(AGGREGATOR, [user::AUTHENTICATED]);
    let mut documents = Vec::new();
    for remote in remotes {
        let answer = remote.fetch("/openapi/v2", &asking, DOCUMENT_BYTES_MAX);
        let document = match tokio::time::timeout(REMOTE_TIMEOUT, answer).await {
            Ok(Ok((StatusCode::OK, body))) => kelson_meta::from_json(&body).map_err(|e| e.to_string()),
            Ok(Ok((code, _))) => Err(format!("status {code}")),
            Ok(Err(why)) => Err(why.to_string()),
            Err(_) => Err("timeout".to_owned()),
        };
        match document {
            Ok(document) => documents.push((Arc::clone(remote), document)),
            Err(why) => tracing::debug!(
                group = remote.spec().group,
                why,
                "failed to fetch the OpenAPI document of an aggregated API server"
            ),
        }
    }
    documents
}

/// The document of a group version of an aggregated API server, as the server publishes it.
async fn of_remote(cx: &RequestContext, remote: &Remote, path: &str) -> Result<Answer, Status> {
    let unavailable = |why: Unreachable| Status::unavailable(format!("error trying to reach service: {why}"));
    let (code, body) = remote.fetch(path, &cx.user, DOCUMENT_BYTES_MAX).await.map_err(unavailable)?;
    Ok(answer(code, JSON, ApiBody::full(body)))
}

fn json_answer(body: Bytes) -> Answer {
    answer(StatusCode::OK, JSON, ApiBody::full(body))
}

async fn document(
    cx: &RequestContext,
    name: &str,
    form: &'static str,
    make: impl FnOnce() -> Option<Bytes>,
) -> Result<Answer, Status> {
    let document = cx.server.openapi.get(name, generation_of(&cx.server.catalog, name), make).await;
    Ok(document.map_or_else(absent, |document| with_etag(cx, form, document)))
}

/// The empty response for a group version without a document.
fn absent() -> Answer {
    let mut answer = Answer::new(ApiBody::empty());
    *answer.status_mut() = StatusCode::NOT_FOUND;
    answer
}

fn with_etag(cx: &RequestContext, form: &'static str, document: Document) -> Answer {
    let unchanged = cx.headers.get(header::IF_NONE_MATCH).is_some_and(|v| *v == document.etag);
    let mut answer = if unchanged {
        answer(StatusCode::NOT_MODIFIED, form, ApiBody::empty())
    } else {
        answer(StatusCode::OK, form, ApiBody::shared(document.body))
    };
    answer.headers_mut().insert(header::ETAG, document.etag);
    answer.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    answer
}

fn group_versions(catalog: &Catalog) -> impl Iterator<Item = (String, String)> {
    catalog.groups().into_iter().flat_map(|(g, versions)| versions.into_iter().map(move |v| (g.clone(), v)))
}

fn document_name(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The group and version of a v3 document.
fn named_group_version(name: &str) -> Option<(&str, &str)> {
    match name.split('/').collect::<Vec<_>>()[..] {
        ["api", version] => Some(("", version)),
        ["apis", group, version] => Some((group, version)),
        _ => None,
    }
}

/// A number that changes with the content of a v3 document.
fn generation_of(catalog: &Catalog, name: &str) -> u64 {
    match named_group_version(name) {
        Some((group, version)) => catalog.generation_of(group, version),
        // Paths that are not resources change only with the program.
        None => 0,
    }
}

/// A hash that changes with a document's content, computed without building the document.
fn hash(catalog: &Catalog, name: &str) -> String {
    let text = format!("{}\n{}\n{name}", kelson_meta::version::GIT_VERSION, generation_of(catalog, name));
    Sha256::digest(text).iter().map(|b| format!("{b:02X}")).collect()
}

fn index(server: &Server) -> Value {
    let catalog = &server.catalog;
    let mut paths = Map::new();
    let own = group_versions(catalog).map(|(group, version)| document_name(&group, &version));
    for name in own.chain(others::served_names(catalog)) {
        let url = format!("/openapi/v3/{name}?hash={}", hash(catalog, &name));
        paths.insert(name, json!({"serverRelativeURL": url}));
    }
    for remote in server.aggregation.remotes().iter().filter(|r| r.is_available()) {
        let name = document_name(&remote.spec().group, &remote.spec().version);
        let text = format!("{}\n{name}", server.aggregation.generation());
        let hash: String = Sha256::digest(text).iter().map(|b| format!("{b:02X}")).collect();
        let url = format!("/openapi/v3/{name}?hash={hash}");
        paths.insert(name, json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

fn info() -> Value {
    // The served minor version, like upstream's emulated version.
    json!({"title": "Kubernetes", "version": format!("{}.{}", kelson_meta::version::MAJOR, kelson_meta::version::MINOR)})
}

const TOKEN: (&str, &str) = ("BearerToken", "Bearer Token authentication");

fn token() -> Value {
    json!({TOKEN.0: {"type": "apiKey", "description": TOKEN.1, "name": "authorization", "in": "header"}})
}

fn v3(catalog: &Catalog, name: &str) -> Option<Value> {
    let mut collector = Collector::new(OpenApiVersion::V3);
    let paths = match others::of(name, &mut collector) {
        Some(paths) => paths,
        None => {
            let (group, version) = named_group_version(name)?;
            collector.add_group_version(group, version);
            of_group_version(catalog, group, version, &mut collector)?
        }
    };
    let (schemas, _) = collector.finish();
    let mut components = json!({"securitySchemes": token()});
    if !schemas.is_empty() {
        components["schemas"] = schemas.into();
    }
    Some(json!({"openapi": "3.0.0", "info": info(), "paths": paths, "components": components}))
}

/// The paths of a group version. Built-in ones include the path of the group version itself.
fn of_group_version(
    catalog: &Catalog,
    group: &str,
    version: &str,
    collector: &mut Collector,
) -> Option<Map<String, Value>> {
    let mut paths = paths::of(&catalog.of(group, version)?, collector);
    if kelson_schema::resource::group_versions().iter().any(|gv| (gv.group, gv.version) == (group, version)) {
        let (path, item) = others::group_version(group, version, collector);
        paths.insert(path, item);
    }
    Some(paths)
}

fn v2(catalog: &Catalog) -> Value {
    let mut collector = Collector::new(OpenApiVersion::V2);
    collector.add_all_group_versions();
    let mut all = Map::new();
    for name in others::served_names(catalog) {
        all.extend(others::of(&name, &mut collector).unwrap_or_default());
    }
    for (group, version) in group_versions(catalog) {
        all.extend(of_group_version(catalog, &group, &version, &mut collector).unwrap_or_default());
    }
    let (definitions, parameters) = collector.finish();
    json!({
        "swagger": "2.0",
        "info": info(),
        "paths": all,
        "definitions": definitions,
        "parameters": parameters,
        "securityDefinitions": token(),
        "security": [{TOKEN.0: []}],
    })
}

/// The order of a document's parts in upstream's encoder.
const ORDER: Order = &[(
    "",
    &[
        "swagger",
        "openapi",
        "info",
        "paths",
        "definitions",
        "parameters",
        "components",
        "securityDefinitions",
        "security",
    ],
)];

fn text(document: &Value) -> Bytes {
    serde_json::to_vec(&Ordered::new(document, ORDER)).unwrap_or_default().into()
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
