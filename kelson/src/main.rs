//! The binary: parse, wire, run, exit code. No logic.
mod cli;

use clap::Parser as _;

fn main() -> std::process::ExitCode {
    let _cli = cli::Cli::parse();
    std::process::ExitCode::SUCCESS
}
