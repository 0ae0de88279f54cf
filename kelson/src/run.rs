//! `kelson server`: start order, stop order.
use kelson_ranges::Given;

use crate::cli::ServerArgs;
use crate::control_plane::ControlPlane;
use crate::host::NodeIdentity;
use crate::lock::DataDirLock;
use crate::{logging, node, process};

/// Runs `kelson server` to its end.
pub fn server(args: ServerArgs) -> anyhow::Result<()> {
    logging::init(&args.log.log_level)?;
    if !args.disable_agent {
        node::run::check(&args.node)?;
    }
    let me = NodeIdentity::of(&args.host)?;
    let _lock = DataDirLock::make(&args.data_dir)?;
    process::run(async |process| {
        let given = Given { cluster: args.cluster_cidr, service: args.service_cidr };
        let ranges = match args.disable_agent {
            true => kelson_ranges::settle(&args.data_dir, given).await?,
            false => node::run::settle(&args.data_dir, given).await?,
        };
        let control_plane = ControlPlane::start(&args, ranges, &process.tasks).await?;
        let ended = match args.disable_agent {
            true => process.ended().await,
            false => node::run::beside(&control_plane, &args.data_dir, &args.node, &me, process).await,
        };
        control_plane.shutdown().await;
        ended
    })
}
