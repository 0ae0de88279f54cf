//! Where a webhook is and whom its certificate must lead to (`WebhookClientConfig`).
use base64::Engine as _;
use kelson_meta::tree::path::{at, text};
use serde_json::Value;

const DEFAULT_PORT: u16 = 443;

/// Where a webhook is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// An `https` URL.
    Url(String),
    /// A service of this cluster, reached at one of its endpoints.
    Service {
        /// The service's namespace.
        namespace: String,
        /// The service's name.
        name: String,
        /// Path of the request; empty is `/`.
        path: String,
        /// A port of the service (not of its endpoints).
        port: u16,
    },
}

/// A webhook's address, and the authorities of its certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Where it is.
    pub location: Location,
    /// PEM; empty: the machine's own authorities.
    pub ca_bundle: Vec<u8>,
}

impl Target {
    /// From a `clientConfig` as JSON, of an admission webhook or of a custom resource's conversion.
    ///
    /// # Errors
    /// What is wrong with it, in upstream's words. Stored configurations are validated, so that this is rare.
    pub fn parse(config: &Value) -> Result<Self, String> {
        let ca_bundle = text(config, &["caBundle"]);
        let ca_bundle = base64::engine::general_purpose::STANDARD.decode(ca_bundle);
        let ca_bundle = ca_bundle.map_err(|e| format!("caBundle: {e}"))?;
        let service = at(config, &["service"]);
        let location = if service.is_object() {
            let port = at(service, &["port"]).as_u64().unwrap_or(0);
            Location::Service {
                namespace: text(service, &["namespace"]).to_owned(),
                name: text(service, &["name"]).to_owned(),
                path: text(service, &["path"]).to_owned(),
                port: u16::try_from(port).ok().filter(|p| *p > 0).unwrap_or(DEFAULT_PORT),
            }
        } else {
            match text(config, &["url"]) {
                "" => return Err("webhook configuration must have either service or URL".to_owned()),
                url => Location::Url(url.to_owned()),
            }
        };
        Ok(Self { location, ca_bundle })
    }

    /// The URL of a call, without its query.
    ///
    /// # Errors
    /// For a URL that cannot be read, that has no host, or whose scheme is not `https`.
    pub(crate) fn url(&self) -> Result<http::Uri, String> {
        let url = match &self.location {
            Location::Url(url) => url.clone(),
            Location::Service { namespace, name, path, port } => {
                let slash = if path.starts_with('/') { "" } else { "/" };
                format!("https://{name}.{namespace}.svc:{port}{slash}{path}")
            }
        };
        let parsed: http::Uri = url.parse().map_err(|e| format!("Unparsable URL: {e}"))?;
        match (parsed.scheme_str(), parsed.host()) {
            (Some("https"), Some(host)) if !host.is_empty() => Ok(parsed),
            _ => Err(format!("Unparsable URL: {url:?} is not of the form https://host[/path]")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parsed() {
        let parse = |config: Value| Target::parse(&config).and_then(|t| Ok((t.url()?.to_string(), t.ca_bundle)));
        let url = |config: Value| parse(config).map(|(url, _)| url);
        assert_eq!(url(json!({"url": "https://h:8443/a/b"})).unwrap(), "https://h:8443/a/b");
        assert_eq!(
            parse(json!({"service": {"namespace": "n", "name": "s"}, "caBundle": "aGk="})).unwrap(),
            ("https://s.n.svc:443/".to_owned(), b"hi".to_vec())
        );
        assert_eq!(
            url(json!({"service": {"namespace": "n", "name": "s", "path": "/p", "port": 9443}})).unwrap(),
            "https://s.n.svc:9443/p"
        );
        for bad in [
            json!({}),
            json!({"url": "http://h"}),
            json!({"url": "https://"}),
            json!({"url": "/path"}),
            json!({"url": "https://h", "caBundle": "%"}),
        ] {
            assert!(url(bad.clone()).is_err(), "{bad}");
        }
    }
}
