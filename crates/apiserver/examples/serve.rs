//! The API server alone, on a store in memory or in a directory, for trying it by hand:
//! `cargo run --example serve -- --port 16443 --dir /tmp/x` writes `/tmp/x/admin.kubeconfig`.
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Parser;
use kelson_apiserver::{ApiServer, Config, KubeletConfig, ServiceAccountConfig, ServingConfig};
use kelson_pki::{ClusterPki, Component, PkiOptions, SwappableCertificate};
use kelson_store::engine::SqliteEngine;
use kelson_store::{Store, StoreOptions};

#[derive(Parser)]
struct Args {
    /// Directory for certificates, kubeconfig and data.
    #[arg(long, default_value = "/tmp/kelson-serve")]
    dir: PathBuf,
    /// Port; 0 takes a free one.
    #[arg(long, default_value_t = 16443)]
    port: u16,
    /// Keep objects in memory only.
    #[arg(long)]
    memory: bool,
    /// Token file (`token,user,uid,"group,group"`).
    #[arg(long)]
    token_auth_file: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let begun = std::time::Instant::now();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    std::fs::create_dir_all(&args.dir)?;
    let now = jiff::Timestamp::now();
    let pki = ClusterPki::open(&PkiOptions::new(args.dir.join("pki")), now)?;
    let service_ip = IpAddr::V4(Ipv4Addr::new(10, 43, 0, 1));
    let sans = ClusterPki::server_sans("cluster.local", service_ip, &[]);
    let store = store(&args)?;
    let mut config = Config::new(store.clone());
    config.serving = Some(ServingConfig {
        bind: SocketAddr::from((Ipv4Addr::LOCALHOST, args.port)),
        certificate: SwappableCertificate::new(&pki.issue_server(&sans, now)?)?,
    });
    config.client_ca_pem = pki.ca.cert_pem().to_owned();
    config.token_auth_file = args.token_auth_file;
    config.service_accounts = Some(ServiceAccountConfig {
        issuer: "https://kubernetes.default.svc.cluster.local".into(),
        issuers_before: Vec::new(),
        key: pki.service_account.clone(),
        verifiers: pki.service_account_verifiers()?,
        audiences: Vec::new(),
        terms: Default::default(),
    });
    config.kubelet = Some(KubeletConfig {
        client: SwappableCertificate::new(&pki.issue_component(Component::KubeletClient, now)?)?,
        trust: kelson_apiserver::KubeletTrust::Cluster(pki.kubelet_serving_ca.cert_pem().to_owned()),
        local_node: None,
        address_types: Vec::new(),
    });
    let running = ApiServer::start(config).await?;
    running.ready().await;
    let address = running.local_addr().ok_or("no address")?;
    let kubeconfig = args.dir.join("admin.kubeconfig");
    pki.ensure_admin_kubeconfig(&kubeconfig, &format!("https://{address}"), now)?;
    println!("ready after {:?}: KUBECONFIG={}", begun.elapsed(), kubeconfig.display());
    tokio::signal::ctrl_c().await?;
    running.shutdown().await;
    store.close().await;
    Ok(())
}

fn store(args: &Args) -> Result<Store, Box<dyn std::error::Error>> {
    if args.memory {
        return Ok(Store::in_memory(StoreOptions::default()));
    }
    let engine = SqliteEngine::open(&args.dir.join("store"))?;
    Ok(Store::open(Box::new(engine), StoreOptions::default())?)
}
