//! A node by hand, as root: containerd under DIR, the pod network on a fixed subnet, and the kubelet against the API
//! server of a kubeconfig: `node --kubeconfig FILE --dir DIR --name n1 [--subnet 10.203.9.0/24] [--port 0]`. Images of
//! DIR/images are loaded. Ctrl-C ends the kubelet and leaves the containers; `--cleanup` removes everything.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kelson_client::Client;
use kelson_client::kubeconfig::Config as ClientConfig;
use kelson_client::remote::Remote;
use kelson_cri::containerd::{Containerd, ContainerdConfig};
use kelson_cri::{CriClient, Limits};
use kelson_kubelet::volumes::mounts::KernelMounts;
use kelson_kubelet::{Config, Dependencies, Kubelet};
use kelson_meta::SystemClock;
use kelson_net::{Network, NetworkConfig};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

struct Args {
    kubeconfig: PathBuf,
    dir: PathBuf,
    name: String,
    subnet: String,
    port: u16,
    ca: Option<PathBuf>,
    tls: (Option<PathBuf>, Option<PathBuf>),
    cleanup: bool,
}

fn args() -> Args {
    let mut out = Args {
        kubeconfig: "admin.kubeconfig".into(),
        dir: "/tmp/kelson-node".into(),
        name: "n1".into(),
        subnet: "10.203.9.0/24".into(),
        port: 0,
        ca: None,
        tls: (None, None),
        cleanup: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(w) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        match w.as_str() {
            "--kubeconfig" => out.kubeconfig = value().into(),
            "--dir" => out.dir = value().into(),
            "--name" => out.name = value(),
            "--subnet" => out.subnet = value(),
            "--port" => out.port = value().parse().unwrap_or(0),
            "--client-ca-file" => out.ca = Some(value().into()),
            "--tls-cert-file" => out.tls.0 = Some(value().into()),
            "--tls-private-key-file" => out.tls.1 = Some(value().into()),
            "--cleanup" => out.cleanup = true,
            other => eprintln!("unknown argument {other}"),
        }
    }
    out
}

fn main() -> Outcome<()> {
    // containerd calls the pod network's plugin, which here is this program.
    if let Some(code) = kelson_net::cni::run_if_invoked() {
        std::process::exit(i32::from(code != std::process::ExitCode::SUCCESS));
    }
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    tokio::runtime::Runtime::new()?.block_on(run(args()))
}

async fn run(args: Args) -> Outcome<()> {
    if args.cleanup {
        return cleanup(&args.dir).await;
    }
    let subnet = args.subnet.parse()?;
    let network = Network::new(NetworkConfig::new(&args.dir, vec![subnet], vec!["10.203.0.0/16".parse()?])?);
    network.ensure(&std::env::current_exe()?).await?;
    let containerd = Containerd::start(ContainerdConfig::new(&args.dir)?, &kelson_tasks::Tasks::root("node")).await?;
    let runtime = Arc::new(CriClient::new(&containerd.endpoint(), Limits::default())?);
    let client = Client::new(Arc::new(Remote::new(ClientConfig::load(&args.kubeconfig)?)?), "kubelet");
    let mut config = Config::new(&args.name, &args.dir.join("kubelet"));
    config.node_ips = vec!["127.0.0.1".parse()?];
    config.runtime_endpoint = containerd.endpoint();
    config.cgroups = Some(kelson_kubelet::config::cgroups::CgroupConfig::below(format!("kelson-{}", args.name)));
    config.server.listen = Some(([127, 0, 0, 1], args.port).into());
    if let Some(ca) = &args.ca {
        config.server.client_ca_pem = std::fs::read(ca)?;
    }
    config.server.tls_files = args.tls.0.zip(args.tls.1);
    let deps = Dependencies {
        tasks: kelson_tasks::Tasks::root("node"),
        client,
        runtime,
        clock: Arc::new(SystemClock),
        mounts: Arc::new(KernelMounts),
        prober: None,
        on_pod_cidrs: None,
        certificate: None,
    };
    let running = Kubelet::start(config, deps).await?;
    println!("kubelet runs, server on port {}", running.port());
    let mut ready = running.ready();
    ready.wait_for(|r| *r).await?;
    println!("node ready");
    tokio::signal::ctrl_c().await?;
    running.shutdown().await;
    Ok(())
}

async fn cleanup(dir: &Path) -> Outcome<()> {
    let errors = kelson_cri::containerd::cleanup(dir).await;
    let network = kelson_net::cleanup(dir).await;
    println!("{errors:?} {network:?}");
    Ok(())
}
