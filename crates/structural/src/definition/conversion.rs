//! `spec.conversion`: conversion between versions. Errors have upstream's internal field names.
use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kelson_meta::path::{Errors, Path};
use kelson_meta::tree::{items, present, text};
use kelson_meta::{is_dns1035_label, is_dns1123_subdomain};
use serde_json::Value;

use super::options::Options;

const REVIEW_VERSIONS: &[&str] = &["v1", "v1beta1"];

pub(super) fn is_recognized(version: &Value) -> bool {
    REVIEW_VERSIONS.contains(&text(version))
}

pub(super) fn check(conversion: &Value, options: &Options, path: &Path<'_>, e: &mut Errors) {
    if !present(conversion) {
        return;
    }
    let strategy = text(&conversion["strategy"]);
    match strategy {
        "" => e.required(&path.child("strategy"), ""),
        "None" | "Webhook" => {}
        _ => e.not_supported(&path.child("strategy"), strategy, &["None", "Webhook"]),
    }
    let config = &conversion["webhook"]["clientConfig"];
    let reviews = &conversion["webhook"]["conversionReviewVersions"];
    let (config_path, reviews_path) = (path.child("webhookClientConfig"), path.child("conversionReviewVersions"));
    if strategy == "Webhook" {
        client(config, options, &config_path, e);
        review_versions(reviews, options, &reviews_path, e);
        return;
    }
    let why = "should not be set when strategy is not set to Webhook";
    if present(config) {
        e.forbidden(&config_path, why);
    }
    if !items(reviews).is_empty() {
        e.forbidden(&reviews_path, why);
    }
}

fn client(config: &Value, options: &Options, path: &Path<'_>, e: &mut Errors) {
    if !present(config) {
        return e.required(path, "required when strategy is set to Webhook");
    }
    match (&config["url"], &config["service"]) {
        (Value::String(written), Value::Null) => url(written, &path.child("url"), e),
        (Value::Null, settings) if present(settings) => service(settings, &path.child("service"), e),
        _ => e.required(path, "exactly one of url or service is required"),
    }
    let bundle = text(&config["caBundle"]);
    if !bundle.is_empty() && options.valid_ca_bundle && !is_ca_bundle(bundle) {
        let why = "unable to load root certificates: unable to parse bytes as PEM block";
        e.invalid(&path.child("caBundle"), bundle, why);
    }
}

fn review_versions(versions: &Value, options: &Options, path: &Path<'_>, e: &mut Errors) {
    if items(versions).is_empty() {
        return e.required(path, "");
    }
    let mut seen = HashSet::new();
    for (i, version) in items(versions).iter().map(text).enumerate() {
        if !seen.insert(version) {
            e.invalid(&path.index(i), version, "duplicate version");
            continue;
        }
        e.invalid_each(&path.index(i), version, is_dns1035_label(version));
    }
    if options.recognized_review_version && !items(versions).iter().any(is_recognized) {
        e.invalid(path, versions, format!("must include at least one of {}", REVIEW_VERSIONS.join(", ")));
    }
}

fn url(written: &str, path: &Path<'_>, e: &mut Errors) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (before_fragment, fragment) = written.split_once('#').unwrap_or((written, ""));
    let (before_query, query) = before_fragment.split_once('?').unwrap_or((before_fragment, ""));
    let (scheme, rest) = before_query.split_once("://").unwrap_or(("", before_query));
    if scheme != "https" {
        e.invalid(path, scheme, format!("'https' is the only allowed URL scheme{FORM}"));
    }
    let authority = if scheme.is_empty() { "" } else { rest.split('/').next().unwrap_or_default() };
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    if host.is_empty() {
        e.invalid(path, host, format!("host must be specified{FORM}"));
    }
    if let Some(user) = user {
        e.invalid(path, user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        e.invalid(path, fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        e.invalid(path, query, "query parameters are not permitted in the URL");
    }
}

fn service(service: &Value, path: &Path<'_>, e: &mut Errors) {
    // Upstream passes the two in the wrong order, so a missing one is reported with the other's field.
    for (missing, reported) in [("namespace", "name"), ("name", "namespace")] {
        if text(&service[missing]).is_empty() {
            e.required(&path.child(reported), "");
        }
    }
    let port = service["port"].as_i64().unwrap_or(443);
    if !(1..=65535).contains(&port) {
        e.invalid(&path.child("port"), port, "port is not valid: must be between 1 and 65535, inclusive");
    }
    let written = text(&service["path"]);
    let at = path.child("path");
    match written {
        "" | "/" => return,
        "//" => return e.invalid(&at, written, "segment[0] may not be empty"),
        _ => {}
    }
    if !written.starts_with('/') {
        e.invalid(&at, written, "must start with a '/'");
    }
    let mut chars = written.chars();
    chars.next();
    let segments = chars.as_str().strip_suffix('/').unwrap_or(chars.as_str());
    for (i, segment) in segments.split('/').enumerate() {
        if segment.is_empty() {
            e.invalid(&at, written, format!("segment[{i}] may not be empty"));
        } else if let Err(why) = is_dns1123_subdomain(segment) {
            for why in why {
                e.invalid(&at, written, format!("segment[{i}]: {why}"));
            }
        }
    }
}

/// Reports whether a conversion has no CA bundle, or a valid one. In both cases a new bundle must be valid too.
pub(super) fn has_valid_ca_bundle(conversion: &Value) -> bool {
    let bundle = text(&conversion["webhook"]["clientConfig"]["caBundle"]);
    bundle.is_empty() || is_ca_bundle(bundle)
}

/// Reports whether base64 contains at least one PEM certificate. Trust is checked when it is used.
fn is_ca_bundle(bundle: &str) -> bool {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    /// The first bytes of a DER certificate: a sequence with a two-byte length.
    const SEQUENCE: [u8; 2] = [0x30, 0x82];
    let Some(pem) = STANDARD.decode(bundle).ok().and_then(|b| String::from_utf8(b).ok()) else { return false };
    let mut blocks = pem.split(BEGIN).skip(1).filter_map(|rest| rest.split_once(END)).peekable();
    blocks.peek().is_some()
        && blocks.all(|(body, _)| {
            let body: String = body.split_whitespace().collect();
            STANDARD.decode(body).is_ok_and(|der| der.starts_with(&SEQUENCE))
        })
}
