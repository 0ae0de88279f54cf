//! The API server as a webhook's server: what is served by aggregation is asked as `kubernetes.default.svc`, under the
//! server's own identity and without leaving the process (upstream calls itself by its loopback client).
use std::pin::Pin;

use bytes::Bytes;
use http::Response;

use crate::target::{Location, Target};

const NAMESPACE: &str = "default";
const SERVICE: &str = "kubernetes";
const HOST: &str = "kubernetes.default.svc";
const PORT: u16 = 443;

/// A POST to the server itself.
pub type OwnCall<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, String>> + Send + 'a>>;

/// The server that calls, as its own client.
pub trait OwnServer: Send + Sync {
    /// Sends JSON to a path with its query. The body of the answer ends with an error beyond so many bytes.
    fn post(&self, path_and_query: String, body: Bytes, answer_bytes_max: usize) -> OwnCall<'_>;
}

/// Path and query of a target that is the server itself; `None` for others.
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
