//! Verifies service account tokens: signature, issuer, audience, times, and that the bound objects still exist.
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kelson_meta::Clock;
use kelson_pki::PublicKey;
use serde::Deserialize;

use super::jwt::{Claims, Parsed};
use super::uses::{self, INVALID_SINCE, LAST_USED, Remarks, TokenUses, Unheard, Use, UsedSecret};
use super::{Bound, LEGACY_ISSUER};
use crate::authenticate::{Authenticated, Rejected, TokenAuthenticator};
use crate::objects::{Objects, decode};
use crate::{UserInfo, constant_time_eq, user};

/// The allowed difference between clocks; also how long the tokens of a deleted object stay valid.
const LEEWAY: Duration = Duration::from_secs(60);

/// Options for verifying tokens.
#[derive(Clone, Debug)]
pub struct VerifierOptions {
    /// All values of `--service-account-issuer`.
    pub issuers: Vec<String>,
    /// The audiences of this API server, of which a token must have one (`--api-audiences`).
    pub audiences: Vec<String>,
}

impl Default for VerifierOptions {
    fn default() -> Self {
        let own = vec![super::DEFAULT_ISSUER.to_owned()];
        Self { issuers: own.clone(), audiences: own }
    }
}

/// Authenticates service account tokens, both time-bound ones and those in secrets.
pub struct ServiceAccountTokens {
    keys: Vec<(String, PublicKey)>,
    by_id: HashMap<String, Vec<usize>>,
    options: VerifierOptions,
    objects: Arc<dyn Objects>,
    clock: Arc<dyn Clock>,
    uses: Arc<dyn TokenUses>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct BoundObject {
    metadata: BoundMeta,
    data: Option<BTreeMap<String, String>>,
    /// The secrets that were generated for an account.
    secrets: Option<Vec<Named>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Named {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct BoundMeta {
    uid: String,
    deletion_timestamp: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

impl BoundMeta {
    fn deleted_before(&self, t: Timestamp) -> bool {
        self.deletion_timestamp.as_deref().is_some_and(|d| d.parse::<Timestamp>().is_ok_and(|d| d < t))
    }
}

/// The warning for users of a generated token.
const GENERATED: &str = "Use tokens from the TokenRequest API or manually created secret-based tokens instead of \
    auto-generated secret-based tokens.";
const INVALIDATED: &str = "service account token has been invalidated";

fn reject<T>(why: impl Into<String>) -> Result<T, Rejected> {
    Err(Rejected(why.into()))
}

impl ServiceAccountTokens {
    /// Creates the authenticator, which accepts signatures of `keys`.
    pub fn new(
        keys: Vec<PublicKey>,
        options: VerifierOptions,
        objects: Arc<dyn Objects>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let keys: Vec<(String, PublicKey)> = keys.into_iter().map(|k| (k.key_id(), k)).collect();
        let mut by_id: HashMap<String, Vec<usize>> = HashMap::new();
        for (i, (id, _)) in keys.iter().enumerate() {
            by_id.entry(id.clone()).or_default().push(i);
        }
        Self { keys, by_id, options, objects, clock, uses: Arc::new(Unheard) }
    }

    /// Reports each use of a token to `observer`.
    pub fn with_observer(self, observer: Arc<dyn TokenUses>) -> Self {
        Self { uses: observer, ..self }
    }

    fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<BoundObject> {
        // A token may be newer than a cache, so the latest state is read.
        self.objects.get_live("", resource, namespace, name).and_then(|b| decode(&b, resource))
    }

    fn check_signature(&self, token: &Parsed<'_>) -> Result<(), Rejected> {
        let known: Vec<usize> = if token.kid.is_empty() {
            (0..self.keys.len()).collect()
        } else {
            self.by_id.get(&token.kid).cloned().unwrap_or_default()
        };
        if known.is_empty() {
            return reject("invalid signature, no keys found");
        }
        if known.iter().any(|i| token.verify(&self.keys[*i].1)) { Ok(()) } else { reject("invalid signature") }
    }

    fn check_audience(&self, claims: &Claims, wanted: &[String]) -> Result<Vec<String>, Rejected> {
        let own = &self.options.audiences;
        let offered = if claims.aud.is_empty() { own } else { &claims.aud };
        let wanted = if wanted.is_empty() { own } else { wanted };
        let both: Vec<String> = offered.iter().filter(|a| wanted.contains(a)).cloned().collect();
        if both.is_empty() && !own.is_empty() {
            return reject(format!("token audiences {offered:?} is invalid for the target audiences {wanted:?}"));
        }
        Ok(both)
    }

    fn check_account(&self, namespace: &str, account: &Bound, horizon: Timestamp) -> Result<BoundObject, Rejected> {
        let Some(found) = self.get("serviceaccounts", namespace, &account.name) else {
            return reject(format!("serviceaccounts {:?} not found", account.name));
        };
        let uid = &found.metadata.uid;
        if *uid != account.uid {
            return reject(format!("service account UID ({uid}) does not match claim ({})", account.uid));
        }
        if found.metadata.deleted_before(horizon) {
            return reject(format!("service account {namespace}/{} has been deleted", account.name));
        }
        Ok(found)
    }

    /// Checks a bound object; `what` is `Pod`, `Node` or `Secret`, as messages name it.
    fn check_bound(&self, what: &str, namespace: &str, bound: &Bound, horizon: Timestamp) -> Result<(), Rejected> {
        let lower = what.to_lowercase();
        let Some(found) = self.get(&format!("{lower}s"), namespace, &bound.name) else { return reject(INVALIDATED) };
        let uid = &found.metadata.uid;
        if *uid != bound.uid {
            let claim = &bound.uid;
            return reject(format!("{lower} UID ({uid}) does not match service account {lower} ref claim ({claim})"));
        }
        if found.metadata.deleted_before(horizon) { reject(INVALIDATED) } else { Ok(()) }
    }

    fn check_bound_token(&self, claims: &Claims, now: Timestamp) -> Result<(UserInfo, Remarks), Rejected> {
        check_times(claims, now)?;
        let Some(k) = &claims.kubernetes else { return reject("the kubernetes.io claim is missing") };
        let horizon = now - LEEWAY;
        self.check_account(&k.namespace, &k.serviceaccount, horizon)?;
        if let Some(secret) = &k.secret {
            self.check_bound("Secret", &k.namespace, secret, horizon)?;
        }
        let mut user = UserInfo::service_account(&k.namespace, &k.serviceaccount.name, &k.serviceaccount.uid);
        let mut extra = |key: &str, value: &str| {
            if !value.is_empty() {
                user.extra.insert(key.to_owned(), vec![value.to_owned()]);
            }
        };
        if let Some(pod) = &k.pod {
            self.check_bound("Pod", &k.namespace, pod, horizon)?;
            extra(user::POD_NAME, &pod.name);
            extra(user::POD_UID, &pod.uid);
        }
        if let Some(node) = &k.node {
            // For a token bound to a pod the node is only informational; alone it is what the token is bound to.
            if k.pod.is_none() {
                self.check_bound("Node", "", node, horizon)?;
            }
            extra(user::NODE_NAME, &node.name);
            extra(user::NODE_UID, &node.uid);
        }
        if !claims.jti.is_empty() {
            extra(user::CREDENTIAL_ID, &format!("JTI={}", claims.jti));
        }
        Ok((user, self.stale(&claims.sub, k.warnafter, now)))
    }

    /// Records whether a bound token should have been replaced by now.
    fn stale(&self, subject: &str, warn_after: Option<i64>, now: Timestamp) -> Remarks {
        let mut remarks = Remarks::default();
        let Some(warn_after) = warn_after.filter(|at| *at != 0) else { return remarks };
        let late = now.as_second() - warn_after;
        if late <= 0 {
            self.uses.used(Use::Valid);
            return remarks;
        }
        self.uses.used(Use::Stale);
        let reported = format!("subject: {subject}, seconds after warning threshold: {late}");
        remarks.annotations.push(("authentication.k8s.io/stale-token", reported));
        remarks
    }

    /// Records the use of a valid token in a secret.
    fn legacy_use(&self, namespace: &str, secret: &str, stored: &BoundObject, account: &BoundObject) -> Remarks {
        let mut remarks = Remarks::default();
        if account.secrets.iter().flatten().any(|reference| reference.name == secret) {
            remarks.warnings.push(GENERATED);
            remarks.annotations.push(("authentication.k8s.io/legacy-token-autogenerated-secret", secret.to_owned()));
            self.uses.used(Use::AutoGenerated);
        } else {
            remarks.annotations.push(("authentication.k8s.io/legacy-token-manual-secret", secret.to_owned()));
            self.uses.used(Use::Manual);
        }
        self.mark(namespace, secret, stored);
        remarks
    }

    /// Requests that the day of the last use is written to a secret, once a day.
    fn mark(&self, namespace: &str, name: &str, secret: &BoundObject) {
        let label = secret.metadata.labels.as_ref().and_then(|l| l.get(LAST_USED)).map_or("", String::as_str);
        if let Some(day) = uses::marked_day(label, self.clock.now()) {
            let (namespace, name, uid) = (namespace.to_owned(), name.to_owned(), secret.metadata.uid.clone());
            self.uses.mark(UsedSecret { namespace, name, uid, day });
        }
    }

    fn check_legacy(&self, token: &str, claims: &Claims, now: Timestamp) -> Result<(UserInfo, Remarks), Rejected> {
        for (value, name) in [
            (&claims.sub, "sub"),
            (&claims.legacy_namespace, "namespace"),
            (&claims.legacy_secret, "secretName"),
            (&claims.legacy_name, "serviceAccountName"),
            (&claims.legacy_uid, "serviceAccountUID"),
        ] {
            if value.is_empty() {
                return reject(format!("{name} claim is missing"));
            }
        }
        let (namespace, name) = (&claims.legacy_namespace, &claims.legacy_name);
        if user::split_service_account(&claims.sub) != Some((namespace.as_str(), name.as_str())) {
            return reject("sub claim is invalid");
        }
        let Some(secret) = self.get("secrets", namespace, &claims.legacy_secret) else {
            return reject("Token has been invalidated");
        };
        if secret.metadata.deletion_timestamp.is_some() {
            return reject("Token has been invalidated");
        }
        let stored = secret.data.as_ref().and_then(|d| d.get("token")).and_then(|t| STANDARD.decode(t).ok());
        if !constant_time_eq(&stored.unwrap_or_default(), token.as_bytes()) {
            return reject("Token does not match server's copy");
        }
        let account = Bound { name: name.clone(), uid: claims.legacy_uid.clone() };
        let account = self.check_account(namespace, &account, now)?;
        if secret.metadata.labels.as_ref().is_some_and(|l| l.get(INVALID_SINCE).is_some_and(|v| !v.is_empty())) {
            self.uses.used(Use::Invalidated);
            self.mark(namespace, &claims.legacy_secret, &secret);
            return reject(format!(
                "the token in secret {namespace}/{} for service account {namespace}/{name} has been marked invalid. Use \
                 tokens from the TokenRequest API or manually created secret-based tokens, or remove the \
                 '{INVALID_SINCE}' label from the secret to temporarily allow use of this token",
                claims.legacy_secret
            ));
        }
        let remarks = self.legacy_use(namespace, &claims.legacy_secret, &secret, &account);
        Ok((UserInfo::service_account(namespace, name, &claims.legacy_uid), remarks))
    }
}

fn check_times(claims: &Claims, now: Timestamp) -> Result<(), Rejected> {
    let (now, leeway) = (now.as_second(), LEEWAY.as_secs() as i64);
    if claims.nbf.is_some_and(|t| now + leeway < t) {
        return reject("service account token is not valid yet");
    }
    if claims.exp.is_some_and(|t| now - leeway > t) {
        return reject("service account token has expired");
    }
    if claims.iat.is_some_and(|t| now + leeway < t) {
        return reject("service account token is issued in the future");
    }
    Ok(())
}

impl TokenAuthenticator for ServiceAccountTokens {
    fn authenticate_token(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, Rejected> {
        let Some(parsed) = Parsed::parse(token) else { return Ok(None) };
        let legacy = parsed.claims.iss == LEGACY_ISSUER;
        if !legacy && !self.options.issuers.contains(&parsed.claims.iss) {
            return Ok(None);
        }
        self.check_signature(&parsed)?;
        let audiences = self.check_audience(&parsed.claims, audiences)?;
        let now = self.clock.now();
        let (user, mut remarks) = if legacy {
            self.check_legacy(token, &parsed.claims, now)?
        } else {
            self.check_bound_token(&parsed.claims, now)?
        };
        if parsed.claims.aud.is_empty() {
            self.uses.used(Use::Legacy);
            remarks.annotations.push(("authentication.k8s.io/legacy-token", parsed.claims.sub.clone()));
        }
        Ok(Some(Authenticated { user: Arc::new(user), audiences: audiences.into(), remarks: remarks.shared() }))
    }
}
