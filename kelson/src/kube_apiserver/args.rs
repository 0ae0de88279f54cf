//! The flags of upstream's kube-apiserver that have an effect here.
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use ipnet::IpNet;

use crate::admission::AdmissionArgs;
use crate::args::{OverloadArgs, VerbosityArgs, duration};
use crate::audit::AuditArgs;
use crate::etcd_flags::EtcdArgs;
use crate::identity::IdentityArgs;
use crate::tracing_flags::TracingArgs;

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
    pub kubelets: KubeletClientArgs,
    /// CAs of users' client certificates; without them there are none.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Static tokens, one `token,user,uid[,"group1,group2"]` a line.
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Whether requests without credentials are served as system:anonymous; not with AlwaysAllow.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    pub anonymous_auth: bool,
    /// Whether tokens in secrets of type bootstrap.kubernetes.io/token authenticate.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    pub enable_bootstrap_token_auth: bool,
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// Ordered authorizers: Node, RBAC, Webhook, AlwaysAllow, AlwaysDeny [default: AlwaysAllow]
    #[arg(long, value_name = "MODES", value_delimiter = ',')]
    pub authorization_mode: Vec<String>,
    /// Whether pods may have privileged containers.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", action = ArgAction::Set)]
    pub allow_privileged: bool,
    #[command(flatten)]
    pub admission: AdmissionArgs,
    /// Features to switch on or off; the flag may be given several times.
    #[arg(long, value_name = "NAME=BOOL,…")]
    pub feature_gates: Vec<String>,
    /// Built-in APIs to serve or not: `GROUP/VERSION`, `GROUP/VERSION/RESOURCE`, or `api/all`, `api/ga`, `api/beta`, `api/alpha`; the
    /// stable ones are by default. The flag may be given several times.
    #[arg(long, value_name = "KEY=BOOL,…")]
    pub runtime_config: Vec<String>,
    #[command(flatten)]
    pub overload: OverloadArgs,
    #[command(flatten)]
    pub audit: AuditArgs,
    #[command(flatten)]
    pub tracing: TracingArgs,
    /// Range of services' addresses; two of different families, divided by a comma, for both.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub service_cluster_ip_range: Vec<IpNet>,
    /// Ports that services may have on nodes: `FROM-TO`, both included.
    #[arg(long, value_name = "FROM-TO", default_value = "30000-32767", value_parser = ports)]
    pub service_node_port_range: (u16, u16),
    /// Who says which servers the endpoints of the kubernetes service name: lease (all that renew one in the storage), master-count
    /// (as many as --apiserver-count, each adds itself), or none.
    #[arg(long, value_name = "TYPE", value_parser = ["", "lease", "master-count", "none"], default_value = "lease")]
    pub endpoint_reconciler_type: String,
    /// How many API servers there are, for --endpoint-reconciler-type=master-count.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, allow_negative_numbers = true)]
    pub apiserver_count: i64,
    /// How long events are kept.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    pub event_ttl: Duration,
    #[command(flatten)]
    pub verbosity: VerbosityArgs,
}

/// Where the API is served, and with what certificate.
#[derive(Args, Debug, Clone)]
pub struct ServingArgs {
    /// Address the API listens on.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Port the API listens on.
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub secure_port: u16,
    /// Address at which others reach the API [default: --bind-address, else that of the default route]
    #[arg(long, value_name = "IP")]
    pub advertise_address: Option<IpAddr>,
    /// Name, and port if it is another one, at which clients from elsewhere reach the API, as discovery tells them
    /// [default: --advertise-address]
    #[arg(long, value_name = "HOST", default_value = "")]
    pub external_hostname: String,
    /// Where apiserver.crt and apiserver.key are, unless the two flags below say otherwise; made there when they are not. Empty:
    /// made in memory.
    #[arg(long, value_name = "DIR", default_value = "/var/run/kubernetes")]
    pub cert_dir: String,
    /// Certificate of the API, followed by those of its authorities.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Its private key.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
}

/// Where objects are kept.
#[derive(Args, Debug, Clone)]
pub struct StorageArgs {
    #[command(flatten)]
    pub etcd: EtcdArgs,
    /// Kelson's own: keep the objects in this directory, without an etcd.
    #[arg(long, value_name = "DIR", conflicts_with = "etcd_servers")]
    pub data_dir: Option<PathBuf>,
    /// EncryptionConfiguration: which resources are encrypted where they are kept, and with which keys.
    #[arg(long, value_name = "FILE")]
    pub encryption_provider_config: Option<PathBuf>,
    /// Take the encryption configuration up when its file changes.
    #[arg(long, value_name = "BOOL", default_value_t = false, action = ArgAction::Set,
        num_args = 0..=1, default_missing_value = "true")]
    pub encryption_provider_config_automatic_reload: bool,
}

/// Tokens of service accounts.
#[derive(Args, Debug, Clone)]
pub struct ServiceAccountArgs {
    /// Who tokens are from; of several, the first makes them, and those of all are taken.
    #[arg(long, value_name = "URL")]
    pub service_account_issuer: Vec<String>,
    /// Keys that tokens may be signed with: public keys, private ones, or certificates; several flags, several keys a file.
    #[arg(long, value_name = "FILE")]
    pub service_account_key_file: Vec<PathBuf>,
    /// The private key that signs tokens.
    #[arg(long, value_name = "FILE")]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// Whom tokens are for [default: the issuer]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub api_audiences: Vec<String>,
    /// Longest life of a token that is asked for, an hour at least [default: as long as anybody asks]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub service_account_max_token_expiration: Option<Duration>,
    /// A pod's usual token is taken for a year, whatever the longest life is, and its use after an hour is told of.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = true, default_missing_value = "true", action = ArgAction::Set)]
    pub service_account_extend_token_expiration: bool,
    /// Where the keys of tokens are read, by https, for the issuer's discovery document [default: at the issuer]
    #[arg(long, value_name = "URL")]
    pub service_account_jwks_uri: Option<String>,
}

/// Proxies that speak for others, and the server as such a proxy.
#[derive(Args, Debug, Clone)]
pub struct FrontProxyArgs {
    /// CAs of proxies that may say in headers who asks.
    #[arg(long, value_name = "FILE")]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Common names that such a proxy's certificate may have; any when there are none.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    /// Headers with the user's name.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_username_headers: Vec<String>,
    /// Headers with the user's UID.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_uid_headers: Vec<String>,
    /// Headers with the user's groups.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_group_headers: Vec<String>,
    /// Prefixes of headers with more about the user.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// Certificate that is shown to other servers that answer for group versions.
    #[arg(long, value_name = "FILE", requires = "proxy_client_key_file")]
    pub proxy_client_cert_file: Option<PathBuf>,
    /// Its private key.
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file")]
    pub proxy_client_key_file: Option<PathBuf>,
}

/// How kubelets are reached.
#[derive(Args, Debug, Clone)]
pub struct KubeletClientArgs {
    /// Certificate that is shown to kubelets; without one there are no logs, exec and the like.
    #[arg(long, value_name = "FILE", requires = "kubelet_client_key")]
    pub kubelet_client_certificate: Option<PathBuf>,
    /// Its private key.
    #[arg(long, value_name = "FILE", requires = "kubelet_client_certificate")]
    pub kubelet_client_key: Option<PathBuf>,
    /// CAs of kubelets' serving certificates, which must be good for the node's address; without, all are believed.
    #[arg(long, value_name = "FILE")]
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// Which of a node's addresses is tried first.
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        default_value = "Hostname,InternalDNS,InternalIP,ExternalDNS,ExternalIP"
    )]
    pub kubelet_preferred_address_types: Vec<String>,
}

/// `FROM-TO`, or `FROM+COUNT`.
fn ports(text: &str) -> Result<(u16, u16), String> {
    let wrong = || format!("{text:?} is no range of ports, such as 30000-32767");
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
