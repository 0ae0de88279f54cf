//! Discovery: `/api`, `/apis` and below, and aggregated discovery, built from the catalog and cached until it changes.
use std::collections::HashMap;

use http::{HeaderValue, StatusCode, header};
use kelson_meta::tree::items;
use kelson_meta::{Gvk, Status};
use serde_json::{Map, Value, json};

use crate::aggregate::local::DEFINITION_PRIORITIES;
use crate::aggregate::remote::Remote;
use crate::catalog::{Behaviour, ObjectSchema, Served};
use crate::request::answer::{self, Answer, answer, not_found_page};
use crate::request::body::ApiBody;
use crate::request::negotiate::{self, Clause, clauses};
use crate::request::order::{self, Ordered};
use crate::shared::Server;
use crate::shared::context::RequestContext;

/// Serves `/api`, `/apis`, `/apis/G` and `/apis/G/V`.
///
/// # Errors
/// 404, 406.
pub async fn serve(cx: &RequestContext) -> Result<Answer, Status> {
    let segments: Vec<&str> = cx.uri.path().split('/').filter(|s| !s.is_empty()).collect();
    let server = &cx.server;
    match segments[..] {
        ["api"] => match aggregated(cx) {
            Some(wanted) => document(cx, true, wanted).await,
            None => plain(cx, true, api_versions(cx)),
        },
        ["apis"] => match aggregated(cx) {
            Some(wanted) => document(cx, false, wanted).await,
            None => plain(cx, true, group_list(server)),
        },
        ["api", version] => plain(cx, true, resource_list(server, "", version).ok_or_else(Status::no_such_path)?),
        ["apis", group] => {
            let groups = groups(server);
            let found = groups.iter().find(|(g, _)| g == group && !g.is_empty()).ok_or_else(Status::no_such_path)?;
            let mut value = group_value(&found.0, &found.1);
            value["kind"] = "APIGroup".into();
            value["apiVersion"] = "v1".into();
            plain(cx, is_compiled_in(group), value)
        }
        ["apis", group, version] => match resource_list(server, group, version) {
            Some(list) => plain(cx, is_compiled_in(group), list),
            // A version that a definition does not have is not served at all.
            None if has_group(server, group) && !is_compiled_in(group) => Ok(not_found_page()),
            None => Err(Status::no_such_path()),
        },
        _ => Err(Status::no_such_path()),
    }
}

/// A discovery document. `compiled_in`: it is about built-in groups only.
fn plain(cx: &RequestContext, compiled_in: bool, value: Value) -> Result<Answer, Status> {
    let accepted = negotiate::settle(&cx.headers, cx.accepted, false, || compiled_in)?;
    let text = |k: &str| value[k].as_str().unwrap_or("");
    let schema = ObjectSchema::meta(text("kind"));
    answer::tree(StatusCode::OK, &accepted, &schema, value)
}

/// The form of aggregated discovery that a client prefers.
#[derive(Clone, Copy)]
struct AggregatedForm {
    version: &'static str,
    /// Without what only other API servers on the same storage serve.
    own_only: bool,
}

/// The form of aggregated discovery, if the client prefers that.
fn aggregated(cx: &RequestContext) -> Option<AggregatedForm> {
    let wanted = |c: &Clause<'_>| {
        if c.param("as") != Some("APIGroupDiscoveryList") || c.param("g") != Some("apidiscovery.k8s.io") {
            // Another media type comes first.
            return Some(None).filter(|_| {
                c.param("as").is_none() && matches!(c.media, "application/json" | "*/*" | "application/*")
            });
        }
        match (c.media, c.param("v")) {
            ("application/json", Some("v2")) => {
                Some(Some(AggregatedForm { version: "v2", own_only: c.param("profile") == Some("nopeer") }))
            }
            ("application/json", Some("v2beta1")) => Some(Some(AggregatedForm { version: "v2beta1", own_only: true })),
            _ => None,
        }
    };
    clauses(&cx.headers).iter().find_map(wanted).flatten()
}

async fn document(cx: &RequestContext, core: bool, form: AggregatedForm) -> Result<Answer, Status> {
    let server = &cx.server;
    let version = form.version;
    let of_peers = server.peers.as_ref().filter(|_| version == "v2" && !core);
    let merging = of_peers.filter(|_| !form.own_only);
    let name =
        format!("{} {version}{}", if core { "api" } else { "apis" }, if merging.is_some() { " of all" } else { "" });
    // None of them decreases, so their sum identifies the state of all.
    let generation =
        server.catalog.generation() + server.aggregation.generation() + merging.map_or(0, |peers| peers.generation());
    match (of_peers, merging) {
        (_, Some(peers)) => peers.metrics().count_merged(server.discovery.find(&name, generation).is_some()),
        (Some(peers), None) => peers.metrics().count_own_only(),
        (None, None) => {}
    }
    let make = || {
        let order = order::kind_order("APIGroupDiscoveryList").unwrap_or_default();
        let mut list = aggregate(server, core, version);
        if let Some(groups) = merging.and_then(|peers| peers.merged(items(&list["items"]))) {
            list["items"] = groups.into();
        }
        let mut body = serde_json::to_vec(&Ordered::new(&list, order)).ok()?;
        body.push(b'\n');
        Some(body.into())
    };
    let document = server.discovery.get(&name, generation, make).await.ok_or_else(Status::no_such_path)?;
    let content_type = match version {
        "v2" => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        _ => "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
    };
    let unchanged = cx.headers.get(header::IF_NONE_MATCH).is_some_and(|v| *v == document.etag);
    let mut answer = if unchanged {
        answer(StatusCode::NOT_MODIFIED, content_type, ApiBody::empty())
    } else {
        answer(StatusCode::OK, content_type, ApiBody::shared(document.body.clone()))
    };
    let headers = answer.headers_mut();
    if unchanged {
        headers.remove(header::CONTENT_TYPE);
    }
    headers.insert(header::ETAG, document.etag.clone());
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    Ok(answer)
}

/// Whether a group is built in.
fn is_compiled_in(group: &str) -> bool {
    kelson_schema::resource::group_versions().iter().any(|gv| gv.group == group)
}

fn api_versions(cx: &RequestContext) -> Value {
    let host = cx.server.external_address();
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
    })
}

/// Whether any version of a group is served.
pub fn has_group(server: &Server, group: &str) -> bool {
    groups(server).iter().any(|(known, _)| known == group)
}

/// The groups of the catalog and of aggregated API servers; those that are not built in are sorted by priority.
pub fn groups(server: &Server) -> Vec<(String, Vec<String>)> {
    let mut all = server.catalog.groups();
    let mut remotes = server.aggregation.remotes();
    if remotes.is_empty() {
        return all;
    }
    remotes.sort_by_key(|r| std::cmp::Reverse(r.spec().version_priority));
    let mut priorities: HashMap<String, i64> = HashMap::new();
    for remote in &remotes {
        let spec = remote.spec();
        let priority = priorities.entry(spec.group.clone()).or_default();
        *priority = (*priority).max(spec.group_priority_minimum);
        match all.iter_mut().find(|(group, _)| *group == spec.group) {
            Some((_, versions)) if versions.contains(&spec.version) => {}
            Some((_, versions)) => versions.push(spec.version.clone()),
            None => all.push((spec.group.clone(), vec![spec.version.clone()])),
        }
    }
    let builtin = all
        .iter()
        .take_while(|(group, _)| kelson_schema::resource::group_versions().iter().any(|gv| gv.group == group))
        .count();
    let rank =
        |group: &String| std::cmp::Reverse(priorities.get(group).copied().unwrap_or(DEFINITION_PRIORITIES.0.into()));
    all[builtin..].sort_by(|(a, _), (b, _)| (rank(a), a).cmp(&(rank(b), b)));
    all
}

fn group_list(server: &Server) -> Value {
    let groups: Vec<Value> =
        groups(server).iter().filter(|(g, _)| !g.is_empty()).map(|(g, v)| group_value(g, v)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn group_value(group: &str, versions: &[String]) -> Value {
    let version = |v: &String| json!({"groupVersion": format!("{group}/{v}"), "version": v});
    let all: Vec<Value> = versions.iter().map(version).collect();
    let preferred = versions.first().map(version).unwrap_or_default();
    json!({"name": group, "versions": all, "preferredVersion": preferred})
}

fn resource_list(server: &Server, group: &str, version: &str) -> Option<Value> {
    let hashes = server.config.feature_gates.enabled("StorageVersionHash");
    let mut resources = Vec::new();
    for r in server.catalog.of(group, version)? {
        let mut entry = Map::new();
        entry.insert("name".into(), r.gvr.resource.as_str().into());
        entry.insert("singularName".into(), r.singular.as_str().into());
        entry.insert("namespaced".into(), r.namespaced.into());
        entry.insert("kind".into(), r.gvk.kind.as_str().into());
        entry.insert("verbs".into(), json!(r.listed_verbs()));
        for (key, list) in [("shortNames", &r.short_names), ("categories", &r.categories)] {
            if !list.is_empty() {
                entry.insert(key.into(), json!(list));
            }
        }
        if hashes && !r.storage_version_hash.is_empty() {
            entry.insert("storageVersionHash".into(), r.storage_version_hash.as_str().into());
        }
        resources.push(Value::Object(entry));
        for s in &r.subresources {
            let mut entry = Map::new();
            entry.insert("name".into(), format!("{}/{}", r.gvr.resource, s.name).into());
            entry.insert("singularName".into(), "".into());
            entry.insert("namespaced".into(), r.namespaced.into());
            if s.foreign {
                entry.insert("group".into(), s.gvk.group.as_str().into());
                entry.insert("version".into(), s.gvk.version.as_str().into());
            }
            entry.insert("kind".into(), s.gvk.kind.as_str().into());
            entry.insert("verbs".into(), json!(s.verbs));
            resources.push(Value::Object(entry));
        }
    }
    let gv = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    // `json!` would copy a tree that it is given.
    let mut list = json!({"kind": "APIResourceList", "groupVersion": gv});
    list["resources"] = resources.into();
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

/// A group version of an aggregated API server, from its last list of resources.
fn aggregated_remote(remote: &Remote) -> Value {
    let list = remote.resources();
    // What it serves is not known before its first list.
    let freshness = if remote.is_available() && list.is_some() { "Current" } else { "Stale" };
    let list = list.unwrap_or_default();
    let listed = list["resources"].as_array().map_or(&[][..], Vec::as_slice);
    let of = |name: &str| format!("{name}/");
    let kind = |r: &Value| json!({"group": r["group"].as_str().unwrap_or(""), "version": r["version"].as_str().unwrap_or(""), "kind": r["kind"]});
    let mut resources = Vec::new();
    for r in listed {
        let Some(name) = r["name"].as_str().filter(|name| !name.contains('/')) else { continue };
        let mut entry = json!({
            "resource": name,
            "responseKind": kind(r),
            "scope": if r["namespaced"] == true { "Namespaced" } else { "Cluster" },
            "singularResource": r["singularName"].as_str().unwrap_or(""),
            "verbs": r["verbs"],
        });
        for key in ["shortNames", "categories"] {
            if r[key].is_array() {
                entry[key] = r[key].clone();
            }
        }
        let below = listed.iter().filter_map(|s| Some((s["name"].as_str()?.strip_prefix(&of(name))?, s)));
        let below: Vec<Value> =
            below.map(|(sub, s)| json!({"subresource": sub, "responseKind": kind(s), "verbs": s["verbs"]})).collect();
        if !below.is_empty() {
            entry["subresources"] = below.into();
        }
        resources.push(entry);
    }
    let mut version = json!({"version": remote.spec().version, "freshness": freshness});
    if !resources.is_empty() {
        version["resources"] = resources.into();
    }
    version
}

fn aggregate(server: &Server, core: bool, version: &str) -> Value {
    let catalog = &server.catalog;
    let item = |(group, versions): (String, Vec<String>)| {
        let versions: Vec<Value> = versions
            .iter()
            .filter_map(|v| {
                if let Some(remote) = server.aggregation.find(&group, v) {
                    return Some(aggregated_remote(&remote));
                }
                let resources: Vec<Value> = catalog.of(&group, v)?.iter().map(|r| aggregated_resource(r)).collect();
                let mut served = json!({"version": v, "freshness": "Current"});
                served["resources"] = resources.into();
                Some(served)
            })
            .collect();
        let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
        let mut of_group = json!({"metadata": metadata});
        of_group["versions"] = versions.into();
        of_group
    };
    let items: Vec<Value> = groups(server).into_iter().filter(|(g, _)| g.is_empty() == core).map(item).collect();
    let mut list = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
    });
    list["items"] = items.into();
    list
}

fn aggregated_resource(r: &Served) -> Value {
    // Custom resources have their group and version here; built-in ones omit them.
    let builtin = matches!(r.strategy, Behaviour::Builtin(_));
    let kind = |gvk: &Gvk, named: bool| {
        let (group, version) = if named { (gvk.group.as_str(), gvk.version.as_str()) } else { ("", "") };
        json!({"group": group, "version": version, "kind": gvk.kind})
    };
    let mut entry = json!({
        "resource": r.gvr.resource,
        "responseKind": kind(&r.gvk, !builtin),
        "scope": if r.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": r.singular,
        "verbs": r.listed_verbs(),
    });
    for (key, list) in [("shortNames", &r.short_names), ("categories", &r.categories)] {
        if !list.is_empty() {
            entry[key] = json!(list);
        }
    }
    if !r.subresources.is_empty() {
        let each = |s: &crate::catalog::Sub| {
            json!({
                "subresource": s.name,
                "responseKind": kind(&s.gvk, s.foreign || !builtin),
                "verbs": s.verbs,
            })
        };
        entry["subresources"] = r.subresources.iter().map(each).collect();
    }
    entry
}
