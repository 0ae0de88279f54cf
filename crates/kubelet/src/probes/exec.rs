//! Command probes and hooks: the runtime runs the command, and the exit code decides (upstream: `pkg/probe/exec`).
use std::time::Duration;

use kelson_cri::Runtime;

use super::target::Outcome;

/// Maximum number of output bytes in messages.
const OUTPUT_MAX: usize = 10 * 1024;

/// Runs `command` in a container for at most `limit`.
pub async fn run(runtime: &dyn Runtime, container: &str, command: &[String], limit: Duration) -> Outcome {
    match runtime.exec_sync(container, command.to_vec(), limit).await {
        Ok(out) if out.exit_code == 0 => Outcome::Success,
        Ok(out) => {
            let mut bytes = out.stdout;
            bytes.extend(out.stderr);
            bytes.truncate(OUTPUT_MAX);
            Outcome::Failure(String::from_utf8_lossy(&bytes).into_owned())
        }
        Err(e) if e.is_deadline_exceeded() => {
            let words: Vec<String> = command.iter().map(|c| format!("{c:?}")).collect();
            Outcome::Failure(format!("command timed out: {} timed out after {}s", words.join(" "), limit.as_secs()))
        }
        Err(e) => Outcome::Unknown(format!("rpc error: {e}")),
    }
}
