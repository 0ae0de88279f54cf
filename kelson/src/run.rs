//! `kelson server`: start order, stop order.
use std::io::Write as _;
use std::path::Path;

use kelson_ranges::ConfiguredRanges;
use kelson_tasks::Tasks;

use crate::cli::ServerArgs;
use crate::control_plane::ControlPlane;
use crate::host::{self, NodeIdentity};
use crate::leading::Part;
use crate::lock::DataDirLock;
use crate::node::vip::Vip;
use crate::{control_plane, etcd_member, liveness, logging, node, process};

/// Runs `kelson server` until it ends.
pub fn server(args: ServerArgs) -> anyhow::Result<()> {
    logging::init(&args.log.log_level)?;
    args.config.log();
    if !args.disable_agent {
        node::run::check(&args.node)?;
        host::wait_for_route(&args.host);
    }
    let me = NodeIdentity::of(&args.host)?;
    let _lock = DataDirLock::make(&args.data_dir)?;
    // A restore that was interrupted is completed before anything is read.
    kelson_bundle::complete(&args.data_dir)?;
    process::run(async |process| {
        // A start may wait for other servers as long as it takes; a signal ends it.
        let tasks = process.tasks.clone();
        let (control_plane, vip) = tokio::select! {
            started = start(&args, &tasks) => started?,
            ended = process.ended() => return ended,
        };
        let has = (!args.disable_agent, control_plane.has_member());
        let text = ready(control_plane.local_url(), &args.data_dir, has);
        // The log has this as well, so a server whose output is closed continues.
        let _ = std::io::stdout().write_all(text.as_bytes());
        process.service.watch("API server", liveness::of_api(args.data_dir.clone()));
        process.service.ready(&format!("serves the API at {}", control_plane.local_url()));
        node::run::ready(process);
        let ended = match args.disable_agent {
            true => process.ended().await,
            false => node::run::beside(&control_plane, &args.data_dir, &args.node, &me, process).await,
        };
        if let Some(vip) = vip {
            // Before the API ends, so that its clients find another server at once.
            vip.shutdown().await;
        }
        control_plane.shutdown().await;
        ended
    })
}

/// Joins a cluster if the flags say so, and starts the control plane and what announces the servers' shared address.
async fn start(args: &ServerArgs, tasks: &Tasks) -> anyhow::Result<(ControlPlane, Option<Part>)> {
    etcd_member::receive(args, control_plane::advertised(args), tasks).await?;
    // A cluster that this server joins has decided about its ranges.
    let given = ConfiguredRanges { cluster: args.cluster_cidr, service: args.service_cidr };
    let ranges = match args.disable_agent {
        true => kelson_ranges::settle(&args.data_dir, given).await?,
        false => node::run::settle(&args.data_dir, given).await?,
    };
    let vip = Vip::prepare(args, &ranges).await?;
    let control_plane = ControlPlane::start(args, ranges, tasks).await?;
    let vip = vip.start(&control_plane, tasks);
    Ok((control_plane, vip))
}

/// Returns the text printed when the server is ready: its address, and next steps.
fn ready(url: &str, data_dir: &Path, (has_node, has_member): (bool, bool)) -> String {
    let kubeconfig = data_dir.join("admin.kubeconfig");
    let kubeconfig = std::path::absolute(&kubeconfig).unwrap_or(kubeconfig);
    let dir = kubeconfig.parent().unwrap_or(data_dir).display();
    let (what, more) = match has_node {
        true => (
            "nodes",
            format!(
                "To add a machine, run here what prints the command for it:\n\n  kelson token create --print-join-command --data-dir {dir}\n\n"
            ),
        ),
        false => ("namespaces", String::new()),
    };
    let join = match has_member {
        true => format!(
            "To add a server, run here what prints the command for it:\n\n  kelson token create --server --print-join-command --data-dir {dir}\n\n"
        ),
        false => String::new(),
    };
    format!(
        "\nKubernetes {} is ready at {url}. In another terminal:\n\n  export KUBECONFIG={}\n  kubectl get {what}\n\n{more}{join}\
         Manifests in {dir}/manifests are applied.\n\n",
        kelson_meta::version::SHORT,
        kubeconfig.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_server_says_what_to_do_next() {
        let text = ready("https://127.0.0.1:6443", Path::new("/var/lib/kelson"), (true, false));
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        assert!(lines[0].ends_with("is ready at https://127.0.0.1:6443. In another terminal:"), "{text}");
        assert_eq!(lines[1..3], ["export KUBECONFIG=/var/lib/kelson/admin.kubeconfig", "kubectl get nodes"]);
        assert_eq!(lines[4], "kelson token create --print-join-command --data-dir /var/lib/kelson");
        assert_eq!(lines[5], "Manifests in /var/lib/kelson/manifests are applied.");
        assert!(
            ready("https://x", Path::new("/d"), (false, false)).contains("kubectl get namespaces"),
            "without a node"
        );
        let joins = ready("https://x", Path::new("/d"), (false, true));
        assert!(joins.contains("kelson token create --server --print-join-command --data-dir /d\n"), "{joins}");
        assert!(ready("https://x", Path::new("d"), (false, false)).contains("KUBECONFIG=/"), "from any directory");
    }
}
