//! `kube-proxy`: the service proxy of one machine, with any API server and with upstream's flags and configuration
//! file. It always uses nftables, whatever mode is configured.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use ipnet::IpNet;
use kelson_client::kubeconfig::Config as Kubeconfig;
use kelson_codec::strict::{self, Fields, Shape};
use kelson_meta::{SystemClock, parse_duration};
use kelson_proxy::{Config, Proxy, TcpTimeouts};
use serde::Deserialize;

use crate::args::VerbosityArgs;
use crate::component::client;
use crate::flags::Spoken;
use crate::process::{self, within};
use crate::{host, logging};

/// The directory of upstream's proxy; here the names of its tables are derived from it.
const DIR: &str = "/var/lib/kube-proxy";
/// Upstream's ports, for addresses without one.
const HEALTH_PORT: u16 = 10256;
const METRICS_PORT: u16 = 10249;
/// The time for which the end waits for a transaction in progress.
const END_MAX: Duration = Duration::from_secs(10);
const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";

#[derive(Args, Debug, Clone)]
pub struct ProxyArgs {
    /// KubeProxyConfiguration file (kubeproxy.config.k8s.io/v1alpha1); takes precedence over flags.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Kubeconfig for the API server.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// Pod address ranges; traffic from other sources to service addresses is masqueraded.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub cluster_cidr: Vec<IpNet>,
    /// Address of this node [default: the default route's address]
    #[arg(long, value_name = "IP")]
    pub bind_address: Option<IpAddr>,
    /// Address of the health check for load balancers; empty disables it.
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:10256")]
    pub healthz_bind_address: String,
    /// Address of the metrics endpoint; empty disables it.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:10249")]
    pub metrics_bind_address: String,
    /// Address ranges in which the node serves node ports; `primary` is the node's primary addresses.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub nodeport_addresses: Vec<String>,
    /// Time after which connection tracking forgets an idle established TCP connection; 0 leaves the kernel's setting.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_duration)]
    pub conntrack_tcp_timeout_established: Duration,
    /// Time after which connection tracking forgets a TCP connection that one end has closed; 0 leaves the kernel's setting.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    pub conntrack_tcp_timeout_close_wait: Duration,
    #[command(flatten)]
    pub verbosity: VerbosityArgs,
}

/// The fields of a KubeProxyConfiguration that have an effect.
#[derive(Deserialize, Default, Debug)]
#[serde(default, rename_all = "camelCase")]
struct File {
    api_version: String,
    kind: String,
    client_connection: Connection,
    hostname_override: String,
    bind_address: String,
    healthz_bind_address: String,
    metrics_bind_address: String,
    #[serde(rename = "clusterCIDR")]
    cluster_cidr: String,
    node_port_addresses: Option<Vec<String>>,
    conntrack: Conntrack,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default, rename_all = "camelCase")]
struct Conntrack {
    tcp_established_timeout: Option<String>,
    tcp_close_wait_timeout: Option<String>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
struct Connection {
    kubeconfig: String,
}

/// Returns the flags with the file's values in place of theirs.
fn laid(mut args: ProxyArgs, file: &File) -> anyhow::Result<ProxyArgs> {
    if (file.api_version.as_str(), file.kind.as_str()) != (API_VERSION, KIND) {
        bail!("must be a {KIND} of {API_VERSION}");
    }
    let given = |text: &String| (!text.is_empty()).then(|| text.clone());
    args.kubeconfig = given(&file.client_connection.kubeconfig).map(PathBuf::from).or(args.kubeconfig);
    // Upstream combines this flag with a file, so that one file serves many nodes.
    args.hostname_override = args.hostname_override.or(given(&file.hostname_override));
    if !file.bind_address.is_empty() {
        args.bind_address = Some(file.bind_address.parse().context("bindAddress")?);
    }
    if !file.cluster_cidr.is_empty() {
        let ranges = file.cluster_cidr.split(',').map(|range| range.trim().parse());
        args.cluster_cidr = ranges.collect::<Result<_, _>>().context("clusterCIDR")?;
    }
    args.healthz_bind_address = given(&file.healthz_bind_address).unwrap_or(args.healthz_bind_address);
    args.metrics_bind_address = given(&file.metrics_bind_address).unwrap_or(args.metrics_bind_address);
    if let Some(ranges) = &file.node_port_addresses {
        args.nodeport_addresses.clone_from(ranges);
    }
    let set = |timeout: &mut Duration, text: &Option<String>, field: &'static str| {
        if let Some(text) = text {
            *timeout = parse_duration(text).context(field)?;
        }
        anyhow::Ok(())
    };
    let of = &file.conntrack;
    set(&mut args.conntrack_tcp_timeout_established, &of.tcp_established_timeout, "conntrack.tcpEstablishedTimeout")?;
    set(&mut args.conntrack_tcp_timeout_close_wait, &of.tcp_close_wait_timeout, "conntrack.tcpCloseWaitTimeout")?;
    Ok(args)
}

/// Parses an address with or without a port; none if it is empty or the port is 0.
fn bind(text: &str, port: u16) -> anyhow::Result<Vec<SocketAddr>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let address = match (text.parse::<SocketAddr>(), text.parse::<IpAddr>()) {
        (Ok(address), _) => address,
        (_, Ok(ip)) => SocketAddr::new(ip, port),
        _ => bail!("must be an address, got {text:?}"),
    };
    Ok(Some(address).filter(|a| a.port() != 0).into_iter().collect())
}

/// Returns the proxy's configuration.
fn config(args: &ProxyArgs) -> anyhow::Result<Config> {
    let name = args.hostname_override.clone().map_or_else(host::name, Ok)?.trim().to_lowercase();
    let reported = args.bind_address.filter(|ip| !ip.is_unspecified());
    let address = reported.unwrap_or_else(host::address);
    let mut config = Config::new(Path::new(DIR), &name, vec![address], args.cluster_cidr.clone());
    config.health_bind = bind(&args.healthz_bind_address, HEALTH_PORT).context("--healthz-bind-address")?;
    config.metrics_bind = bind(&args.metrics_bind_address, METRICS_PORT).context("--metrics-bind-address")?;
    config.tcp_timeouts = TcpTimeouts {
        established: args.conntrack_tcp_timeout_established,
        close_wait: args.conntrack_tcp_timeout_close_wait,
    };
    for range in args.nodeport_addresses.iter().filter(|range| *range != "primary") {
        config.nodeport_addresses.push(range.parse().with_context(|| format!("--nodeport-addresses {range:?}"))?);
    }
    Ok(config)
}

/// Reads the file, and returns its unknown fields: upstream logs them and continues, since files of this version were
/// read leniently.
fn read(file: &Path) -> anyhow::Result<(File, Vec<String>)> {
    let (tree, duplicates) = kelson_codec::yaml::to_value(&std::fs::read(file)?)?;
    if let Some(twice) = duplicates.first() {
        bail!("duplicate field {twice:?}");
    }
    let unknown = strict::unknown(&tree, FIELDS);
    Ok((serde_json::from_value(tree)?, unknown))
}

/// The fields of a KubeProxyConfiguration (`k8s.io/kube-proxy/config/v1alpha1`).
const FIELDS: Fields = &[
    ("apiVersion", Shape::Text),
    ("kind", Shape::Text),
    ("featureGates", Shape::Names(&Shape::Bool)),
    (
        "clientConnection",
        Shape::Object(&[
            ("kubeconfig", Shape::Text),
            ("acceptContentTypes", Shape::Text),
            ("contentType", Shape::Text),
            ("qps", Shape::Number),
            ("burst", Shape::Number),
        ]),
    ),
    (
        "logging",
        Shape::Object(&[
            ("format", Shape::Text),
            ("flushFrequency", Shape::Any),
            ("verbosity", Shape::Number),
            ("vmodule", Shape::List(&Shape::Object(&[("filePattern", Shape::Text), ("verbosity", Shape::Number)]))),
            ("options", Shape::Object(&[("text", Shape::Object(OUTPUT)), ("json", Shape::Object(OUTPUT))])),
        ]),
    ),
    ("hostnameOverride", Shape::Text),
    ("bindAddress", Shape::Text),
    ("healthzBindAddress", Shape::Text),
    ("metricsBindAddress", Shape::Text),
    ("bindAddressHardFail", Shape::Bool),
    ("enableProfiling", Shape::Bool),
    ("showHiddenMetricsForVersion", Shape::Text),
    ("mode", Shape::Text),
    (
        "iptables",
        Shape::Object(&[
            ("masqueradeBit", Shape::Number),
            ("masqueradeAll", Shape::Bool),
            ("localhostNodePorts", Shape::Bool),
            ("syncPeriod", Shape::Text),
            ("minSyncPeriod", Shape::Text),
        ]),
    ),
    (
        "ipvs",
        Shape::Object(&[
            ("syncPeriod", Shape::Text),
            ("minSyncPeriod", Shape::Text),
            ("scheduler", Shape::Text),
            ("excludeCIDRs", Shape::List(&Shape::Text)),
            ("strictARP", Shape::Bool),
            ("tcpTimeout", Shape::Text),
            ("tcpFinTimeout", Shape::Text),
            ("udpTimeout", Shape::Text),
        ]),
    ),
    (
        "nftables",
        Shape::Object(&[
            ("masqueradeBit", Shape::Number),
            ("masqueradeAll", Shape::Bool),
            ("syncPeriod", Shape::Text),
            ("minSyncPeriod", Shape::Text),
        ]),
    ),
    (
        "winkernel",
        Shape::Object(&[
            ("networkName", Shape::Text),
            ("sourceVip", Shape::Text),
            ("enableDSR", Shape::Bool),
            ("rootHnsEndpointName", Shape::Text),
            ("forwardHealthCheckVip", Shape::Bool),
        ]),
    ),
    ("detectLocalMode", Shape::Text),
    ("detectLocal", Shape::Object(&[("bridgeInterface", Shape::Text), ("interfaceNamePrefix", Shape::Text)])),
    ("clusterCIDR", Shape::Text),
    ("nodePortAddresses", Shape::List(&Shape::Text)),
    ("oomScoreAdj", Shape::Number),
    (
        "conntrack",
        Shape::Object(&[
            ("maxPerCore", Shape::Number),
            ("min", Shape::Number),
            ("tcpEstablishedTimeout", Shape::Text),
            ("tcpCloseWaitTimeout", Shape::Text),
            ("tcpBeLiberal", Shape::Bool),
            ("udpTimeout", Shape::Text),
            ("udpStreamTimeout", Shape::Text),
        ]),
    ),
    ("configSyncPeriod", Shape::Text),
    ("portRange", Shape::Text),
    ("windowsRunAsService", Shape::Bool),
];
const OUTPUT: Fields = &[("splitStream", Shape::Bool), ("infoBufferSize", Shape::Any)];

/// Runs the proxy until the process ends.
pub fn run(args: ProxyArgs, spoken: &Spoken) -> anyhow::Result<()> {
    logging::init(args.verbosity.log_level())?;
    spoken.log();
    let args = match args.config.clone() {
        Some(file) => {
            let laid = read(&file).and_then(|(read, unknown)| {
                for field in unknown {
                    tracing::warn!(file = %file.display(), "field {field} of the configuration has no effect");
                }
                laid(args, &read)
            });
            laid.with_context(|| format!("--config {}", file.display()))?
        }
        None => args,
    };
    let config = config(&args)?;
    let Some(kubeconfig) = &args.kubeconfig else { bail!("--kubeconfig is needed") };
    let client = client(Kubeconfig::load(kubeconfig).context("--kubeconfig")?, "kube-proxy")?;
    if !rustix::process::geteuid().is_root() {
        bail!("the service proxy must run as root");
    }
    process::run(async |process| {
        let node = config.node_name.clone();
        let proxy = Proxy::start(config, client, Arc::new(SystemClock), &process.tasks);
        tracing::info!(node, "service proxy is running");
        let ended = process.ended().await;
        within(END_MAX, "service proxy", proxy.shutdown()).await;
        ended
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ProxyArgs,
    }

    fn args(words: &[&str]) -> ProxyArgs {
        Line::try_parse_from([&["kube-proxy"], words].concat()).expect("parses").args
    }

    #[test]
    fn flags_and_the_file_that_goes_before_them() {
        let flags = args(&["--hostname-override=Box", "--cluster-cidr=10.1.0.0/16", "--metrics-bind-address="]);
        let plain = config(&flags).unwrap();
        assert_eq!((plain.node_name.as_str(), plain.metrics_bind.len()), ("box", 0));
        assert_eq!(plain.health_bind, [SocketAddr::from((Ipv4Addr::UNSPECIFIED, HEALTH_PORT))]);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.conf");
        let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables
clientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}\nclusterCIDR: 10.2.0.0/16,fd00::/48
hostnameOverride: other\nhealthzBindAddress: 127.0.0.1\nmetricsBindAddress: \"\"\nnodePortAddresses: [primary, 192.0.2.0/24]
conntrack: {tcpCloseWaitTimeout: 30m}\n";
        std::fs::write(&file, text).unwrap();
        let (read, unknown) = read(&file).unwrap();
        assert_eq!(unknown, Vec::<String>::new());
        let both = laid(flags, &read).unwrap();
        let config = config(&both).unwrap();
        assert_eq!(config.node_name, "box", "the flag names the node, so that one file serves many");
        assert_eq!(both.kubeconfig.as_deref(), Some(Path::new("/var/lib/kube-proxy/kubeconfig.conf")));
        assert_eq!(config.cluster_cidrs.len(), 2);
        let timeouts = TcpTimeouts { close_wait: Duration::from_secs(1800), ..TcpTimeouts::default() };
        assert_eq!((plain.tcp_timeouts, config.tcp_timeouts), (TcpTimeouts::default(), timeouts));
        assert_eq!(config.nodeport_addresses, ["192.0.2.0/24".parse::<IpNet>().unwrap()]);
        assert_eq!(config.health_bind, [SocketAddr::from((Ipv4Addr::LOCALHOST, HEALTH_PORT))]);
    }

    #[test]
    fn a_misspelt_field_at_any_level_is_named() {
        let document = serde_json::json!({"apiVersion": API_VERSION, "kind": KIND,
            "clientConnection": {"kubeconfig": "/k"}, "conntrack": {"min": 1}, "detectLocal": {"bridgeInterface": "b"},
            "iptables": {"masqueradeAll": true}, "ipvs": {}, "nftables": {}, "winkernel": {},
            "logging": {"options": {"json": {"splitStream": true}, "text": {}}, "vmodule": [{"verbosity": 1}]}});
        assert_eq!(strict::unknown(&document, FIELDS), Vec::<String>::new());
        for (at, misspelt) in strict::misspelt(&document) {
            assert_eq!(strict::unknown(&misspelt, FIELDS).len(), 1, "{at}");
        }
    }

    #[test]
    fn invalid_addresses_and_missing_files_are_rejected() {
        assert!(bind("host:1", 1).is_err() && bind("0.0.0.0:0", 1).unwrap().is_empty());
        let other = File { kind: "Pod".into(), ..File::default() };
        assert!(laid(args(&[]), &other).unwrap_err().to_string().contains(KIND));
    }
}
