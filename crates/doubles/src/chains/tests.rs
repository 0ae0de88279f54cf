//! Tests that each row has the verdict of Go's `x509.Verify`.
use jiff::Timestamp;
use kelson_pki::{ChainFault, Pool, provider};
use rustls::SignatureScheme;
use rustls::pki_types::CertificateDer;

use super::{Row, rows};

fn pool(row: &Row) -> Pool {
    Pool::new(row.bundle.clone()).expect("certificates")
}

#[test]
fn every_kind_of_chain_is_answered_as_go_answers_it() {
    let now: Timestamp = "2026-05-06T07:08:09Z".parse().unwrap();
    for row in rows() {
        let verified = pool(&row).verify(&row.shown, row.usage, now);
        assert_eq!(verified.is_ok(), row.is_accepted, "{:?} {}: {verified:?}", row.usage, row.what);
    }
}

#[test]
fn faults_are_in_the_words_of_go() {
    let now: Timestamp = "2026-05-06T07:08:09Z".parse().unwrap();
    let cannot = "x509: certificate signed by unknown authority (possibly because of \"x509: invalid signature: parent \
                  certificate cannot sign this kind of certificate\" while trying to verify candidate authority \
                  certificate";
    for (what, words) in [
        ("a leaf below an intermediate that is not shown", "x509: certificate signed by unknown authority".to_owned()),
        ("an intermediate that is no authority", format!("{cannot} \"intermediate\")")),
        ("an intermediate for another use", "x509: certificate specifies an incompatible key usage".to_owned()),
        ("an intermediate below a root of path length 0", "x509: too many intermediates for path length constraint".to_owned()),
        ("a leaf with an unknown critical extension", "x509: unhandled critical extension".to_owned()),
        ("a root without basic constraints", format!("{cannot} \"root\")")),
        (
            "a root that has expired",
            "x509: certificate has expired or is not yet valid: current time 2026-05-06T07:08:09Z is after 2021-01-01T00:00:00Z"
                .to_owned(),
        ),
        (
            "a root that is not valid yet",
            "x509: certificate has expired or is not yet valid: current time 2026-05-06T07:08:09Z is before 2218-01-01T00:00:00Z"
                .to_owned(),
        ),
        (
            "a root with the same name and another key",
            "x509: certificate signed by unknown authority (possibly because of \"x509: ECDSA verification failure\" while \
             trying to verify candidate authority certificate \"root\")"
                .to_owned(),
        ),
        (
            "names that the root does not permit",
            "x509: a root or intermediate certificate is not authorized to sign for this name: DNS name \
             \"server.example.com\" is not permitted by any constraint"
                .to_owned(),
        ),
    ] {
        let row = rows().into_iter().find(|row| row.what == what).expect("a row");
        let fault = pool(&row).verify(&row.shown, row.usage, now).unwrap_err();
        assert_eq!(fault.to_string(), words, "{what}");
    }
}

#[test]
fn damaged_certificates_are_refused() {
    let now: Timestamp = "2026-05-06T07:08:09Z".parse().unwrap();
    let row = rows().swap_remove(0);
    let pool = pool(&row);
    assert_eq!(pool.verify(&[], row.usage, now), Err(ChainFault::Missing));
    for cut in [0, 1, 20, row.shown[0].len() - 1] {
        let damaged = CertificateDer::from(row.shown[0][..cut].to_vec());
        assert!(
            matches!(pool.verify(std::slice::from_ref(&damaged), row.usage, now), Err(ChainFault::Malformed(_))),
            "{cut}"
        );
        assert!(Pool::new([damaged.clone()]).is_err());
        assert!(Pool::of_readable([damaged]).is_empty());
    }
    for at in 0..row.shown[0].len() {
        let mut bytes = row.shown[0].to_vec();
        bytes[at] ^= 0x41;
        assert!(pool.verify(&[CertificateDer::from(bytes)], row.usage, now).is_err(), "byte {at}");
    }
}

#[test]
fn peers_may_sign_with_p521() {
    let algorithms = provider().signature_verification_algorithms;
    assert!(algorithms.supported_schemes().contains(&SignatureScheme::ECDSA_NISTP521_SHA512));
}
