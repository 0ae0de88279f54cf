//! Distributed claims (OpenID Connect Core, 5.6.2): a token without its user's groups that names another server for
//! them in `_claim_names` and `_claim_sources`. That server answers with another token, which is verified with the keys
//! of its issuer. As upstream, only the groups claim is resolved.
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::means::{Means, Uncounted};
use super::publisher::{Publisher, UnverifiedToken};

/// The maximum number of issuers of such tokens whose keys are cached, for each configured issuer. They are named by
/// servers that a valid token names, so the bound only prevents a faulty server from filling the memory.
const ISSUERS_MAX: usize = 16;

/// The source of a distributed claim.
#[derive(Deserialize)]
#[cfg_attr(test, derive(Debug, PartialEq, Eq))]
pub(super) struct ClaimEndpoint {
    #[serde(default)]
    endpoint: String,
    #[serde(default)]
    access_token: String,
}

/// Returns where the token says that this claim is; `None` if it is in the token.
///
/// # Errors
/// The reference is invalid.
pub(super) fn source(claims: &Map<String, Value>, claim: &str) -> Result<Option<ClaimEndpoint>, &'static str> {
    if claims.contains_key(claim) {
        return Ok(None);
    }
    let Some(names) = claims.get("_claim_names") else { return Ok(None) };
    let names = names.as_object().filter(|names| names.values().all(Value::is_string));
    let names = names.ok_or("error parsing distributed claim names")?;
    let sources = claims.get("_claim_sources").ok_or("no claim sources")?;
    let sources = sources.as_object().ok_or("could not parse claim sources")?;
    let Some(name) = names.get(claim).and_then(Value::as_str) else { return Ok(None) };
    let found = sources.get(name).ok_or("_claim_names names a source that is not in _claim_sources")?;
    let found: ClaimEndpoint = ClaimEndpoint::deserialize(found).map_err(|_| "could not parse claim sources")?;
    // A claim that is included as a separate token (an aggregated claim) is ignored, as upstream.
    if found.endpoint.is_empty() {
        return Ok(None);
    }
    if !found.endpoint.starts_with("https://") {
        return Err("the endpoint of a distributed claim is not an https URL");
    }
    Ok(Some(found))
}

/// The keys of the issuers of distributed claims.
#[derive(Default)]
pub(super) struct Resolver {
    issuers: Mutex<HashMap<String, Arc<Publisher>>>,
}

impl Resolver {
    /// Returns the value of a claim from its location. `own` is the issuer of the token: its CAs verify the servers,
    /// and its audiences and algorithms are required.
    ///
    /// # Errors
    /// Why the claim is not available. The message contains neither the token nor the answer.
    pub(super) async fn resolve(
        &self,
        own: &Publisher,
        source: &ClaimEndpoint,
        claim: &str,
        means: &Means<'_>,
    ) -> Result<Value, String> {
        let bearer = Some(source.access_token.as_str()).filter(|token| !token.is_empty());
        let answer = means.fetch.get(&source.endpoint, own.ca_pem(), bearer).await;
        let answer = answer.map_err(|why| format!("while getting distributed claim {claim:?}: {why}"))?;
        let text = std::str::from_utf8(&answer).unwrap_or_default();
        let parsed =
            UnverifiedToken::of(text.trim()).ok_or("the endpoint of a distributed claim did not return a token")?;
        let issuer = parsed.issuer().ok_or("the token of a distributed claim has no issuer")?;
        if !issuer.starts_with("https://") {
            return Err("the issuer of a distributed claim is not an https URL".into());
        }
        let publisher = self.publisher(own, issuer);
        // What is counted is of issuers that are configured.
        publisher.prepare(&parsed.header.kid, &Means { observer: &Uncounted, ..*means }).await;
        let verified = publisher.verify(&parsed, means.clock.now());
        verified.map_err(|why| format!("verify distributed claim token: {why}"))?;
        let value = parsed.claims.get(claim).cloned();
        value.ok_or_else(|| format!("the token of the distributed claim {claim:?} does not contain it"))
    }

    fn publisher(&self, own: &Publisher, url: &str) -> Arc<Publisher> {
        let mut issuers = self.issuers.lock();
        if let Some(known) = issuers.get(url) {
            return Arc::clone(known);
        }
        if issuers.len() >= ISSUERS_MAX {
            issuers.clear();
        }
        let made = Arc::new(own.beside(url));
        issuers.insert(url.to_owned(), Arc::clone(&made));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn where_a_claim_is_said_to_be() {
        let there = |claims: Value| source(claims.as_object().unwrap(), "groups");
        let at = |endpoint: &str| json!({"s": {"endpoint": endpoint, "access_token": "t"}});
        let names = json!({"groups": "s"});
        let found = ClaimEndpoint { endpoint: "https://x.example/g".into(), access_token: "t".into() };
        for (what, claims, wanted) in [
            ("nothing is said", json!({}), Ok(None)),
            ("it is in the token", json!({"groups": [], "_claim_names": names, "_claim_sources": {}}), Ok(None)),
            ("another claim is elsewhere", json!({"_claim_names": {"x": "s"}, "_claim_sources": {}}), Ok(None)),
            ("elsewhere", json!({"_claim_names": names, "_claim_sources": at("https://x.example/g")}), Ok(Some(found))),
            ("aggregated", json!({"_claim_names": names, "_claim_sources": {"s": {"JWT": "a.b.c"}}}), Ok(None)),
            ("no sources", json!({"_claim_names": names}), Err("no claim sources")),
            ("another source", json!({"_claim_names": names, "_claim_sources": {}}), Err("not in _claim_sources")),
            ("names that are none", json!({"_claim_names": ["groups"]}), Err("distributed claim names")),
            ("names of numbers", json!({"_claim_names": {"groups": 1}}), Err("distributed claim names")),
            ("sources that are none", json!({"_claim_names": names, "_claim_sources": 7}), Err("parse claim sources")),
            ("in clear", json!({"_claim_names": names, "_claim_sources": at("http://x.example/g")}), Err("https")),
        ] {
            match (there(claims), wanted) {
                (Err(said), Err(part)) => assert!(said.contains(part), "{what}: {said}"),
                (said, wanted) => assert_eq!(said, wanted, "{what}"),
            }
        }
    }
}
