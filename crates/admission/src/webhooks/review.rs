//! `AdmissionReview`: the request sent to a webhook, and its answer (upstream `plugin/webhook/request`).
use std::collections::BTreeMap;

use base64::Engine as _;
use bytes::Bytes;
use kelson_auth::UserInfo;
use kelson_meta::{Gvk, Gvr, Reason, Status};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Attributes;
use crate::dynamic::{Match, VersionedObjects};

/// The only patch type.
pub const JSON_PATCH: &str = "JSONPatch";

/// A version of `admission.k8s.io`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewVersion {
    /// Checks the answer's kind, uid and patch type.
    V1,
    /// Does not check the answer.
    V1beta1,
}

impl ReviewVersion {
    /// Parses an entry of `admissionReviewVersions`; `None` for an unsupported version.
    pub fn parse(version: &str) -> Option<Self> {
        match version {
            "v1" => Some(Self::V1),
            "v1beta1" => Some(Self::V1beta1),
            _ => None,
        }
    }
    fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "admission.k8s.io/v1",
            Self::V1beta1 => "admission.k8s.io/v1beta1",
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    kind: &'a str,
    api_version: &'a str,
    request: Request<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    uid: &'a str,
    kind: &'a KindName,
    resource: &'a ResourceName,
    #[serde(skip_serializing_if = "str::is_empty")]
    sub_resource: &'a str,
    request_kind: &'a KindName,
    request_resource: &'a ResourceName,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_sub_resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    operation: &'a str,
    user_info: &'a UserInfo,
    object: Option<&'a Value>,
    old_object: Option<&'a Value>,
    dry_run: bool,
    options: Option<Value>,
}

#[derive(Serialize)]
struct KindName {
    group: String,
    version: String,
    kind: String,
}

#[derive(Serialize)]
struct ResourceName {
    group: String,
    version: String,
    resource: String,
}

fn kind(gvk: &Gvk) -> KindName {
    KindName { group: gvk.group.clone(), version: gvk.version.clone(), kind: gvk.kind.clone() }
}

fn resource(gvr: &Gvr) -> ResourceName {
    ResourceName { group: gvr.group.clone(), version: gvr.version.clone(), resource: gvr.resource.clone() }
}

/// Builds the review of a request, as JSON.
pub fn request(
    version: ReviewVersion,
    uid: &str,
    a: &Attributes<'_>,
    form: &Match<'_>,
    shown: &VersionedObjects<'_>,
) -> Bytes {
    let review = Review {
        kind: "AdmissionReview",
        api_version: version.api_version(),
        request: Request {
            uid,
            kind: &kind(&form.kind),
            resource: &resource(&form.resource),
            sub_resource: a.subresource,
            request_kind: &kind(a.kind),
            request_resource: &resource(a.resource),
            request_sub_resource: a.subresource,
            name: a.name,
            namespace: a.namespace,
            operation: a.operation.as_str(),
            user_info: a.user,
            object: shown.object.as_deref(),
            old_object: shown.old.as_deref(),
            dry_run: a.dry_run,
            options: a.options.object(),
        },
    };
    // Trees and strings can always be written as JSON.
    serde_json::to_vec(&review).unwrap_or_default().into()
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Answered {
    kind: String,
    api_version: String,
    response: Option<Response>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    status: Option<Value>,
    patch: Option<String>,
    patch_type: Option<String>,
    audit_annotations: Option<BTreeMap<String, String>>,
    warnings: Option<Vec<String>>,
}

/// The answer of a webhook.
#[derive(Debug, Default, PartialEq)]
pub struct Answer {
    /// Whether the request is admitted.
    pub allowed: bool,
    /// The status of a denial, as received.
    pub status: Option<Value>,
    /// JSON patch operations; empty for none.
    pub patch: Vec<u8>,
    /// The type of `patch`.
    pub patch_type: String,
    /// Audit annotations, without the webhook's name.
    pub audit_annotations: BTreeMap<String, String>,
    /// Warnings for the client.
    pub warnings: Vec<String>,
}

/// Why an answer is invalid.
#[derive(Debug, PartialEq, Eq)]
pub enum AnswerError {
    /// It is not JSON of the right form: upstream counts this as a failed call.
    Undecodable(String),
    /// It violates a rule of the review format.
    Invalid(String),
}

/// Decodes an answer.
///
/// # Errors
/// See [`AnswerError`].
pub fn answer(version: ReviewVersion, uid: &str, mutating: bool, bytes: &[u8]) -> Result<Answer, AnswerError> {
    let undecodable = |e: &dyn std::fmt::Display| {
        AnswerError::Undecodable(format!("couldn't get version/kind; json parse error: {e}"))
    };
    let answered: Answered = kelson_meta::from_json(bytes).map_err(|e| undecodable(&e))?;
    let response = answered.response.ok_or_else(|| AnswerError::Invalid("webhook response was absent".to_owned()))?;
    let patch = response.patch.unwrap_or_default();
    let patch = base64::engine::general_purpose::STANDARD.decode(patch).map_err(|e| undecodable(&e))?;
    let invalid = |why: String| Err(AnswerError::Invalid(why));
    let mut patch_type = response.patch_type;
    match version {
        ReviewVersion::V1 => {
            if response.uid != uid {
                return invalid(format!("expected response.uid={uid:?}, got {:?}", response.uid));
            }
            let wanted = version.api_version();
            if answered.api_version != wanted || answered.kind != "AdmissionReview" {
                let got = match answered.api_version.as_str() {
                    "" => "/".to_owned(),
                    said if said.contains('/') => said.to_owned(),
                    version => format!("/{version}"),
                };
                let kind = answered.kind;
                return invalid(format!(
                    "expected webhook response of {wanted}, Kind=AdmissionReview, got {got}, Kind={kind}"
                ));
            }
            if mutating {
                match (&patch_type, patch.is_empty()) {
                    (None, false) => {
                        return invalid("webhook returned response.patch but not response.patchType".to_owned());
                    }
                    (Some(_), true) => {
                        return invalid("webhook returned response.patchType but not response.patch".to_owned());
                    }
                    (Some(kind), _) if kind.is_empty() => {
                        return invalid(format!("webhook returned invalid response.patchType of {kind:?}"));
                    }
                    _ => {}
                }
            } else if !patch.is_empty() {
                return invalid("validating webhook may not return response.patch".to_owned());
            } else if patch_type.is_some() {
                return invalid("validating webhook may not return response.patchType".to_owned());
            }
        }
        // Its patch type is not checked.
        ReviewVersion::V1beta1 => patch_type = (!patch.is_empty()).then(|| JSON_PATCH.to_owned()),
    }
    Ok(Answer {
        allowed: response.allowed,
        status: response.status,
        patch: if mutating { patch } else { Vec::new() },
        patch_type: patch_type.unwrap_or_default(),
        audit_annotations: response.audit_annotations.unwrap_or_default(),
        warnings: response.warnings.unwrap_or_default(),
    })
}

/// Returns the status of a denial for the client: the webhook's, with its name as a prefix, and with an error code
/// only.
pub fn refusal(webhook: &str, said: Option<Value>) -> Status {
    let said = said.unwrap_or_default();
    let denied = format!("admission webhook {webhook:?} denied the request");
    let reason = said["reason"].as_str().unwrap_or("").to_owned();
    let mut status: Status =
        serde_json::from_value(said).unwrap_or_else(|_| Status::failure(0, Reason::Unknown, String::new()));
    status.success = false;
    status.code = status.code.max(400);
    status.message = match (status.message.as_str(), reason.as_str()) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn answers() {
        let read = |version, mutating, value: Value| answer(version, "u", mutating, value.to_string().as_bytes());
        let v1 = |response: Value| json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
        let patch = base64::engine::general_purpose::STANDARD.encode("[]");
        let invalid = |why: &str| Err(AnswerError::Invalid(why.to_owned()));
        for (mutating, said, want) in [
            (false, v1(json!({"uid": "u", "allowed": true})), Ok(())),
            (true, v1(json!({"uid": "u", "patch": patch, "patchType": "JSONPatch"})), Ok(())),
            (false, v1(Value::Null), invalid("webhook response was absent")),
            (false, v1(json!({"uid": "x"})), invalid("expected response.uid=\"u\", got \"x\"")),
            (
                false,
                json!({"response": {"uid": "u"}}),
                invalid("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind="),
            ),
            (
                true,
                v1(json!({"uid": "u", "patch": patch})),
                invalid("webhook returned response.patch but not response.patchType"),
            ),
            (
                true,
                v1(json!({"uid": "u", "patchType": "JSONPatch"})),
                invalid("webhook returned response.patchType but not response.patch"),
            ),
            (
                true,
                v1(json!({"uid": "u", "patchType": "", "patch": patch})),
                invalid("webhook returned invalid response.patchType of \"\""),
            ),
            (
                false,
                v1(json!({"uid": "u", "patch": patch})),
                invalid("validating webhook may not return response.patch"),
            ),
            (
                false,
                v1(json!({"uid": "u", "patchType": "JSONPatch"})),
                invalid("validating webhook may not return response.patchType"),
            ),
        ] {
            assert_eq!(read(ReviewVersion::V1, mutating, said.clone()).map(|_| ()), want, "{said}");
        }
        // The old version is lenient.
        let old = read(ReviewVersion::V1beta1, true, json!({"response": {"patch": patch}})).unwrap();
        assert_eq!((old.patch.as_slice(), old.patch_type.as_str()), (&b"[]"[..], JSON_PATCH));
        assert!(matches!(answer(ReviewVersion::V1, "u", true, b"<html>"), Err(AnswerError::Undecodable(_))));
        assert!(matches!(
            read(ReviewVersion::V1, true, v1(json!({"uid": "u", "patch": "%"}))),
            Err(AnswerError::Undecodable(_))
        ));
    }

    #[test]
    fn refusals() {
        for (said, code, message) in [
            (json!(null), 400, "admission webhook \"w\" denied the request without explanation"),
            (
                json!({"message": "no", "code": 403, "reason": "Forbidden"}),
                403,
                "admission webhook \"w\" denied the request: no",
            ),
            (json!({"reason": "because", "code": 200}), 400, "admission webhook \"w\" denied the request: because"),
            (
                json!({"status": "Success", "message": "x", "code": 0}),
                400,
                "admission webhook \"w\" denied the request: x",
            ),
        ] {
            let status = refusal("w", Some(said));
            assert_eq!((status.code, status.message.as_str(), status.success), (code, message, false));
        }
        assert!(refusal("w", Some(json!({"code": 403, "reason": "Forbidden"}))).is(Reason::Forbidden));
    }
}
