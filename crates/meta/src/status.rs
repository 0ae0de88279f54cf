//! `metav1.Status`, the API's error type, with upstream's reasons and messages (apimachinery `api/errors`).
use std::sync::{Mutex, PoisonError};

use http::StatusCode;
use serde::{Deserialize, Serialize};

use crate::{FieldError, FieldErrors, GroupKind, GroupResource, Gvk};

/// The machine-readable reason of a `Status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// The status has no reason.
    #[default]
    Unknown,
    /// 401: the credentials are missing or unknown to the server.
    Unauthorized,
    /// 403: the user is authenticated, but not authorized.
    Forbidden,
    /// 404: the object, resource or path does not exist.
    NotFound,
    /// 409 on create: the object exists.
    AlreadyExists,
    /// 409 on update: the object was modified.
    Conflict,
    /// 410: the resource existed and will not come back.
    Gone,
    /// 422: the object was decoded, but validation rejected it.
    Invalid,
    /// 500: the client should retry elsewhere or later.
    ServerTimeout,
    /// 507 in old servers: the server read invalid data from its store.
    StoreReadError,
    /// 504: the request timed out. It is unknown whether the change happened.
    Timeout,
    /// 429: too many requests, or a disruption budget that allows no more disruptions.
    TooManyRequests,
    /// 400: the request is malformed or contradictory.
    BadRequest,
    /// 405: the resource does not support this verb.
    MethodNotAllowed,
    /// 406: the server supports none of the accepted media types.
    NotAcceptable,
    /// 413: the body, response or patch exceeds a limit.
    RequestEntityTooLarge,
    /// 415: the server does not support the media type of the body.
    UnsupportedMediaType,
    /// 500: the server failed.
    InternalError,
    /// 410: the resourceVersion of a watch or a continue token is too old.
    Expired,
    /// 503: the service is unavailable. A retry may succeed.
    ServiceUnavailable,
    /// A reason that a webhook or another server defined. Clients receive it unchanged.
    Other(OtherReason),
}

/// A reason that Kubernetes does not define.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherReason(&'static str);

/// The maximum number of custom reasons. Further ones become [`Reason::Unknown`].
const OTHERS_MAX: usize = 256;
/// The maximum length of a custom reason in bytes.
const OTHER_BYTES_MAX: usize = 64;

/// The custom reasons so far. They are never freed; their number and length are limited.
static OTHERS: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// The reasons that Kubernetes defines.
const REASONS: [Reason; 20] = [
    Reason::Unknown,
    Reason::Unauthorized,
    Reason::Forbidden,
    Reason::NotFound,
    Reason::AlreadyExists,
    Reason::Conflict,
    Reason::Gone,
    Reason::Invalid,
    Reason::ServerTimeout,
    Reason::StoreReadError,
    Reason::Timeout,
    Reason::TooManyRequests,
    Reason::BadRequest,
    Reason::MethodNotAllowed,
    Reason::NotAcceptable,
    Reason::RequestEntityTooLarge,
    Reason::UnsupportedMediaType,
    Reason::InternalError,
    Reason::Expired,
    Reason::ServiceUnavailable,
];

impl Serialize for Reason {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d).map(|text| Self::parse(&text))
    }
}

/// One cause in `details.causes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusCause {
    /// The machine-readable cause, such as `FieldValueRequired`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The message without the path of the field.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The path of the invalid field from the object's root; empty if the cause is not about a field.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

impl From<&FieldError> for StatusCause {
    fn from(error: &FieldError) -> Self {
        Self { reason: error.kind.cause().to_owned(), message: error.body(), field: error.path.clone() }
    }
}

/// The `status.details`: the object of the failure and its causes, for programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatusDetails {
    /// The name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The API group of `kind`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The kind, or often the plural name of the resource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The UID of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The single errors, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<StatusCause>,
    /// The number of seconds after which a client should retry.
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: i32,
}

fn is_zero(n: &i32) -> bool {
    *n == 0
}

/// A `metav1.Status`: the answer of the API to a failed request, and to some others such as a delete. Its code and
/// reason are for programs, its message is for people. The details name the object and each invalid field.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Wire")]
pub struct Status {
    /// The HTTP status code. The code of an error is never 2xx.
    pub code: u16,
    /// The reason, which is more specific than the code: 409 is `AlreadyExists` or `Conflict`.
    pub reason: Reason,
    /// The message for the client.
    pub message: String,
    /// The details. They are boxed because most statuses have none.
    pub details: Option<Box<StatusDetails>>,
    /// Whether the status is `Success` instead of `Failure`.
    pub success: bool,
}

#[derive(Deserialize, Serialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    kind: String,
    api_version: String,
    metadata: serde_json::Map<String, serde_json::Value>,
    status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Box<StatusDetails>>,
    code: u16,
}

impl From<Wire> for Status {
    fn from(w: Wire) -> Self {
        let reason = Reason::parse(&w.reason);
        Self { code: w.code, reason, message: w.message, details: w.details, success: w.status == "Success" }
    }
}

impl Serialize for Status {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        Wire {
            kind: "Status".into(),
            api_version: "v1".into(),
            metadata: serde_json::Map::new(),
            status: if self.success { "Success" } else { "Failure" }.into(),
            message: self.message.clone(),
            reason: self.reason.as_str().into(),
            details: self.details.clone(),
            code: self.code,
        }
        .serialize(s)
    }
}

impl Reason {
    /// Returns the string on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Gone => "Gone",
            Self::Invalid => "Invalid",
            Self::ServerTimeout => "ServerTimeout",
            Self::StoreReadError => "StorageReadError",
            Self::Timeout => "Timeout",
            Self::TooManyRequests => "TooManyRequests",
            Self::BadRequest => "BadRequest",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::InternalError => "InternalError",
            Self::Expired => "Expired",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::Other(OtherReason(word)) => word,
        }
    }

    /// Parses the string on the wire. Unknown reasons become custom ones.
    pub fn parse(text: &str) -> Self {
        if let Some(own) = REASONS.into_iter().find(|reason| reason.as_str() == text) {
            return own;
        }
        // A panic leaves no inconsistent list, so a poisoned lock is still usable.
        let mut others = OTHERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = others.iter().find(|word| **word == text) {
            return Self::Other(OtherReason(known));
        }
        if others.len() == OTHERS_MAX || text.len() > OTHER_BYTES_MAX {
            return Self::Unknown;
        }
        let word: &'static str = Box::leak(text.to_owned().into_boxed_str());
        others.push(word);
        Self::Other(OtherReason(word))
    }
}

impl Status {
    /// Creates a failure with any code, reason and message.
    pub fn failure(code: u16, reason: Reason, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, success: false }
    }
    /// Creates a success, for example the response to a delete.
    pub fn success() -> Self {
        Self { code: 200, reason: Reason::Unknown, message: String::new(), details: None, success: true }
    }
    fn with(mut self, gr: &GroupResource, name: &str) -> Self {
        self.details = Some(Box::new(StatusDetails {
            name: name.into(),
            group: gr.group.clone(),
            kind: gr.resource.clone(),
            ..Default::default()
        }));
        self
    }
    /// Creates a 404: `pods "x" not found`.
    pub fn not_found(gr: &GroupResource, name: &str) -> Self {
        Self::failure(404, Reason::NotFound, format!("{gr} {name:?} not found")).with(gr, name)
    }
    /// Creates a 404 for an unknown path.
    pub fn no_such_path() -> Self {
        let mut s = Self::failure(404, Reason::NotFound, "the server could not find the requested resource");
        s.details = Some(Box::default());
        s
    }
    /// Creates a 409 for a create request.
    pub fn already_exists(gr: &GroupResource, name: &str) -> Self {
        Self::failure(409, Reason::AlreadyExists, format!("{gr} {name:?} already exists")).with(gr, name)
    }
    /// Creates a 409 for an update request. `why` is for example [`Status::MODIFIED`].
    pub fn conflict(gr: &GroupResource, name: &str, why: &str) -> Self {
        Self::failure(409, Reason::Conflict, format!("Operation cannot be fulfilled on {gr} {name:?}: {why}"))
            .with(gr, name)
    }
    /// The message of a conflict of optimistic concurrency.
    pub const MODIFIED: &str =
        "the object has been modified; please apply your changes to the latest version and try again";
    /// Creates a 403: `pods "x" is forbidden: why`.
    pub fn forbidden(gr: &GroupResource, name: &str, why: &str) -> Self {
        let message = match (gr.resource.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {why}"),
            (false, true) => format!("{gr} is forbidden: {why}"),
            (false, false) => format!("{gr} {name:?} is forbidden: {why}"),
        };
        Self::failure(403, Reason::Forbidden, message).with(gr, name)
    }
    /// Creates a 401 in upstream's words. It gives no reason, because a client must not learn why.
    pub fn unauthorized() -> Self {
        Self::failure(401, Reason::Unauthorized, "Unauthorized")
    }
    /// Creates a 400 with a message for the client.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(400, Reason::BadRequest, message)
    }
    /// Creates a 405 for a method that the path does not support.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        let mut status = Self::failure(405, Reason::MethodNotAllowed, message);
        status.details = Some(Box::default());
        status
    }
    /// Creates a 422 with one cause per field error.
    pub fn invalid(kind: &GroupKind, name: &str, errors: &FieldErrors) -> Self {
        let mut s = Self::failure(422, Reason::Invalid, format!("{kind} {name:?} is invalid: {errors}"));
        s.details = Some(Box::new(StatusDetails {
            name: name.into(),
            group: kind.group.clone(),
            kind: kind.kind.clone(),
            causes: errors.0.iter().map(StatusCause::from).collect(),
            ..Default::default()
        }));
        s
    }
    /// Creates a 500. `message` is visible to the client.
    pub fn internal(message: impl std::fmt::Display) -> Self {
        let mut s = Self::failure(500, Reason::InternalError, format!("Internal error occurred: {message}"));
        s.details = Some(Box::new(StatusDetails {
            causes: vec![StatusCause { message: message.to_string(), ..Default::default() }],
            ..Default::default()
        }));
        s
    }
    /// Creates a 410 `Expired`: the server no longer has the resourceVersion of a watch or continue token.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::failure(410, Reason::Expired, message)
    }
    /// Creates a 503. The message says what is missing.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::failure(503, Reason::ServiceUnavailable, message)
    }
    /// Creates a 504 with the seconds after which a client may retry.
    pub fn timeout(message: impl Into<String>, retry_after_seconds: i32) -> Self {
        let mut s = Self::failure(504, Reason::Timeout, format!("Timeout: {}", message.into()));
        s.details = Some(Box::new(StatusDetails { retry_after_seconds, ..Default::default() }));
        s
    }
    /// Creates a 429 with the seconds after which a client may retry.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: i32) -> Self {
        let mut s = Self::failure(429, Reason::TooManyRequests, message);
        s.details = Some(Box::new(StatusDetails { retry_after_seconds, ..Default::default() }));
        s
    }
    /// Creates a 413 for a body above a limit in bytes.
    pub fn too_large(limit_bytes: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit_bytes}");
        Self::failure(413, Reason::RequestEntityTooLarge, message)
    }
    /// Creates a 406 with the supported media types.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::failure(406, Reason::NotAcceptable, message)
    }
    /// Creates a 415 with the supported media types.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::failure(415, Reason::UnsupportedMediaType, message)
    }
    /// Creates a 415 without a list of media types, for routes that check the media type themselves.
    pub fn unsupported_by_route() -> Self {
        let details = Some(Box::default());
        Self { details, ..Self::failure(415, Reason::UnsupportedMediaType, "415: Unsupported Media Type") }
    }
    /// Creates a 405 for a verb that a custom resource does not support.
    pub fn verb_not_supported(resource: &GroupResource, verb: &str) -> Self {
        let message = format!("{verb} is not supported on resources of kind \"{resource}\"");
        let mut status = Self::failure(405, Reason::MethodNotAllowed, message);
        let details =
            StatusDetails { group: resource.group.clone(), kind: resource.resource.clone(), ..<_>::default() };
        status.details = Some(Box::new(details));
        status
    }
    /// Creates the 400 of strict decoding and conversion errors, which names the kind.
    pub fn cannot_be_handled(gvk: &Gvk, why: &str) -> Self {
        let message = format!("{} in version {:?} cannot be handled as a {}: {why}", gvk.kind, gvk.version, gvk.kind);
        Self::failure(400, Reason::BadRequest, message)
    }
    /// Returns the status code of the HTTP response.
    pub fn http(&self) -> StatusCode {
        StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
    /// Returns whether the status has this reason.
    pub fn is(&self, reason: Reason) -> bool {
        self.reason == reason
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_form() {
        let s = Status::not_found(&GroupResource::new("apps", "deployments"), "x");
        let json = serde_json::to_value(&s).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
                "message":"deployments.apps \"x\" not found","reason":"NotFound",
                "details":{"name":"x","group":"apps","kind":"deployments"},"code":404})
        );
        assert_eq!(serde_json::from_value::<Status>(json).unwrap(), s);
    }

    #[test]
    fn reasons_of_others_pass_as_they_came() {
        for own in REASONS {
            assert_eq!(Reason::parse(own.as_str()), own);
        }
        let read: Status =
            serde_json::from_str(r#"{"status": "Failure", "code": 451, "reason": "LegalReasons"}"#).unwrap();
        assert_eq!((read.code, read.reason.as_str()), (451, "LegalReasons"));
        assert_eq!(read.reason, Reason::parse("LegalReasons"));
        assert_eq!(serde_json::to_value(&read).unwrap()["reason"], "LegalReasons");
        assert_eq!(Reason::parse(&"x".repeat(OTHER_BYTES_MAX + 1)), Reason::Unknown);
        let all: std::collections::HashSet<&str> =
            (0..2 * OTHERS_MAX).map(|i| Reason::parse(&format!("Made{i}")).as_str()).collect();
        assert!(all.len() <= OTHERS_MAX + 1, "a flood of words is bounded");
    }
}
