//! The first of several servers to which a connection is established. The next one is tried when one fails, or does not
//! answer soon (RFC 8305).
use std::io;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http::Uri;

use super::dial::chain;

/// The time after which the next server is tried as well.
pub(super) const STAGGER: Duration = Duration::from_millis(150);
/// The timeout of one attempt.
pub(super) const ATTEMPT_LIMIT: Duration = Duration::from_secs(5);

/// Opens connections to the servers in this order, and returns the first that is established, with its server.
///
/// # Errors
/// All attempts failed. A server that answers with an invalid certificate counts more than one that does not answer.
pub(super) async fn race<T, F>(servers: Vec<Uri>, open: impl Fn(Uri) -> F) -> io::Result<(Uri, T)>
where
    F: Future<Output = io::Result<T>>,
{
    let mut waiting = servers.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut faults: Vec<io::Error> = Vec::new();
    loop {
        if let Some(server) = waiting.next() {
            let attempt = open(server.clone());
            attempts.push(async move {
                let outcome = tokio::time::timeout(ATTEMPT_LIMIT, attempt).await;
                (server, outcome.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())))
            });
        }
        if attempts.is_empty() {
            return Err(worst(faults));
        }
        tokio::select! {
            biased;
            Some((server, outcome)) = attempts.next() => match outcome {
                Ok(opened) => return Ok((server, opened)),
                Err(e) => faults.push(io::Error::new(e.kind(), format!("{server}: {}", chain(&e)))),
            },
            () = tokio::time::sleep(STAGGER), if waiting.len() > 0 => {}
        }
    }
}

/// Returns the error that says most: rustls reports what a server sent as invalid data.
fn worst(mut faults: Vec<io::Error>) -> io::Error {
    let at = faults.iter().position(|fault| fault.kind() == io::ErrorKind::InvalidData).unwrap_or(0);
    match faults.is_empty() {
        true => io::ErrorKind::NotFound.into(),
        false => faults.swap_remove(at),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// Servers by name: `dead` rejects at once, `hole` never answers, `slow` answers after a second, `bad` has an
    /// invalid certificate.
    async fn open(server: Uri) -> io::Result<String> {
        let name = server.host().unwrap_or_default().to_owned();
        match name.split('-').next().unwrap_or_default() {
            "dead" => Err(io::ErrorKind::ConnectionRefused.into()),
            "bad" => Err(io::Error::new(io::ErrorKind::InvalidData, "invalid peer certificate: UnknownIssuer")),
            "hole" => std::future::pending().await,
            "slow" => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(name)
            }
            _ => Ok(name),
        }
    }

    async fn first(names: &[&str]) -> (Result<String, String>, Duration) {
        let servers = names.iter().map(|name| format!("https://{name}:1").parse().unwrap()).collect();
        let begun = Instant::now();
        let outcome = race(servers, open).await.map(|(_, name)| name).map_err(|e| e.to_string());
        (outcome, begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_refuses_costs_no_time_and_one_that_is_silent_little() {
        assert_eq!(first(&["a", "b"]).await, (Ok("a".into()), Duration::ZERO));
        assert_eq!(first(&["dead", "dead-2", "b"]).await, (Ok("b".into()), Duration::ZERO));
        assert_eq!(first(&["bad", "b"]).await, (Ok("b".into()), Duration::ZERO));
        let (outcome, took) = first(&["hole", "hole-2", "b"]).await;
        assert!(outcome == Ok("b".into()) && took >= STAGGER * 2 && took < STAGGER * 3, "{took:?}");
        let (outcome, took) = first(&["slow", "hole"]).await;
        assert!(outcome == Ok("slow".into()) && took >= Duration::from_secs(1), "{took:?}");
        assert_eq!(first(&["slow", "b"]).await.0, Ok("b".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_invalid_certificate_is_told_before_a_server_that_is_away() {
        let why = first(&["dead", "bad", "hole"]).await.0.unwrap_err();
        assert!(why.starts_with("https://bad:1/: ") && why.contains("invalid peer certificate"), "{why}");
        let (outcome, took) = first(&["hole"]).await;
        assert!(outcome.unwrap_err().contains("timed out") && took >= ATTEMPT_LIMIT, "{took:?}");
        assert!(first(&[]).await.0.is_err());
    }
}
