//! The location of a webhook and the CAs for its certificate (`WebhookClientConfig`).
#![allow(clippy::disallowed_methods, reason = "blocking: of kubeconfigs, at the start alone")]

use std::path::Path;

use base64::Engine as _;
use kelson_meta::tree::path::{at, text};
use kelson_pki::kubeconfig::KubeconfigFile;
use serde_json::Value;

use crate::credentials::Credentials;

const DEFAULT_PORT: u16 = 443;

/// The location of a webhook: a URL or a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// An `https` URL.
    Url(String),
    /// A service of this cluster. Calls connect to one of its endpoints.
    Service {
        /// The namespace of the service.
        namespace: String,
        /// The name of the service.
        name: String,
        /// The path of the request. Empty means `/`.
        path: String,
        /// A port of the service, not of its endpoints.
        port: u16,
    },
}

/// The location of a webhook, and the CA bundle for its certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The location of the webhook.
    pub location: Location,
    /// The CA bundle in PEM. Empty means the machine's CAs.
    pub ca_bundle: Vec<u8>,
}

impl Target {
    /// Parses a `clientConfig` in JSON, of an admission webhook or of a custom resource's conversion.
    ///
    /// # Errors
    /// Returns upstream's message for an invalid configuration. Stored configurations are already validated, so errors
    /// are rare.
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

    /// Reads a kubeconfig and returns the server of its current context and the credentials for it. Reads files, so
    /// call it at startup only.
    ///
    /// # Errors
    /// Fails when a file cannot be read, when it names no server, or when the server's URL is not `https`.
    pub fn of_kubeconfig(path: &Path) -> Result<(Self, Credentials), String> {
        let fault = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let file = KubeconfigFile::parse(&std::fs::read(path).map_err(|e| fault(&e))?).map_err(|e| fault(&e))?;
        let base = path.parent().unwrap_or(Path::new("."));
        let (cluster, _) = file.current().map_err(|e| fault(&e))?;
        for (field, is_given) in [
            ("proxy-url", !cluster.proxy_url.is_empty()),
            ("tls-server-name", cluster.tls_server_name.is_some()),
            ("insecure-skip-tls-verify", cluster.insecure_skip_tls_verify),
        ] {
            if is_given {
                return Err(fault(&format!("{field} of a cluster is not supported for webhooks")));
            }
        }
        let ca_bundle = cluster.ca(base).and_then(|source| source.load()).map_err(|e| fault(&e))?;
        let location = Location::Url(cluster.server.clone());
        let target = Self { location, ca_bundle: ca_bundle.unwrap_or_default() };
        target.url().map_err(|e| fault(&e))?;
        Ok((target, Credentials::of_file(&file, base).map_err(|e| fault(&e))?))
    }

    /// Returns the URL of a call without its query.
    ///
    /// # Errors
    /// Fails when the URL is invalid, has no host, or has a scheme other than `https`.
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
            (Some("https"), Some(host)) if !host.is_empty() => cleaned(parsed),
            _ => Err(format!("Unparsable URL: {url:?} is not of the form https://host[/path]")),
        }
    }
}

/// Normalizes the path as Go's client does: no empty or dot segments, and no trailing slash. Servers redirect other
/// spellings (`https://host//path` is what test environments configure), and this client follows no redirects.
fn cleaned(url: http::Uri) -> Result<http::Uri, String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in url.path().split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let path = format!("/{}", parts.join("/"));
    if path == url.path() {
        return Ok(url);
    }
    let whole = url.query().map_or_else(|| path.clone(), |query| format!("{path}?{query}"));
    let mut pieces = url.into_parts();
    pieces.path_and_query = Some(whole.parse().map_err(|e| format!("Unparsable URL: {e}"))?);
    http::Uri::from_parts(pieces).map_err(|e| format!("Unparsable URL: {e}"))
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
        for (given, sent) in [
            ("https://127.0.0.1:9443//failing", "https://127.0.0.1:9443/failing"),
            ("https://h/a//b/./c/../d/", "https://h/a/b/d"),
            ("https://h/../..", "https://h/"),
            ("https://h", "https://h/"),
        ] {
            assert_eq!(url(json!({"url": given})).unwrap(), sent);
        }
        let service = json!({"service": {"namespace": "n", "name": "s", "path": "//p/"}});
        assert_eq!(url(service).unwrap(), "https://s.n.svc:443/p");
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

    #[test]
    fn of_a_kubeconfig() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), "ca").unwrap();
        let read = |cluster: &str| {
            let file = dir.path().join("config");
            let text = format!(
                "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
                 clusters: [{{name: k, cluster: {cluster}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n"
            );
            std::fs::write(&file, text).unwrap();
            Target::of_kubeconfig(&file)
        };
        let (target, credentials) = read("{server: 'https://h:8443/p', certificate-authority: ca.pem}").unwrap();
        assert_eq!(target, Target { location: Location::Url("https://h:8443/p".into()), ca_bundle: b"ca".to_vec() });
        assert!(credentials.of("h", 8443).is_some());
        assert_eq!(read("{server: 'https://h', certificate-authority-data: aGk=}").unwrap().0.ca_bundle, b"hi");
        assert!(read("{server: 'http://h'}").unwrap_err().contains("Unparsable URL"));
        for field in ["proxy-url: 'http://p'", "tls-server-name: name", "insecure-skip-tls-verify: true"] {
            let why = read(&format!("{{server: 'https://h', {field}}}")).unwrap_err();
            let name = field.split(':').next().unwrap();
            assert!(why.contains(name) && why.contains("/config: "), "{why}");
        }
        assert!(read("{server: 'https://h', certificate-authority: none.pem}").unwrap_err().contains("none.pem"));
        std::fs::write(dir.path().join("empty"), "{}").unwrap();
        let why = Target::of_kubeconfig(&dir.path().join("empty")).unwrap_err();
        assert!(why.contains("empty"), "{why}");
    }
}
