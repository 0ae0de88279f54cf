//! CertificateSigningRequests: the server sets the requester, and approval and issue are separate subresources.
//! Upstream `pkg/apis/certificates/validation`.
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kelson_meta::format_seconds;
use kelson_pki::{ForeignKey, Signed, foreign_blocks};
use serde_json::{Value, json};

use super::{GROUP, signer_name};
use crate::column::{AGE, Column, NAME};
use crate::names::NameRule;
use crate::options::{Options, columns, texts};
use crate::path::{Errors, Path};
use crate::rules;
use crate::strategy::{Context, Strategy, base_status_update};
use crate::table::{age, human_duration, name, or_none};
use crate::text::Texts;
use crate::tree::{ensure, int, items, items_mut, present, remove, restore, same, set, text};

const LIFETIME_SECONDS_MIN: i64 = 600;
const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// The strategy of certificatesigningrequests.
pub struct CertificateSigningRequests;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    name: NameRule::Any,
    columns: columns![
        NAME,
        AGE,
        Column::text("SignerName", "Requested signer."),
        Column::text("Requestor", "User who created the request."),
        Column::text("RequestedDuration", "Requested lifetime."),
        Column::text("Condition", "Approval, failure and issue."),
    ],
    fields: texts!["spec.signerName"],
    ..Options::of(GROUP, "certificatesigningrequests")
});

impl Strategy for CertificateSigningRequests {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        ensure(obj, "status");
    }
    fn prepare_create(&self, cx: &Context<'_>, obj: &mut Value) {
        set(obj, "status", json!({}));
        let Some(spec) = ensure(obj, "spec") else { return };
        for f in ["username", "uid", "groups", "extra"] {
            remove(spec, f);
        }
        // The server records the authenticated requester, whatever the request contains.
        let Some(user) = cx.user else { return };
        set(spec, "username", user.name);
        if !user.uid.is_empty() {
            set(spec, "uid", user.uid);
        }
        if !user.groups.is_empty() {
            set(spec, "groups", user.groups.to_vec());
        }
        if !user.extra.is_empty() {
            set(spec, "extra", json!(user.extra));
        }
    }
    fn reset_fields(&self, subresource: &str) -> Vec<Texts> {
        match subresource {
            // A client that applies the request again owns none of its fields, as upstream.
            "" => vec![texts!["spec"], texts!["status"]],
            "approval" => vec![texts!["spec"], texts!["status", "certificate"]],
            _ => vec![texts!["spec"], texts!["status", "conditions"]],
        }
    }
    fn check_create(&self, obj: &Value, e: &mut Errors) {
        check_spec(&obj["spec"], e);
    }
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        base_status_update(new, old);
        restore(new, old, "status");
    }
    fn check_update(&self, _new: &Value, _old: &Value, _e: &mut Errors) {}
    fn prepare_subresource_update(&self, cx: &Context<'_>, subresource: &str, new: &mut Value, old: &Value) {
        base_status_update(new, old);
        let now = format_seconds(cx.now);
        if subresource == "approval" {
            let conditions = new["status"]["conditions"].clone();
            restore(new, old, "status");
            if present(&conditions)
                && let Some(s) = ensure(new, "status")
            {
                set(s, "conditions", conditions);
            }
        } else {
            preserve(new, old, "Approved");
            preserve(new, old, "Denied");
        }
        let Some(status) = new.get_mut("status") else { return };
        for c in items_mut(status, "conditions") {
            if !present(&c["lastUpdateTime"]) {
                set(c, "lastUpdateTime", now.clone());
            }
            if !present(&c["lastTransitionTime"]) {
                let was = items(&old["status"]["conditions"])
                    .iter()
                    .find(|o| o["type"] == c["type"] && o["status"] == c["status"])
                    .map(|o| text(&o["lastTransitionTime"]).to_owned())
                    .filter(|t| !t.is_empty());
                set(c, "lastTransitionTime", was.unwrap_or_else(|| now.clone()));
            }
        }
    }
    fn check_subresource_update(&self, subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        check_status_update(subresource, new, old, e);
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &obj["spec"];
        let has = |kind: &str| items(&obj["status"]["conditions"]).iter().any(|c| text(&c["type"]) == kind);
        let mut state = if has("Denied") {
            "Denied"
        } else if has("Approved") {
            "Approved"
        } else {
            "Pending"
        }
        .to_owned();
        if has("Failed") {
            state.push_str(",Failed");
        }
        if !text(&obj["status"]["certificate"]).is_empty() {
            state.push_str(",Issued");
        }
        let lifetime = int(&spec["expirationSeconds"]).map_or_else(String::new, human_duration);
        vec![
            name(obj),
            age(obj, now),
            or_none(text(&spec["signerName"])),
            json!(text(&spec["username"])),
            or_none(&lifetime),
            json!(state),
        ]
    }
}

/// Restores the conditions of `kind` if their number is unchanged.
fn preserve(new: &mut Value, old: &Value, kind: &str) {
    let was: Vec<Value> =
        items(&old["status"]["conditions"]).iter().filter(|c| text(&c["type"]) == kind).cloned().collect();
    let Some(status) = new.get_mut("status") else { return };
    let now: Vec<&mut Value> = items_mut(status, "conditions").filter(|c| text(&c["type"]) == kind).collect();
    if now.len() == was.len() {
        for (n, w) in now.into_iter().zip(was) {
            *n = w;
        }
    }
}

/// Returns what is wrong with a request: it is not a PEM block, not a request, or not signed by its key.
fn fault_of_request(request: &Value) -> Option<&'static str> {
    let bytes = STANDARD.decode(text(request)).unwrap_or_default();
    let found = String::from_utf8_lossy(&bytes);
    let first = foreign_blocks(&found).into_iter().next();
    let Some(block) = first.filter(|block| block.label == "CERTIFICATE REQUEST") else {
        return Some("PEM block type must be CERTIFICATE REQUEST");
    };
    match ForeignKey::of_request(&block.der) {
        Err(_) => Some("unable to parse certificate request"),
        Ok((_, Signed::Badly)) => Some("unable to verify certificate request signature"),
        Ok(_) => None,
    }
}

/// Returns what is wrong with an issued certificate: each PEM block must be a certificate, and there must be one.
fn fault_of_certificate(certificate: &Value) -> Option<String> {
    let bytes = STANDARD.decode(text(certificate)).unwrap_or_default();
    let found = String::from_utf8_lossy(&bytes);
    let blocks = foreign_blocks(&found);
    for block in &blocks {
        if block.label != "CERTIFICATE" {
            return Some(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", block.label));
        }
        if block.has_headers {
            return Some("no PEM block headers are permitted".into());
        }
        if ForeignKey::of_certificate(&block.der).is_err() {
            return Some("found a CERTIFICATE PEM block that does not hold one certificate".into());
        }
    }
    blocks.is_empty().then(|| "must contain at least one CERTIFICATE PEM block".into())
}

fn check_spec(spec: &Value, e: &mut Errors) {
    let p = Path::new("spec");
    if let Some(why) = fault_of_request(&spec["request"]) {
        e.invalid(&p.child("request"), &spec["request"], why);
    }
    let usages = items(&spec["usages"]);
    let at = p.child("usages");
    if usages.is_empty() {
        e.required(&at, "");
    }
    for (i, u) in usages.iter().enumerate() {
        if !USAGES.contains(&text(u)) {
            e.not_supported(&at.index(i), u, USAGES);
        }
        if usages[..i].contains(u) {
            e.duplicate(&at.index(i), u);
        }
    }
    let signer = text(&spec["signerName"]);
    let at = p.child("signerName");
    if signer == "kubernetes.io/legacy-unknown" {
        e.invalid(&at, signer, "the legacy signerName is not allowed via this API version");
    } else {
        signer_name(signer, &at, e);
    }
    if let Some(n) = int(&spec["expirationSeconds"])
        && n < LIFETIME_SECONDS_MIN
    {
        e.invalid(&p.child("expirationSeconds"), n, "may not specify a duration less than 600 seconds (10 minutes)");
    }
}

fn check_status_update(subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
    let status = Path::new("status");
    let p = status.child("conditions");
    let conditions = items(&new["status"]["conditions"]);
    let mut seen: Vec<&str> = Vec::new();
    for (i, c) in conditions.iter().enumerate() {
        let (at, kind) = (p.index(i), text(&c["type"]));
        rules::required(&c["type"], &at.child("type"), e);
        let allowed: &[&str] =
            if matches!(kind, "Approved" | "Denied" | "Failed") { &["True"] } else { &["False", "True", "Unknown"] };
        rules::one_of(&c["status"], &at.child("status"), allowed, e);
        if (kind == "Approved" && seen.contains(&"Denied")) || (kind == "Denied" && seen.contains(&"Approved")) {
            e.invalid(&p, kind, "Approved and Denied conditions are mutually exclusive");
        }
        if seen.contains(&kind) {
            e.duplicate(&at.child("type"), kind);
        }
        seen.push(kind);
    }
    let of = |obj: &Value, kind: &str| -> Vec<Value> {
        items(&obj["status"]["conditions"]).iter().filter(|c| text(&c["type"]) == kind).cloned().collect()
    };
    for kind in ["Approved", "Denied", "Failed"] {
        let (was, now) = (of(old, kind), of(new, kind));
        if now.len() < was.len() {
            e.forbidden(&p, format!("updates may not remove a condition of type {kind:?}"));
        } else if subresource != "approval" && kind != "Failed" && now.len() > was.len() {
            e.forbidden(&p, format!("updates may not add a condition of type {kind:?}"));
        } else if subresource != "approval" && kind != "Failed" && !same(&json!(now), &json!(was)) {
            e.forbidden(&p, format!("updates may not modify a condition of type {kind:?}"));
        }
    }
    let (was, now) = (text(&old["status"]["certificate"]), text(&new["status"]["certificate"]));
    let at = status.child("certificate");
    if !was.is_empty() && was != now {
        e.forbidden(&at, "updates may not modify a non-empty certificate");
    }
    if was.is_empty()
        && !now.is_empty()
        && let Some(why) = fault_of_certificate(&new["status"]["certificate"])
    {
        e.invalid(&at, "<certificate data>", why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::User;
    use kelson_pki::{Authority, Key, create_request, pem_block};
    use std::collections::BTreeMap;

    fn request() -> String {
        create_request(&Key::generate().unwrap(), "system:node:n1", &[], &[]).unwrap()
    }

    #[test]
    fn a_request_of_another_kind_is_rejected_with_its_reason() {
        let good = request();
        let mut der = foreign_blocks(&good).remove(0).der;
        let at = der.windows(2).position(|w| w == b"n1").unwrap();
        der[at + 1] = b'2';
        let frame = "PEM block type must be CERTIFICATE REQUEST";
        for (text, wanted) in [
            (good, None),
            (pem_block("CERTIFICATE REQUEST", &der), Some("unable to verify certificate request signature")),
            (pem_block("CERTIFICATE REQUEST", b"x"), Some("unable to parse certificate request")),
            (pem_block("CERTIFICATE", &der), Some(frame)),
            ("-----BEGIN CERTIFICATE REQUEST-----".into(), Some(frame)),
            (String::new(), Some(frame)),
        ] {
            assert_eq!(fault_of_request(&json!(STANDARD.encode(&text))), wanted, "{text}");
        }
    }

    #[test]
    fn an_issued_certificate_is_one() {
        let ca = Authority::create("ca", "2026-05-06T07:08:09Z".parse().unwrap()).unwrap();
        let fault = |text: &str| fault_of_certificate(&json!(STANDARD.encode(text))).unwrap_or_default();
        let good = ca.cert_pem();
        assert_eq!(fault(&format!("{good}{good}")), "");
        for (text, part) in [
            (String::new(), "at least one"),
            (good.replace("CERTIFICATE", "X"), "found \"X\""),
            (format!("{good}{}", pem_block("CERTIFICATE", b"x")), "does not hold one"),
            (good.replace("CERTIFICATE-----\nMII", "CERTIFICATE-----\na: b\n\nMII"), "headers"),
        ] {
            assert!(fault(&text).contains(part), "{text}: {}", fault(&text));
        }
    }

    #[test]
    fn the_server_says_who_asked() {
        let extra = BTreeMap::new();
        let groups = ["system:nodes".to_owned()];
        let user = User { name: "system:node:n", uid: "", groups: &groups, extra: &extra };
        let cx = Context { now: Timestamp::UNIX_EPOCH, user: Some(user) };
        let mut c = json!({"metadata": {"name": "c"}, "spec": {"username": "root", "signerName": "a.b/c",
            "request": STANDARD.encode(request()), "usages": ["client auth"]},
            "status": {"certificate": "x"}});
        CertificateSigningRequests.prepare_create(&cx, &mut c);
        assert_eq!(c["spec"]["username"], "system:node:n");
        assert_eq!(c["status"], json!({}));
        assert_eq!(CertificateSigningRequests.validate_create(&c).to_string(), "[]");

        c["metadata"]["resourceVersion"] = json!("1");
        let mut new = c.clone();
        new["status"] = json!({"certificate": "ignored", "conditions": [{"type": "Approved", "status": "True"}]});
        CertificateSigningRequests.prepare_subresource_update(&cx, "approval", &mut new, &c);
        assert_eq!(new["status"]["conditions"][0]["lastUpdateTime"], "1970-01-01T00:00:00Z");
        assert!(new["status"].get("certificate").is_none());
        assert_eq!(CertificateSigningRequests.validate_subresource_update("approval", &new, &c).to_string(), "[]");
        assert_eq!(
            CertificateSigningRequests.validate_subresource_update("status", &new, &c).to_string(),
            "status.conditions: Forbidden: updates may not add a condition of type \"Approved\""
        );
    }
}
