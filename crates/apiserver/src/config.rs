//! Configuration of the API server as typed values. The binary reads flags and files and fills in [`Config`].
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ipnet::IpNet;
use kelson_admission::AdmissionOptions;
use kelson_audit::Audit;
use kelson_auth::authenticate::FrontProxyOptions;
use kelson_auth::authenticate::jwt::Issuer;
use kelson_auth::authorize::config::WebhookConfig;
use kelson_auth::token::TokenTerms;
use kelson_auth::{Anonymous, UserInfo};
use kelson_meta::gates::FeatureGates;
use kelson_meta::{Clock, Status, SystemClock};
use kelson_metrics::Registry;
use kelson_pki::{Key, PublicKey, SwappableCertificate};
use kelson_resources::GatedFields;
use kelson_store::Store;
use kelson_tasks::Tasks;
use kelson_traces::Tracer;

use crate::catalog::{RuntimeConfig, runtime_config};

/// One of `--authorization-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// Everything is allowed.
    AlwaysAllow,
    /// Nothing is allowed.
    AlwaysDeny,
    /// The Node authorizer: kubelets may access what is related to pods scheduled to their node.
    Node,
    /// Roles and bindings.
    Rbac,
    /// An authorization webhook: the one with this index in [`Config::authorization_webhooks`].
    Webhook(usize),
}

/// The source of the servers in the endpoints of the `kubernetes` service (`--endpoint-reconciler-type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EndpointReconciler {
    /// Every server that holds a lease in the storage. Without a shared storage this is only this server.
    #[default]
    Lease,
    /// The given number of servers, each of which adds its own address (`master-count`, `--apiserver-count`).
    Count(usize),
    /// The endpoints are managed elsewhere; the server does not change them (`none`).
    Elsewhere,
}

/// A webhook that reviews bearer tokens (TokenReview).
#[derive(Clone, Debug)]
pub struct TokenWebhook {
    /// `--authentication-token-webhook-config-file`.
    pub kubeconfig: PathBuf,
    /// `--authentication-token-webhook-version`: `v1` or `v1beta1`.
    pub version: &'static str,
    /// `--authentication-token-webhook-cache-ttl`.
    pub kept_for: Duration,
    /// Timeout of one call.
    pub timeout: Duration,
}

/// The address and the certificate for HTTPS.
#[derive(Clone)]
pub struct ServingConfig {
    /// Address to listen on; port 0 picks a free one.
    pub bind: SocketAddr,
    /// Serving certificate. It can be replaced without a restart.
    pub certificate: Arc<SwappableCertificate>,
}

/// The configuration for issuing and validating service account tokens.
#[derive(Clone)]
pub struct ServiceAccountConfig {
    /// The first `--service-account-issuer`: the `iss` claim of issued tokens.
    pub issuer: String,
    /// Further values of `--service-account-issuer`: their tokens, signed by the same keys, are accepted too.
    pub issuers_before: Vec<String>,
    /// The private key that signs tokens.
    pub key: Key,
    /// Public keys that verify signatures; the signing key's public half is one of them.
    pub verifiers: Vec<PublicKey>,
    /// `--api-audiences`; empty means the issuer.
    pub audiences: Vec<String>,
    /// Lifetime and claims of issued tokens.
    pub terms: TokenTerms,
}

/// The trusted serving certificates of kubelets (`--kubelet-certificate-authority`). CAs are in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeletTrust {
    /// Certificates of the cluster's CA that name their node: common name `system:node:NAME`, organization `system:nodes`.
    Cluster(String),
    /// The certificates above, and those of another CA that are valid for the node's address.
    Authority {
        /// The cluster's CA; empty if there is none.
        own: String,
        /// The other CA.
        given: String,
    },
    /// Every certificate, including self-signed ones: upstream's behaviour without the flag.
    Anyone,
}

/// The configuration of connections to kubelets.
#[derive(Clone)]
pub struct KubeletConfig {
    /// The server's client certificate. A replacement applies to new connections.
    pub client: Arc<SwappableCertificate>,
    /// The trusted serving certificates.
    pub trust: KubeletTrust,
    /// The node on this machine, the only one whose address may be a loopback address; `None` if there is none.
    pub local_node: Option<String>,
    /// `--kubelet-preferred-address-types`.
    pub address_types: Vec<String>,
}

/// The CA bundles that a running server trusts from now on. See [`Running::trust`](crate::Running::trust).
#[derive(Clone, Debug)]
pub struct Trusted {
    /// The CA certificates that replace [`Config::client_ca_pem`].
    pub client_ca_pem: String,
    /// The CA certificates that replace [`Config::request_header_ca_pem`].
    pub request_header_ca_pem: String,
    /// Replaces the cluster's CA in [`KubeletConfig::trust`].
    pub kubelet_ca_pem: String,
    /// The CA certificates that replace [`Config::peer_ca_pem`].
    pub peer_ca_pem: String,
}

/// An extra health check. An error is the reason why it fails.
pub type ExtraCheck = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What `POST /kelson/join` does: another server joins the cluster.
#[async_trait]
pub trait JoinHandler: Send + Sync {
    /// Answers the request of a user, who may make it, with a JSON value.
    ///
    /// # Errors
    /// The response for the client.
    async fn answer(&self, user: &UserInfo, body: &[u8]) -> Result<serde_json::Value, Status>;
}

/// Sets the log verbosity from a number in a string. Returns the message for the client.
pub type VerbositySetter = fn(&str) -> Result<String, String>;

/// Configuration of an API server: storage, sockets, authentication, authorization, admission, limits and the paths that are
/// optional. [`Config::new`] gives upstream's defaults over a store, without sockets; the binary overwrites fields from flags and
/// files. A server keeps its configuration in [`Server`](crate::Server); what can change at runtime has a method on
/// [`Running`](crate::Running).
#[derive(Clone)]
pub struct Config {
    /// The storage of all objects.
    pub store: Store,
    /// The store is a fork of one that a server in this process has already prepared. The objects that every cluster has
    /// exist; only those that name this server are written again.
    pub prepared: bool,
    /// HTTPS; `None` serves only clients in this process.
    pub serving: Option<ServingConfig>,
    /// CAs of client certificates in PEM; empty accepts no client certificate.
    pub client_ca_pem: String,
    /// The time after expiry for which a node's certificate can still be used to request a new one. With `None` it
    /// cannot.
    pub node_return: Option<Duration>,
    /// CAs of front proxies' client certificates in PEM. They are published for aggregated API servers.
    pub request_header_ca_pem: String,
    /// The trusted front proxies, and the headers in which they name the user (`--requestheader-*`).
    pub request_headers: FrontProxyOptions,
    /// Client certificate that proves to aggregated API servers that this server may name the user.
    pub front_proxy_client: Option<Arc<SwappableCertificate>>,
    /// `--token-auth-file`.
    pub token_auth_file: Option<PathBuf>,
    /// Issuers of OIDC tokens besides the cluster (`--authentication-config`, `--oidc-*`).
    pub issuers: Vec<Arc<Issuer>>,
    /// Whether issuers may be replaced while the server runs ([`Running::replace_issuers`](crate::Running::replace_issuers)).
    pub issuers_may_change: bool,
    /// Webhook for tokens that no other authenticator knows.
    pub token_webhook: Option<TokenWebhook>,
    /// `--anonymous-auth`.
    pub anonymous_auth: bool,
    /// Conditions for anonymous requests from the authentication configuration file; it overrides the flag.
    pub anonymous: Option<Anonymous>,
    /// Whether bootstrap tokens authenticate (`--enable-bootstrap-token-auth`).
    pub bootstrap_tokens: bool,
    /// `--authorization-mode`.
    pub authorization: Vec<AuthorizationMode>,
    /// The authorization webhooks in use.
    pub authorization_webhooks: Vec<WebhookConfig>,
    /// Whether authorizers may be replaced while the server runs
    /// ([`Running::replace_authorizers`](crate::Running::replace_authorizers)).
    pub authorization_may_change: bool,
    /// Whether pods may have privileged containers (`--allow-privileged`).
    pub allow_privileged: bool,
    /// Whether the nodes enforce network policies, as far as the server knows. If not, writing a NetworkPolicy returns a warning.
    pub enforces_network_policies: bool,
    /// The admission plug-ins that run, and their configuration.
    pub admission: AdmissionOptions,
    /// Service account tokens; `None`: they are neither issued nor accepted.
    pub service_accounts: Option<ServiceAccountConfig>,
    /// Connections to kubelets; `None`: logs, exec and similar requests fail with 503.
    pub kubelet: Option<KubeletConfig>,
    /// Whether the server itself serves the resource usage of nodes and pods (`metrics.k8s.io`), unless an APIService names another
    /// server for it. Upstream's API server does not; its clusters have metrics-server.
    pub resource_metrics: bool,
    /// `--service-cluster-ip-range`; the first is of the primary IP family.
    pub service_cidrs: Vec<IpNet>,
    /// `--service-node-port-range`, both ends included.
    pub node_ports: (u16, u16),
    /// `--advertise-address`: the address in the `kubernetes` endpoints.
    pub advertise_address: IpAddr,
    /// `--external-hostname`: the address in discovery instead, with or without a port.
    pub external_host: Option<String>,
    /// Port in the `kubernetes` endpoints; 0 means the bound port.
    pub advertise_port: u16,
    /// Host name under which this server renews its identity Lease; `None`: there is no Lease, and an idle server writes nothing.
    pub identity_host: Option<String>,
    /// CAs in PEM that verify the serving certificates of other API servers on the same storage (`--peer-ca-file`); empty: requests
    /// for what only they serve are not forwarded.
    pub peer_ca_pem: String,
    /// The address at which other API servers reach this one (`--peer-advertise-ip`, `--peer-advertise-port`) [default: the advertised
    /// one].
    pub peer_address: Option<SocketAddr>,
    /// The servers in the `kubernetes` endpoints.
    pub endpoints: EndpointReconciler,
    /// `--event-ttl`.
    pub event_ttl: Duration,
    /// `--max-requests-inflight`: limit of read-only requests.
    pub reads_in_flight_max: usize,
    /// `--max-mutating-requests-inflight`: limit of all other requests.
    pub writes_in_flight_max: usize,
    /// Whether requests are classified and queued (`--enable-priority-and-fairness`). The sum of both limits is then shared by all.
    pub priority_and_fairness: bool,
    /// `--request-timeout` of all requests except watches and streams.
    pub request_timeout: Duration,
    /// Audit log; `None`: off. The server closes it after the last request.
    pub audit: Option<Arc<Audit>>,
    /// Tracing of sampled requests; `None`: off. The server closes it together with the audit log.
    pub tracer: Option<Arc<Tracer>>,
    /// Limit of connections to kubelets, pods and services that clients have open through the server.
    pub backends_max: usize,
    /// Additional checks of `/healthz` and `/readyz` by name (`kms-providers`).
    pub checks: Vec<(&'static str, ExtraCheck)>,
    /// Metric registries that `/metrics` shows besides the server's own.
    pub registries: Vec<Registry>,
    /// Directory in which `POST /kelson/snapshots` stores snapshots; `None`: the path does not exist.
    pub snapshots: Option<PathBuf>,
    /// What `POST /kelson/join` does; `None`: the path does not exist.
    pub join: Option<Arc<dyn JoinHandler>>,
    /// The process's flags and their effective values for `/flagz`, sorted by name.
    pub flags: Vec<(String, String)>,
    /// Sets the log verbosity (`/debug/flags/v`); `None`: the path does not exist.
    pub verbosity: Option<VerbositySetter>,
    /// `--feature-gates`.
    pub feature_gates: Arc<FeatureGates>,
    /// `--runtime-config`: which built-in resources are served.
    pub runtime_config: Arc<RuntimeConfig>,
    /// The parent of the server's tasks.
    pub tasks: Tasks,
    /// `--cluster-domain`.
    pub cluster_domain: String,
    /// Wall clock for timestamps and expiry.
    pub clock: Arc<dyn Clock>,
}

/// Feature gate of requests that are forwarded to other API servers on the same storage.
pub const PEER_GATE: &str = "UnknownVersionInteroperabilityProxy";

/// Feature gates that change the server's behaviour, besides those of kinds, fields and admission plugins.
const FEATURE_GATES: [&str; 8] = [
    "APIServerIdentity",
    "ComponentFlagz",
    "ComponentStatusz",
    "PodLogsQuerySplitStreams",
    "StorageVersionHash",
    PEER_GATE,
    "WatchCacheInitializationPostStartHook",
    "WatchList",
];

/// Whether a feature gate changes anything here: the server's behaviour, the served kinds or their fields.
pub fn asks_for(gate: &str) -> bool {
    FEATURE_GATES.contains(&gate)
        || runtime_config::gates().any(|of_kinds| of_kinds == gate)
        || GatedFields::gates().any(|of_fields| of_fields == gate)
        || kelson_admission::feature_gates().contains(gate)
}

impl Config {
    /// Upstream's defaults: no sockets, anonymous requests allowed, Node and RBAC authorization.
    pub fn new(store: Store) -> Self {
        let any = IpAddr::V4(Ipv4Addr::new(10, 43, 0, 0));
        Self {
            store,
            prepared: false,
            serving: None,
            client_ca_pem: String::new(),
            node_return: None,
            request_header_ca_pem: String::new(),
            request_headers: request_headers(),
            front_proxy_client: None,
            token_auth_file: None,
            issuers: Vec::new(),
            issuers_may_change: false,
            token_webhook: None,
            anonymous_auth: true,
            anonymous: None,
            bootstrap_tokens: true,
            authorization: vec![AuthorizationMode::Node, AuthorizationMode::Rbac],
            authorization_webhooks: Vec::new(),
            authorization_may_change: false,
            allow_privileged: true,
            enforces_network_policies: true,
            admission: AdmissionOptions::default(),
            service_accounts: None,
            kubelet: None,
            resource_metrics: false,
            service_cidrs: IpNet::new(any, 16).map(|n| vec![n]).unwrap_or_default(),
            node_ports: (30000, 32767),
            advertise_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            external_host: None,
            advertise_port: 0,
            identity_host: None,
            peer_ca_pem: String::new(),
            peer_address: None,
            endpoints: EndpointReconciler::default(),
            event_ttl: Duration::from_secs(kelson_store::limits::EVENT_TTL_S),
            reads_in_flight_max: 400,
            writes_in_flight_max: 200,
            priority_and_fairness: true,
            request_timeout: Duration::from_secs(60),
            audit: None,
            tracer: None,
            backends_max: 2048,
            checks: Vec::new(),
            registries: Vec::new(),
            snapshots: None,
            join: None,
            flags: Vec::new(),
            verbosity: None,
            feature_gates: Arc::default(),
            runtime_config: Arc::default(),
            tasks: Tasks::root("apiserver"),
            cluster_domain: "cluster.local".into(),
            clock: Arc::new(SystemClock),
        }
    }
}

/// The usual headers, spelled as they are published for aggregated API servers.
fn request_headers() -> FrontProxyOptions {
    let one = |name: &str| vec![name.to_owned()];
    FrontProxyOptions {
        allowed_names: one("front-proxy-client"),
        username_headers: one("X-Remote-User"),
        uid_headers: one("X-Remote-Uid"),
        group_headers: one("X-Remote-Group"),
        extra_prefixes: one("X-Remote-Extra-"),
    }
}

/// Reason why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be bound.
    #[error("failed to listen on {address}: {source}")]
    Bind {
        /// The configured address.
        address: SocketAddr,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(String),
    /// A flag has an invalid value.
    #[error("{0}")]
    Config(String),
    /// The store rejected an object that must exist at start.
    #[error("preparing the cluster's own objects: {0}")]
    Bootstrap(String),
}
