//! Client certificates: the common name is the user, the organizations are the groups.
//!
//! A node that was off when its certificate expired may use it for a limited time, with no permission but to request
//! another one of the same name: it has proven that it has the key.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_meta::Clock;
use kelson_pki::ClientChains;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::{Authenticated, Authenticator, Credentials, Rejected};
use crate::bounded::Bounded;
use crate::objects::Objects;
use crate::{UserInfo, user};

/// The maximum number of cached verifications; a busy client presents the same certificate thousands of times a second.
const CACHE_MAX_ENTRIES: usize = 1024;
const CACHE_LIFETIME: Duration = Duration::from_secs(60);
/// `1.3.6.1.4.1.57683.2`: the user's UID in a subject (upstream `AllowParsingUserUIDFromCertAuth`).
const UID_OID: &str = "1.3.6.1.4.1.57683.2";

/// Receives the remaining lifetime of presented certificates in seconds.
pub type Lives = Arc<dyn Fn(f64) + Send + Sync>;

/// Authenticates by client certificate.
pub struct ClientCertificates {
    chains: ClientChains,
    clock: Arc<dyn Clock>,
    /// Verified chains, with the generation of `chains` that verified them, and their expiry.
    verified: Bounded<(u64, Timestamp, Authenticated)>,
    /// Receives the remaining lifetime of presented certificates.
    lives: Option<Lives>,
    /// The time after its expiry for which a node's certificate can be used to request another, and the objects in
    /// which nodes are looked up.
    returning: Option<(Duration, Arc<dyn Objects>)>,
}

impl ClientCertificates {
    /// Creates the authenticator with the CAs of `chains`.
    pub fn new(chains: ClientChains, clock: Arc<dyn Clock>) -> Self {
        Self { chains, clock, verified: Bounded::new(CACHE_MAX_ENTRIES), lives: None, returning: None }
    }

    /// Trusts only the CAs in `ca_pem` from the next request on.
    ///
    /// # Errors
    /// The CAs are invalid; the trusted ones do not change.
    pub fn trust(&self, ca_pem: &str) -> Result<(), kelson_pki::PkiError> {
        self.chains.replace(&[ca_pem])
    }

    /// Reports the remaining lifetime of presented certificates.
    pub fn counting(self, lives: Lives) -> Self {
        Self { lives: Some(lives), ..self }
    }

    fn shown(&self, end: Timestamp, now: Timestamp) {
        if let Some(lives) = &self.lives {
            lives(end.duration_since(now).as_secs_f64());
        }
    }

    /// Lets nodes that `objects` has return as [`user::RETURNING_NODES`] for this long after their certificate expired.
    pub fn returning(self, grace: Duration, objects: Arc<dyn Objects>) -> Self {
        Self { returning: Some((grace, objects)), ..self }
    }

    /// Returns the identity of an expired certificate: a node within its grace period. `None` otherwise.
    fn returned(&self, chain: &[CertificateDer<'_>], cert: &X509Certificate<'_>, now: Timestamp) -> Option<UserInfo> {
        let (grace, objects) = self.returning.as_ref()?;
        let end = Timestamp::from_second(cert.validity().not_after.timestamp()).ok()?;
        if now <= end || now > end.checked_add(*grace).ok()? {
            return None;
        }
        self.chains.verify(chain, end).ok()?;
        let digest: [u8; 32] = Sha256::digest(chain.first()?).into();
        let mut user = user_of(cert, &digest).ok()?;
        let name = user::node_name(&user)?;
        // A deleted node must not come back by itself.
        objects.get("", "nodes", "", name)?;
        user.groups = vec![user::RETURNING_NODES.to_owned()];
        Some(user)
    }
}

impl Authenticator for ClientCertificates {
    fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<Authenticated>, Rejected> {
        let Some(leaf) = credentials.certificates.first() else { return Ok(None) };
        let digest: [u8; 32] = Sha256::digest(leaf).into();
        let now = self.clock.now();
        let generation = self.chains.generation();
        if let Some((_, end, found)) = self.verified.get(&digest, now).filter(|(judged, ..)| *judged == generation) {
            self.shown(end, now);
            return Ok(Some(found));
        }
        let parsed = X509Certificate::from_der(leaf);
        if let Err(why) = self.chains.verify(credentials.certificates, now) {
            let cert = parsed.as_ref().ok().map(|(_, cert)| cert);
            let returned = cert.and_then(|cert| self.returned(credentials.certificates, cert, now));
            let user = returned.ok_or_else(|| Rejected(format!("verifying certificate failed: {why}")))?;
            return Ok(Some(Authenticated::new(user)));
        }
        let (_, cert) = parsed.map_err(|_| Rejected::because("certificate does not parse"))?;
        let user = user_of(&cert, &digest)?;
        if user.name.is_empty() {
            // A certificate without a name does not identify a user.
            return Ok(None);
        }
        let found = Authenticated::new(user);
        let end = Timestamp::from_second(cert.validity().not_after.timestamp()).unwrap_or(now);
        self.shown(end, now);
        self.verified.put(digest, (generation, end, found.clone()), end.min(now + CACHE_LIFETIME), now);
        Ok(Some(found))
    }
}

fn user_of(cert: &X509Certificate<'_>, digest: &[u8; 32]) -> Result<UserInfo, Rejected> {
    let subject = cert.subject();
    let text = |a: &x509_parser::x509::AttributeTypeAndValue<'_>| a.as_str().unwrap_or_default().to_owned();
    let uids: Vec<String> =
        subject.iter_attributes().filter(|a| a.attr_type().to_id_string() == UID_OID).map(text).collect();
    let uid = match uids.as_slice() {
        [] => String::new(),
        [one] if one.is_empty() => return Err(Rejected::because("UID cannot be an empty string")),
        [one] => one.clone(),
        _ => return Err(Rejected::because("expected 1 UID, but found multiple")),
    };
    let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    Ok(UserInfo {
        name: subject.iter_common_name().last().map(text).unwrap_or_default(),
        uid,
        groups: subject.iter_organization().map(text).collect(),
        extra: BTreeMap::from([(user::CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={hex}")])]),
    })
}
