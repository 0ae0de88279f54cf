//! The node's connections to the API server. They detect when the server rejects the node's credentials or presents an
//! untrusted certificate, and switch to new credentials without a restart of their users.
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use kelson_client::{Client, ClientError, Request, Response, Transport, TransportError};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::CertError;

/// The timeout of the request for the node's own identity.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// A part of every TLS error about the server's certificate.
const SERVER_FAULT: &str = "invalid peer certificate";
/// A part of a TLS error when the other side ended the connection, for instance because of the client's certificate.
const ALERT: &str = "received fatal alert";
const CLIENT_FAULTS: [&str; 8] = [
    "BadCertificate",
    "UnsupportedCertificate",
    "CertificateRevoked",
    "CertificateExpired",
    "CertificateUnknown",
    "UnknownCA",
    "AccessDenied",
    "CertificateRequired",
];

/// The state between the node and the API, as one request shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The API knows the node.
    Known,
    /// The API does not accept what the node shows.
    Refused,
    /// The node does not believe the certificate that the API shows.
    Unverified,
    /// There was no conclusive response.
    Untold,
}

impl Standing {
    fn of_answer(answer: &Result<Response, TransportError>) -> Self {
        match answer {
            Ok(response) => Self::of_code(response.status().as_u16()),
            Err(e) => Self::of_fault(e),
        }
    }

    fn of_code(code: u16) -> Self {
        match code {
            401 => Self::Refused,
            429 | 500.. => Self::Untold,
            _ => Self::Known,
        }
    }

    fn of_fault(TransportError(why): &TransportError) -> Self {
        let says = |part: &str| why.contains(part);
        match () {
            () if says(SERVER_FAULT) => Self::Unverified,
            () if says(ALERT) && CLIENT_FAULTS.iter().any(|fault| says(fault)) => Self::Refused,
            () => Self::Untold,
        }
    }

    /// Returns the standing according to a failed request.
    pub(crate) fn of_error(error: &ClientError) -> Self {
        match error {
            ClientError::Status(status) => Self::of_code(status.code),
            ClientError::Transport(fault) => Self::of_fault(fault),
            _ => Self::Untold,
        }
    }

    /// As [`Standing::of_error`], where getting a certificate failed.
    pub(crate) fn of_failure(error: &CertError) -> Self {
        match error {
            CertError::Api(error) => Self::of_error(error),
            _ => Self::Untold,
        }
    }

    /// Sends a request that every server allows all authenticated users.
    pub(crate) async fn ask(client: &Client) -> Self {
        let ask = client.call(http::Method::GET, "/version", "", bytes::Bytes::new());
        match tokio::time::timeout(ANSWER_LIMIT, ask).await {
            Ok(Ok(_)) => Self::Known,
            Ok(Err(e)) => Self::of_error(&e),
            Err(_) => Self::Untold,
        }
    }
}

/// One way to the API, under the node's own credentials.
pub struct Connection {
    to: RwLock<Arc<dyn Transport>>,
    doubts: watch::Sender<u64>,
}

impl Transport for Connection {
    fn send(
        &self,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Result<Response, TransportError>> + Send + 'static>> {
        let (sent, doubts) = (self.to.read().send(request), self.doubts.clone());
        Box::pin(async move {
            let answer = sent.await;
            if matches!(Standing::of_answer(&answer), Standing::Refused | Standing::Unverified) {
                doubts.send_modify(|count| *count = count.wrapping_add(1));
            }
            answer
        })
    }
}

/// All ways to the API that a node's components have.
#[derive(Clone, Default)]
pub(crate) struct Connections {
    /// Counts answers that give cause to doubt.
    doubts: watch::Sender<u64>,
    all: Arc<Mutex<Vec<Arc<Connection>>>>,
}

impl Connections {
    pub(crate) fn add(&self, to: Arc<dyn Transport>) -> Arc<Connection> {
        let added = Arc::new(Connection { to: RwLock::new(to), doubts: self.doubts.clone() });
        self.all.lock().push(Arc::clone(&added));
        added
    }

    /// Hears of answers from now on.
    pub(crate) fn doubts(&self) -> watch::Receiver<u64> {
        self.doubts.subscribe()
    }

    /// Lets each of them lead to what `make` gives.
    pub(crate) fn lead_to<E>(&self, make: impl Fn() -> Result<Arc<dyn Transport>, E>) -> Result<(), E> {
        for one in &*self.all.lock() {
            *one.to.write() = make()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_answer_says() {
        for (code, standing) in [
            (200, Standing::Known),
            (403, Standing::Known),
            (404, Standing::Known),
            (401, Standing::Refused),
            (429, Standing::Untold),
            (503, Standing::Untold),
        ] {
            assert_eq!(Standing::of_code(code), standing, "{code}");
        }
        for (why, standing) in [
            ("client error (Connect): invalid peer certificate: UnknownIssuer", Standing::Unverified),
            ("connection error: received fatal alert: UnknownCA", Standing::Refused),
            ("connection error: received fatal alert: CertificateExpired", Standing::Refused),
            ("connection error: received fatal alert: HandshakeFailure", Standing::Untold),
            ("client error (Connect): tcp connect error: Connection refused (os error 111)", Standing::Untold),
            ("UnknownCA", Standing::Untold),
        ] {
            assert_eq!(Standing::of_fault(&TransportError(why.into())), standing, "{why}");
        }
    }
}
