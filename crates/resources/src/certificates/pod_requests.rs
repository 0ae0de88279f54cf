//! PodCertificateRequests: a kubelet asks, for a pod, that a signer issues a certificate to a key of that pod. Upstream
//! `pkg/apis/certificates/validation`, KEP-4317.
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{GROUP, signer_name};
use crate::column::{Column, NAME};
use crate::metadata::IMMUTABLE;
use crate::options::{Options, columns, texts};
use crate::path::{Errors, Path};
use crate::rules;
use crate::strategy::Strategy;
use crate::table::{label_map, name};
use crate::tree::{ensure, int, items, same, text};

/// The podcertificaterequests resource.
pub struct PodCertificateRequests;

static POD_REQUESTS: LazyLock<Options> = LazyLock::new(|| Options {
    allow_unconditional_update: false,
    columns: columns![
        NAME,
        Column::text("PodName", "Pod the certificate is for."),
        Column::text("ServiceAccountName", "Service account of the pod."),
        Column::text("NodeName", "Node of the pod."),
        Column::text("SignerName", "Signer that is asked."),
        Column::text("State", "Issued, denied, failed or pending."),
        Column::text("UnverifiedUserAnnotations", "What the pod's author asked besides.").wide(),
    ],
    fields: texts!["spec.signerName", "spec.podName", "spec.nodeName"],
    ..Options::of(GROUP, "podcertificaterequests")
});

impl Strategy for PodCertificateRequests {
    fn options(&self) -> &Options {
        &POD_REQUESTS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        ensure(obj, "status");
    }
    fn check_create(&self, obj: &Value, e: &mut Errors) {
        let (spec, p) = (&obj["spec"], Path::new("spec"));
        signer_name(text(&spec["signerName"]), &p.child("signerName"), e);
        for f in ["podName", "podUID", "serviceAccountName", "serviceAccountUID", "nodeName", "nodeUID"] {
            rules::required(&spec[f], &p.child(f), e);
        }
        if let Some(n) = int(&spec["maxExpirationSeconds"])
            && n < 3600
        {
            e.invalid(&p.child("maxExpirationSeconds"), n, "must be in the range [3600, 7862400]");
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        if !same(&new["spec"], &old["spec"]) {
            e.invalid(&Path::new("spec"), &new["spec"], IMMUTABLE);
        }
    }
    fn row(&self, obj: &Value, _now: Timestamp) -> Vec<Value> {
        let spec = &obj["spec"];
        let state = items(&obj["status"]["conditions"])
            .iter()
            .rev()
            .map(|c| text(&c["type"]))
            .find(|t| matches!(*t, "Issued" | "Denied" | "Failed"))
            .unwrap_or("Pending");
        let cell = |f: &str| json!(text(&spec[f]));
        vec![
            name(obj),
            cell("podName"),
            cell("serviceAccountName"),
            cell("nodeName"),
            cell("signerName"),
            json!(state),
            json!(label_map(&spec["unverifiedUserAnnotations"])),
        ]
    }
}
