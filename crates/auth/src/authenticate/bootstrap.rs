//! Bootstrap tokens: `ID.SECRET`, stored in secrets `bootstrap-token-ID` in kube-system.
use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kelson_meta::Clock;
use serde::Deserialize;

use super::{Authenticated, Rejected, TokenAuthenticator};
use crate::objects::{Objects, decode};
use crate::user::{BOOTSTRAP_USER_PREFIX, BOOTSTRAPPERS};
use crate::{UserInfo, constant_time_eq};

const NAMESPACE: &str = "kube-system";
const ID_LEN: usize = 6;
const SECRET_LEN: usize = 16;
const EXTRA_GROUP_MAX: usize = 256;

/// Authenticates bootstrap tokens.
pub struct BootstrapTokens {
    objects: Arc<dyn Objects>,
    clock: Arc<dyn Clock>,
}

#[derive(Deserialize)]
struct SecretView {
    #[serde(default)]
    metadata: SecretMetaView,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, Default)]
struct SecretMetaView {
    #[serde(default, rename = "deletionTimestamp")]
    deletion_timestamp: Option<String>,
}

impl BootstrapTokens {
    /// Creates the authenticator, which reads secrets through `objects`.
    pub fn new(objects: Arc<dyn Objects>, clock: Arc<dyn Clock>) -> Self {
        Self { objects, clock }
    }
}

/// Splits a token of the form `[a-z0-9]{6}.[a-z0-9]{16}` into ID and secret.
fn split(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let plain = |s: &str, n| s.len() == n && s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    (plain(id, ID_LEN) && plain(secret, SECRET_LEN)).then_some((id, secret))
}

impl TokenAuthenticator for BootstrapTokens {
    fn authenticate_token(&self, token: &str, _: &[String]) -> Result<Option<Authenticated>, Rejected> {
        let Some((id, secret)) = split(token) else { return Ok(None) };
        let name = format!("bootstrap-token-{id}");
        let Some(bytes) = self.objects.get("", "secrets", NAMESPACE, &name) else { return Ok(None) };
        let Some(stored) = decode::<SecretView>(&bytes, "secret") else { return Ok(None) };
        match judge(&stored, id, secret, self.clock.now()) {
            Ok(groups) => {
                let user = UserInfo::new(format!("{BOOTSTRAP_USER_PREFIX}{id}"), groups);
                Ok(Some(Authenticated::new(user)))
            }
            Err(why) => {
                // As upstream, such a token is unknown rather than invalid: another authenticator may accept it.
                tracing::debug!(secret = %name, why, "rejected a bootstrap token");
                Ok(None)
            }
        }
    }
}

/// Returns the token's groups, or why it is not valid.
fn judge(stored: &SecretView, id: &str, secret: &str, now: Timestamp) -> Result<Vec<String>, &'static str> {
    if stored.metadata.deletion_timestamp.is_some() {
        return Err("is being deleted");
    }
    if stored.kind != "bootstrap.kubernetes.io/token" {
        return Err("type is not bootstrap.kubernetes.io/token");
    }
    let data = stored.data.as_ref().ok_or("has no data")?;
    let value = |key: &str| {
        data.get(key).and_then(|v| STANDARD.decode(v).ok()).and_then(|v| String::from_utf8(v).ok()).unwrap_or_default()
    };
    if !constant_time_eq(value("token-secret").as_bytes(), secret.as_bytes()) {
        return Err("token-secret does not match");
    }
    if value("token-id") != id {
        return Err("token-id does not match its name");
    }
    let expiration = value("expiration");
    if !expiration.is_empty() && expiration.parse::<Timestamp>().map_or(true, |end| now >= end) {
        return Err("has expired");
    }
    if value("usage-bootstrap-authentication") != "true" {
        return Err("is not marked usage-bootstrap-authentication=true");
    }
    let mut groups = vec![BOOTSTRAPPERS.to_owned()];
    let extra = value("auth-extra-groups");
    // An empty name between commas counts as a group, and is not an allowed one.
    for group in extra.split(',').filter(|_| !extra.is_empty()) {
        if !is_bootstrap_group(group) {
            return Err("auth-extra-groups holds a group outside system:bootstrappers:");
        }
        groups.push(group.to_owned());
    }
    groups.sort();
    groups.dedup();
    Ok(groups)
}

/// Reports whether a group has the form `system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]`.
fn is_bootstrap_group(group: &str) -> bool {
    let Some(rest) = group.strip_prefix("system:bootstrappers:") else { return false };
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    rest.len() <= EXTRA_GROUP_MAX
        && rest.bytes().all(|b| plain(b) || b == b':' || b == b'-')
        && rest.bytes().last().is_some_and(plain)
}
