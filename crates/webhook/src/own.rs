//! Calls from the API server to itself. A webhook that is served through aggregation has the host
//! `kubernetes.default.svc`; the call uses the server's identity and stays within the process (upstream uses its
//! loopback client).
use std::pin::Pin;

use bytes::Bytes;
use http::Response;

use crate::target::{Location, Target};

const NAMESPACE: &str = "default";
const SERVICE: &str = "kubernetes";
const HOST: &str = "kubernetes.default.svc";
const PORT: u16 = 443;

/// The future of a POST to the server itself.
pub type OwnCall<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, String>> + Send + 'a>>;

/// The API server as a client of itself.
pub trait OwnServer: Send + Sync {
    /// Sends JSON to a path with a query. The response body fails after `answer_bytes_max` bytes.
    fn post(&self, path_and_query: String, body: Bytes, answer_bytes_max: usize) -> OwnCall<'_>;
}

/// Returns the path and query of a target that is the server itself, or `None` for other targets.
pub(crate) fn path(target: &Target) -> Option<String> {
    match &target.location {
        Location::Service { namespace, name, path, port } => {
            let own = namespace == NAMESPACE && name == SERVICE && *port == PORT;
            let slash = if path.starts_with('/') { "" } else { "/" };
            own.then(|| format!("{slash}{path}"))
        }
        Location::Url(_) => {
            let url = target.url().ok()?;
            let own = url.host() == Some(HOST) && url.port_u16().unwrap_or(PORT) == PORT;
            own.then(|| url.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_server_itself() {
        let of = |location| path(&Target { location, ca_bundle: Vec::new() });
        let url = |url: &str| of(Location::Url(url.to_owned()));
        let service = |namespace: &str, name: &str, path: &str, port| {
            let (namespace, name, path) = (namespace.to_owned(), name.to_owned(), path.to_owned());
            of(Location::Service { namespace, name, path, port })
        };
        assert_eq!(service("default", "kubernetes", "apis/x/v1/y", 443).as_deref(), Some("/apis/x/v1/y"));
        assert_eq!(service("default", "kubernetes", "/x", 8443), None);
        assert_eq!(service("other", "kubernetes", "/x", 443), None);
        assert_eq!(url("https://kubernetes.default.svc/apis/x?a=b").as_deref(), Some("/apis/x?a=b"));
        assert_eq!(url("https://kubernetes.default.svc:443").as_deref(), Some("/"));
        assert_eq!(url("https://kubernetes.default.svc:6443/x"), None);
        assert_eq!(url("https://kubernetes.default.svc.evil.com/x"), None);
    }
}
