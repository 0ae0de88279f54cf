//! PodCertificateRequests: a kubelet requests, for a pod, that a signer issues a certificate for a key of the pod.
//! Upstream `pkg/apis/certificates/validation`, KEP-4317.
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::{is_dns1123_subdomain, is_qualified_name};
use kelson_pki::{ForeignKey, KeyKind, Signed};
use serde_json::{Value, json};

use super::pod_status::{check_begin, check_status};
use super::{GROUP, OMITTED, SECONDS_MIN, bytes, signer_name};
use crate::column::{Column, NAME};
use crate::metadata::IMMUTABLE;
use crate::options::{Options, columns, texts};
use crate::path::{Errors, Path};
use crate::strategy::{Context, Strategy, base_status_update};
use crate::table::{label_map, name};
use crate::tree::{ensure, int, items, same, text};

/// The strategy of podcertificaterequests.
pub struct PodCertificateRequests;

static POD_REQUESTS: LazyLock<Options> = LazyLock::new(|| Options {
    allow_unconditional_update: false,
    columns: columns![
        NAME,
        Column::text("PodName", "Pod the certificate is for."),
        Column::text("ServiceAccountName", "Service account of the pod."),
        Column::text("NodeName", "Node of the pod."),
        Column::text("SignerName", "Requested signer."),
        Column::text("State", "Issued, denied, failed or pending."),
        Column::text("UnverifiedUserAnnotations", "Additional annotations requested by the pod.").wide(),
    ],
    fields: texts!["spec.signerName", "spec.podName", "spec.nodeName"],
    ..Options::of(GROUP, "podcertificaterequests")
});

const UID_BYTES_MAX: usize = 128;
/// The maximum sizes of key, proof, and request.
const KEY_BYTES_MAX: usize = 10 << 10;
const ANNOTATIONS_BYTES_MAX: usize = 256 << 10;
/// The maximum lifetime: a day for Kubernetes' own signers, ninety-one days for others.
const KUBERNETES_SECONDS_MAX: i64 = 24 * 3600;
const SECONDS_MAX: i64 = 91 * 24 * 3600;

fn check_annotations(annotations: &Value, p: &Path<'_>, e: &mut Errors) {
    let Some(annotations) = annotations.as_object() else { return };
    for key in annotations.keys() {
        let prefixed = key.contains('/');
        if !prefixed {
            e.invalid(p, key, "must be a domain-prefixed key (such as \"acme.io/foo\")");
        } else {
            e.invalid_each(p, key, is_qualified_name(&key.to_lowercase()));
        }
    }
    let size: usize = annotations.iter().map(|(key, value)| key.len() + text(value).len()).sum();
    if size > ANNOTATIONS_BYTES_MAX {
        e.too_long(p, ANNOTATIONS_BYTES_MAX);
    }
}

/// Checks the type of a key.
fn check_kind(key: &ForeignKey, p: &Path<'_>, e: &mut Errors) -> bool {
    match key.kind() {
        KeyKind::Ed25519 => return true,
        KeyKind::Ecdsa(curve) if ["P-256", "P-384", "P-521"].contains(&curve.as_str()) => return true,
        KeyKind::Rsa(3072 | 4096) => return true,
        KeyKind::Ecdsa(curve) => {
            e.invalid(p, format!("curve {curve}"), "elliptic public keys must use curve P256, P384, or P521");
        }
        KeyKind::Rsa(bits) => {
            e.invalid(p, format!("{bits}-bit modulus"), "RSA keys must have modulus size 3072 or 4096");
        }
        KeyKind::Other => {
            e.invalid(p, OMITTED, "unknown public key type; supported types are Ed25519, ECDSA, and RSA");
        }
    }
    false
}

/// Validates the key, given as an empty request that it signed, or, in the older form, with a proof that its holder
/// signed the pod's UID.
fn check_key(spec: &Value, e: &mut Errors) {
    let p = Path::new("spec");
    let (request, key, proof) =
        (bytes(&spec["stubPKCS10Request"]), bytes(&spec["pkixPublicKey"]), bytes(&spec["proofOfPossession"]));
    match (request.is_empty(), key.is_empty(), proof.is_empty()) {
        (false, true, true) => {
            let at = p.child("stubPKCS10Request");
            if request.len() > KEY_BYTES_MAX {
                return e.too_long(&at, KEY_BYTES_MAX);
            }
            let Ok((key, signed)) = ForeignKey::of_request(&request) else {
                return e.invalid(&at, OMITTED, "must be a valid PKCS#10 CSR");
            };
            // A key of an unsupported type proves nothing.
            if check_kind(&key, &at, e) && signed != Signed::Well {
                e.invalid(&at, OMITTED, "invalid signature");
            }
        }
        (true, false, false) => {
            let (at, proof_at) = (p.child("pkixPublicKey"), p.child("proofOfPossession"));
            for (given, at) in [(&key, &at), (&proof, &proof_at)] {
                if given.len() > KEY_BYTES_MAX {
                    return e.too_long(at, KEY_BYTES_MAX);
                }
            }
            let Ok(key) = ForeignKey::from_spki(&key) else {
                return e.invalid(&at, &spec["pkixPublicKey"], "must be a valid PKIX-serialized public key");
            };
            if check_kind(&key, &at, e) && !key.has_signed(text(&spec["podUID"]).as_bytes(), &proof) {
                e.invalid(&proof_at, OMITTED, "could not verify proof-of-possession signature");
            }
        }
        _ => e.invalid(
            &p,
            OMITTED,
            "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set",
        ),
    }
}

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
        check_annotations(&spec["unverifiedUserAnnotations"], &p.child("unverifiedUserAnnotations"), e);
        for f in ["podName", "serviceAccountName", "nodeName"] {
            e.invalid_each(&p.child(f), text(&spec[f]), is_dns1123_subdomain(text(&spec[f])));
        }
        for f in ["podUID", "serviceAccountUID", "nodeUID"] {
            match text(&spec[f]).len() {
                0 => e.invalid(&p.child(f), "", "must not be empty"),
                1..=UID_BYTES_MAX => {}
                _ => e.too_long(&p.child(f), UID_BYTES_MAX),
            }
        }
        let at = p.child("maxExpirationSeconds");
        let Some(seconds) = int(&spec["maxExpirationSeconds"]) else { return e.required(&at, "must be set") };
        let domain = text(&spec["signerName"]).split('/').next().unwrap_or_default();
        let own = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
        let max = if own { KUBERNETES_SECONDS_MAX } else { SECONDS_MAX };
        if !(SECONDS_MIN..=max).contains(&seconds) {
            e.invalid(&at, seconds, format!("must be in the range [{SECONDS_MIN}, {max}]"));
        }
        check_key(spec, e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        if !same(&new["spec"], &old["spec"]) {
            e.invalid(&Path::new("spec"), &new["spec"], IMMUTABLE);
        }
    }
    fn prepare_subresource_update(&self, _cx: &Context<'_>, _subresource: &str, new: &mut Value, old: &Value) {
        base_status_update(new, old);
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        check_status(new, old, e);
    }
    fn check_subresource_time(&self, cx: &Context<'_>, _subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        check_begin(new, old, cx.now, e);
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use kelson_pki::{Key, create_request, foreign_blocks};

    fn der(key: &Key) -> Vec<u8> {
        foreign_blocks(&create_request(key, "", &[], &[]).unwrap()).remove(0).der
    }

    /// Returns a stored request of a pod with this key.
    pub(in super::super) fn object(key: &Key) -> Value {
        json!({"metadata": {"name": "r", "namespace": "a", "resourceVersion": "1"}, "spec": {
            "signerName": "example.com/s", "podName": "p", "podUID": "u", "serviceAccountName": "sa",
            "serviceAccountUID": "u", "nodeName": "n", "nodeUID": "u", "maxExpirationSeconds": 7200,
            "stubPKCS10Request": STANDARD.encode(der(key))}, "status": {}})
    }

    fn created(change: impl FnOnce(&mut Value)) -> String {
        let mut object = object(&Key::generate().unwrap());
        object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        change(&mut object["spec"]);
        PodCertificateRequests.validate_create(&object).to_string()
    }

    #[test]
    fn what_is_asked_must_be_whole_and_signed() {
        let key = Key::generate().unwrap();
        let spki = STANDARD.encode(key.public().spki());
        let mut forged = der(&key);
        *forged.last_mut().unwrap() ^= 1;
        let with = |spec: &mut Value, signed: &[u8]| {
            spec["stubPKCS10Request"] = json!("");
            spec["pkixPublicKey"] = json!(spki);
            spec["proofOfPossession"] = json!(STANDARD.encode(key.sign(signed).unwrap()));
        };
        assert_eq!(created(|_| ()), "[]");
        assert_eq!(created(|spec| with(spec, b"u")), "[]");
        let long = "x".repeat(UID_BYTES_MAX + 1);
        type Change<'a> = Box<dyn FnOnce(&mut Value) + 'a>;
        let rows: Vec<(Change<'_>, &str)> = vec![
            (Box::new(|s| s["signerName"] = json!("x")), "spec.signerName"),
            (Box::new(|s| s["podName"] = json!("A")), "spec.podName"),
            (Box::new(|s| s["podUID"] = json!("")), "spec.podUID: Invalid value: \"\": must not be empty"),
            (Box::new(|s| s["nodeUID"] = json!(long)), "spec.nodeUID: Too long"),
            (Box::new(|s| s["maxExpirationSeconds"] = Value::Null), "spec.maxExpirationSeconds: Required value"),
            (Box::new(|s| s["maxExpirationSeconds"] = json!(3599)), "must be in the range [3600, 7862400]"),
            (
                Box::new(|s| {
                    s["signerName"] = json!("kubernetes.io/x");
                    s["maxExpirationSeconds"] = json!(86401);
                }),
                "must be in the range [3600, 86400]",
            ),
            (Box::new(|s| s["unverifiedUserAnnotations"] = json!({"a": "b"})), "domain-prefixed"),
            (Box::new(|s| s["stubPKCS10Request"] = json!("")), "exactly one of"),
            (Box::new(|s| s["pkixPublicKey"] = json!(spki)), "exactly one of"),
            (Box::new(|s| s["stubPKCS10Request"] = json!("AAAA")), "must be a valid PKCS#10 CSR"),
            (Box::new(|s| s["stubPKCS10Request"] = json!(STANDARD.encode(&forged))), "invalid signature"),
            (
                Box::new(|s| s["stubPKCS10Request"] = json!(STANDARD.encode(vec![0; KEY_BYTES_MAX + 1]))),
                "stubPKCS10Request: Too long",
            ),
            (Box::new(|s| with(s, b"another pod")), "could not verify proof-of-possession signature"),
            (
                Box::new(|s| {
                    with(s, b"u");
                    s["pkixPublicKey"] = json!("AAAA");
                }),
                "must be a valid PKIX-serialized public key",
            ),
        ];
        for (change, part) in rows {
            let said = created(change);
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
