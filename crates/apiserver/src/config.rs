//! Configuration, typed. Flags and files are the binary's business.
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use kelson_admission::AdmissionOptions;
use kelson_audit::Audit;
use kelson_auth::Anonymous;
use kelson_auth::authenticate::FrontProxyOptions;
use kelson_auth::authenticate::jwt::Issuer;
use kelson_auth::authorize::config::WebhookConfig;
use kelson_auth::token::TokenTerms;
use kelson_meta::gates::FeatureGates;
use kelson_meta::{Clock, SystemClock};
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
    /// Node agents, by what is scheduled to them.
    Node,
    /// Roles and bindings.
    Rbac,
    /// A server elsewhere: the one at this place of [`Config::authorization_webhooks`].
    Webhook(usize),
}

/// Who says which servers the endpoints of the `kubernetes` service name (`--endpoint-reconciler-type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EndpointReconciler {
    /// Every server that has a lease in the storage; without a shared storage there is this one alone.
    #[default]
    Lease,
    /// So many servers, each of which adds itself (`master-count`, `--apiserver-count`).
    Count(usize),
    /// Somebody else: the endpoints are left alone (`none`).
    Elsewhere,
}

/// A server that reviews tokens.
#[derive(Clone, Debug)]
pub struct TokenWebhook {
    /// `--authentication-token-webhook-config-file`.
    pub kubeconfig: PathBuf,
    /// `--authentication-token-webhook-version`: `v1` or `v1beta1`.
    pub version: &'static str,
    /// `--authentication-token-webhook-cache-ttl`.
    pub kept_for: Duration,
    /// How long one call may take.
    pub timeout: Duration,
}

/// Where and with what to serve TLS.
#[derive(Clone)]
pub struct ServingConfig {
    /// Address; port 0 takes a free one.
    pub bind: SocketAddr,
    /// Certificate; swapping it needs no restart.
    pub certificate: Arc<SwappableCertificate>,
}

/// How service account tokens are made and checked.
#[derive(Clone)]
pub struct ServiceAccountConfig {
    /// `--service-account-issuer`: who the tokens that are made say they are from.
    pub issuer: String,
    /// Issuers whose tokens are taken as well, of the same keys: the flag's further values.
    pub issuers_before: Vec<String>,
    /// The private key that signs tokens.
    pub key: Key,
    /// Check signatures; the signing key's public half among them.
    pub verifiers: Vec<PublicKey>,
    /// `--api-audiences`; empty: the issuer.
    pub audiences: Vec<String>,
    /// What else is said of the tokens that are made.
    pub terms: TokenTerms,
}

/// Which serving certificates of kubelets are believed (`--kubelet-certificate-authority`). Authorities are in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeletTrust {
    /// Those of the cluster's own authority, which must name their node: common name `system:node:NAME`, organization
    /// `system:nodes`.
    Cluster(String),
    /// These, and those of another authority that are good for the node's address.
    Authority {
        /// The cluster's own authority; empty where it has none.
        own: String,
        /// The other one.
        given: String,
    },
    /// All, self-signed ones included: what upstream does without the flag.
    Anyone,
}

/// How kubelets are reached.
#[derive(Clone)]
pub struct KubeletConfig {
    /// The server's own client certificate; what it is swapped for counts for new connections.
    pub client: Arc<SwappableCertificate>,
    /// Whose serving certificates are believed.
    pub trust: KubeletTrust,
    /// The node of this machine, which alone may be at a loopback address; `None` where there is none.
    pub local_node: Option<String>,
    /// `--kubelet-preferred-address-types`.
    pub address_types: Vec<String>,
}

/// Whom a running server trusts from now on.
#[derive(Clone, Debug)]
pub struct Trusted {
    /// What [`Config::client_ca_pem`] is from now on.
    pub client_ca_pem: String,
    /// What [`Config::request_header_ca_pem`] is from now on.
    pub request_header_ca_pem: String,
    /// The own authority of [`KubeletConfig::trust`].
    pub kubelet_ca_pem: String,
}

/// A health check that the server does not know of itself: whether it passes, and why not.
pub type ExtraCheck = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Changes how much the process logs: takes the text of a number, and gives what the client is told.
pub type VerbositySetter = fn(&str) -> Result<String, String>;

/// Everything the API server is told.
#[derive(Clone)]
pub struct Config {
    /// Where objects are kept.
    pub store: Store,
    /// The store began as a copy of one that a server of this process had made ready: what every cluster has is there, and only
    /// what names this server is made anew.
    pub prepared: bool,
    /// TLS; `None` serves this process only.
    pub serving: Option<ServingConfig>,
    /// CAs of client certificates, PEM; empty: none are accepted.
    pub client_ca_pem: String,
    /// How long after its end a node's certificate still lets that node ask for another; `None`: not at all.
    pub node_return: Option<Duration>,
    /// CAs of front proxies' client certificates, PEM (published for aggregated servers).
    pub request_header_ca_pem: String,
    /// Which of those proxies are believed, and in which headers they name the user (`--requestheader-*`).
    pub request_headers: FrontProxyOptions,
    /// What the server shows to other servers that answer for group versions, so that they believe it who the user is.
    pub front_proxy_client: Option<Arc<SwappableCertificate>>,
    /// `--token-auth-file`.
    pub token_auth_file: Option<PathBuf>,
    /// Who issues tokens beside the cluster (`--authentication-config`, `--oidc-*`).
    pub issuers: Vec<Arc<Issuer>>,
    /// Whether issuers may come and go while the server runs ([`Running::replace_issuers`](crate::Running::replace_issuers)).
    pub issuers_may_change: bool,
    /// Who reviews the tokens that nobody here knows.
    pub token_webhook: Option<TokenWebhook>,
    /// `--anonymous-auth`.
    pub anonymous_auth: bool,
    /// Who may come without credentials, where a configuration file says so; it goes before the flag.
    pub anonymous: Option<Anonymous>,
    /// Bootstrap tokens authenticate (`--enable-bootstrap-token-auth`).
    pub bootstrap_tokens: bool,
    /// `--authorization-mode`.
    pub authorization: Vec<AuthorizationMode>,
    /// The webhooks that authorize.
    pub authorization_webhooks: Vec<WebhookConfig>,
    /// Whether authorizers may be replaced while the server runs
    /// ([`Running::replace_authorizers`](crate::Running::replace_authorizers)).
    pub authorization_may_change: bool,
    /// Whether pods may have privileged containers (`--allow-privileged`).
    pub allow_privileged: bool,
    /// Whether the nodes enforce network policies, as far as the server knows. Where not, a write of one gets a warning.
    pub enforces_network_policies: bool,
    /// Which admission plugins run, and how they are configured.
    pub admission: AdmissionOptions,
    /// Service account tokens; `None`: neither made nor accepted.
    pub service_accounts: Option<ServiceAccountConfig>,
    /// Connections to kubelets; `None`: logs, exec and the like answer 503.
    pub kubelet: Option<KubeletConfig>,
    /// `--service-cluster-ip-range`; the first is the primary family.
    pub service_cidrs: Vec<IpNet>,
    /// `--service-node-port-range`, both ends included.
    pub node_ports: (u16, u16),
    /// `--advertise-address`: what the `kubernetes` endpoints say.
    pub advertise_address: IpAddr,
    /// `--external-hostname`: what discovery says instead, with or without a port.
    pub external_host: Option<String>,
    /// Port that the `kubernetes` endpoints say; 0: the bound one.
    pub advertise_port: u16,
    /// The machine's name, under which this server keeps a Lease of its identity; `None`: it keeps none, and writes nothing at rest.
    pub identity_host: Option<String>,
    /// Whom the `kubernetes` endpoints name.
    pub endpoints: EndpointReconciler,
    /// `--event-ttl`.
    pub event_ttl: Duration,
    /// `--max-requests-inflight`, of requests that only read.
    pub reads_in_flight_max: usize,
    /// `--max-mutating-requests-inflight`, of all other requests.
    pub writes_in_flight_max: usize,
    /// Whether requests are sorted and wait (`--enable-priority-and-fairness`); then the limits in flight are shared by all.
    pub priority_and_fairness: bool,
    /// `--request-timeout` for all but watches and streams.
    pub request_timeout: Duration,
    /// Which requests are written down, and where to; `None`: none are. The server closes it when its last request is over.
    pub audit: Option<Arc<Audit>>,
    /// Records the requests that are sampled; `None`: none are. The server closes it as it closes audit.
    pub tracer: Option<Arc<Tracer>>,
    /// Connections to kubelets, pods and services that clients may have open through the server, all together.
    pub backends_max: usize,
    /// More checks of `/healthz` and `/readyz`, by name (`kms-providers`).
    pub checks: Vec<(&'static str, ExtraCheck)>,
    /// Registries that `/metrics` shows with the server's own.
    pub registries: Vec<Registry>,
    /// Where `POST /kelson/snapshots` puts copies of the store; `None`: there is no such path.
    pub snapshots: Option<PathBuf>,
    /// The process's flags with the values that hold, for `/flagz`; in the order of their names.
    pub flags: Vec<(String, String)>,
    /// Changes how much the process logs (`/debug/flags/v`); `None`: there is no such path.
    pub verbosity: Option<VerbositySetter>,
    /// `--feature-gates`.
    pub feature_gates: Arc<FeatureGates>,
    /// `--runtime-config`: which built-in resources are served.
    pub runtime_config: Arc<RuntimeConfig>,
    /// The group that the server's tasks belong to.
    pub tasks: Tasks,
    /// `--cluster-domain`.
    pub cluster_domain: String,
    /// The wall clock of timestamps and expiry.
    pub clock: Arc<dyn Clock>,
}

/// The feature gates that change what the server does, beside those of kinds, fields and admission's plugins.
const FEATURE_GATES: [&str; 6] = [
    "APIServerIdentity",
    "ComponentFlagz",
    "ComponentStatusz",
    "PodLogsQuerySplitStreams",
    "StorageVersionHash",
    "WatchList",
];

/// Whether a feature gate changes something here: what the server does, which kinds it serves or which of their fields it keeps.
pub fn asks_for(gate: &str) -> bool {
    FEATURE_GATES.contains(&gate)
        || runtime_config::gates().any(|of_kinds| of_kinds == gate)
        || GatedFields::gates().any(|of_fields| of_fields == gate)
        || kelson_admission::feature_gates().contains(gate)
}

impl Config {
    /// Upstream's defaults over a store: no sockets, anonymous requests allowed, Node and RBAC authorization.
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
            service_cidrs: IpNet::new(any, 16).map(|n| vec![n]).unwrap_or_default(),
            node_ports: (30000, 32767),
            advertise_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            external_host: None,
            advertise_port: 0,
            identity_host: None,
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

/// The usual headers, in the spelling in which extension servers are told of them.
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

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be bound.
    #[error("failed to listen on {address}: {source}")]
    Bind {
        /// Where it was to listen.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(String),
    /// A flag's value is wrong.
    #[error("{0}")]
    Config(String),
    /// The store refused what must be there at start.
    #[error("preparing the cluster's own objects: {0}")]
    Bootstrap(String),
}
