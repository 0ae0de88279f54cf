//! Developer tasks: generators and repository rules. Nothing here ships.

mod cri;
mod definitions;
mod facts;
mod gates;
mod goapi;
mod lifecycle;
mod lint;
mod messages;
mod model;
mod proto;
mod reference;
mod resources;
#[cfg(test)]
mod sample;
mod sbom;
mod schema;
mod size;
mod sources;
mod table;
mod tidy;
mod units;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask cri --proto FILE\n       cargo xtask definitions --sources DIR --release 1.N.P\n       cargo xtask lint\n       cargo xtask messages\n       cargo xtask units\n       cargo xtask size FILE\n       cargo xtask sbom TARGET VERSION TIME\n       cargo xtask tidy\n       cargo xtask ratchet";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("cri") => cri::run(&args[1..]),
        Some("definitions") => definitions::run(&args[1..]).map_err(|e| format!("{e:#}")),
        Some("lint") => lint::run().map_err(|e| format!("{e:#}")),
        Some("messages") => messages::run().and_then(|()| reference::run()).map_err(|e| format!("{e:#}")),
        Some("units") => units::run().map_err(|e| format!("{e:#}")),
        Some("size") if args.len() == 2 => size::run(&args[1]).map_err(|e| format!("{e:#}")),
        Some("sbom") if args.len() == 4 => sbom::run(&args[1], &args[2], &args[3]).map_err(|e| format!("{e:#}")),
        Some("tidy") => tidy::check().map_err(|e| format!("{e:#}")),
        Some("ratchet") => units::count().and_then(tidy::ratchet).map_err(|e| format!("{e:#}")),
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
