//! The CNI plugin as a separate program, for tests and measurements. The kelson binary calls the same function.

use std::process::ExitCode;

fn main() -> ExitCode {
    match kelson_net::cni::run_if_invoked() {
        Some(code) => code,
        None => {
            eprintln!("CNI_COMMAND is not set; this program is run by a container runtime");
            ExitCode::FAILURE
        }
    }
}
