//! The search for a chain from a leaf to a trusted certificate.
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;

use super::certificate::{Certificate, Usage};
use super::fault::ChainFault;

/// Signatures that are checked for one leaf (as Go's limit): names of issuers alone could lead round and round.
const SIGNATURES_MAX: usize = 100;

/// The certificates that are trusted, by subject.
#[derive(Debug, Default)]
pub struct Pool {
    certificates: Vec<Arc<Certificate>>,
    by_subject: HashMap<Vec<u8>, Vec<usize>>,
}

impl Pool {
    /// Trusts these certificates.
    ///
    /// # Errors
    /// When one of them cannot be read.
    pub fn new(trusted: impl IntoIterator<Item = CertificateDer<'static>>) -> Result<Self, ChainFault> {
        let mut pool = Self::default();
        trusted.into_iter().try_for_each(|der| Certificate::parse(&der).map(|certificate| pool.add(certificate)))?;
        Ok(pool)
    }

    /// Trusts those of the certificates that can be read.
    pub fn of_readable(trusted: impl IntoIterator<Item = CertificateDer<'static>>) -> Self {
        let mut pool = Self::default();
        trusted
            .into_iter()
            .filter_map(|der| Certificate::parse(&der).ok())
            .for_each(|certificate| pool.add(certificate));
        pool
    }

    fn add(&mut self, certificate: Certificate) {
        let place = self.certificates.len();
        self.by_subject.entry(certificate.subject.clone()).or_default().push(place);
        self.certificates.push(Arc::new(certificate));
    }

    /// Whether nothing is trusted.
    pub fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }

    /// The encoded names of those that are trusted.
    pub fn subjects(&self) -> impl Iterator<Item = &[u8]> {
        self.certificates.iter().map(|certificate| certificate.subject.as_slice())
    }

    fn contains(&self, leaf: &Certificate) -> bool {
        let same = self.by_subject.get(&leaf.subject).into_iter().flatten();
        same.filter_map(|place| self.certificates.get(*place)).any(|trusted| trusted.der == leaf.der)
    }

    fn issuers(&self, of: &Certificate) -> impl Iterator<Item = &Certificate> {
        let places = self.by_subject.get(&of.issuer).into_iter().flatten();
        places.filter_map(|place| self.certificates.get(*place)).map(|certificate| &**certificate)
    }

    /// Verifies that `chain` (leaf first) leads to a trusted certificate at time `now` and is for this usage.
    ///
    /// # Errors
    /// The reason for which the chain is rejected.
    pub fn verify(&self, chain: &[CertificateDer<'_>], usage: Usage, now: Timestamp) -> Result<(), ChainFault> {
        let (leaf, rest) = chain.split_first().ok_or(ChainFault::Missing)?;
        self.verify_shown(leaf, rest, usage, now)
    }

    /// Verifies a leaf with the certificates that were sent along.
    pub(crate) fn verify_shown(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        usage: Usage,
        now: Timestamp,
    ) -> Result<(), ChainFault> {
        let leaf = Certificate::parse(leaf)?;
        let shown = rest.iter().map(Certificate::parse).collect::<Result<Vec<_>, _>>()?;
        let now = now.as_second();
        leaf.check(false, &[], now)?;
        if self.contains(&leaf) {
            return if leaf.is_for(usage) { Ok(()) } else { Err(ChainFault::WrongUsage) };
        }
        let mut search = Search { pool: self, shown: &shown, usage, now, signatures: 0, is_for_another: false };
        match search.above(&mut vec![&leaf]) {
            Ok(()) => Ok(()),
            Err(_) if search.is_for_another => Err(ChainFault::WrongUsage),
            Err(fault) => Err(fault),
        }
    }
}

/// One search for a chain from a leaf to a trusted certificate.
struct Search<'a> {
    pool: &'a Pool,
    /// Certificates that the peer sent in addition to its own.
    shown: &'a [Certificate],
    usage: Usage,
    now: i64,
    signatures: usize,
    /// A chain was found that is not for this use.
    is_for_another: bool,
}

impl<'a> Search<'a> {
    /// Whether the last of `chain` has an issuer that leads to a trusted certificate.
    fn above(&mut self, chain: &mut Vec<&'a Certificate>) -> Result<(), ChainFault> {
        let Some(last) = chain.last().copied() else { return Err(ChainFault::Missing) };
        let pool = self.pool;
        let trusted = pool.issuers(last).map(|issuer| (issuer, false));
        let shown = self.shown.iter().filter(|issuer| issuer.subject == last.issuer).map(|issuer| (issuer, true));
        let mut candidates: Vec<(&Certificate, bool)> = trusted.chain(shown).collect();
        // Trusted ones first, and of each kind those whose key ID matches.
        candidates.sort_by_key(|(issuer, is_shown)| (*is_shown, key_rank(last, issuer)));
        let (mut fault, mut hint) = (None, None);
        for (issuer, is_shown) in candidates {
            if chain.iter().any(|below| below.is_like(issuer)) {
                continue;
            }
            self.signatures += 1;
            if self.signatures > SIGNATURES_MAX {
                return Err(ChainFault::TooManyChecks);
            }
            if let Err(why) = last.check_signature(issuer) {
                hint.get_or_insert((why, issuer.shown.clone()));
                continue;
            }
            if let Err(why) = issuer.check(is_shown, chain, self.now) {
                fault = Some(why);
                continue;
            }
            chain.push(issuer);
            let found = if is_shown { self.above(chain) } else { self.is_of_use(chain) };
            chain.pop();
            match found {
                Err(why) => fault = Some(why),
                Ok(()) => return Ok(()),
            }
        }
        Err(fault.unwrap_or_else(|| ChainFault::UnknownAuthority(hint.map(Box::new))))
    }

    fn is_of_use(&mut self, chain: &[&Certificate]) -> Result<(), ChainFault> {
        if chain.iter().all(|certificate| certificate.is_for(self.usage)) {
            return Ok(());
        }
        self.is_for_another = true;
        Err(ChainFault::WrongUsage)
    }
}

/// Returns how well the key of `issuer` matches the key ID in `of`: match, unknown, mismatch.
fn key_rank(of: &Certificate, issuer: &Certificate) -> u8 {
    match (&of.issuer_key_id, &issuer.key_id) {
        (Some(named), Some(key)) if named == key => 0,
        (Some(_), Some(_)) => 2,
        _ => 1,
    }
}
