//! `kelson test-server`: creates clusters for tests, each by one request (described in `kelson_testing::server`).
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use kelson_testing::server::{self, Address};
use tokio::sync::oneshot;

use crate::args::LogArgs;
use crate::process;

#[derive(Args, Debug, Clone)]
pub struct TestServerArgs {
    /// Loopback address to listen on; port 0 selects a free port.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0", conflicts_with = "socket")]
    pub listen: SocketAddr,
    /// Unix socket to listen on instead, accessible to its owner only.
    #[arg(long, value_name = "FILE")]
    pub socket: Option<PathBuf>,
    /// Maximum number of clusters at a time.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub clusters_max: usize,
    /// Exit when standard input is closed, so that the server never outlives the process that started it.
    #[arg(long)]
    pub until_stdin_closes: bool,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Runs the server until the process ends. Prints one line with its address: `http://127.0.0.1:PORT` or `unix:FILE`.
pub fn run(args: &TestServerArgs) -> anyhow::Result<()> {
    crate::logging::init(&args.log.log_level)?;
    let address = match &args.socket {
        Some(file) => Address::Unix(file.clone()),
        None => Address::Tcp(args.listen),
    };
    process::run(async |process| {
        let server = server::start(address, args.clusters_max, &process.tasks).await.context("listen")?;
        let shown = match server.address() {
            Address::Tcp(address) => format!("http://{address}"),
            Address::Unix(file) => format!("unix:{}", file.display()),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{shown}").and_then(|()| out.flush()).context("print the server's address")?;
        drop(out);
        let ended = tokio::select! {
            ended = process.ended() => ended,
            () = stdin_closed(), if args.until_stdin_closes => Ok(()),
        };
        server.shutdown().await;
        ended
    })
}

/// Waits for the end of standard input on a separate thread: a read in a blocking pool would delay the end of the
/// process.
async fn stdin_closed() {
    let (reported, closed) = oneshot::channel();
    let read = move || {
        let (mut stdin, mut some) = (std::io::stdin().lock(), [0; 256]);
        while stdin.read(&mut some).is_ok_and(|n| n > 0) {}
        // The receiver may be gone, since the process is ending.
        let _ = reported.send(());
    };
    if let Err(e) = std::thread::Builder::new().name("stdin".into()).spawn(read) {
        tracing::warn!(error = %e, "cannot watch standard input; the server does not exit when it is closed");
        return std::future::pending().await;
    }
    drop(closed.await);
}
