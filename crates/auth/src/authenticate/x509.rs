//! Client certificates: the common name is the user, the organizations are the groups.
//!
//! A node that was off while its certificate ended may come back by it for a while, as somebody who may do nothing but ask for
//! another one of the same name: it has shown that it holds the key.
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

/// Certificates whose chain was verified lately; a busy client shows the same one thousands of times a second.
const CACHE_MAX_ENTRIES: usize = 1024;
const CACHE_LIFETIME: Duration = Duration::from_secs(60);
/// `1.3.6.1.4.1.57683.2`: the user's UID in a subject (upstream `AllowParsingUserUIDFromCertAuth`).
const UID_OID: &str = "1.3.6.1.4.1.57683.2";

/// Is told how many seconds a certificate that was shown has yet to live.
pub type Lives = Arc<dyn Fn(f64) + Send + Sync>;

/// Authenticates by client certificate.
pub struct ClientCertificates {
    chains: ClientChains,
    clock: Arc<dyn Clock>,
    /// With the generation of `chains` that they were judged by, and when they end.
    verified: Bounded<(u64, Timestamp, Authenticated)>,
    /// Where it is counted how long certificates that come have yet to live.
    lives: Option<Lives>,
    /// How long after its end a node's certificate lets it ask for another, and where the nodes are looked up.
    returning: Option<(Duration, Arc<dyn Objects>)>,
}

impl ClientCertificates {
    /// Trusting the CAs that `chains` does.
    pub fn new(chains: ClientChains, clock: Arc<dyn Clock>) -> Self {
        Self { chains, clock, verified: Bounded::new(CACHE_MAX_ENTRIES), lives: None, returning: None }
    }

    /// Trusts the CAs in `ca_pem` and no others from the next request on.
    ///
    /// # Errors
    /// When they cannot be read; what was trusted stays so.
    pub fn trust(&self, ca_pem: &str) -> Result<(), kelson_pki::PkiError> {
        self.chains.replace(&[ca_pem])
    }

    /// Telling how long the certificates that are shown have yet to live.
    pub fn counting(self, lives: Lives) -> Self {
        Self { lives: Some(lives), ..self }
    }

    fn shown(&self, end: Timestamp, now: Timestamp) {
        if let Some(lives) = &self.lives {
            lives(end.duration_since(now).as_secs_f64());
        }
    }

    /// Letting nodes that `objects` has return as [`user::RETURNING_NODES`] for so long after their certificate ended.
    pub fn returning(self, grace: Duration, objects: Arc<dyn Objects>) -> Self {
        Self { returning: Some((grace, objects)), ..self }
    }

    /// Who shows a certificate that has ended: a node, if its time has not run out. `None`: nobody.
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
        // One that was deleted is not to come back by itself.
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
            // A certificate without a name says nothing about who this is.
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
