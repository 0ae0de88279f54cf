//! k3s' flags and environment variables with their counterparts in Kelson. Names are those of `k3s server --help` and
//! `k3s agent --help` of 1.36; `docs/k3s.md` is generated from it.
use super::alias::{Alias, Converted, arguments, converts, named, parts, refused, same, unneeded};

const HELM: &str = "no Helm controller is built in; run Helm, or put manifests into DIR/manifests";
const ETCD: &str =
    "with --cluster-init the server starts etcd with flags of its choice; etcd members of your own: --etcd-servers";
const S3_KEYS: &str = "the variables of the same names, or --s3-credentials-file";
const COMPONENT: &str = "all components are one process";
const POD_NETWORK: &str = "the pod network is built in: VXLAN on the interface of the node's address";
const OWN_TOKEN: &str = "the server makes the token of its nodes; `kelson token create TOKEN` admits one in the form abcdef.0123456789abcdef";
const ROOTLESS: &str = "a node needs root; `--disable-agent` runs the control plane alone without it";

/// All flags of `k3s server` and `k3s agent`.
pub const ALIASES: &[Alias] = &[
    // Configuration and logs.
    unneeded("config", "Kelson's file is /etc/kelson/config.yaml, or --config").letter('c').variable("K3S_CONFIG_FILE"),
    converts("debug", "log-level", debug).variable("K3S_DEBUG").truth(),
    converts("v", "log-level", verbosity).unless("0").note("4 and more is `debug`, 8 and more `trace`"),
    refused("vmodule", "--log-level takes filters such as info,kelson_store=debug"),
    refused("log", "the log is written to standard error; the service manager keeps it").letter('l'),
    unneeded("alsologtostderr", "the log is written to standard error").truth(),
    // Listener.
    same("bind-address").server().unless("0.0.0.0"),
    named("https-listen-port", "secure-port").server(),
    same("advertise-address").server(),
    refused("advertise-port", "the API is advertised at --secure-port").server(),
    same("tls-san").server(),
    unneeded("tls-san-security", "names that were not asked for are never added to the certificate").server().truth(),
    unneeded("supervisor-metrics", "each component has its metrics on upstream's port").server().truth(),
    // Data.
    same("data-dir").letter('d').variable("K3S_DATA_DIR").note("the default is /var/lib/kelson; a directory of k3s cannot be used"),
    // Networking.
    same("cluster-cidr").server().note("one range, IPv4 or IPv6"),
    same("service-cidr").server().note("one range, IPv4 or IPv6"),
    refused("service-node-port-range", "node ports are 30000-32767").server().unless("30000-32767"),
    refused("cluster-dns", "cluster DNS has the tenth address of --service-cidr").server().unless("10.43.0.10"),
    refused("cluster-domain", "the cluster domain is cluster.local").server().unless("cluster.local"),
    refused("flannel-backend", POD_NETWORK).server().unless("vxlan"),
    refused("flannel-ipv6-masq", POD_NETWORK).server().truth(),
    refused("flannel-external-ip", POD_NETWORK).server().truth(),
    refused("flannel-iface", POD_NETWORK),
    refused("flannel-conf", POD_NETWORK),
    refused("flannel-cni-conf", POD_NETWORK),
    unneeded("egress-selector-mode", "the API server connects to kubelets directly, as upstream's does by default").server(),
    refused("servicelb-namespace", "no pods are made for load balancers").server().unless("kube-system"),
    refused("vpn-auth", "no VPN is built in").secret().variable("K3S_VPN_AUTH"),
    refused("vpn-auth-file", "no VPN is built in").variable("K3S_VPN_AUTH_FILE"),
    refused("resolv-conf", "`resolvConf` in the KubeletConfiguration that --kubelet-config names").variable("K3S_RESOLV_CONF"),
    // Client.
    named("write-kubeconfig", "kubeconfig-out").letter('o').server().variable("K3S_KUBECONFIG_OUTPUT"),
    refused("write-kubeconfig-mode", "only its owner reads a kubeconfig; give each user separate credentials").server().variable("K3S_KUBECONFIG_MODE").unless("600"),
    refused("write-kubeconfig-group", "only its owner reads a kubeconfig; give each user separate credentials").server().variable("K3S_KUBECONFIG_GROUP"),
    refused("helm-job-image", HELM).server(),
    // Cluster.
    same("token").letter('t').agent().variable("K3S_TOKEN").secret().note("in the form abcdef.0123456789abcdef, as `kelson token create` prints it"),
    refused("token", OWN_TOKEN).letter('t').server().variable("K3S_TOKEN").secret(),
    refused("token-file", OWN_TOKEN).server().variable("K3S_TOKEN_FILE"),
    refused("token-file", "--token or KELSON_TOKEN is the token itself").agent().variable("K3S_TOKEN_FILE"),
    refused("agent-token", OWN_TOKEN).server().variable("K3S_AGENT_TOKEN").secret(),
    refused("agent-token-file", OWN_TOKEN).server().variable("K3S_AGENT_TOKEN_FILE"),
    refused("cluster-secret", "it is k3s' old name of token").variable("K3S_CLUSTER_SECRET").secret(),
    same("server").letter('s').agent().variable("K3S_URL"),
    refused("server", "a server joins by --server with a token of Kelson's: `kelson token create --server --print-join-command`").letter('s').server().variable("K3S_URL"),
    same("cluster-init").server().variable("K3S_CLUSTER_INIT").truth().note("the machine must have an etcd, 3.5.13 to 3.7"),
    refused("cluster-reset", "`kelson cluster reset` makes the member of a stopped server the only one").server().variable("K3S_CLUSTER_RESET").truth(),
    refused("cluster-reset-restore-path", "`kelson snapshot restore` loads a snapshot into a stopped server").server(),
    // Flags of components.
    arguments("kube-apiserver-arg").server(),
    arguments("kube-controller-manager-arg").server(),
    arguments("kube-controller-arg").server(),
    arguments("kube-scheduler-arg").server(),
    arguments("kubelet-arg").note("flags that Kelson's command has under the same name; others are fields of the KubeletConfiguration that --kubelet-config names"),
    arguments("kube-proxy-arg"),
    refused("kube-cloud-controller-manager-arg", "no cloud controller manager is built in").server(),
    refused("kube-cloud-controller-arg", "no cloud controller manager is built in").server(),
    refused("etcd-arg", ETCD).server(),
    // Storage.
    converts("datastore-endpoint", "etcd-servers", datastore).server().variable("K3S_DATASTORE_ENDPOINT").secret().note("URLs of etcd members; SQL databases and NATS have no counterpart"),
    named("datastore-cafile", "etcd-cafile").server().variable("K3S_DATASTORE_CAFILE"),
    named("datastore-certfile", "etcd-certfile").server().variable("K3S_DATASTORE_CERTFILE"),
    named("datastore-keyfile", "etcd-keyfile").server().variable("K3S_DATASTORE_KEYFILE"),
    refused("kine-tls", ETCD).server().truth(),
    refused("etcd-expose-metrics", ETCD).server().truth(),
    unneeded("etcd-disable-snapshots", "without --snapshot-schedule-cron no snapshot is saved").server().truth(),
    refused("etcd-snapshot-name", "snapshots are named kelson-TIME-REVISION.bundle").server().unless("etcd-snapshot"),
    named("etcd-snapshot-schedule-cron", "snapshot-schedule-cron").server().note("also set --snapshot-passphrase-file, or --snapshot-unsealed; without a schedule no snapshot is saved"),
    unneeded("etcd-snapshot-reconcile-interval", "`kelson snapshot list` reads the directory or the bucket").server(),
    named("etcd-snapshot-retention", "snapshot-retention").server(),
    named("etcd-snapshot-dir", "snapshot-dir").server().note("the default is DIR/backups"),
    unneeded("etcd-snapshot-compress", "a snapshot has no history and no free pages").server().truth(),
    named("etcd-s3", "s3").server().truth(),
    named("etcd-s3-endpoint", "s3-endpoint").server().unless("s3.amazonaws.com"),
    named("etcd-s3-endpoint-ca", "s3-endpoint-ca").server().note("a file"),
    refused("etcd-s3-skip-ssl-verify", "the certificate of the S3 server is always verified; --s3-endpoint-ca names its CA").server().truth(),
    refused("etcd-s3-access-key", S3_KEYS).server().variable("AWS_ACCESS_KEY_ID").secret(),
    refused("etcd-s3-secret-key", S3_KEYS).server().variable("AWS_SECRET_ACCESS_KEY").secret(),
    refused("etcd-s3-session-token", S3_KEYS).server().variable("AWS_SESSION_TOKEN").secret(),
    named("etcd-s3-bucket", "s3-bucket").server(),
    named("etcd-s3-bucket-lookup-type", "s3-bucket-lookup").server(),
    named("etcd-s3-region", "s3-region").server(),
    named("etcd-s3-folder", "s3-folder").server(),
    refused("etcd-s3-proxy", "HTTPS_PROXY and NO_PROXY are read").server(),
    refused("etcd-s3-config-secret", "the flags --s3-… have its settings, so that a snapshot can be restored without a cluster").server(),
    refused("etcd-s3-insecure", "an --s3-endpoint that begins with http:// is used without TLS").server().truth(),
    refused("etcd-s3-timeout", "a request may take five minutes").server().unless("5m0s"),
    refused("etcd-s3-retention", "--snapshot-retention is also that of the bucket").server(),
    refused("default-local-storage-path", "volumes of the class local-path are in DIR/storage").server(),
    refused("secrets-encryption", "--encryption-provider-config names an EncryptionConfiguration").server().truth(),
    refused("secrets-encryption-provider", "--encryption-provider-config names an EncryptionConfiguration").server().unless("aescbc"),
    // Components.
    parts("disable").server(),
    refused("disable-scheduler", COMPONENT).server().truth(),
    unneeded("disable-cloud-controller", "no cloud controller manager is built in").server().truth(),
    refused("disable-kube-proxy", "the service proxy is part of each node").server().truth(),
    converts("disable-network-policy", "disable", no_network_policy).server().truth(),
    unneeded("disable-helm-controller", "no Helm controller is built in").server().truth(),
    refused("disable-apiserver", COMPONENT).server().truth(),
    refused("disable-controller-manager", COMPONENT).server().truth(),
    refused("disable-etcd", ETCD).server().truth(),
    same("disable-agent").server().truth(),
    refused("embedded-registry", "no registry mirror is built in").server().truth(),
    refused("enable-pprof", "there is no pprof endpoint").variable("ENABLE_PPROF").truth(),
    // Node.
    same("node-name").variable("K3S_NODE_NAME"),
    refused("with-node-id", "set --node-name").truth(),
    named("node-label", "node-labels"),
    named("node-taint", "register-with-taints"),
    same("node-ip").letter('i').note("one address"),
    refused("node-external-ip", "a node has one address, --node-ip"),
    refused("node-internal-dns", "a node has one address, --node-ip"),
    refused("node-external-dns", "a node has one address, --node-ip"),
    same("image-credential-provider-bin-dir").unless("/var/lib/rancher/credentialprovider/bin"),
    same("image-credential-provider-config").unless("/var/lib/rancher/credentialprovider/config.yaml"),
    refused("selinux", "SELinux labels of containers are the runtime's").variable("K3S_SELINUX").truth(),
    unneeded("disable-selinux", "SELinux labels of containers are the runtime's").truth(),
    unneeded("lb-server-port", "no load balancer runs on a node").variable("K3S_LB_SERVER_PORT"),
    refused("protect-kernel-defaults", "`protectKernelDefaults` in the KubeletConfiguration that --kubelet-config names").truth(),
    refused("rootless", ROOTLESS).truth(),
    // Container runtime.
    refused("docker", "cri-dockerd is a runtime whose socket --container-runtime-endpoint names").truth(),
    converts("container-runtime-endpoint", "container-runtime-endpoint", socket).note("a path becomes a URL, unix://PATH"),
    refused("default-runtime", "a RuntimeClass names another handler than runc").unless("runc"),
    refused("image-service-endpoint", "images are the container runtime's"),
    refused("disable-default-registry-endpoint", "mirrors are set in DIR/registry/HOST/hosts.toml").truth(),
    refused("nonroot-devices", "DIR/containerd/runtimes sets handlers of the runtime").truth(),
    refused("pause-image", "the sandbox image is built in"),
    refused("snapshotter", "overlayfs is used, or what the runtime of --container-runtime-endpoint is set to").unless("overlayfs"),
    refused("private-registry", "mirrors and CAs of registries are in DIR/registry/HOST/hosts.toml, credentials in DIR/kubelet/config.json").unless("/etc/rancher/k3s/registries.yaml"),
    refused("system-default-registry", "no system image is pulled: everything is in the binary").server().variable("K3S_SYSTEM_DEFAULT_REGISTRY"),
    unneeded("airgap-extra-registry", "images are known by the names in their archives"),
    unneeded("prefer-bundled-bin", "no programs are unpacked").truth(),
    refused("no-flannel", POD_NETWORK).truth(),
    parts("no-deploy").server(),
];

fn debug(value: &str) -> Converted {
    Ok(if value == "true" { vec![("log-level", "debug".to_owned())] } else { Vec::new() })
}

fn verbosity(value: &str) -> Converted {
    let v: u32 = value.parse().map_err(|_| format!("{value:?} is not a number"))?;
    let level = match v {
        0..=3 => "info",
        4..=7 => "debug",
        _ => "trace",
    };
    Ok(vec![("log-level", level.to_owned())])
}

fn datastore(value: &str) -> Converted {
    let is_etcd = value.split(',').all(|url| url.starts_with("http://") || url.starts_with("https://"));
    match is_etcd {
        true => Ok(value.split(',').map(|url| ("etcd-servers", url.to_owned())).collect()),
        false => Err("only etcd is supported: URLs that begin with http:// or https://".to_owned()),
    }
}

fn no_network_policy(value: &str) -> Converted {
    Ok(if value == "true" { vec![("disable", "network-policy".to_owned())] } else { Vec::new() })
}

fn socket(value: &str) -> Converted {
    let url = if value.contains("://") { value.to_owned() } else { format!("unix://{value}") };
    Ok(vec![("container-runtime-endpoint", url)])
}
