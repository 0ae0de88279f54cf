//! Whether parts of the process work, for the watchdog of the service manager: a process that runs and does nothing is restarted then.
use std::path::PathBuf;
use std::time::Duration;

use kelson_tasks::FILES;

use crate::ask::{self, AskError};
use crate::service::Check;
use crate::token;

/// The limit of one request; the watchdog's own limit is usually shorter.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Asks the API server of a data directory through its port, as any client does, whether only a restart can help it (`/livez`).
pub fn of_api(data_dir: PathBuf) -> Check {
    Box::new(move || {
        let dir = data_dir.clone();
        Box::pin(async move {
            // Read again each time: certificates are renewed. Without the file the server may work nevertheless.
            let Ok(Ok(client)) = FILES.run(move || token::admin(&dir)).await else { return };
            while ask::get(&client, "/livez", ANSWER_MAX).await.is_err_and(|e| is_dead(&e)) {
                tokio::time::sleep(RETRY).await;
            }
        })
    })
}

/// The interval between requests of one check.
const RETRY: Duration = Duration::from_secs(1);

/// Whether an answer shows that a restart may help: there is none, or the server says so itself. A rejection, such as of an expired
/// certificate, is the answer of a server that works.
fn is_dead(error: &AskError) -> bool {
    match error {
        AskError::Late(_) => true,
        AskError::Client(e) => e.status().is_none_or(|status| status.code >= 500),
    }
}

#[cfg(test)]
mod tests {
    use kelson_client::ClientError;
    use kelson_meta::Status;

    use super::*;

    #[test]
    fn a_server_that_rejects_a_request_lives() {
        let answer = |status| AskError::Client(ClientError::Status(Box::new(status)));
        for (error, want) in [
            (AskError::Late(ANSWER_MAX), true),
            (answer(Status::internal("stuck")), true),
            (answer(Status::unauthorized()), false),
            (answer(Status::too_many_requests("wait", 1)), false),
        ] {
            assert_eq!(is_dead(&error), want, "{error}");
        }
    }
}
