//! ClusterTrustBundles: root certificates that verify certificates of a signer, or of no particular signer. Upstream
//! `pkg/apis/certificates/validation`, KEP-3257.
use std::collections::BTreeMap;
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::is_dns1123_subdomain;
use kelson_pki::{CertInfo, PemBlock, foreign_blocks};
use rustls_pki_types::CertificateDer;
use serde_json::Value;

use super::{GROUP, signer_name};
use crate::column::{Column, NAME};
use crate::metadata::immutable;
use crate::names::NameRule;
use crate::options::{Options, columns, texts};
use crate::path::{Errors, Path};
use crate::strategy::Strategy;
use crate::table::{name, or_none};
use crate::tree::text;

/// The strategy of clustertrustbundles.
pub struct ClusterTrustBundles;

static BUNDLES: LazyLock<Options> = LazyLock::new(|| Options {
    name: NameRule::Any,
    allow_unconditional_update: false,
    columns: columns![NAME, Column::text("SignerName", "Signer whose roots these are.")],
    fields: texts!["spec.signerName"],
    ..Options::of(GROUP, "clustertrustbundles")
});

/// The maximum size of a bundle in bytes (upstream's).
const BUNDLE_BYTES_MAX: usize = 1 << 20;

/// Checks that each block is a CA certificate, that none is repeated, and that there is one.
fn check_anchors(bundle: &str, e: &mut Errors) {
    let spec = Path::new("spec");
    let at = spec.child("trustBundle");
    if bundle.len() > BUNDLE_BYTES_MAX {
        return e.too_long(&at, BUNDLE_BYTES_MAX);
    }
    let blocks = foreign_blocks(bundle);
    let fault = |block: &PemBlock<'_>| match CertInfo::from_der(&CertificateDer::from(block.der.as_slice())) {
        _ if block.label != "CERTIFICATE" => Some(format!("has bad block type: {}", block.label)),
        _ if block.has_headers => Some("has PEM block headers".to_owned()),
        Err(_) => Some("does not parse as X.509".to_owned()),
        Ok(info) if !info.is_ca => Some("does not have the CA bit set".to_owned()),
        Ok(_) => None,
    };
    let faults: Vec<String> =
        blocks.iter().enumerate().filter_map(|(i, b)| fault(b).map(|why| format!("entry {i} {why}"))).collect();
    for why in &faults {
        e.invalid(&at, "<value omitted>", why);
    }
    if !faults.is_empty() {
        return;
    }
    if blocks.is_empty() {
        e.invalid(&at, "<value omitted>", "at least one trust anchor must be provided");
    }
    let mut places: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
    for (i, block) in blocks.iter().enumerate() {
        places.entry(&block.der).or_default().push(i);
    }
    for indices in places.values().filter(|indices| indices.len() > 1) {
        let indices: Vec<String> = indices.iter().map(usize::to_string).collect();
        e.invalid(&at, "<value omitted>", format!("duplicate trust anchor (indices [{}])", indices.join(" ")));
    }
}

impl Strategy for ClusterTrustBundles {
    fn options(&self) -> &Options {
        &BUNDLES
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (n, signer) = (text(&obj["metadata"]["name"]), text(&obj["spec"]["signerName"]));
        let (meta, p) = (Path::new("metadata"), Path::new("spec"));
        let prefix = format!("{}:", signer.replace('/', ":"));
        if signer.is_empty() {
            if n.contains(':') {
                e.invalid(
                    &meta.child("name"),
                    n,
                    "ClusterTrustBundle without signer name must not have \":\" in its name",
                );
            } else {
                e.invalid_each(&meta.child("name"), n, is_dns1123_subdomain(n));
            }
        } else {
            signer_name(signer, &p.child("signerName"), e);
            if !n.starts_with(&prefix) {
                let why = format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}");
                e.invalid(&meta.child("name"), n, why);
            }
        }
    }
    fn check_create(&self, obj: &Value, e: &mut Errors) {
        self.check(obj, e);
        check_anchors(text(&obj["spec"]["trustBundle"]), e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        // A bundle that was valid when it was written stays valid.
        if new["spec"]["trustBundle"] != old["spec"]["trustBundle"] {
            check_anchors(text(&new["spec"]["trustBundle"]), e);
        }
        let p = Path::new("spec");
        immutable(&new["spec"]["signerName"], &old["spec"]["signerName"], &p.child("signerName"), e);
    }
    fn row(&self, obj: &Value, _now: Timestamp) -> Vec<Value> {
        vec![name(obj), or_none(text(&obj["spec"]["signerName"]))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_pki::{Authority, LeafSpec, Purpose, pem_block};
    use serde_json::json;

    fn faults(name: &str, signer: &str, bundle: &str) -> String {
        let bundle = json!({"metadata": {"name": name}, "spec": {"signerName": signer, "trustBundle": bundle}});
        ClusterTrustBundles.validate_create(&bundle).to_string()
    }

    #[test]
    fn bundles_hold_authorities_and_nothing_else() {
        let now = "2026-05-06T07:08:09Z".parse().unwrap();
        let (ca, other) = (Authority::create("ca", now).unwrap(), Authority::create("other", now).unwrap());
        let lifetime = std::time::Duration::from_secs(3600);
        let spec = LeafSpec { common_name: "leaf", organizations: &[], sans: &[], purpose: Purpose::Server, lifetime };
        let leaf = ca.issue(&spec, now).unwrap().cert_pem;
        let (one, two) = (ca.cert_pem(), other.cert_pem());
        for (bundle, part) in [
            (format!("{one}{two}"), "[]"),
            (String::new(), "at least one trust anchor must be provided"),
            ("-----BEGIN CERTIFICATE-----".into(), "at least one trust anchor must be provided"),
            (format!("{one}{two}{one}"), "duplicate trust anchor (indices [0 2])"),
            (format!("{one}{leaf}"), "entry 1 does not have the CA bit set"),
            (pem_block("CERTIFICATE", b"x"), "entry 0 does not parse as X.509"),
            (pem_block("PRIVATE KEY", b"x"), "entry 0 has bad block type: PRIVATE KEY"),
            (one.replace("CERTIFICATE-----\nMII", "CERTIFICATE-----\na: b\n\nMII"), "entry 0 has PEM block headers"),
            ("x".repeat(BUNDLE_BYTES_MAX + 1), "Too long"),
        ] {
            let said = faults("b", "", &bundle);
            assert!(said.contains(part), "{part}: {said}");
            assert!(part == "[]" || !said.contains("MII"), "bundles are not repeated: {said}");
        }
        assert_eq!(faults("example.com:s:b", "example.com/s", one), "[]");
        assert!(faults("b", "example.com/s", one).contains("must be named with prefix example.com:s:"));
        assert!(faults("a:b", "", one).contains("must not have"));
        // A stored bundle is not validated again.
        let bundle = |text: &str, label: &str| {
            json!({"metadata": {"name": "b", "resourceVersion": "1", "labels": {"l": label}},
            "spec": {"trustBundle": text}})
        };
        let update = |new: &Value, old: &Value| ClusterTrustBundles.validate_update(new, old).to_string();
        assert_eq!(update(&bundle("old", "x"), &bundle("old", "y")), "[]");
        assert!(update(&bundle("new", "x"), &bundle("old", "y")).contains("trust anchor"));
    }
}
