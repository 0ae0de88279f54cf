//! ClusterTrustBundles: the roots by which certificates of a signer, or of nobody in particular, are verified. Upstream
//! `pkg/apis/certificates/validation`, KEP-3257.
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::is_dns1123_subdomain;
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

/// The clustertrustbundles resource.
pub struct ClusterTrustBundles;

static BUNDLES: LazyLock<Options> = LazyLock::new(|| Options {
    name: NameRule::Any,
    allow_unconditional_update: false,
    columns: columns![NAME, Column::text("SignerName", "Signer whose roots these are.")],
    fields: texts!["spec.signerName"],
    ..Options::of(GROUP, "clustertrustbundles")
});

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
        if !text(&obj["spec"]["trustBundle"]).contains("-----BEGIN CERTIFICATE-----") {
            e.invalid(&p.child("trustBundle"), "<value omitted>", "at least one trust anchor must be provided");
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        let p = Path::new("spec");
        immutable(&new["spec"]["signerName"], &old["spec"]["signerName"], &p.child("signerName"), e);
    }
    fn row(&self, obj: &Value, _now: Timestamp) -> Vec<Value> {
        vec![name(obj), or_none(text(&obj["spec"]["signerName"]))]
    }
}
