//! `metav1.Status`: the only error form a client ever sees. Constructors give upstream's reasons, codes and messages
//! (apimachinery `api/errors`). Operator-only detail never goes in here; log it instead.
use std::sync::{Mutex, PoisonError};

use http::StatusCode;
use serde::{Deserialize, Serialize};

use crate::{FieldError, FieldErrors, GroupKind, GroupResource, Gvk};

/// Machine-readable reason of a `Status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// No reason given.
    #[default]
    Unknown,
    /// 401: no credentials, or none that the server knows.
    Unauthorized,
    /// 403: known, and may not.
    Forbidden,
    /// 404: there is no such object, resource or path.
    NotFound,
    /// 409, on create
    AlreadyExists,
    /// 409, on update
    Conflict,
    /// 410: it was there, and will not come back.
    Gone,
    /// 422: read well, and refused by validation.
    Invalid,
    /// 500, the client should retry elsewhere or later
    ServerTimeout,
    /// 507 in old servers; 500-class
    StoreReadError,
    /// 504: not done within the request's time; whether it happened is unknown.
    Timeout,
    /// 429: too many requests, or a disruption budget that has nothing left.
    TooManyRequests,
    /// 400: cannot be read, or asks for what makes no sense.
    BadRequest,
    /// 405: the resource does not have this verb.
    MethodNotAllowed,
    /// 406: none of the forms that the client accepts is served.
    NotAcceptable,
    /// 413: body, answer or patch beyond a limit.
    RequestEntityTooLarge,
    /// 415: the body is in a form that is not read here.
    UnsupportedMediaType,
    /// 500: a fault of the server.
    InternalError,
    /// 410, watch or continue token too old
    Expired,
    /// 503: not now; a later try may succeed.
    ServiceUnavailable,
    /// One that a webhook or another server made up; clients get it as it came.
    Other(OtherReason),
}

/// A reason that is none of Kubernetes' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherReason(&'static str);

/// Made-up reasons that are known at most; any further one is [`Reason::Unknown`].
const OTHERS_MAX: usize = 256;
/// Longest made-up reason, in bytes.
const OTHER_BYTES_MAX: usize = 64;

/// The made-up reasons so far. They stay for good, which their number and length bound.
static OTHERS: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// Kubernetes' own reasons.
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
    /// Machine-readable cause, e.g. `FieldValueRequired`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What is wrong, in words, without the field's path.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Path of the field that is at fault, from the object's root; empty where it is no field's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

impl From<&FieldError> for StatusCause {
    fn from(error: &FieldError) -> Self {
        Self { reason: error.kind.cause().to_owned(), message: error.body(), field: error.path.clone() }
    }
}

/// `status.details`: what the failure is about, for programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatusDetails {
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group of `kind`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Kind; by tradition often the resource's plural.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// UID of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Each of the faults, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<StatusCause>,
    /// Seconds after which a retry may help.
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: i32,
}

fn is_zero(n: &i32) -> bool {
    *n == 0
}

/// `metav1.Status`. Boxed details keep `Result<_, Status>` small.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Wire")]
pub struct Status {
    /// HTTP status code; an error's is never a 2xx.
    pub code: u16,
    /// One word for programs, which says more than the code: 409 is `AlreadyExists` or `Conflict`.
    pub reason: Reason,
    /// Message for the client.
    pub message: String,
    /// Boxed, since most statuses have none.
    pub details: Option<Box<StatusDetails>>,
    /// `Success` rather than `Failure`.
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
    /// The wire form.
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

    /// From the wire form, whoever it is of.
    pub fn parse(text: &str) -> Self {
        if let Some(own) = REASONS.into_iter().find(|reason| reason.as_str() == text) {
            return own;
        }
        // A list of words is whole after a panic.
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
    /// A failure with any code, reason and message.
    pub fn failure(code: u16, reason: Reason, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, success: false }
    }
    /// A success, e.g. the answer to a delete.
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
    /// 404: `pods "x" not found`.
    pub fn not_found(gr: &GroupResource, name: &str) -> Self {
        Self::failure(404, Reason::NotFound, format!("{gr} {name:?} not found")).with(gr, name)
    }
    /// 404 for a path nothing serves.
    pub fn no_such_path() -> Self {
        let mut s = Self::failure(404, Reason::NotFound, "the server could not find the requested resource");
        s.details = Some(Box::default());
        s
    }
    /// 409 on create.
    pub fn already_exists(gr: &GroupResource, name: &str) -> Self {
        Self::failure(409, Reason::AlreadyExists, format!("{gr} {name:?} already exists")).with(gr, name)
    }
    /// 409 on update; `why` is e.g. [`Status::MODIFIED`].
    pub fn conflict(gr: &GroupResource, name: &str, why: &str) -> Self {
        Self::failure(409, Reason::Conflict, format!("Operation cannot be fulfilled on {gr} {name:?}: {why}"))
            .with(gr, name)
    }
    /// The text of an optimistic-lock conflict.
    pub const MODIFIED: &str =
        "the object has been modified; please apply your changes to the latest version and try again";
    /// 403: `pods "x" is forbidden: why`.
    pub fn forbidden(gr: &GroupResource, name: &str, why: &str) -> Self {
        let message = match (gr.resource.is_empty(), name.is_empty()) {
            (true, _) => format!("forbidden: {why}"),
            (false, true) => format!("{gr} is forbidden: {why}"),
            (false, false) => format!("{gr} {name:?} is forbidden: {why}"),
        };
        Self::failure(403, Reason::Forbidden, message).with(gr, name)
    }
    /// 401 in upstream's words; says no more, so that nobody learns what was wrong with a credential.
    pub fn unauthorized() -> Self {
        Self::failure(401, Reason::Unauthorized, "Unauthorized")
    }
    /// 400 with a message for the client.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(400, Reason::BadRequest, message)
    }
    /// 405 for a method that nothing at the path takes.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        let mut status = Self::failure(405, Reason::MethodNotAllowed, message);
        status.details = Some(Box::default());
        status
    }
    /// 422 with one cause per field error.
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
    /// 500; `message` is what the client may know.
    pub fn internal(message: impl std::fmt::Display) -> Self {
        let mut s = Self::failure(500, Reason::InternalError, format!("Internal error occurred: {message}"));
        s.details = Some(Box::new(StatusDetails {
            causes: vec![StatusCause { message: message.to_string(), ..Default::default() }],
            ..Default::default()
        }));
        s
    }
    /// 410 `Expired`: a watch or continue position that the server no longer has.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::failure(410, Reason::Expired, message)
    }
    /// 503: not now; the message says what is missing.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::failure(503, Reason::ServiceUnavailable, message)
    }
    /// 504, with a hint when to retry.
    pub fn timeout(message: impl Into<String>, retry_after_seconds: i32) -> Self {
        let mut s = Self::failure(504, Reason::Timeout, format!("Timeout: {}", message.into()));
        s.details = Some(Box::new(StatusDetails { retry_after_seconds, ..Default::default() }));
        s
    }
    /// 429, with the seconds after which a client may try again.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: i32) -> Self {
        let mut s = Self::failure(429, Reason::TooManyRequests, message);
        s.details = Some(Box::new(StatusDetails { retry_after_seconds, ..Default::default() }));
        s
    }
    /// 413 for a body beyond a limit of so many bytes.
    pub fn too_large(limit_bytes: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit_bytes}");
        Self::failure(413, Reason::RequestEntityTooLarge, message)
    }
    /// 406, with the media types that could be had.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::failure(406, Reason::NotAcceptable, message)
    }
    /// 415, with the media types that are read.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::failure(415, Reason::UnsupportedMediaType, message)
    }
    /// 415 where the route itself names what it reads, and says no more.
    pub fn unsupported_by_route() -> Self {
        let details = Some(Box::default());
        Self { details, ..Self::failure(415, Reason::UnsupportedMediaType, "415: Unsupported Media Type") }
    }
    /// 405 for a verb that a kind has not, in the words of kinds that users define.
    pub fn verb_not_supported(resource: &GroupResource, verb: &str) -> Self {
        let message = format!("{verb} is not supported on resources of kind \"{resource}\"");
        let mut status = Self::failure(405, Reason::MethodNotAllowed, message);
        let details =
            StatusDetails { group: resource.group.clone(), kind: resource.resource.clone(), ..<_>::default() };
        status.details = Some(Box::new(details));
        status
    }
    /// The kind named in strict-decoding and conversion faults.
    pub fn cannot_be_handled(gvk: &Gvk, why: &str) -> Self {
        let message = format!("{} in version {:?} cannot be handled as a {}: {why}", gvk.kind, gvk.version, gvk.kind);
        Self::failure(400, Reason::BadRequest, message)
    }
    /// The HTTP status to answer with.
    pub fn http(&self) -> StatusCode {
        StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
    /// Whether the reason is this one.
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
