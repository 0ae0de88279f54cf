//! The providers of one resource, in the order of the configuration: the first key of the first encrypts, all of them decrypt.

use std::sync::Arc;
use std::time::Instant;

use kelson_store::Resource;

use crate::metrics::Metrics;
use crate::transform::{Opened, Transform, TransformError};

/// The prefix of every encrypted value.
const ENCRYPTED: &[u8] = b"k8s:enc:";

/// One key, or none (`identity`).
#[derive(Clone)]
pub(crate) struct Link {
    /// The provider's part of the prefix, which metrics show.
    pub provider: String,
    /// The whole prefix, key name included; empty for identity.
    pub prefix: String,
    /// `None`: things stay as they are.
    pub with: Option<Arc<dyn Transform>>,
}

/// The provider that encrypts new values.
pub(crate) enum WritesWith {
    /// The value is stored as it is.
    Clear,
    /// A key, named by prefix and the key service's key.
    Key(String),
    /// A key service that has not answered yet.
    Unknown,
}

/// All keys of a resource.
#[derive(Clone, Default)]
pub(crate) struct Chain(pub Vec<Link>);

impl Chain {
    pub fn writes_with(&self) -> WritesWith {
        let Some(Link { prefix, with: Some(with), .. }) = self.0.first() else { return WritesWith::Clear };
        with.key_id().map_or(WritesWith::Unknown, |id| WritesWith::Key(format!("{prefix}{id}")))
    }

    /// Whether values in the clear are taken: by an identity provider, or because nothing is configured.
    pub fn reads_clear(&self) -> bool {
        self.0.is_empty() || self.0.iter().any(|link| link.with.is_none())
    }

    /// Encrypts a value; returns the stored bytes and the name of the key, or `None` when the resource is not
    /// encrypted.
    pub fn seal(
        &self,
        metrics: &Metrics,
        resource: Resource,
        plain: &[u8],
        path: &str,
    ) -> Result<Option<(Vec<u8>, String)>, TransformError> {
        let Some(Link { prefix, provider, with: Some(with) }) = self.0.first() else { return Ok(None) };
        let begun = Instant::now();
        let sealed = with.seal(plain, path.as_bytes());
        metrics.transformed(&named(resource), false, provider, begun.elapsed(), sealed.is_ok());
        let (bytes, key_id) = sealed?;
        Ok(Some(([prefix.as_bytes(), &bytes].concat(), format!("{prefix}{key_id}"))))
    }

    /// Decrypts a stored value; returns the plaintext and the name of the key. If several keys have the same name, each
    /// is tried.
    pub fn open(
        &self,
        metrics: &Metrics,
        resource: Resource,
        stored: &[u8],
        path: &str,
    ) -> Result<(Vec<u8>, String), TransformError> {
        let begun = Instant::now();
        let mut fault = None;
        for Link { provider, prefix, with } in &self.0 {
            let Some((with, rest)) = with.as_ref().zip(stored.strip_prefix(prefix.as_bytes())) else { continue };
            let opened = with.open(rest, path.as_bytes());
            metrics.transformed(&named(resource), true, provider, begun.elapsed(), opened.is_ok());
            match opened {
                Ok(Opened { plain, key_id }) => return Ok((plain, format!("{prefix}{key_id}"))),
                // Of several keys of one name, one that is not available may be the right one.
                Err(e @ TransformError::Unavailable(_)) => fault = Some(e),
                Err(e) => fault = fault.or(Some(e)),
            }
        }
        metrics.transformed(&named(resource), true, "unknown", begun.elapsed(), false);
        Err(fault.unwrap_or_else(|| self.no_key(stored)))
    }

    fn no_key(&self, stored: &[u8]) -> TransformError {
        if self.0.is_empty() {
            return "identity transformer tried to read encrypted data".into();
        }
        // The provider and the key name are not secret; the bytes after them may be anything.
        let prefix: Vec<&[u8]> = stored.splitn(6, |b| *b == b':').take(5).collect();
        let known = stored.starts_with(ENCRYPTED) && prefix.len() == 5;
        let named = String::from_utf8_lossy(&prefix.join(&b':')).chars().take(128).collect::<String>();
        TransformError::Invalid(if known {
            format!("no matching prefix found: no provider has the key for {:?}", named.escape_debug().to_string())
        } else {
            "no matching prefix found".to_owned()
        })
    }
}

/// Returns the name of a resource in upstream's metrics: `deployments.apps`.
fn named(resource: Resource) -> String {
    let (group, plural) = (resource.group(), resource.plural());
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}
