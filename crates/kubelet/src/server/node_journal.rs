//! Runs a query of the node's logs (`enableSystemLogQuery`) with journalctl for services in the journal, and from files for others.
use std::convert::Infallible;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::answer::{Body, text};
use super::node_files::{BLOCK, read_first};
use super::node_query::{LogSelection, NodeLogQuery, by_logger, file_names};

/// Timeout of a query.
const QUERY_MAX: Duration = Duration::from_secs(30);
const JOURNALCTL: &str = "journalctl";

/// Streams the logs of the queried services.
pub async fn answer(root: &'static str, query: NodeLogQuery) -> Response<Body> {
    let end = Instant::now() + QUERY_MAX;
    let (native, others) = match query.services.is_empty() {
        true => (Vec::new(), Vec::new()),
        // A machine without journald has only files.
        false => by_logger(&query.services, &units(end).await.unwrap_or_default()),
    };
    if others.is_empty() {
        return stream(&query.options.words(&native), end);
    }
    if query.options != LogSelection::default() {
        let names = others.join(" ");
        let why = "options present and query resolved to log files for";
        return lines(format!("\n{why} [{names}]\ntry without specifying options\n"));
    }
    files(root, others).await
}

fn lines(body: impl Into<Bytes>) -> Response<Body> {
    text(http::StatusCode::OK, body)
}

/// Lists all units in the journal.
async fn units(end: Instant) -> Option<String> {
    let output = Command::new(JOURNALCTL).args(["--field", "_SYSTEMD_UNIT"]).kill_on_drop(true).output();
    let output = tokio::time::timeout_at(end, output).await.ok()?.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

struct Journal {
    output: pipe::Receiver,
    /// Killed when the client disconnects or the time is over.
    _child: Child,
}

/// Starts journalctl; its errors are written to the output, like in upstream.
fn start(words: &[String]) -> std::io::Result<Journal> {
    let (sender, output) = pipe::pipe()?;
    let sender = sender.into_blocking_fd()?;
    let mut command = Command::new(JOURNALCTL);
    command.args(words).kill_on_drop(true).stdin(Stdio::null());
    command.stderr(Stdio::from(sender.try_clone()?)).stdout(Stdio::from(sender));
    Ok(Journal { output, _child: command.spawn()? })
}

fn stream(words: &[String], end: Instant) -> Response<Body> {
    let running = match start(words) {
        Ok(running) => running,
        Err(error) => {
            tracing::debug!(%error, "cannot start journalctl");
            return lines("\nerror: journal output not available\n");
        }
    };
    let frames = futures::stream::unfold(running, move |mut running| async move {
        let mut block = vec![0; BLOCK];
        // If the time is over, the response is short.
        let read = tokio::time::timeout_at(end, running.output.read(&mut block)).await.ok()?.ok()?;
        block.truncate(read);
        (read > 0).then(|| (Ok::<_, Infallible>(Frame::data(Bytes::from(block))), running))
    });
    let mut response = lines(Bytes::new());
    *response.body_mut() = StreamBody::new(frames).boxed_unsync();
    response
}

/// Streams the log files of services, one after another.
async fn files(root: &'static str, services: Vec<String>) -> Response<Body> {
    let frames = futures::stream::iter(services);
    let frames =
        futures::StreamExt::flat_map(frames, move |service| read_first(root, service.clone(), file_names(&service)));
    let mut response = lines(Bytes::new());
    *response.body_mut() = StreamBody::new(frames).boxed_unsync();
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn body(response: Response<Body>) -> String {
        let bytes = response.into_body().collect().await.expect("never fails").to_bytes();
        String::from_utf8(bytes.to_vec()).expect("text")
    }

    #[tokio::test]
    async fn logs_in_files_come_one_after_the_other() {
        let dir = Box::leak(Box::new(tempfile::tempdir().expect("tempdir")));
        std::fs::create_dir(dir.path().join("b")).expect("mkdir");
        std::fs::write(dir.path().join("a.log"), "of a\n").expect("write");
        std::fs::write(dir.path().join("b/b.log"), "of b\n").expect("write");
        let root: &'static str = Box::leak(dir.path().display().to_string().into_boxed_str());
        let said = body(files(root, ["a", "b", "c"].map(str::to_owned).to_vec()).await).await;
        assert_eq!(said, "of a\nof b\n\nlog not found for c\n");
    }
}
