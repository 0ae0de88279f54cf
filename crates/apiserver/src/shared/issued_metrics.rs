//! Metrics of certificates that were issued to requests with `expirationSeconds`, and whether it was honored, under upstream's names.
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::SignedDuration;
use kelson_metrics::{IntCounterVec, Registry};
use kelson_pki::CertInfo;
use serde_json::Value;

/// Allowed difference between requested and issued lifetime, besides 5 %: signers backdate certificates.
const BACKDATED: SignedDuration = SignedDuration::from_mins(5);

/// Issued-certificate metrics of one server.
pub struct IssuedMetrics {
    requested: IntCounterVec,
    honored: IntCounterVec,
}

/// A certificate that a write adds to a CertificateSigningRequest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedCertificate {
    signer: String,
    honored: bool,
}

impl IssuedMetrics {
    /// Registers the metrics; called once per registry.
    pub fn new(r: &Registry) -> Self {
        let name = |name: &str| format!("apiserver_certificates_registry_csr_{name}_duration_total");
        let help = "Issued certificates whose request has spec.expirationSeconds, by signer.";
        let requested = r.counters(&name("requested"), help, &["signerName"]);
        let help = "Issued certificates that honored spec.expirationSeconds, by signer.";
        Self { requested, honored: r.counters(&name("honored"), help, &["signerName"]) }
    }

    /// Counts a certificate after the write was stored.
    pub fn count(&self, issued: &IssuedCertificate) {
        self.requested.with_label_values(&[&issued.signer]).inc();
        if issued.honored {
            self.honored.with_label_values(&[&issued.signer]).inc();
        }
    }
}

impl IssuedCertificate {
    /// The certificate that a write adds; `None` if there was one before, or the request has no `expirationSeconds`.
    pub fn of(old: &Value, new: &Value) -> Option<Self> {
        let certificate =
            |csr: &Value| csr["status"]["certificate"].as_str().map(str::to_owned).filter(|c| !c.is_empty());
        let wanted = SignedDuration::from_secs(old["spec"]["expirationSeconds"].as_i64()?);
        let issued = certificate(new).filter(|_| certificate(old).is_none())?;
        // Other signers' names are free text and would make series.
        let signer = old["spec"]["signerName"].as_str().filter(|name| name.starts_with("kubernetes.io/"));
        let info =
            STANDARD.decode(issued).ok().and_then(|pem| CertInfo::from_pem(std::str::from_utf8(&pem).ok()?).ok());
        let honored = info.is_some_and(|info| {
            let difference = (info.not_after.duration_since(info.not_before) - wanted).abs();
            difference < BACKDATED + wanted / 20
        });
        Some(Self { signer: signer.unwrap_or("other").to_owned(), honored })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_pki::{Authority, LeafSpec, Purpose};
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn issued_certificates_are_counted_once_by_lifetime() {
        let ca = Authority::create("ca", jiff::Timestamp::now()).unwrap();
        let lifetime = Duration::from_secs(7_200);
        let leaf = LeafSpec { common_name: "x", organizations: &[], sans: &[], purpose: Purpose::Client, lifetime };
        let pem = ca.issue(&leaf, jiff::Timestamp::now()).unwrap().cert_pem;
        let csr = |signer: &str, asked: Option<i64>, issued: bool| {
            let certificate = if issued { STANDARD.encode(&pem) } else { String::new() };
            json!({"spec": {"signerName": signer, "expirationSeconds": asked}, "status": {"certificate": certificate}})
        };
        let registry = Registry::new();
        let metrics = IssuedMetrics::new(&registry);
        let own = "kubernetes.io/kube-apiserver-client";
        for (signer, asked, before, counts) in [
            (own, Some(7_200), false, true),
            (own, Some(86_400), false, true),
            ("example.com/a", Some(7_200), false, true),
            (own, None, false, false),
            (own, Some(7_200), true, false),
        ] {
            let issued = IssuedCertificate::of(&csr(signer, asked, before), &csr(signer, asked, true));
            assert_eq!(issued.is_some(), counts, "{signer} {asked:?} {before}");
            issued.iter().for_each(|issued| metrics.count(issued));
        }
        assert_eq!(
            IssuedCertificate::of(&csr(own, Some(7_200), false), &csr(own, Some(7_200), false)),
            None,
            "not yet"
        );
        let text = registry.text();
        let row = |name: &str, signer: &str, count: u32| {
            format!("apiserver_certificates_registry_csr_{name}_duration_total{{signerName=\"{signer}\"}} {count}")
        };
        for row in
            [row("requested", own, 2), row("honored", own, 1), row("requested", "other", 1), row("honored", "other", 1)]
        {
            assert!(text.lines().any(|line| line == row), "{row}\n{text}");
        }
    }
}
