//! The errors of chain verification, with Go's messages, which operators search for.
use jiff::Timestamp;

/// The reason why a certificate chain is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainFault {
    /// The peer presented no certificate.
    #[error("no certificate")]
    Missing,
    /// A certificate cannot be read.
    #[error("x509: malformed certificate: {0}")]
    Malformed(String),
    /// The time is outside the validity of a certificate of the chain.
    #[error("x509: certificate has expired or is not yet valid: current time {now} is after {end}")]
    Expired {
        /// The time of the check.
        now: Timestamp,
        /// The last second of the validity.
        end: Timestamp,
    },
    /// The same, before its beginning.
    #[error("x509: certificate has expired or is not yet valid: current time {now} is before {begin}")]
    NotYetValid {
        /// The time of the check.
        now: Timestamp,
        /// The first second of the validity.
        begin: Timestamp,
    },
    /// A critical extension is not known.
    #[error("x509: unhandled critical extension")]
    UnhandledExtension,
    /// There are more intermediates than a CA allows below itself.
    #[error("x509: too many intermediates for path length constraint")]
    TooManyIntermediates,
    /// An intermediate is not marked as a CA.
    #[error("x509: certificate is not authorized to sign other certificates")]
    NotAuthority,
    /// An issuer is not a CA, or its key usage does not allow it to sign certificates.
    #[error("x509: invalid signature: parent certificate cannot sign this kind of certificate")]
    CannotSign,
    /// The signature of a certificate is not that of its issuer.
    #[error("{0}")]
    Signature(&'static str),
    /// The chain is not for the purpose that it is shown for (client or server).
    #[error("x509: certificate specifies an incompatible key usage")]
    WrongUsage,
    /// A CA's name constraints exclude a name in a certificate below it.
    #[error("x509: a root or intermediate certificate is not authorized to sign for this name: {0}")]
    Name(String),
    /// Too many candidates for issuers.
    #[error("x509: signature check attempts limit reached while verifying certificate chain")]
    TooManyChecks,
    /// No trusted certificate issued it; the first fault of a candidate, and the name of that candidate.
    #[error("x509: certificate signed by unknown authority{}", hint(.0.as_deref()))]
    UnknownAuthority(Option<Box<(ChainFault, String)>>),
}

fn hint(of: Option<&(ChainFault, String)>) -> String {
    of.map_or_else(String::new, |(fault, name)| {
        let fault = fault.to_string();
        format!(" (possibly because of {fault:?} while trying to verify candidate authority certificate {name:?})")
    })
}
