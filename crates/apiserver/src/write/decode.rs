//! Decode: parses a request's body in any encoding into the canonical tree of the expected kind, with the requested field validation.
use bytes::Bytes;
use http::{HeaderMap, header};
use kelson_codec::{DecodeError, Encoding, FieldValidation, Limits};
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Gvk, Reason, Status};
use serde_json::Value;

use crate::catalog::ObjectSchema;
use crate::shared::context::RequestContext;
use crate::write::prepare;

/// Media types of bodies, in the order of upstream's error message.
pub const ACCEPTED: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

/// The lower-case media type of a body without parameters.
pub fn media_type(headers: &HeaderMap) -> String {
    let text = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    text.split(';').next().unwrap_or("").trim().to_ascii_lowercase()
}

/// The encoding of a body; JSON without a `Content-Type`.
///
/// # Errors
/// 415 for another media type.
pub fn encoding(headers: &HeaderMap) -> Result<Encoding, Status> {
    match media_type(headers).as_str() {
        "" | "application/json" | "*/*" => Ok(Encoding::Json),
        "application/yaml" => Ok(Encoding::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Encoding::Protobuf),
        _ => Err(Status::unsupported_media_type(&ACCEPTED)),
    }
}

/// Kinds that every group has, and the name of the scheme in which upstream registers them.
const META_KINDS: [&str; 8] = [
    "ListOptions",
    "GetOptions",
    "DeleteOptions",
    "CreateOptions",
    "UpdateOptions",
    "PatchOptions",
    "WatchEvent",
    "Status",
];
const META_SCHEME: &str = "pkg/apis/meta/internalversion/scheme/register.go:27";

/// The field validation of this write.
///
/// # Errors
/// 422 for an unknown value.
pub fn validation(cx: &RequestContext) -> Result<FieldValidation, Status> {
    FieldValidation::parse(cx.query.text("fieldValidation")).ok_or_else(|| {
        let mut errors = kelson_meta::FieldErrors::new();
        let path = kelson_meta::FieldPath::new("fieldValidation");
        errors.not_supported(&path, cx.query.text("fieldValidation"), &["", "Ignore", "Strict", "Warn"]);
        let kind = match cx.info.verb {
            "create" => "CreateOptions",
            "update" => "UpdateOptions",
            _ => "PatchOptions",
        };
        Status::invalid(&kelson_meta::GroupKind { group: "meta.k8s.io".into(), kind: kind.into() }, "", &errors)
    })
}

/// Decodes an object of the expected kind.
///
/// # Errors
/// 400 with upstream's message, 415.
pub fn object(cx: &RequestContext, expected: &Gvk, schema: &ObjectSchema, body: &[u8]) -> Result<Value, Status> {
    object_or_older(cx, expected, "", schema, body)
}

/// As [`object`], for a kind that has the same schema in an older version that is no longer served, such as `policy/v1beta1`.
///
/// # Errors
/// As [`object`].
pub fn object_or_older(
    cx: &RequestContext,
    expected: &Gvk,
    older: &str,
    schema: &ObjectSchema,
    body: &[u8],
) -> Result<Value, Status> {
    let encoding = encoding(&cx.headers)?;
    let validation = validation(cx)?;
    let strict = validation != FieldValidation::Ignore;
    let decoded = schema.decode(encoding, body, strict).map_err(|e| decode_failure(encoding, expected, body, &e))?;
    let mut value = decoded.value;
    let is_dynamic = matches!(schema, ObjectSchema::Dynamic(_));
    if value.is_null() && is_dynamic {
        return Err(unrecognized(expected, &kind_missing(body), body));
    }
    if !value.is_object() {
        return Err(unrecognized(expected, &no_kind(encoding, body, ""), body));
    }
    if let Some(odd) = value["apiVersion"].as_str().filter(|version| version.matches('/').count() > 1) {
        return Err(unrecognized(expected, &format!("unexpected GroupVersion string: {odd}"), body));
    }
    // Clients that join an empty group and a version write `/v1` for the core group.
    let said = value["apiVersion"].as_str().map(|version| version.strip_prefix('/').unwrap_or(version));
    let same = said.is_some_and(|said| !older.is_empty() && said == older || *said == expected.api_version());
    if same {
        value["apiVersion"] = expected.api_version().into();
    }
    if is_dynamic {
        if value.get("kind").and_then(Value::as_str).unwrap_or("").is_empty() {
            return Err(unrecognized(expected, &kind_missing(body), body));
        }
        report_strict_errors(cx, validation, expected, &decoded.strict)?;
        check_dynamic_kind(&value, expected)?;
    } else {
        check_kind(&value, expected)?;
        report_strict_errors(cx, validation, expected, &decoded.strict)?;
    }
    if resets_managed_fields(cx, encoding, &value, body) {
        prepare::empty_managed_fields(&mut value);
    }
    if let Some(o) = value.as_object_mut() {
        // A body may omit kind and version, because the path implies them.
        if o.get("apiVersion").and_then(Value::as_str).unwrap_or("").is_empty() {
            o.insert("apiVersion".into(), expected.api_version().into());
        }
        if o.get("kind").and_then(Value::as_str).unwrap_or("").is_empty() {
            o.insert("kind".into(), expected.kind.clone().into());
        }
        return Ok(value);
    }
    Err(Status::bad_request(format!("the body is not an object of kind {}", expected.kind)))
}

/// Whether an update explicitly sets empty `managedFields`, which the canonical tree does not show. Protobuf cannot express it.
fn resets_managed_fields(cx: &RequestContext, encoding: Encoding, value: &Value, body: &[u8]) -> bool {
    if cx.info.verb != "update" || !cx.info.subresource.is_empty() || encoding == Encoding::Protobuf {
        return false;
    }
    let named = value["metadata"].get("managedFields").is_some();
    if named || memchr::memmem::find(body, b"managedFields").is_none() {
        return false;
    }
    let read = match encoding {
        Encoding::Yaml => kelson_codec::yaml::to_value_within(body, Limits::DOCUMENT).map(|(value, _)| value),
        _ => kelson_codec::decode(encoding, None, body, false).map(|decoded| decoded.value),
    };
    read.is_ok_and(|sent| prepare::empties_managed_fields(&sent))
}

/// Handles errors of strict decoding: an error, warnings or nothing, depending on `fieldValidation`.
///
/// # Errors
/// 400 under `Strict`.
pub fn report_strict_errors(
    cx: &RequestContext,
    validation: FieldValidation,
    expected: &Gvk,
    found: &kelson_codec::StrictErrors,
) -> Result<(), Status> {
    if found.is_empty() {
        return Ok(());
    }
    match validation {
        FieldValidation::Strict => Err(Status::cannot_be_handled(expected, &found.to_string())),
        FieldValidation::Warn => {
            found.0.iter().for_each(|text| cx.warn(text.clone()));
            Ok(())
        }
        FieldValidation::Ignore => Ok(()),
    }
}

/// Custom resources must contain their version and kind.
fn check_dynamic_kind(value: &Value, expected: &Gvk) -> Result<(), Status> {
    let text = |k: &str| value.get(k).and_then(Value::as_str).unwrap_or("");
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if api_version != expected.api_version() {
        return Err(other_version(api_version, expected));
    }
    if kind != expected.kind {
        let mut errors = FieldErrors::new();
        errors.invalid(&FieldPath::new("kind"), kind, format!("must be {}", expected.kind));
        let given = GroupKind { group: expected.group.clone(), kind: kind.to_owned() };
        return Err(Status::invalid(&given, value["metadata"]["name"].as_str().unwrap_or(""), &errors));
    }
    Ok(())
}

fn kind_missing(body: &[u8]) -> String {
    format!("Object 'Kind' is missing in '{}'", String::from_utf8_lossy(body))
}

fn other_version(given: &str, expected: &Gvk) -> Status {
    let wanted = expected.api_version();
    Status::bad_request(format!(
        "the API version in the data ({given}) does not match the expected API version ({wanted})"
    ))
}

/// Groups whose kinds upstream registers in other schemes, with unspecific names.
const SEPARATE_SCHEMES: [&str; 2] = ["apiextensions.k8s.io", "apiregistration.k8s.io"];
/// The name of upstream's scheme for all other built-in kinds.
const SCHEME: &str = "pkg/api/legacyscheme/scheme.go:30";

fn check_kind(value: &Value, expected: &Gvk) -> Result<(), Status> {
    let text = |k: &str| value.get(k).and_then(Value::as_str).unwrap_or("");
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let wanted = expected.api_version();
    let version = if api_version.is_empty() { wanted.as_str() } else { api_version };
    let named = if kind.is_empty() { expected.kind.as_str() } else { kind };
    let known = is_known(version, named);
    let group = version.split_once('/').map_or("", |(group, _)| group);
    if (!known || group != expected.group) && !SEPARATE_SCHEMES.contains(&expected.group.as_str()) {
        let short = version.rsplit('/').next().unwrap_or_default();
        let why = other_kind(version, named, expected);
        let expected = &expected.kind;
        return Err(Status::bad_request(format!(
            "{named} in version {short:?} cannot be handled as a {expected}: {why}"
        )));
    }
    if !api_version.is_empty() && api_version != wanted {
        return Err(other_version(api_version, expected));
    }
    if !kind.is_empty() && kind != expected.kind {
        let why = other_kind(version, kind, expected);
        return Err(Status::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a {}: {why}",
            expected.version, expected.kind
        )));
    }
    Ok(())
}

fn is_known(api_version: &str, kind: &str) -> bool {
    kelson_schema::Schema::builtin().by_api_version(api_version, kind).is_some()
}

/// The error message for an object of another kind than the expected built-in one.
pub fn other_kind(api_version: &str, kind: &str, expected: &Gvk) -> String {
    if !is_known(api_version, kind) && !SEPARATE_SCHEMES.contains(&expected.group.as_str()) {
        return format!("no kind {kind:?} is registered for version {api_version:?} in scheme {SCHEME:?}");
    }
    let version = api_version.rsplit('/').next().unwrap_or_default();
    format!("converting ({version}.{kind}) to ({}.{}): unknown conversion", group_word(expected), expected.kind)
}

fn group_word(gvk: &Gvk) -> &str {
    if gvk.group.is_empty() { "core" } else { gvk.group.split('.').next().unwrap_or("") }
}

/// The error for a document that cannot be decoded.
pub fn unreadable(error: &DecodeError) -> Status {
    match error {
        DecodeError::TooLarge => Status::too_large(crate::request::body::REQUEST_BODY_BYTES_MAX),
        DecodeError::OverBudget(_) => Status::failure(413, Reason::RequestEntityTooLarge, error.to_string()),
        _ => Status::bad_request(error.to_string()),
    }
}

fn decode_failure(encoding: Encoding, expected: &Gvk, body: &[u8], error: &DecodeError) -> Status {
    if matches!(error, DecodeError::TooLarge | DecodeError::OverBudget(_)) {
        return unreadable(error);
    }
    match kelson_codec::peek(encoding, body) {
        // The document can be parsed, but its content does not fit the kind.
        Ok(meta) => {
            let version = meta.api_version.rsplit('/').next().filter(|v| !v.is_empty()).unwrap_or(&expected.version);
            let kind = if meta.kind.is_empty() { &expected.kind } else { &meta.kind };
            Status::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {}: {error}",
                expected.kind
            ))
        }
        Err(_) => unrecognized(expected, &no_kind(encoding, body, &error.to_string()), body),
    }
}

fn unrecognized(expected: &Gvk, why: &str, body: &[u8]) -> Status {
    let kind = &expected.kind;
    Status::bad_request(format!("the object provided is unrecognized (must be of type {kind}): {why} ({})", dump(body)))
}

/// The error message for a document without version and kind: a wrong type of these fields, or a syntax error.
fn no_kind(encoding: Encoding, body: &[u8], unread: &str) -> String {
    let json = match encoding {
        Encoding::Json => Ok(body.to_vec()),
        Encoding::Yaml => kelson_codec::yaml::to_json(body).map(|converted| converted.json),
        Encoding::Protobuf => return unread.to_owned(),
    };
    let Ok(json) = json else { return unread.to_owned() };
    const HEAD: &str =
        r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
    let why = match kelson_codec::decode(Encoding::Json, None, &json, false).map(|decoded| decoded.value) {
        Err(_) => unread.to_owned(),
        Ok(Value::Object(fields)) => {
            let wrong = ["apiVersion", "kind"].into_iter().filter_map(|name| Some((name, fields.get(name)?)));
            let wrong = wrong.into_iter().find(|(_, value)| !value.is_string() && !value.is_null());
            wrong.map_or(unread.to_owned(), |(name, value)| {
                format!(
                    "json: cannot unmarshal {} into Go struct field .{name} of type string",
                    kelson_codec::go_kind(value, "bool")
                )
            })
        }
        Ok(other) => {
            format!("json: cannot unmarshal {} into Go value of type {HEAD}", kelson_codec::go_kind(&other, "bool"))
        }
    };
    format!("couldn't get version/kind; json parse error: {why}")
}

/// The beginning of an undecodable body: as a string if it looks like JSON, else in hexadecimal.
fn dump(body: &[u8]) -> String {
    const SHOWN_MAX: usize = 30;
    if body.is_empty() {
        return "<empty>".into();
    }
    let head = &body[..body.len().min(SHOWN_MAX)];
    let mut out = match head {
        [b'{', ..] => String::from_utf8_lossy(head).into_owned(),
        _ => head.iter().map(|b| format!("{b:02x}")).collect(),
    };
    if body.len() > SHOWN_MAX {
        out.push_str(" ...");
    }
    out
}

/// Decodes options (`DeleteOptions`) from the body; `None` if it is empty. Unknown versions are read as `meta/v1`, because all groups
/// use that.
///
/// # Errors
/// 400, 415.
pub fn options(headers: &HeaderMap, kind: &str, body: &Bytes) -> Result<Option<Value>, Status> {
    if body.is_empty() {
        return Ok(None);
    }
    let encoding = encoding(headers)?;
    let decoded = ObjectSchema::meta(kind).decode(encoding, body, false).map_err(|e| {
        match kelson_codec::peek(encoding, body) {
            Ok(_) => Status::bad_request(e.to_string()),
            Err(_) => Status::bad_request(no_kind(encoding, body, &e.to_string())),
        }
    })?;
    let value = decoded.value;
    if let Some(given) = value.get("kind").and_then(Value::as_str)
        && !given.is_empty()
        && given != kind
    {
        return Err(Status::bad_request(match META_KINDS.contains(&given) {
            true => format!("decoded object cannot be converted to {kind}"),
            false => {
                let version = value["apiVersion"].as_str().unwrap_or("");
                format!("no kind {given:?} is registered for version {version:?} in scheme {META_SCHEME:?}")
            }
        }));
    }
    Ok(Some(value))
}
