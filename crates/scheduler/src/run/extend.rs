//! Calls extenders: filtering, scoring, preemption and binding (upstream `pkg/scheduler/extender.go`).
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use kelson_client::kubeconfig::{Config, Credentials};
use kelson_client::remote::{Plain, Remote};
use kelson_client::{Client, Transport};
use serde_json::{Map, Value, json};

use crate::core::{Answer, Question, Room, RoomQuestion};
use crate::extender::{Extender, ExtenderTls, SCORE_SCALE};
use crate::view::Pod;

/// The scheduler's extenders in the order in which they are called: those that are ignorable come last.
#[derive(Clone, Default)]
pub struct Extenders(Arc<[Reached]>);

struct Reached {
    extender: Extender,
    client: Client,
    /// The path of the URL, without a trailing slash.
    path: String,
}

impl std::fmt::Debug for Extenders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|r| &r.extender)).finish()
    }
}

impl Extenders {
    /// Connects each extender's URL and certificates.
    ///
    /// # Errors
    /// The index of an extender with an invalid URL or invalid certificates, and why.
    pub fn new(all: Vec<Extender>) -> Result<Self, (usize, String)> {
        let mut reached = Vec::with_capacity(all.len());
        for (i, extender) in all.into_iter().enumerate() {
            reached.push(Reached::new(extender).map_err(|why| (i, why))?);
        }
        reached.sort_by_key(|r| r.extender.ignorable);
        Ok(Self(reached.into()))
    }

    /// Returns the settings of each extender.
    pub fn settings(&self) -> Vec<Extender> {
        self.0.iter().map(|r| r.extender.clone()).collect()
    }

    /// Filters and scores the nodes for a pod. `api` is used to read whole objects.
    pub(super) async fn nodes(&self, api: &Client, question: &Question) -> Result<Answer, String> {
        let asked: Vec<&Reached> = self.0.iter().filter(|r| r.extender.is_asked(&question.pod.spec)).collect();
        let objects = Objects::read(api, &question.pod, asked.iter().any(|r| !r.extender.knows_nodes)).await?;
        let mut answer = Answer { nodes: question.nodes.clone(), refused: Vec::new() };
        for one in asked.iter().filter(|r| !r.extender.filter.is_empty()) {
            if answer.nodes.is_empty() {
                break;
            }
            match one.filter(&objects, &mut answer).await {
                Err(why) if one.extender.ignorable => {
                    tracing::info!(
                        extender = one.extender.url,
                        why,
                        "calling an ignorable extender failed; continuing without it"
                    );
                }
                done => done?,
            }
        }
        if answer.nodes.len() > 1 {
            let scoring = asked.iter().filter(|r| !r.extender.prioritize.is_empty());
            let names: Vec<Box<str>> = answer.nodes.iter().map(|(name, _)| name.clone()).collect();
            let scores = futures::future::join_all(scoring.map(|one| one.prioritize(&objects, &names))).await;
            for (name, total) in &mut answer.nodes {
                *total += scores.iter().filter_map(|s| s.get(&**name)).sum::<i64>();
            }
        }
        Ok(answer)
    }

    /// Filters the preemption candidates.
    pub(super) async fn rooms(&self, api: &Client, question: &RoomQuestion) -> Result<Vec<Room>, String> {
        let objects = Objects::read(api, &question.pod, false).await?;
        let mut rooms = question.rooms.clone();
        for one in self.0.iter().filter(|r| r.extender.is_asked_for_room(&question.pod.spec)) {
            match one.rooms(api, &objects, &rooms).await {
                Ok(left) => rooms = left,
                Err(why) if one.extender.ignorable => {
                    tracing::info!(
                        extender = one.extender.url,
                        why,
                        "calling an ignorable extender failed; continuing without it"
                    );
                }
                Err(why) => return Err(why),
            }
            if rooms.is_empty() {
                break;
            }
        }
        Ok(rooms)
    }

    /// Binds a pod by the extender that binds it; `None` when there is none.
    pub(super) async fn bind(&self, pod: &Pod) -> Option<Result<(), String>> {
        for one in self.0.iter().filter(|r| !r.extender.bind.is_empty() && r.extender.is_interested(&pod.spec)) {
            match one.bind(pod).await {
                Err(why) if one.extender.ignorable => {
                    tracing::info!(
                        extender = one.extender.url,
                        why,
                        "binding through an ignorable extender failed; continuing without it"
                    );
                }
                done => return Some(done),
            }
        }
        None
    }
}

/// The objects that are sent to extenders.
struct Objects {
    pod: Value,
    /// Nodes by name; empty when all extenders take names only.
    nodes: HashMap<String, Value>,
}

impl Objects {
    async fn read(api: &Client, pod: &Pod, with_nodes: bool) -> Result<Self, String> {
        let pod = whole(api, &format!("/api/v1/namespaces/{}/pods/{}", pod.namespace(), pod.name)).await?;
        let mut nodes = HashMap::new();
        if with_nodes {
            let mut list = whole(api, "/api/v1/nodes").await?;
            if let Value::Array(all) = list["items"].take() {
                nodes.extend(
                    all.into_iter().map(|n| (n["metadata"]["name"].as_str().unwrap_or_default().to_owned(), n)),
                );
            }
        }
        Ok(Self { pod, nodes })
    }
}

async fn whole(api: &Client, path: &str) -> Result<Value, String> {
    let bytes = api.call(Method::GET, path, "", Bytes::new()).await.map_err(|e| e.to_string())?;
    kelson_meta::from_json(&bytes).map_err(|e| e.to_string())
}

/// Reads a field of an answer ignoring case, as Go does, since extenders are written in many languages.
fn field(answer: &mut Value, name: &str) -> Value {
    let Some(map) = answer.as_object_mut() else { return Value::Null };
    let key = map.keys().find(|key| key.eq_ignore_ascii_case(name)).cloned();
    key.and_then(|key| map.remove(&key)).unwrap_or_default()
}

impl Reached {
    fn new(extender: Extender) -> Result<Self, String> {
        let uri: http::Uri = extender.url.parse().map_err(|e| format!("{:?}: {e}", extender.url))?;
        let authority = uri.authority().ok_or_else(|| format!("{:?} has no host", extender.url))?;
        let transport: Arc<dyn Transport> = match uri.scheme_str() {
            Some("http") => Arc::new(Plain::new(authority.clone())),
            Some("https") => {
                let config = reached_by(&extender.tls, format!("https://{authority}"));
                Arc::new(Remote::new(config).map_err(|e| e.to_string())?)
            }
            _ => return Err(format!("must be an http or https URL, got {:?}", extender.url)),
        };
        let path = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { client: Client::new(transport, "kube-scheduler"), path, extender })
    }

    async fn post(&self, verb: &str, arguments: &Value) -> Result<Value, String> {
        let url = format!("{}/{verb}", self.extender.url.trim_end_matches('/'));
        let asked = async {
            let path = format!("{}/{verb}", self.path);
            let body = Bytes::from(arguments.to_string());
            let answer = self.client.raw(Method::POST, &path, "application/json", body).await;
            let answer = answer.map_err(|e| format!("Post {url:?}: {e}"))?;
            let code = answer.status().as_u16();
            if code != 200 {
                return Err(format!("failed {verb} with extender at URL {url}, code {code}"));
            }
            let bytes = Client::read(answer).await.map_err(|e| e.to_string())?;
            kelson_meta::from_json(&bytes).map_err(|e| e.to_string())
        };
        let late = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
        tokio::time::timeout(self.extender.timeout, asked)
            .await
            .unwrap_or_else(|_| Err(format!("Post {url:?}: {late}")))
    }

    /// Builds the node part of a request.
    fn about<'a>(&self, objects: &Objects, names: impl Iterator<Item = &'a Box<str>>) -> Value {
        let (mut list, mut only) = (Value::Null, Value::Null);
        if self.extender.knows_nodes {
            only = names.map(|name| Value::from(&**name)).collect();
        } else {
            let items: Vec<&Value> = names.filter_map(|name| objects.nodes.get(&**name)).collect();
            list = json!({"metadata": {}, "items": items});
        }
        json!({"Pod": objects.pod, "Nodes": list, "NodeNames": only})
    }

    async fn filter(&self, objects: &Objects, answer: &mut Answer) -> Result<(), String> {
        let arguments = self.about(objects, answer.nodes.iter().map(|(name, _)| name));
        let mut said = self.post(&self.extender.filter, &arguments).await?;
        if let Some(why) = field(&mut said, "Error").as_str().filter(|why| !why.is_empty()) {
            return Err(why.to_owned());
        }
        let names = field(&mut said, "NodeNames");
        let kept: Vec<String> = match names.as_array().filter(|_| self.extender.knows_nodes) {
            Some(names) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            None => {
                let items = field(&mut field(&mut said, "Nodes"), "items");
                let name = |n: &Value| n["metadata"]["name"].as_str().map(str::to_owned);
                items.as_array().into_iter().flatten().filter_map(name).collect()
            }
        };
        if let Some(strange) = kept.iter().find(|name| !answer.nodes.iter().any(|(n, _)| **n == ***name)) {
            let url = &self.extender.url;
            return Err(format!(
                "extender {url:?} claims a filtered node {strange:?} which is not found in the input node list"
            ));
        }
        let mut hopeless = reasons(field(&mut said, "FailedAndUnresolvableNodes"));
        let mut failed = reasons(field(&mut said, "FailedNodes"));
        failed.retain(|(node, _)| !hopeless.iter().any(|(n, _)| n == node));
        answer.refused.extend(hopeless.drain(..).map(|(node, why)| (node, why, false)));
        answer.refused.extend(failed.drain(..).map(|(node, why)| (node, why, true)));
        answer.nodes.retain(|(name, _)| kept.iter().any(|k| **k == **name));
        Ok(())
    }

    /// Returns the weighted scores of nodes; none if the extender does not answer.
    async fn prioritize(&self, objects: &Objects, names: &[Box<str>]) -> HashMap<String, i64> {
        let said = self.post(&self.extender.prioritize, &self.about(objects, names.iter())).await;
        let said = match said {
            Ok(Value::Array(all)) => all,
            Ok(_) => Vec::new(),
            Err(why) => {
                tracing::debug!(extender = self.extender.url, why, "extender returned no scores");
                Vec::new()
            }
        };
        let score = |mut one: Value| {
            let host = field(&mut one, "Host").as_str()?.to_owned();
            let score = field(&mut one, "Score").as_i64()?;
            Some((host, score.saturating_mul(self.extender.weight).saturating_mul(SCORE_SCALE)))
        };
        said.into_iter().filter_map(score).collect()
    }

    async fn rooms(&self, api: &Client, objects: &Objects, rooms: &[Room]) -> Result<Vec<Room>, String> {
        let mut victims = Map::new();
        for room in rooms {
            let mut pods = Vec::with_capacity(room.victims.len());
            for pod in &room.victims {
                pods.push(if self.extender.knows_nodes {
                    json!({"UID": &*pod.uid})
                } else {
                    whole(api, &format!("/api/v1/namespaces/{}/pods/{}", pod.namespace(), pod.name)).await?
                });
            }
            victims.insert(room.node.to_string(), json!({"Pods": pods, "NumPDBViolations": room.violations}));
        }
        let (full, short) = match self.extender.knows_nodes {
            true => (Value::Null, Value::Object(victims)),
            false => (Value::Object(victims), Value::Null),
        };
        let arguments = json!({"Pod": objects.pod, "NodeNameToVictims": full, "NodeNameToMetaVictims": short});
        let mut said = self.post(&self.extender.preempt, &arguments).await?;
        let Value::Object(said) = field(&mut said, "NodeNameToMetaVictims") else { return Ok(Vec::new()) };
        let mut left = Vec::with_capacity(said.len());
        for (node, mut wanted) in said {
            let violations = field(&mut wanted, "NumPDBViolations").as_u64().unwrap_or(0);
            let pods = field(&mut wanted, "Pods");
            let uids = pods.as_array().cloned().unwrap_or_default();
            let uids = uids.into_iter().map(|mut p| field(&mut p, "UID").as_str().unwrap_or_default().to_owned());
            let uids: Vec<String> = uids.collect();
            if uids.is_empty() && self.extender.ignorable {
                continue;
            }
            if uids.is_empty() {
                return Err(format!("expected at least one victim pod on node {node:?}"));
            }
            let offered = rooms.iter().find(|room| *room.node == *node);
            let find = |uid: &String| {
                let pod = offered.and_then(|room| room.victims.iter().find(|pod| *pod.uid == **uid)).cloned();
                let url = &self.extender.url;
                pod.ok_or_else(|| {
                    format!(
                        "extender: {url} claims to preempt pod (UID: {uid}) on node: {node}, but the pod is not found on \
                         that node"
                    )
                })
            };
            let victims = uids.iter().map(find).collect::<Result<Vec<_>, _>>()?;
            left.push(Room {
                node: node.as_str().into(),
                victims,
                violations: usize::try_from(violations).unwrap_or(0),
            });
        }
        Ok(left)
    }

    async fn bind(&self, pod: &Pod) -> Result<(), String> {
        let arguments = json!({"PodName": &*pod.name, "PodNamespace": pod.namespace(), "PodUID": &*pod.uid,
            "Node": &*pod.node_name});
        let mut said = self.post(&self.extender.bind, &arguments).await?;
        match field(&mut said, "Error").as_str() {
            None | Some("") => Ok(()),
            Some(why) => Err(why.to_owned()),
        }
    }
}

/// Rejected nodes with the extender's reason.
fn reasons(said: Value) -> Vec<(Box<str>, String)> {
    let Value::Object(said) = said else { return Vec::new() };
    said.into_iter().map(|(node, why)| (node.into(), why.as_str().unwrap_or_default().to_owned())).collect()
}

/// The TLS configuration for an extender. As upstream, nothing is verified when no CA is configured.
fn reached_by(tls: &ExtenderTls, server: String) -> Config {
    let has_authority = !tls.ca.is_empty() || tls.ca_file.is_some();
    let credentials = match (&tls.cert_file, &tls.key_file) {
        _ if !tls.cert.is_empty() => Credentials::Certificate { cert_pem: tls.cert.clone(), key_pem: tls.key.clone() },
        (Some(cert), Some(key)) => Credentials::CertificateFiles { cert: cert.clone(), key: key.clone() },
        _ => Credentials::None,
    };
    Config {
        server,
        ca_pem: tls.ca.clone(),
        ca_file: tls.ca_file.clone().filter(|_| tls.ca.is_empty()),
        tls_server_name: Some(tls.server_name.clone()).filter(|name| !name.is_empty()),
        insecure_skip_tls_verify: tls.insecure || !has_authority,
        credentials,
        ..Config::default()
    }
}
