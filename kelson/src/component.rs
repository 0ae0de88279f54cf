//! The common parts of a standalone scheduler and controller manager: upstream's flags, the connection by kubeconfig,
//! leader election, and the port for health and metrics.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use jiff::Timestamp;
use kelson_client::kubeconfig::Config as Kubeconfig;
use kelson_client::leader::Candidate;
use kelson_client::remote::Remote;
use kelson_client::{Client, ClientError, RateLimit};
use kelson_meta::{Clock, SystemClock};
use kelson_metrics::Registry;
use kelson_pki::{Authority, Issued, Key, LeafSpec, Purpose, San, SwappableCertificate};
use kelson_scheduler::configuration::ClientConnection;
use kelson_serving::{Delegated, OpenPaths, Port};
use kelson_tasks::Tasks;
use serde_json::Value;

use crate::args::VerbosityArgs;
use crate::election::{Election, ElectionArgs};
use crate::process::Process;

/// The timeout for releasing the lease at the end.
const RELEASE_MAX: Duration = Duration::from_secs(2);
/// The lifetime of a self-signed certificate; the maximum for a certificate.
const OWN_CERTIFICATE: Duration = Duration::from_secs(365 * 24 * 3600);
/// The path of the ConfigMap with the cluster's client CA.
const AUTHENTICATION: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

/// Upstream's flags that both components have.
#[derive(Args, Debug, Clone)]
pub struct ComponentArgs {
    /// Kubeconfig for the API server.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Kubeconfig for TokenReviews of requests to the health and metrics port [default: --kubeconfig]
    #[arg(long, value_name = "FILE")]
    pub authentication_kubeconfig: Option<PathBuf>,
    /// Kubeconfig for SubjectAccessReviews; without effect here, --authentication-kubeconfig is used for both.
    #[arg(long, value_name = "FILE")]
    pub authorization_kubeconfig: Option<PathBuf>,
    /// Address of the health and metrics port.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// HTTPS port for health and metrics; 0 disables it [default: the component's usual port, if it is free]
    #[arg(long, value_name = "PORT")]
    pub secure_port: Option<u16>,
    /// Serving certificate of the health and metrics port [default: a self-signed certificate]
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// CA bundle for client certificates on the health and metrics port [default: the cluster's CA]
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// CA bundle for authenticating proxies; without effect here, no proxy is trusted.
    #[arg(long, value_name = "FILE")]
    pub requestheader_client_ca_file: Option<PathBuf>,
    #[command(flatten)]
    pub election: ElectionArgs,
    /// Requests per second to the API server [default: unlimited; upstream: 20, scheduler 50].
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    pub kube_api_qps: Option<f64>,
    /// Burst of requests to the API server when --kube-api-qps is set [default: 30, scheduler 100].
    #[arg(long, value_name = "N")]
    pub kube_api_burst: Option<u32>,
    /// Paths of the health and metrics port that skip authorization; a trailing `*` matches any suffix.
    #[arg(long, value_name = "PATHS", value_delimiter = ',', default_value = "/healthz,/readyz,/livez")]
    pub authorization_always_allow_paths: Vec<String>,
    #[command(flatten)]
    pub verbosity: VerbosityArgs,
}

/// The burst when only the rate is set.
const BURST: u32 = 30;

/// Returns the rate and the burst; `None` when there is no limit.
fn limit(qps: Option<f64>, burst: Option<u32>) -> Option<(f64, u32)> {
    Some((qps.filter(|rate| *rate > 0.0)?, burst.unwrap_or(BURST)))
}

impl ComponentArgs {
    /// Returns the filter of the log.
    pub fn log_level(&self) -> &str {
        self.verbosity.log_level()
    }

    /// Returns the rate limit; `None` when there is none.
    pub fn rate_limit(&self) -> Option<Arc<RateLimit>> {
        let (rate, burst) = limit(self.kube_api_qps, self.kube_api_burst)?;
        Some(RateLimit::new(rate, burst))
    }

    /// Returns the rate limit of a configuration file if there is one, and ignores the flags then, as upstream.
    pub fn rate_limit_over(&self, file: Option<&ClientConnection>) -> Option<Arc<RateLimit>> {
        let Some(file) = file else { return self.rate_limit() };
        let (rate, burst) = limit(file.qps, file.burst)?;
        Some(RateLimit::new(rate, burst))
    }

    /// Returns the kubeconfig's connection, else that of the pod's service account. `fallback` is the kubeconfig of a
    /// configuration file, used without the flag.
    pub fn connection(&self, fallback: Option<&Path>) -> anyhow::Result<Kubeconfig> {
        let Some(file) = self.kubeconfig.as_deref().or(fallback) else {
            // Components that run in the cluster have no kubeconfig.
            return Kubeconfig::in_cluster().context("--kubeconfig is needed outside of a pod");
        };
        Kubeconfig::load(file).context("--kubeconfig")
    }
}

/// Creates a client with a kubeconfig.
pub fn client(config: Kubeconfig, component: &str) -> anyhow::Result<Client> {
    Ok(Client::new(Arc::new(Remote::new(config)?), component))
}

/// A standalone component.
pub struct Alone<'a> {
    /// The flags of the component.
    pub args: &'a ComponentArgs,
    /// Its name, as upstream's.
    pub name: &'static str,
    /// Its default port.
    pub port: u16,
    /// Its client for the API.
    pub client: Client,
    /// The CA of its kubeconfig.
    pub ca_pem: Vec<u8>,
    /// Its leader election.
    pub election: Election,
}

impl Alone<'_> {
    /// Serves health and metrics, also while another instance is the leader.
    pub async fn serve(&self, tasks: &Tasks, registry: Registry) -> anyhow::Result<()> {
        let port = Port::of(self.args.secure_port, self.port);
        if port == Port::Asked(0) {
            return Ok(());
        }
        let reviewer = match &self.args.authentication_kubeconfig {
            Some(file) => client(Kubeconfig::load(file).context("--authentication-kubeconfig")?, self.name)?,
            None => self.client.clone(),
        };
        let ca = self.client_ca(&reviewer).await?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let token = tasks.token().clone();
        let healthy = move || if token.is_cancelled() { Err("the process is ending".to_owned()) } else { Ok(()) };
        let component = kelson_serving::Component {
            name: self.name,
            registry,
            healthy: Arc::new(healthy),
            open: OpenPaths::parse(&self.args.authorization_always_allow_paths).map_err(anyhow::Error::msg)?,
            access: Arc::new(Delegated::new(reviewer, clock, &ca)?),
            certificate: SwappableCertificate::new(&self.certificate()?)?,
            client_ca_pem: ca,
        };
        let address = self.args.bind_address;
        kelson_serving::start(tasks, address, port, component).await.with_context(|| format!("serve {}", self.name))?;
        Ok(())
    }

    /// Returns the CA of client certificates: from the flag, else from the cluster, else the CA of the server's
    /// certificate.
    async fn client_ca(&self, client: &Client) -> anyhow::Result<String> {
        if let Some(file) = &self.args.client_ca_file {
            return std::fs::read_to_string(file).with_context(|| format!("--client-ca-file {}", file.display()));
        }
        let read = client.call(http::Method::GET, AUTHENTICATION, "", bytes::Bytes::new()).await;
        let reported =
            read.and_then(|b| serde_json::from_slice::<Value>(&b).map_err(|e| ClientError::Decode(e.to_string())));
        match reported {
            Ok(map) => {
                if let Some(ca) = map["data"]["client-ca-file"].as_str() {
                    return Ok(ca.to_owned());
                }
            }
            Err(e) => tracing::info!(error = %e, "reading the cluster's client CA failed; using the server's CA"),
        }
        Ok(String::from_utf8(self.ca_pem.clone())?)
    }

    /// Returns the serving certificate of the port.
    fn certificate(&self) -> anyhow::Result<Issued> {
        let read = |p: &PathBuf| std::fs::read_to_string(p).with_context(|| p.display().to_string());
        if let (Some(cert), Some(key)) = (&self.args.tls_cert_file, &self.args.tls_private_key_file) {
            return Ok(Issued { cert_pem: read(cert)?, key: Key::from_pem(&read(key)?)? });
        }
        let now = Timestamp::now();
        let sans = [San::Dns("localhost".to_owned()), San::Ip(IpAddr::from([127, 0, 0, 1]))];
        let leaf = LeafSpec {
            common_name: self.name,
            organizations: &[],
            sans: &sans,
            purpose: Purpose::Server,
            lifetime: OWN_CERTIFICATE,
        };
        Ok(Authority::create(&format!("{}-ca", self.name), now)?.issue(&leaf, now)?)
    }

    /// Waits until this instance is the leader, runs `work` until the process ends, and releases the lease. `work` ends
    /// when the future passed to it resolves, and returns that future's result.
    ///
    /// # Errors
    /// The error of `work`, or that the lease was lost: the process must be restarted and becomes a candidate again.
    pub async fn lead<W>(&self, process: &mut Process, work: W) -> anyhow::Result<()>
    where
        W: AsyncFnOnce(&mut Ending<'_>) -> anyhow::Result<()>,
    {
        if !self.election.elects {
            return work(&mut Ending { process, candidate: None }).await;
        }
        let identity = format!("{}_{:032x}", crate::host::name()?, rand::random::<u128>());
        let mut candidate = self.election.candidate(self.client.clone(), &identity);
        tokio::select! {
            () = candidate.won() => tracing::info!(lease = self.election.name, "became leader"),
            ended = process.ended() => return ended,
        }
        let result = work(&mut Ending { process, candidate: Some(&mut candidate) }).await;
        if result.is_ok() && tokio::time::timeout(RELEASE_MAX, candidate.release()).await.is_err() {
            tracing::debug!("releasing the leader election lease timed out");
        }
        result
    }
}

/// The conditions under which a component ends.
pub struct Ending<'a> {
    process: &'a mut Process,
    candidate: Option<&'a mut Candidate>,
}

impl Ending<'_> {
    /// Waits for one of them.
    ///
    /// # Errors
    /// A vital task failed, or another instance became the leader.
    pub async fn come(&mut self) -> anyhow::Result<()> {
        let Some(candidate) = self.candidate.as_mut() else { return self.process.ended().await };
        tokio::select! {
            ended = self.process.ended() => ended,
            why = candidate.lost() => bail!("lost the leader election lease: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_often_the_api_server_is_asked() {
        for (qps, burst, expected) in [
            (None, Some(9), None),
            (Some(0.0), Some(9), None),
            (Some(-1.0), None, None),
            (Some(2.5), Some(9), Some((2.5, 9))),
            (Some(2.5), None, Some((2.5, BURST))),
        ] {
            assert_eq!(limit(qps, burst), expected, "{qps:?} {burst:?}");
        }
    }
}
