//! Developer tasks: generators and repository rules. Nothing here ships.

mod cri;
mod goapi;
mod model;
mod proto;
mod resources;
mod schema;
mod table;

use std::process::ExitCode;

const USAGE: &str =
    "usage: cargo xtask cri --proto FILE\n       cargo xtask schema --openapi DIR --discovery DIR --protos DIR...";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("cri") => cri::run(&args[1..]),
        Some("schema") => schema::run(&args[1..]).map_err(|e| format!("{e:#}")),
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
