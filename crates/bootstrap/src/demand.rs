//! Demands on valid certificates: their issuer and their minimum issue time. With these, a cluster gets new CAs and an
//! operator new certificates before the old ones expire.
use jiff::Timestamp;
use kelson_pki::{BACKDATE, CertInfo, is_issued_by};
use tokio::sync::watch;

/// The demands on a certificate; by default none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// The required issuer: the first certificate of this PEM. Empty means any.
    pub issuer_pem: String,
    /// The earliest issue time.
    pub since: Timestamp,
}

/// Demands that may change at any time.
pub type Demands = watch::Receiver<Demand>;

/// No demands, for good.
pub fn none() -> Demands {
    watch::channel(Demand::default()).1
}

/// Whether a valid certificate must be replaced because of a demand for which no certificate has been requested yet. If
/// the requested certificate does not meet the demand, because another CA signs for the cluster, it is not requested
/// again.
pub(crate) fn rejects(demand: &Demand, answered: &Demand, cert_pem: &str, info: &CertInfo) -> bool {
    let foreign = !demand.issuer_pem.is_empty() && !is_issued_by(cert_pem, &demand.issuer_pem);
    // The validity of certificates begins slightly before their creation.
    let early = info.not_before.checked_add(BACKDATE).is_ok_and(|made| made < demand.since);
    demand != answered && (foreign || early)
}

/// Waits for changed demands, without end if the sender is gone.
pub(crate) async fn changed(demands: &mut Demands) {
    if demands.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
