//! Client certificates: the common name is the user, the organizations are the groups.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_meta::Clock;
use kelson_pki::ClientChains;
use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::cache::Bounded;
use super::{Authenticated, Authenticator, Credentials, Rejected};
use crate::{UserInfo, user};

/// Certificates whose chain was verified lately; a busy client shows the same one thousands of times a second.
const CACHE_MAX_ENTRIES: usize = 1024;
const CACHE_LIFETIME: Duration = Duration::from_secs(60);
/// `1.3.6.1.4.1.57683.2`: the user's UID in a subject (upstream `AllowParsingUserUIDFromCertAuth`).
const UID_OID: &str = "1.3.6.1.4.1.57683.2";

/// Authenticates by client certificate.
pub struct ClientCertificates {
    chains: ClientChains,
    clock: Arc<dyn Clock>,
    verified: Bounded<Authenticated>,
}

impl ClientCertificates {
    /// Trusting the CAs that `chains` does.
    pub fn new(chains: ClientChains, clock: Arc<dyn Clock>) -> Self {
        Self { chains, clock, verified: Bounded::new(CACHE_MAX_ENTRIES) }
    }
}

impl Authenticator for ClientCertificates {
    fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<Authenticated>, Rejected> {
        let Some(leaf) = credentials.certificates.first() else { return Ok(None) };
        let digest: [u8; 32] = Sha256::digest(leaf).into();
        let now = self.clock.now();
        if let Some(found) = self.verified.get(&digest, now) {
            return Ok(Some(found));
        }
        self.chains
            .verify(credentials.certificates, now)
            .map_err(|why| Rejected(format!("verifying certificate failed: {why}")))?;
        let (_, cert) = X509Certificate::from_der(leaf).map_err(|_| Rejected::because("certificate does not parse"))?;
        let user = user_of(&cert, &digest)?;
        if user.name.is_empty() {
            // A certificate without a name says nothing about who this is.
            return Ok(None);
        }
        let found = Authenticated::new(user);
        let end = Timestamp::from_second(cert.validity().not_after.timestamp()).unwrap_or(now);
        self.verified.put(digest, found.clone(), end.min(now + CACHE_LIFETIME), now);
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
