//! Developer tasks: generators and repository rules. Nothing here ships.

mod cri;
mod facts;
mod gates;
mod goapi;
mod lint;
mod model;
mod proto;
mod resources;
mod schema;
mod table;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask cri --proto FILE\n       cargo xtask schema --openapi DIR --discovery DIR --protos DIR...\n       cargo xtask facts [--reference DIR]\n       cargo xtask gates --sources DIR [--minor N]\n       cargo xtask lint\n       cargo xtask tidy\n       cargo xtask ratchet";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("cri") => cri::run(&args[1..]),
        Some("schema") => schema::run(&args[1..]).map_err(|e| format!("{e:#}")),
        Some("facts") => facts::run(&args[1..]).map_err(|e| format!("{e:#}")),
        Some("gates") => gates::run(&args[1..]).map_err(|e| format!("{e:#}")),
        Some("lint") => lint::run().map_err(|e| format!("{e:#}")),
        Some("tidy") => tidy::check().map_err(|e| format!("{e:#}")),
        Some("ratchet") => tidy::ratchet().map_err(|e| format!("{e:#}")),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
