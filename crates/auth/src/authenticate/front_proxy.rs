//! Front proxies: a trusted proxy presents its own certificate and names the user in headers.
use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use kelson_meta::Clock;
use kelson_pki::{CertInfo, ClientChains};

use super::impersonate::extra_key;
use super::{Authenticated, Authenticator, Credentials, Rejected};
use crate::UserInfo;

/// Options for trusted front proxies (`--requestheader-*`).
#[derive(Clone, Debug)]
pub struct FrontProxyOptions {
    /// Allowed common names of a proxy's certificate; empty allows any that the CA signed.
    pub allowed_names: Vec<String>,
    /// Headers with the user name, e.g. `x-remote-user`.
    pub username_headers: Vec<String>,
    /// Headers with the UID.
    pub uid_headers: Vec<String>,
    /// Headers with groups.
    pub group_headers: Vec<String>,
    /// Prefixes of headers with extra values.
    pub extra_prefixes: Vec<String>,
}

impl Default for FrontProxyOptions {
    fn default() -> Self {
        let one = |s: &str| vec![s.to_owned()];
        Self {
            allowed_names: one("front-proxy-client"),
            username_headers: one("x-remote-user"),
            uid_headers: one("x-remote-uid"),
            group_headers: one("x-remote-group"),
            extra_prefixes: one("x-remote-extra-"),
        }
    }
}

impl FrontProxyOptions {
    /// Removes the headers.
    pub(super) fn strip(&self, headers: &mut HeaderMap) {
        for name in self.username_headers.iter().chain(&self.uid_headers).chain(&self.group_headers) {
            headers.remove(name.as_str());
        }
        let is_extra = |name: &str| self.extra_prefixes.iter().any(|prefix| name.starts_with(prefix));
        let extra: Vec<_> = headers.keys().filter(|name| is_extra(name.as_str())).cloned().collect();
        for name in extra {
            headers.remove(name);
        }
    }
}

/// Authenticates users by the headers of a front proxy.
pub struct FrontProxy {
    chains: ClientChains,
    options: FrontProxyOptions,
    clock: Arc<dyn Clock>,
}

impl FrontProxy {
    /// Creates the authenticator for proxies with certificates of the CAs in `chains`. Header names are compared in
    /// lower case.
    pub fn new(chains: ClientChains, mut options: FrontProxyOptions, clock: Arc<dyn Clock>) -> Self {
        let lists = [
            &mut options.username_headers,
            &mut options.uid_headers,
            &mut options.group_headers,
            &mut options.extra_prefixes,
        ];
        for header in lists.into_iter().flatten() {
            header.make_ascii_lowercase();
        }
        Self { chains, options, clock }
    }

    /// Trusts only the CAs in `ca_pem` from the next request on.
    ///
    /// # Errors
    /// The CAs are invalid; the trusted ones do not change.
    pub fn trust(&self, ca_pem: &str) -> Result<(), kelson_pki::PkiError> {
        self.chains.replace(&[ca_pem])
    }

    /// Removes the headers, also from requests of other clients: no later step may trust them.
    pub fn strip(&self, headers: &mut HeaderMap) {
        self.options.strip(headers);
    }
}

/// Returns the value of a header. A proxy may send any UTF-8; other bytes are rejected and not skipped, since a user
/// with a missing group is a different user.
fn text<'a>(name: &str, value: &'a HeaderValue) -> Result<&'a str, Rejected> {
    std::str::from_utf8(value.as_bytes()).map_err(|_| Rejected(format!("request header {name} is not valid UTF-8")))
}

fn first<'a>(headers: &'a HeaderMap, names: &[String]) -> Result<Option<&'a str>, Rejected> {
    for name in names {
        match headers.get(name.as_str()).map(|value| text(name, value)).transpose()? {
            None | Some("") => {}
            found => return Ok(found),
        }
    }
    Ok(None)
}

impl Authenticator for FrontProxy {
    fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<Authenticated>, Rejected> {
        let Some(leaf) = credentials.certificates.first() else { return Ok(None) };
        let headers = credentials.headers;
        if !self.options.username_headers.iter().any(|name| headers.contains_key(name.as_str())) {
            return Ok(None);
        }
        // A certificate of another CA is a client's own; its headers are ignored.
        if self.chains.verify(credentials.certificates, self.clock.now()).is_err() {
            return Ok(None);
        }
        let proxy = CertInfo::from_der(leaf).map_err(|_| Rejected::because("certificate does not parse"))?;
        let allowed = &self.options.allowed_names;
        if !allowed.is_empty() && !allowed.contains(&proxy.common_name) {
            return Err(Rejected(format!("x509: subject with cn={} is not in the allowed list", proxy.common_name)));
        }
        let Some(name) = first(headers, &self.options.username_headers)? else { return Ok(None) };
        let mut user = UserInfo::new(name, [""; 0]);
        user.uid = first(headers, &self.options.uid_headers)?.unwrap_or_default().to_owned();
        for header in &self.options.group_headers {
            for value in headers.get_all(header.as_str()) {
                user.groups.push(text(header, value)?.to_owned());
            }
        }
        for (header, value) in headers {
            let key = self.options.extra_prefixes.iter().find_map(|p| header.as_str().strip_prefix(p.as_str()));
            if let Some(key) = key {
                user.extra.entry(extra_key(key)).or_default().push(text(header.as_str(), value)?.to_owned());
            }
        }
        Ok(Some(Authenticated::new(user)))
    }
}
