//! `kelson check`: whether this machine can be a server or a node; and the warning at their start.
use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use kelson_check::{Finding, Host, Purpose, Report};
use kelson_meta::version;
use kelson_tasks::FILES;

/// The use of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// A control plane with this machine's node, as `kelson server`.
    Server,
    /// A node, as `kelson agent`.
    Agent,
    /// A control plane without a node, as `kelson server --disable-agent`.
    ControlPlane,
}

/// Flags of `kelson check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Role for which the machine is checked.
    #[arg(long, value_name = "ROLE", default_value = "server")]
    pub role: Role,
    /// Data directory whose disk is checked.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
    /// Port on which the API server listens.
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub secure_port: u16,
    /// Port of the kubelet's API.
    #[arg(long, value_name = "PORT", default_value_t = 10250)]
    pub kubelet_port: u16,
    /// Socket of the container runtime [default: Kelson's own containerd]
    #[arg(long, value_name = "unix:///…")]
    pub container_runtime_endpoint: Option<String>,
    /// Hide checks without findings.
    #[arg(long, short)]
    pub quiet: bool,
    /// Output format: `text` or `json`.
    #[arg(long, short, value_name = "FORM", default_value = "text", value_parser = ["text", "json"])]
    pub output: String,
}

impl CheckArgs {
    fn purpose(&self) -> anyhow::Result<Purpose> {
        Ok(Purpose {
            server: self.role != Role::Agent,
            node: self.role != Role::ControlPlane,
            data_dir: std::path::absolute(&self.data_dir)?,
            secure_port: self.secure_port,
            kubelet_port: self.kubelet_port,
            foreign_runtime: self.container_runtime_endpoint.is_some(),
            built_s: built_s(),
        })
    }
}

/// Returns when this program was built, in seconds since the Unix epoch.
fn built_s() -> i64 {
    version::build().date.parse::<Timestamp>().map_or(0, Timestamp::as_second)
}

/// Prints the findings.
///
/// # Errors
/// A finding that prevents the server or node from working.
pub fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let report = Report { findings: kelson_check::all(&Host::this(), &args.purpose()?) };
    match args.output.as_str() {
        "json" => outln!("{}", report.json()),
        _ => out!("{}", report.text(args.quiet)),
    }
    if report.has_errors() {
        bail!("this machine does not meet the requirements; see the errors above");
    }
    Ok(())
}

/// A node without a server, as its start checks it.
fn node(foreign_runtime: bool) -> Purpose {
    Purpose {
        server: false,
        node: true,
        data_dir: "/".into(),
        secure_port: 0,
        kubelet_port: 0,
        foreign_runtime,
        built_s: built_s(),
    }
}

/// Logs a line for each firewall that drops what a node needs. The node runs nevertheless, without what the firewall drops.
pub async fn firewalls_at_start(foreign_runtime: bool) {
    let purpose = node(foreign_runtime);
    match FILES.run(move || kelson_check::firewalls(&Host::this(), &purpose)).await {
        Ok(findings) => {
            for Finding { found, meaning, .. } in findings {
                tracing::warn!(
                    found,
                    meaning,
                    "a firewall drops what this node needs; run `kelson check` for the rules to add"
                );
            }
        }
        Err(error) => tracing::warn!(%error, "checking for firewalls failed"),
    }
}

/// Logs the state of the machine in one line, and another one where it lacks what a node needs. The node starts nevertheless: what fails
/// says so by itself, less clearly.
pub fn at_start(foreign_runtime: bool) {
    let purpose = node(foreign_runtime);
    let report = kelson_check::at_start(&Host::this(), &purpose);
    tracing::info!(found = report.summary(), "checked this machine; `kelson check` says what each finding means");
    if report.has_errors() {
        tracing::error!(
            errors = report.errors(),
            "this machine does not meet the requirements of a node; run `kelson check`"
        );
    }
}
