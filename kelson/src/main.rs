//! The binary: parse, wire, run, exit code. No logic.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod accounts;
mod admission;
mod agent;
mod args;
mod audit;
mod authorities;
mod certificate;
mod certificates;
mod cleanup;
mod cli;
mod cluster;
mod component;
mod control_plane;
mod controller_flags;
mod controller_manager;
mod credentials;
mod discovery;
mod etcd;
mod etcd_flags;
mod flags;
mod hollow;
mod host;
mod identity;
mod identity_files;
mod image;
mod kube_apiserver;
mod kube_proxy;
mod kubelet;
mod lock;
mod logging;
mod modes;
mod parent;
mod pins;
mod placement;
mod process;
mod rbac;
mod run;
mod scheduler;
mod snapshot;
mod test_server;
mod token;
mod trust;
mod upstream;

use std::process::ExitCode;

use kelson_meta::version;

use cli::{Cli, Command, CredentialProviderCommand, ImageCommand};

/// Memory goes back to the system sooner than with the C library's allocator, and many small objects cost less.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What `KELSON_COMMIT` and `KELSON_BUILD_DATE` said when this was built.
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

fn main() -> ExitCode {
    // The container runtime runs this binary as its network plugin, dozens of times a minute: before anything else.
    if let Some(code) = kelson_net::cni::run_if_invoked() {
        return code;
    }
    version::set_build(BUILD);
    let words: Vec<_> = std::env::args_os().collect();
    if let Some(words) = etcd::named(&words) {
        return etcd::main(words);
    }
    if let Some((component, words)) = upstream::named(&words) {
        return component.main(words);
    }
    let words = hollow::named(&words).unwrap_or(words);
    match dispatch(Cli::from_words(words, upstream::HELP).command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("Error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Server(args) => run::server(*args),
        Command::Agent(args) => run::agent(*args),
        Command::Hollow(args) => hollow::run(&args),
        Command::TestServer(args) => test_server::run(&args),
        Command::CredentialProvider(CredentialProviderCommand::Check { image, config, bin_dir, data_dir }) => {
            run::small(credentials::check(&image, config.zip(bin_dir), &data_dir))
        }
        Command::Image(ImageCommand::Import { files, data_dir, container_runtime_endpoint }) => {
            run::small(image::import(&files, &data_dir, container_runtime_endpoint.as_deref()))
        }
        Command::Token(command) => run::small(token::run(command)),
        Command::Certificate(command) => run::small(certificate::run(command)),
        Command::Snapshot(command) => run::small(snapshot::run(command)),
        Command::Cleanup(args) => run::small(cleanup::run(&args)),
        Command::Version => {
            println!("kelson {} ({})", version::KELSON_VERSION, version::build().commit);
            println!("Kubernetes {} {}", version::GIT_VERSION, version::platform());
            Ok(())
        }
        Command::Cni => anyhow::bail!("the CNI plugin is run by a container runtime, with CNI_COMMAND set"),
    }
}
