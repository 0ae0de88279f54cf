//! The binary: parse, wire, run, exit code. No logic.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `output` | standard output of commands |
//! | `flags/`, `config/`, `k3s/` | command lines as upstream's components read them, without knowledge of a component; the configuration file; k3s' flags and their translation |
//! | `args` | arguments that commands share |
//! | `manifests/`, `lock`, `host`, `logging`, `service`, `parent`, `program`, `rest`, `process` | files that are given to a controller as objects; the service manager; unused pages of the program and of the allocator, which are released |
//! | `cli`, `control_plane`, `kube_apiserver/`, `node/`, `absent/` | the command line; the control plane; the API server alone; in `node/`, `agent`, `kubelet` and `kube_proxy` each build one role of the process; `absent/` replaces `node/` on systems without a node |
//! | `run` | the commands `server` and `agent` |
//! | `upstream` | one row for each component with a separate name |
//!
//! The file of a subcommand (`token`, `cleanup`, `node/image`, `node/credentials`) does not import another one. Which flags
//! exist is data; a flag has an effect if and only if a typed struct has an argument of that name.
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::print_stdout))]
// Functions used only by a node are unused without one.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))]

#[macro_use]
mod output;

mod about;
#[cfg(any(test, not(target_os = "linux")))]
mod absent;
mod accounts;
mod admission;
mod args;
mod ask;
mod at_rest;
mod audit;
mod authorities;
mod bundle;
mod certificate;
mod certificates;
mod cleanup;
mod cli;
mod cluster;
mod cluster_data;
mod component;
mod config;
mod control_plane;
mod controller_flags;
mod controller_manager;
mod elected;
mod election;
mod etcd;
mod etcd_flags;
mod etcd_member;
mod flags;
mod hollow;
mod host;
mod identity;
mod identity_files;
mod joining;
mod k3s;
mod kube_apiserver;
mod leading;
mod liveness;
mod lock;
mod logging;
mod manifests;
mod manual;
mod member;
mod member_flags;
mod modes;
#[cfg(target_os = "linux")]
mod node;
mod own_objects;
mod parent;
mod process;
mod program;
mod rbac;
mod reach;
#[cfg(all(test, target_os = "linux"))]
mod reference;
mod rest;
mod rotation_servers;
mod run;
mod s3_flags;
mod scheduler;
mod server_slice;
mod server_token;
mod service;
mod snapshot;
mod snapshot_flags;
mod snapshot_list;
mod snapshot_schedule;
mod storage;
mod store_limits;
mod sync_flags;
mod test_server;
mod token;
mod token_list;
mod tracing_flags;
mod upstream;
mod vote;

use std::process::ExitCode;

use clap::CommandFactory as _;
use kelson_meta::version;

#[cfg(not(target_os = "linux"))]
use absent as node;
use cli::{Cli, Command};

/// Returns memory to the system sooner than the C library's allocator, and many small objects take less.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The values of `KELSON_COMMIT` and `KELSON_BUILD_DATE` at build time.
const BUILD: version::Build = version::Build {
    commit: match option_env!("KELSON_COMMIT") {
        Some(commit) if !commit.is_empty() => commit,
        _ => "unknown",
    },
    date: match option_env!("KELSON_BUILD_DATE") {
        Some(date) if !date.is_empty() => date,
        _ => "1970-01-01T00:00:00Z",
    },
};

/// Formats an error with its causes, each once: many errors include their own cause.
fn explained(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .reduce(|all, cause| if all.ends_with(&cause) { all } else { format!("{all}: {cause}") })
        .unwrap_or_default()
}

fn main() -> ExitCode {
    let code = run(std::env::args_os().collect());
    match output::failure() {
        Some(e) => {
            eprintln!("{}Error: write to standard output: {e}", logging::error_prefix());
            ExitCode::FAILURE
        }
        None => code,
    }
}

fn run(words: Vec<std::ffi::OsString>) -> ExitCode {
    if let Some(code) = node::run::before(&words) {
        return code;
    }
    version::set_build(BUILD);
    if let Some(words) = etcd::named(&words) {
        return etcd::main(words);
    }
    if let Some((component, words)) = upstream::named(&words) {
        return component.main(&words);
    }
    let words = hollow::named(&words).unwrap_or(words);
    match dispatch(Cli::from_words(words, upstream::help()).command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{}Error: {}", logging::error_prefix(), explained(&e));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Server(args) => run::server(*args),
        Command::Node(command) => node::run::run(command),
        Command::Vote(args) => vote::run(&args),
        Command::Hollow(args) => hollow::run(&args),
        Command::TestServer(args) => test_server::run(&args),
        Command::Token(command) => process::small(token::run(command)),
        Command::Certificate(command) => process::small(certificate::run(command)),
        Command::Member(command) => process::small(member::run(command)),
        Command::Cluster(command) => process::small(cluster_data::run(command)),
        Command::Snapshot(command) => process::small(snapshot::run(command)),
        Command::Config(command) => config::run(command, &Cli::command()),
        Command::Migrate(command) => k3s::run(command, &Cli::command()),
        Command::Cleanup(args) => process::small(cleanup::run(&args)),
        Command::Completion(args) => {
            manual::completion(&args, Cli::command());
            Ok(())
        }
        Command::Man(args) => manual::man(&args, Cli::command()),
        Command::Version(args) => about::run(&args),
    }
}
