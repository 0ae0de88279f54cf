//! TCP probes: an accepted connection is a success (upstream: `pkg/probe/tcp`).
use std::time::Duration;

use tokio::net::TcpStream;

use super::target::Outcome;
use super::words::{address, os_text};

/// Connects once, within the limit.
pub async fn connect(host: &str, port: u16, limit: Duration) -> Outcome {
    match tokio::time::timeout(limit, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Outcome::Success,
        Ok(Err(e)) => Outcome::Failure(format!("dial tcp {}: connect: {}", address(host, port), os_text(&e))),
        Err(_) => Outcome::Failure(format!("dial tcp {}: i/o timeout", address(host, port))),
    }
}
