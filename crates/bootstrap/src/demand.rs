//! What is asked of certificates that are good: who must have issued them, and since when. So a cluster gets new authorities, and
//! an operator new certificates, without waiting for the ends of the old ones.
use jiff::Timestamp;
use kelson_pki::{BACKDATE, CertInfo, is_issued_by};
use tokio::sync::watch;

/// What a certificate must fulfil; by default nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// The authority that must have issued it, the first certificate of this PEM; empty: any.
    pub issuer_pem: String,
    /// When it must have been made at the earliest.
    pub since: Timestamp,
}

/// Demands that may change at any time.
pub type Demands = watch::Receiver<Demand>;

/// No demands, for good.
pub fn none() -> Demands {
    watch::channel(Demand::default()).1
}

/// Whether a good certificate is to be replaced, because of a demand that no certificate was asked for yet. One that was asked for
/// and did not become what is wanted (the cluster has it signed by somebody else) is not asked for again and again.
pub(crate) fn rejects(demand: &Demand, answered: &Demand, cert_pem: &str, info: &CertInfo) -> bool {
    let foreign = !demand.issuer_pem.is_empty() && !is_issued_by(cert_pem, &demand.issuer_pem);
    // Certificates begin a while before they are made.
    let early = info.not_before.checked_add(BACKDATE).is_ok_and(|made| made < demand.since);
    demand != answered && (foreign || early)
}

/// Waits for other demands; for ever where nobody can make any.
pub(crate) async fn changed(demands: &mut Demands) {
    if demands.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
