//! The flags of upstream's kube-apiserver that have an effect here.
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use ipnet::IpNet;

use crate::admission::AdmissionArgs;
use crate::args::{OverloadArgs, VerbosityArgs};
use crate::audit::AuditArgs;
use crate::etcd_flags::EtcdArgs;
use crate::identity::IdentityArgs;
use crate::tracing_flags::TracingArgs;
use kelson_meta::parse_duration;

#[derive(Args, Debug, Clone)]
pub struct ApiserverArgs {
    /// All flags with the values that hold, as `/flagz` shows them.
    #[arg(skip)]
    pub flags: Vec<(String, String)>,
    #[command(flatten)]
    pub serving: ServingArgs,
    #[command(flatten)]
    pub storage: StorageArgs,
    #[command(flatten)]
    pub accounts: ServiceAccountArgs,
    #[command(flatten)]
    pub proxies: FrontProxyArgs,
    #[command(flatten)]
    pub peers: PeerArgs,
    #[command(flatten)]
    pub kubelets: KubeletClientArgs,
    /// CA bundle for client certificates of users [default: client certificates are not accepted]
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// File with static tokens, one `token,user,uid[,"group1,group2"]` per line.
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Serve requests without credentials as system:anonymous. Ignored with AlwaysAllow.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    pub anonymous_auth: bool,
    /// Accept bootstrap tokens from secrets of type bootstrap.kubernetes.io/token.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    pub enable_bootstrap_token_auth: bool,
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// Ordered authorizers: Node, RBAC, Webhook, AlwaysAllow, AlwaysDeny [default: AlwaysAllow]
    #[arg(long, value_name = "MODES", value_delimiter = ',')]
    pub authorization_mode: Vec<String>,
    /// Allow privileged containers.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    pub allow_privileged: bool,
    #[command(flatten)]
    pub admission: AdmissionArgs,
    /// Feature gates to enable or disable. Repeatable.
    #[arg(long, value_name = "NAME=BOOL,…")]
    pub feature_gates: Vec<String>,
    /// Built-in APIs to enable or disable: `GROUP/VERSION`, `GROUP/VERSION/RESOURCE`, `api/all`, `api/ga`, `api/beta`
    /// or `api/alpha`. Stable APIs are enabled by default. Repeatable.
    #[arg(long, value_name = "KEY=BOOL,…")]
    pub runtime_config: Vec<String>,
    #[command(flatten)]
    pub overload: OverloadArgs,
    #[command(flatten)]
    pub audit: AuditArgs,
    #[command(flatten)]
    pub tracing: TracingArgs,
    /// Service address range, or two of different IP families separated by a comma.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub service_cluster_ip_range: Vec<IpNet>,
    /// Port range for services of type NodePort: `FROM-TO`, inclusive.
    #[arg(long, value_name = "FROM-TO", default_value = "30000-32767", value_parser = ports)]
    pub service_node_port_range: (u16, u16),
    /// Reconciler of the kubernetes service's endpoints: lease (servers that renew a lease in the storage),
    /// master-count (--apiserver-count servers, each adds itself) or none.
    #[arg(long, value_name = "TYPE", value_parser = ["", "lease", "master-count", "none"], default_value = "lease")]
    pub endpoint_reconciler_type: String,
    /// Number of API servers in the cluster, for --endpoint-reconciler-type=master-count.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, allow_negative_numbers = true)]
    pub apiserver_count: i64,
    /// Time to keep events.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    pub event_ttl: Duration,
    #[command(flatten)]
    pub verbosity: VerbosityArgs,
}

/// The address and the certificate of the API server.
#[derive(Args, Debug, Clone)]
pub struct ServingArgs {
    /// Address on which the API server listens.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Port on which the API server listens.
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub secure_port: u16,
    /// Address at which clients reach the API server [default: --bind-address, else the default route's address]
    #[arg(long, value_name = "IP")]
    pub advertise_address: Option<IpAddr>,
    /// Host name and optional port that discovery advertises to clients outside the cluster [default:
    /// --advertise-address]
    #[arg(long, value_name = "HOST", default_value = "")]
    pub external_hostname: String,
    /// Directory of apiserver.crt and apiserver.key, which are created there when missing. Ignored when --tls-cert-file
    /// and --tls-private-key-file are set. Empty: created in memory.
    #[arg(long, value_name = "DIR", default_value = "/var/run/kubernetes")]
    pub cert_dir: String,
    /// Serving certificate of the API server, followed by its CA certificates.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key of that certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
}

/// The storage of objects.
#[derive(Args, Debug, Clone)]
pub struct StorageArgs {
    #[command(flatten)]
    pub etcd: EtcdArgs,
    /// Directory to store objects in instead of etcd (Kelson only).
    #[arg(long, value_name = "DIR", conflicts_with = "etcd_servers")]
    pub data_dir: Option<PathBuf>,
    /// EncryptionConfiguration file: the resources to encrypt at rest and the keys.
    #[arg(long, value_name = "FILE")]
    pub encryption_provider_config: Option<PathBuf>,
    /// Reload the encryption configuration when its file changes.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set,
        num_args = 0..=1, default_missing_value = "true")]
    pub encryption_provider_config_automatic_reload: bool,
}

/// Tokens of service accounts.
#[derive(Args, Debug, Clone)]
pub struct ServiceAccountArgs {
    /// Issuer of service account tokens. Repeatable: the first issues tokens, all are accepted.
    #[arg(long, value_name = "URL")]
    pub service_account_issuer: Vec<String>,
    /// Files with keys that verify service account tokens: public keys, private keys or certificates, several per file.
    /// Repeatable.
    #[arg(long, value_name = "FILE")]
    pub service_account_key_file: Vec<PathBuf>,
    /// Private key that signs service account tokens.
    #[arg(long, value_name = "FILE")]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// Accepted audiences of service account tokens [default: the issuer]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub api_audiences: Vec<String>,
    /// Maximum lifetime of requested service account tokens, at least 1h [default: unlimited]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub service_account_max_token_expiration: Option<Duration>,
    /// Accept a pod's default token for a year regardless of the maximum lifetime, and count its use after its first
    /// hour.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = true, default_missing_value = "true", action = ArgAction::Set)]
    pub service_account_extend_token_expiration: bool,
    /// HTTPS URL of the token keys (JWKS) in the issuer's discovery document [default: derived from the issuer]
    #[arg(long, value_name = "URL")]
    pub service_account_jwks_uri: Option<String>,
}

/// Authenticating proxies, and the server as such a proxy.
#[derive(Args, Debug, Clone)]
pub struct FrontProxyArgs {
    /// CA bundle for client certificates of authenticating proxies, which pass the user in request headers.
    #[arg(long, value_name = "FILE")]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Allowed common names in client certificates of authenticating proxies [default: any]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    /// Request headers with the user's name.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_username_headers: Vec<String>,
    /// Request headers with the user's UID.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_uid_headers: Vec<String>,
    /// Request headers with the user's groups.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_group_headers: Vec<String>,
    /// Prefixes of request headers with extra fields of the user.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// Client certificate for requests to aggregated API servers.
    #[arg(long, value_name = "FILE", requires = "proxy_client_key_file")]
    pub proxy_client_cert_file: Option<PathBuf>,
    /// Private key of that certificate.
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file")]
    pub proxy_client_key_file: Option<PathBuf>,
}

/// Other API servers on the same etcd.
#[derive(Args, Debug, Clone)]
pub struct PeerArgs {
    /// CA bundle for serving certificates of other API servers on the same etcd. Requests for what only they serve are
    /// forwarded to them, with the client certificate of --proxy-client-cert-file [default: not forwarded]
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file")]
    pub peer_ca_file: Option<PathBuf>,
    /// Address at which other API servers reach this one [default: --advertise-address]
    #[arg(long, value_name = "IP")]
    pub peer_advertise_ip: Option<IpAddr>,
    /// Port at which other API servers reach this one [default: --secure-port]
    #[arg(long, value_name = "PORT")]
    pub peer_advertise_port: Option<u16>,
}

/// The connection to kubelets.
#[derive(Args, Debug, Clone)]
pub struct KubeletClientArgs {
    /// Client certificate for requests to kubelets. Required for logs, exec, attach and port-forward.
    #[arg(long, value_name = "FILE", requires = "kubelet_client_key")]
    pub kubelet_client_certificate: Option<PathBuf>,
    /// Private key of that certificate.
    #[arg(long, value_name = "FILE", requires = "kubelet_client_certificate")]
    pub kubelet_client_key: Option<PathBuf>,
    /// CA bundle for kubelets' serving certificates, which must be valid for the node's address [default: any
    /// certificate is accepted]
    #[arg(long, value_name = "FILE")]
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// Preferred types of node addresses, in order.
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        default_value = "Hostname,InternalDNS,InternalIP,ExternalDNS,ExternalIP"
    )]
    pub kubelet_preferred_address_types: Vec<String>,
}

/// Parses `FROM-TO`, or `FROM+COUNT`.
fn ports(text: &str) -> Result<(u16, u16), String> {
    let wrong = || format!("must be a port range such as 30000-32767, got {text:?}");
    let port = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
    let (from, to) = match (text.split_once('-'), text.split_once('+')) {
        (Some((from, to)), _) => (port(from)?, port(to)?),
        (None, Some((from, more))) => (port(from)?, port(from)?.checked_add(port(more)?).ok_or_else(wrong)?),
        (None, None) => (port(text)?, port(text)?),
    };
    if from > to || from == 0 {
        return Err(wrong());
    }
    Ok((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_ports() {
        assert_eq!(ports("30000-32767"), Ok((30000, 32767)));
        assert_eq!(ports("30000+10"), Ok((30000, 30010)));
        assert_eq!(ports("80"), Ok((80, 80)));
        for wrong in ["", "2-1", "0-1", "1-70000", "65535+1", "a-b"] {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
    }
}
