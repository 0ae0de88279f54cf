//! Validates the status of PodCertificateRequests: a request is completed once, and the issued certificate matches the
//! request.
use jiff::{SignedDuration, Timestamp};
use kelson_pki::{CertInfo, ForeignKey, San, foreign_blocks};
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

use super::{OMITTED, SECONDS_MIN, bytes};
use crate::path::{Errors, Path};
use crate::rules;
use crate::tree::{int, items, present, same, text};

/// The maximum size of a certificate chain.
const CHAIN_BYTES_MAX: usize = 100 << 10;
/// The conditions that complete a request.
const ENDS: [&str; 3] = ["Issued", "Denied", "Failed"];
/// The minimum time between the begin of the renewal period and the begin and end of the certificate.
const REFRESH_MARGIN_SECONDS: i64 = 600;
/// The maximum difference between now and the begin of a certificate.
const BEGIN_APART_MAX: SignedDuration = SignedDuration::from_mins(5);

/// Returns the condition that has completed a request.
fn end(obj: &Value) -> Option<&str> {
    items(&obj["status"]["conditions"]).iter().map(|c| text(&c["type"])).find(|kind| ENDS.contains(kind))
}

fn check_conditions(conditions: &[Value], e: &mut Errors) -> bool {
    let status = Path::new("status");
    let p = status.child("conditions");
    let (mut ends, mut good) = (0, true);
    let mut fault = |good_one: bool| good &= good_one;
    for (i, c) in conditions.iter().enumerate() {
        let (at, kind) = (p.index(i), text(&c["type"]));
        if !ENDS.contains(&kind) {
            e.not_supported(&at.child("type"), kind, &ENDS);
            fault(false);
            continue;
        }
        ends += 1;
        if ends > 1 {
            let why = r#"There may be at most one condition with type "Issued", "Denied", or "Failed""#;
            e.invalid(&at.child("type"), kind, why);
        }
        if text(&c["status"]) != "True" {
            e.not_supported(&at.child("status"), &c["status"], &["True"]);
        }
        fault(ends == 1 && text(&c["status"]) == "True");
        for f in ["lastTransitionTime", "reason"] {
            fault(rules::required(&c[f], &at.child(f), e));
        }
    }
    good
}

/// Validates an update of the status.
pub(super) fn check_status(new: &Value, old: &Value, e: &mut Errors) {
    let status = Path::new("status");
    if !check_conditions(items(&new["status"]["conditions"]), e) {
        return;
    }
    if end(old).is_some() {
        if !same(&new["status"], &old["status"]) {
            e.invalid(&status, OMITTED, "immutable after PodCertificateRequest is issued, denied, or failed");
        }
        return;
    }
    let fields = ["certificateChain", "notBefore", "beginRefreshAt", "notAfter"];
    let filled = fields.iter().any(|f| present(&new["status"][f]) && !text(&new["status"][f]).is_empty());
    match end(new) {
        Some("Issued") => check_issued(new, old, e),
        Some(_) if filled => {
            let why = "non-condition status fields must be empty when denying or failing the PodCertificateRequest";
            e.invalid(&status, OMITTED, why);
        }
        Some(_) => {}
        None if !same(&new["status"], &old["status"]) => {
            let why = r#"status is immutable unless transitioning to "Issued", "Denied", or "Failed""#;
            e.invalid(&status, OMITTED, why);
        }
        None => {}
    }
}

/// Returns the certificates of a chain; the first is the pod's.
fn chain(given: &str) -> Result<(CertInfo, ForeignKey), &'static str> {
    let blocks = foreign_blocks(given);
    let Some(leaf) = blocks.first() else {
        return Err("issued certificate chain must contain at least one certificate");
    };
    if blocks.iter().any(|block| block.label != "CERTIFICATE") {
        return Err("issued certificate chain must consist entirely of CERTIFICATE PEM blocks");
    }
    if blocks[1..].iter().any(|block| ForeignKey::of_certificate(&block.der).is_err()) {
        return Err("intermediate certificate does not parse as valid X.509");
    }
    let info = CertInfo::from_der(&CertificateDer::from(leaf.der.as_slice())).ok();
    let both = info.zip(ForeignKey::of_certificate(&leaf.der).ok());
    both.ok_or("leaf certificate does not parse as valid X.509")
}

fn fault_of_names(info: &CertInfo) -> Option<&'static str> {
    info.sans.iter().find_map(|san| match san {
        San::Dns(name) if name.is_empty() => Some("leaf certificate should not contain empty DNSName"),
        San::Dns(name) if name.contains("..") => Some("leaf certificate's DNSName should not contain '..'"),
        San::Dns(name) if name.starts_with('.') || name.ends_with('.') => {
            Some("leaf certificate's DNSName should not start or end with '.'")
        }
        San::Email(mail) if mail.split_once('@').is_none_or(|(user, host)| user.is_empty() || host.is_empty()) => {
            Some("leaf certificate should not contain invalid EmailAddress")
        }
        _ => None,
    })
}

fn check_issued(new: &Value, old: &Value, e: &mut Errors) {
    let status = Path::new("status");
    let (given, at) = (text(&new["status"]["certificateChain"]), status.child("certificateChain"));
    if given.len() > CHAIN_BYTES_MAX {
        return e.too_long(&at, CHAIN_BYTES_MAX);
    }
    let (info, key) = match chain(given) {
        Ok(both) => both,
        Err(why) => return e.invalid(&at, given, why),
    };
    if let Some(why) = fault_of_names(&info) {
        e.invalid(&at, OMITTED, why);
    }
    let spec = &old["spec"];
    let request = bytes(&spec["stubPKCS10Request"]);
    let wanted = match request.is_empty() {
        true => ForeignKey::from_spki(&bytes(&spec["pkixPublicKey"])),
        false => ForeignKey::of_request(&request).map(|(key, _)| key),
    };
    if !wanted.is_ok_and(|wanted| wanted.is(&key)) {
        return e.invalid(&at, given, "leaf certificate was not issued to the requested public key");
    }
    check_times(new, &info, e);
}

/// Checks that the status has the certificate's times, and that its lifetime is the requested one.
fn check_times(new: &Value, info: &CertInfo, e: &mut Errors) {
    let status = Path::new("status");
    let mut time = |f: &str, why: &str| {
        let found = text(&new["status"][f]).parse::<Timestamp>().ok();
        if found.is_none() {
            e.required(&status.child(f), why);
        }
        found.map(Timestamp::as_second)
    };
    let consistent = "must be present and consistent with the issued certificate";
    let (begin, end) = (time("notBefore", consistent), time("notAfter", consistent));
    let refresh = time("beginRefreshAt", "must be present and in the range [notbefore+10min, notafter-10min]");
    let (Some(begin), Some(end), Some(refresh)) = (begin, end, refresh) else { return };
    let lifetime = end - begin;
    let (field, why) = match () {
        () if begin != info.not_before.as_second() => {
            ("notBefore", "must be set to the NotBefore time encoded in the leaf certificate".to_owned())
        }
        () if end != info.not_after.as_second() => {
            ("notAfter", "must be set to the NotAfter time encoded in the leaf certificate".to_owned())
        }
        () if lifetime < SECONDS_MIN => ("certificateChain", "leaf certificate lifetime must be >= 1 hour".to_owned()),
        () if int(&new["spec"]["maxExpirationSeconds"]).is_some_and(|max| lifetime > max) => {
            let max = int(&new["spec"]["maxExpirationSeconds"]).unwrap_or_default();
            ("certificateChain", format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({max})"))
        }
        () if refresh < begin + REFRESH_MARGIN_SECONDS => {
            ("beginRefreshAt", "must be at least 10 minutes after status.notBefore".to_owned())
        }
        () if refresh > end - REFRESH_MARGIN_SECONDS => {
            ("beginRefreshAt", "must be at least 10 minutes before status.notAfter".to_owned())
        }
        () => return,
    };
    let value = if field == "certificateChain" { json!(lifetime) } else { new["status"][field].clone() };
    e.invalid(&status.child(field), value, why);
}

/// Checks that a certificate that is issued now begins about now, by the server's clock.
pub(super) fn check_begin(new: &Value, old: &Value, now: Timestamp, e: &mut Errors) {
    if end(old).is_some() || end(new) != Some("Issued") {
        return;
    }
    let begin = &new["status"]["notBefore"];
    let apart = text(begin).parse::<Timestamp>().map(|begin| begin.duration_since(now).abs());
    if apart.is_ok_and(|apart| apart >= BEGIN_APART_MAX) {
        let why = "must be set to within 5 minutes of kube-apiserver's current time";
        e.invalid(&Path::new("status").child("notBefore"), begin, why);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kelson_pki::{Authority, Key, LeafSpec, Purpose};

    use super::super::pod_requests::PodCertificateRequests;
    use super::super::pod_requests::tests::object;
    use super::*;
    use crate::strategy::{Context, Strategy};

    const NOW: &str = "2026-05-06T07:08:09Z";

    /// Returns a status with a certificate of this lifetime for this key.
    fn issued(key: &Key, lifetime: Duration) -> Value {
        let now = NOW.parse().unwrap();
        let ca = Authority::create("ca", now).unwrap();
        let spec = LeafSpec { common_name: "p", organizations: &[], sans: &[], purpose: Purpose::Client, lifetime };
        let pem = ca.issue_for(&spec, key.clone(), now).unwrap().cert_pem;
        let info = CertInfo::from_pem(&pem).unwrap();
        let condition = json!({"type": "Issued", "status": "True", "reason": "R", "lastTransitionTime": NOW});
        json!({"conditions": [condition], "certificateChain": pem, "notBefore": info.not_before.to_string(),
            "notAfter": info.not_after.to_string(), "beginRefreshAt": "2026-05-06T07:48:09Z"})
    }

    fn updated(key: &Key, old_status: &Value, new_status: Value) -> String {
        let mut old = object(key);
        old["status"] = old_status.clone();
        let mut new = old.clone();
        new["status"] = new_status;
        PodCertificateRequests.validate_subresource_update("status", &new, &old).to_string()
    }

    #[test]
    fn what_is_issued_fits_what_was_asked_and_stays() {
        let key = Key::generate().unwrap();
        let good = issued(&key, Duration::from_secs(4000));
        let none = json!({});
        assert_eq!(updated(&key, &none, good.clone()), "[]");
        assert_eq!(updated(&key, &good, good.clone()), "[]");
        let ended = |kind: &str| json!({"conditions": [{"type": kind, "status": "True", "reason": "R", "lastTransitionTime": NOW}]});
        assert_eq!(updated(&key, &none, ended("Denied")), "[]");
        let with = |field: &str, value: Value| {
            let mut status = good.clone();
            status[field] = value;
            status
        };
        let mut denied = ended("Denied");
        denied["notBefore"] = json!(NOW);
        let two = json!({"conditions": [ended("Denied")["conditions"][0], ended("Failed")["conditions"][0]]});
        let mut unsure = ended("Failed");
        unsure["conditions"][0]["status"] = json!("False");
        let other = Key::generate().unwrap();
        for (status, part) in [
            (with("certificateChain", json!("")), "must contain at least one certificate"),
            (with("certificateChain", json!(key.public().to_pem())), "consist entirely of CERTIFICATE"),
            (issued(&other, Duration::from_secs(4000)), "not issued to the requested public key"),
            (issued(&key, Duration::from_secs(8000)), "lifetime must be <= spec.maxExpirationSeconds (7200)"),
            (issued(&key, Duration::from_secs(3000)), "lifetime must be >= 1 hour"),
            (with("notBefore", json!("2026-05-06T07:08:08Z")), "status.notBefore"),
            (with("notAfter", Value::Null), "status.notAfter: Required value"),
            (with("beginRefreshAt", json!("2026-05-06T07:09:09Z")), "at least 10 minutes after"),
            (with("beginRefreshAt", json!("2026-05-06T08:10:09Z")), "at least 10 minutes before"),
            (denied, "must be empty when denying or failing"),
            (two, "at most one condition"),
            (unsure, "status.conditions[0].status: Unsupported value"),
            (ended("Approved"), "Unsupported value: \"Approved\""),
            (json!({"notBefore": NOW}), "status is immutable unless"),
        ] {
            let said = updated(&key, &none, status.clone());
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(updated(&key, &good, ended("Denied")).contains("immutable after"));
    }

    #[test]
    fn what_is_issued_begins_about_now() {
        let key = Key::generate().unwrap();
        let good = issued(&key, Duration::from_secs(4000));
        let begin: Timestamp = text(&good["notBefore"]).parse().unwrap();
        let judged = |now: Timestamp, old_status: &Value, new_status: &Value| {
            let mut old = object(&key);
            old["status"] = old_status.clone();
            let mut new = old.clone();
            new["status"] = new_status.clone();
            PodCertificateRequests.judge_subresource_time(&Context::at(now), "status", &new, &old).to_string()
        };
        let none = json!({});
        for (seconds, fits) in [(0, true), (299, true), (-299, true), (300, false), (-300, false), (86400, false)] {
            let said = judged(begin + SignedDuration::from_secs(seconds), &none, &good);
            assert_eq!(said == "[]", fits, "{seconds}: {said}");
            assert!(fits || said.contains("within 5 minutes of kube-apiserver's current time"), "{said}");
        }
        // A certificate that was issued before is not validated again.
        assert_eq!(judged(begin + SignedDuration::from_secs(86400), &good, &good), "[]");
        let denied =
            json!({"conditions": [{"type": "Denied", "status": "True", "reason": "R", "lastTransitionTime": NOW}]});
        assert_eq!(judged(begin + SignedDuration::from_secs(86400), &none, &denied), "[]");
    }
}
