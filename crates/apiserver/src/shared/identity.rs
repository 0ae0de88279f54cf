//! Authentication and authorization, built from the configuration, and the tasks that update their indexes from the store's log.
#![allow(clippy::disallowed_methods, reason = "blocking: read at start, before anything is served")]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::StatusCode;
use kelson_auth::authenticate::jwt::{Issuer, IssuerKeysError, Issuers};
use kelson_auth::authenticate::{
    BootstrapTokens, CachedTokens, ClientCertificates, FrontProxy, TokenFile, WebhookTokens,
};
use kelson_auth::authorize::Rbac;
use kelson_auth::authorize::node::{NodeGraph, NodeResource};
use kelson_auth::authorize::rbac::RbacResource;
use kelson_auth::token::{IssuerOptions, ServiceAccountTokens, TokenIssuer, VerifierOptions};
use kelson_auth::{Anonymous, Change, Objects, RequestAuthenticator, TokenAuthenticator, TokenChain, token};
use kelson_metrics::{Histogram, HistogramVec, Registry};
use kelson_pki::{ClientChains, PublicKey};
use kelson_store::{Cursor, EventKind, Record, Resource, Store, StoreError};
use kelson_tasks::{OnPanic, Tasks};
use tokio::sync::watch;

use crate::config::{AuthorizationMode, Config, StartError};
use crate::request::answer::{Answer, answer};
use crate::request::body::ApiBody;
use crate::shared::authorizers::Authorizers;
use crate::shared::identity_metrics::{graph_action_labels, graph_actions, observe_expiration};
use crate::shared::identity_webhooks::{IssuerDocuments, ReviewWebhook};
use crate::shared::issuer_uses::{IssuerCounts, show_certificate_faults};
use crate::shared::token_uses::{CacheCounts, CountedUses};

const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

/// Authentication and authorization of a server: who sends a request, and whether it is allowed. [`auth`] builds it from the
/// configuration; [`Auth::follow`] then keeps the RBAC index and the node graph up to date with the stored objects. Issuers and
/// authorizers can be replaced at runtime.
pub struct Auth {
    /// Authenticates the users of requests.
    pub authenticator: RequestAuthenticator,
    pub authorizer: Arc<Authorizers>,
    /// Configured OIDC issuers; `None` if there are none and none can be added.
    issuers: Option<Arc<Issuers>>,
    /// Issuers of service account tokens.
    own_issuers: Vec<String>,
    /// Authenticates bearer tokens, for TokenReview.
    pub tokens: Arc<dyn TokenAuthenticator>,
    /// The RBAC index, for rules reviews and escalation checks.
    pub rbac: Arc<Rbac>,
    /// Uses of service account tokens.
    pub uses: Arc<CountedUses>,
    /// Issues service account tokens.
    pub issuer: Option<TokenIssuer>,
    graph: Arc<NodeGraph>,
    graph_actions: HistogramVec,
    uses_graph: bool,
    keys: Vec<PublicKey>,
    rbac_progress: Arc<RbacProgress>,
}

/// The revision that each RBAC index has applied.
struct RbacProgress {
    applied: [AtomicU64; 4],
    changed: watch::Sender<()>,
}

const RBAC_RESOURCES: [(&str, RbacResource); 4] = [
    ("roles", RbacResource::Roles),
    ("clusterroles", RbacResource::ClusterRoles),
    ("rolebindings", RbacResource::RoleBindings),
    ("clusterrolebindings", RbacResource::ClusterRoleBindings),
];
const GRAPH_RESOURCES: [(&str, &str); 5] = [
    ("", "pods"),
    ("", "persistentvolumes"),
    ("storage.k8s.io", "volumeattachments"),
    ("resource.k8s.io", "resourceslices"),
    ("certificates.k8s.io", "podcertificaterequests"),
];

/// Builds authentication and authorization.
///
/// # Errors
/// [`StartError::Config`] if a setting is invalid.
pub fn auth(config: &Config, objects: &Arc<dyn Objects>, metrics: &Registry) -> Result<Auth, StartError> {
    let wrong = |e: &dyn std::fmt::Display| StartError::Config(e.to_string());
    let clock = &config.clock;
    let chains = |pem: &str| ClientChains::new(&[pem]).map_err(|e| wrong(&e));
    let uses = CountedUses::new(metrics);
    let Tokens { members, issuer, keys, issuers, own_issuers } = token_kinds(config, objects, &uses, metrics)?;
    show_certificate_faults(metrics);
    let tokens: Arc<dyn TokenAuthenticator> = Arc::new(TokenChain::new(members));
    let tokens: Arc<dyn TokenAuthenticator> =
        Arc::new(CachedTokens::new(tokens, Arc::clone(clock)).with_observer(CacheCounts::new(metrics)));
    let certificates = match config.client_ca_pem.as_str() {
        "" => None,
        pem => {
            let certificates =
                ClientCertificates::new(chains(pem)?, Arc::clone(clock)).counting(observe_expiration(metrics));
            Some(Arc::new(match config.node_return {
                Some(grace) => certificates.returning(grace, Arc::clone(objects)),
                None => certificates,
            }))
        }
    };
    let front_proxy = match config.request_header_ca_pem.as_str() {
        "" => None,
        pem => Some(Arc::new(FrontProxy::new(chains(pem)?, config.request_headers.clone(), Arc::clone(clock)))),
    };
    let (rbac, graph) = (Arc::new(Rbac::new()), Arc::new(NodeGraph::new()));
    let authorizer = Authorizers::new(config, &rbac, &graph, metrics).map_err(|e| wrong(&e))?;
    Ok(Auth {
        authenticator: RequestAuthenticator {
            front_proxy,
            certificates,
            tokens: Arc::clone(&tokens),
            anonymous: match (&config.anonymous, config.anonymous_auth) {
                (Some(configured), _) => configured.clone(),
                (None, true) => Anonymous::Enabled,
                (None, false) => Anonymous::Disabled,
            },
        },
        authorizer: Arc::new(authorizer),
        issuers,
        own_issuers,
        tokens,
        rbac,
        uses,
        issuer,
        graph,
        graph_actions: graph_actions(metrics),
        uses_graph: config.authorization.contains(&AuthorizationMode::Node),
        keys,
        rbac_progress: Arc::new(RbacProgress { applied: Default::default(), changed: watch::Sender::new(()) }),
    })
}

/// The token authenticators in the order in which they are tried, and the issuer of service account tokens.
struct Tokens {
    members: Vec<Arc<dyn TokenAuthenticator>>,
    issuer: Option<TokenIssuer>,
    keys: Vec<PublicKey>,
    issuers: Option<Arc<Issuers>>,
    own_issuers: Vec<String>,
}

fn token_kinds(
    config: &Config,
    objects: &Arc<dyn Objects>,
    uses: &Arc<CountedUses>,
    metrics: &Registry,
) -> Result<Tokens, StartError> {
    let wrong = |e: &dyn std::fmt::Display| StartError::Config(e.to_string());
    let clock = &config.clock;
    let mut members: Vec<Arc<dyn TokenAuthenticator>> = Vec::new();
    if let Some(path) = &config.token_auth_file {
        let text = std::fs::read_to_string(path).map_err(|e| wrong(&format!("{}: {e}", path.display())))?;
        members.push(Arc::new(TokenFile::parse(&text).map_err(|e| wrong(&e))?));
    }
    let mut issuer = None;
    let mut keys = Vec::new();
    if let Some(accounts) = &config.service_accounts {
        let audiences =
            if accounts.audiences.is_empty() { vec![accounts.issuer.clone()] } else { accounts.audiences.clone() };
        let issuers = std::iter::once(&accounts.issuer).chain(&accounts.issuers_before).cloned().collect();
        let options = VerifierOptions { issuers, audiences: audiences.clone() };
        keys = accounts.verifiers.clone();
        let tokens = ServiceAccountTokens::new(keys.clone(), options, Arc::clone(objects), Arc::clone(clock));
        members.push(Arc::new(tokens.with_observer(Arc::clone(uses) as _)));
        let options = IssuerOptions { issuer: accounts.issuer.clone(), audiences, terms: accounts.terms.clone() };
        issuer = Some(TokenIssuer::new(accounts.key.clone(), options));
    }
    if config.bootstrap_tokens {
        members.push(Arc::new(BootstrapTokens::new(Arc::clone(objects), Arc::clone(clock))));
    }
    let own = config.service_accounts.iter();
    let own_issuers: Vec<String> = own.flat_map(|a| a.issuers_before.iter().chain([&a.issuer])).cloned().collect();
    reject_own_issuers(&config.issuers, &own_issuers).map_err(|e| wrong(&e))?;
    let mut issuers = None;
    if !config.issuers.is_empty() || config.issuers_may_change {
        let known = Issuers::new(config.issuers.clone(), Arc::new(IssuerDocuments), Arc::clone(clock));
        let known = Arc::new(known.with_observer(IssuerCounts::new(metrics)));
        members.push(Arc::clone(&known) as _);
        issuers = Some(known);
    }
    if let Some(webhook) = &config.token_webhook {
        let ask = ReviewWebhook::of_kubeconfig(&webhook.kubeconfig, webhook.timeout).map_err(|e| wrong(&e))?;
        let audiences = issuer.as_ref().map(|i: &TokenIssuer| i.options().audiences.clone()).unwrap_or_default();
        let clock = Arc::clone(clock);
        members.push(Arc::new(WebhookTokens::new(Arc::new(ask), webhook.version, audiences, webhook.kept_for, clock)));
    }
    Ok(Tokens { members, issuer, keys, issuers, own_issuers })
}

/// Why token issuers are not trusted.
#[derive(Debug, thiserror::Error)]
pub enum IssuersError {
    /// An issuer has the name of the cluster's own issuer.
    #[error("issuer {0:?} is the cluster's own")]
    OwnIssuer(String),
    /// The server was started without issuers that may change.
    #[error("the server was not started with an authentication configuration file")]
    NotConfigured,
    /// The keys of an issuer cannot be fetched; a later attempt may succeed.
    #[error(transparent)]
    Keys(#[from] IssuerKeysError),
}

/// Rejects OIDC issuers that have the name of the cluster's own issuer.
fn reject_own_issuers(issuers: &[Arc<Issuer>], own: &[String]) -> Result<(), IssuersError> {
    match issuers.iter().find(|issuer| own.contains(&issuer.url)) {
        Some(issuer) => Err(IssuersError::OwnIssuer(issuer.url.clone())),
        None => Ok(()),
    }
}

impl Auth {
    /// Replaces the trusted token issuers, once the keys of all new ones are known.
    ///
    /// # Errors
    /// See [`IssuersError`]. Nothing changes then.
    pub async fn replace_issuers(&self, issuers: Vec<Arc<Issuer>>) -> Result<(), IssuersError> {
        reject_own_issuers(&issuers, &self.own_issuers)?;
        match &self.issuers {
            Some(known) => Ok(known.replace(issuers).await?),
            None => Err(IssuersError::NotConfigured),
        }
    }

    /// Fills the indexes and starts to follow the store's log.
    pub fn follow(&self, store: &Store, tasks: &Tasks) {
        for (i, (plural, resource)) in RBAC_RESOURCES.into_iter().enumerate() {
            let index =
                RbacIndex { rbac: Arc::clone(&self.rbac), resource, at: Arc::clone(&self.rbac_progress), place: i };
            follow(store, tasks, Resource::new(RBAC_GROUP, plural), index);
        }
        for (group, plural) in GRAPH_RESOURCES.into_iter().filter(|_| self.uses_graph) {
            let Some(resource) = NodeResource::parse(group, plural) else { continue };
            let actions = graph_action_labels(resource).map(|word| self.graph_actions.with_label_values(&[word]));
            let index = GraphIndex { graph: Arc::clone(&self.graph), resource, actions };
            follow(store, tasks, Resource::new(group, plural), index);
        }
    }

    /// Waits until a write of a role or binding is effective.
    pub async fn wait_until_applied(&self, record: &Record) {
        let key = record.key();
        if key.resource.group() != RBAC_GROUP {
            return;
        }
        let Some(i) = RBAC_RESOURCES.iter().position(|(plural, _)| *plural == key.resource.plural()) else { return };
        let mut changed = self.rbac_progress.changed.subscribe();
        while self.rbac_progress.applied[i].load(Ordering::Acquire) < record.revision() {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// The discovery documents of the token issuer.
    pub fn issuer_document(&self, path: &str) -> Option<Answer> {
        let issuer = self.issuer.as_ref()?.options();
        let (content_type, value) = match path {
            "/.well-known/openid-configuration" => {
                let here = || format!("{}/openid/v1/jwks", issuer.issuer.trim_end_matches('/'));
                let jwks = issuer.terms.jwks_uri.clone().unwrap_or_else(here);
                ("application/json", token::openid_configuration(&issuer.issuer, &jwks, &self.keys))
            }
            "/openid/v1/jwks" => ("application/jwk-set+json", token::jwks(&self.keys)),
            _ => return None,
        };
        Some(answer(StatusCode::OK, content_type, ApiBody::full(value.to_string())))
    }
}

/// An index of the objects of one resource, updated from the store's log.
trait Index: Send + 'static {
    /// Adds or replaces an object.
    fn put(&self, record: &Record);
    /// Removes an object.
    fn remove(&self, namespace: &str, name: &str);
    /// Namespace and name of all objects in the index.
    fn names(&self) -> Vec<(String, String)>;
    /// Notes that all changes up to this revision are applied.
    fn set_applied(&self, _revision: u64) {}
}

struct RbacIndex {
    rbac: Arc<Rbac>,
    resource: RbacResource,
    at: Arc<RbacProgress>,
    /// Index in [`RBAC_RESOURCES`].
    place: usize,
}

impl Index for RbacIndex {
    fn put(&self, record: &Record) {
        let key = record.key();
        self.rbac.apply(self.resource, &key.namespace, &key.name, Change::Put(&record.bytes()));
    }
    fn remove(&self, namespace: &str, name: &str) {
        self.rbac.apply(self.resource, namespace, name, Change::Delete);
    }
    fn names(&self) -> Vec<(String, String)> {
        self.rbac.names(self.resource)
    }
    fn set_applied(&self, revision: u64) {
        self.at.applied[self.place].store(revision, Ordering::Release);
        self.at.changed.send_replace(());
    }
}

struct GraphIndex {
    graph: Arc<NodeGraph>,
    resource: NodeResource,
    /// Durations of adding and removing an object.
    actions: [Histogram; 2],
}

impl Index for GraphIndex {
    fn put(&self, record: &Record) {
        // Pods without a node connect nothing, so their decoding is skipped.
        let unbound = self.resource == NodeResource::Pods && record.meta().fields.get("spec.nodeName") == Some("");
        if !unbound {
            let _timer = self.actions[0].start_timer();
            let key = record.key();
            self.graph.apply(self.resource, &key.namespace, &key.name, Change::Put(&record.bytes()));
        }
    }
    fn remove(&self, namespace: &str, name: &str) {
        let _timer = self.actions[1].start_timer();
        self.graph.apply(self.resource, namespace, name, Change::Delete);
    }
    fn names(&self) -> Vec<(String, String)> {
        self.graph.names(self.resource)
    }
}

/// Applies the current objects, then every change, in a task.
fn follow(store: &Store, tasks: &Tasks, resource: Resource, index: impl Index) {
    let Some(mut cursor) = refill(store, resource, &index) else { return };
    let store = store.clone();
    // Decisions from an index that no longer follows the log would be wrong, some of them permanently.
    tasks.spawn("auth-index", OnPanic::EndProcess, async move {
        loop {
            match cursor.next().await {
                Ok(batch) => {
                    for event in &batch {
                        match event.kind {
                            EventKind::Deleted => {
                                let key = event.record.key();
                                index.remove(&key.namespace, &key.name);
                            }
                            _ => index.put(&event.record),
                        }
                    }
                    if let Some(last) = batch.last() {
                        index.set_applied(last.revision);
                    }
                }
                Err(StoreError::Closed) => return,
                Err(error) => {
                    tracing::warn!(%resource, %error, "authorization index fell behind the store's log; rebuilding it");
                    let Some(fresh) = refill(&store, resource, &index) else { return };
                    cursor = fresh;
                }
            }
        }
    });
}

/// Brings an index to the store's current state. Objects that are only in the index were deleted while it did not follow the log; a
/// deleted binding must not grant anything any longer.
fn refill(store: &Store, resource: Resource, index: &impl Index) -> Option<Cursor> {
    let view = store.list(resource, None, None, None);
    let names = index.names();
    if !names.is_empty() {
        let there: HashSet<(&str, &str)> = view.iter().map(|r| (&*r.key().namespace, &*r.key().name)).collect();
        for (namespace, name) in names.iter().filter(|(ns, name)| !there.contains(&(ns.as_str(), name.as_str()))) {
            index.remove(namespace, name);
        }
    }
    for record in view.iter() {
        index.put(record);
    }
    index.set_applied(view.revision());
    match store.watch(resource, view.revision()) {
        Ok(cursor) => Some(cursor),
        Err(error) => {
            tracing::error!(%resource, %error, "authorization index cannot follow the store's log");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_auth::UserInfo;

    #[derive(Default)]
    struct Names(parking_lot::Mutex<std::collections::BTreeSet<String>>);

    impl Index for Arc<Names> {
        fn put(&self, record: &Record) {
            self.0.lock().insert(record.key().name.to_string());
        }
        fn remove(&self, _namespace: &str, name: &str) {
            self.0.lock().remove(name);
        }
        fn names(&self) -> Vec<(String, String)> {
            self.0.lock().iter().map(|name| (String::new(), name.clone())).collect()
        }
    }

    #[tokio::test]
    async fn a_rebuilt_index_drops_deleted_objects() {
        let store = Store::in_memory(kelson_store::StoreOptions::default());
        let index = Arc::new(Names::default());
        index.0.lock().insert("deleted".into());
        refill(&store, Resource::new("", "nodes"), &index).expect("follows");
        assert!(index.0.lock().is_empty());
    }

    #[test]
    fn a_deleted_binding_grants_nothing() {
        let rbac = Arc::new(Rbac::new());
        let role = br#"{"metadata":{"name":"r"},"rules":[{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}]}"#;
        let binding = br#"{"metadata":{"name":"b"},"roleRef":{"kind":"ClusterRole","name":"r"},
            "subjects":[{"kind":"User","name":"jane"}]}"#;
        rbac.apply(RbacResource::ClusterRoles, "", "r", Change::Put(role));
        rbac.apply(RbacResource::ClusterRoleBindings, "", "b", Change::Put(binding));
        let jane = UserInfo::new("jane", ["g"]);
        assert_eq!(rbac.rules_for(&jane, "").rules.len(), 1);
        let at = RbacProgress { applied: Default::default(), changed: watch::Sender::new(()) };
        let resource = RbacResource::ClusterRoleBindings;
        let index = RbacIndex { rbac: Arc::clone(&rbac), resource, at: Arc::new(at), place: 3 };
        assert_eq!(index.names(), [(String::new(), "b".to_owned())]);
        let store = Store::in_memory(kelson_store::StoreOptions::default());
        refill(&store, Resource::new(RBAC_GROUP, "clusterrolebindings"), &index).expect("follows");
        assert!(rbac.rules_for(&jane, "").rules.is_empty());
    }
}
