//! Audit: records the stages of each request as the audit policy asks for. Without an audit log this costs nothing.
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use kelson_admission::Notes;
use kelson_audit::{Audit, AuthenticationMetadata, Decision, Event, Level, Stage};
use kelson_auth::{Attributes, UserInfo};
use kelson_meta::{Clock, Status};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;

use super::identify::Impersonated;
use crate::request::answer::Answer;
use crate::request::audit::{
    fill_reference, object, reference, request_kind, request_uri, response_status, source_ips, user_agent, with_kind,
};
use crate::request::body::BodyCopy;
use crate::request::route::RequestInfo;
use crate::request::routes::Route;
use crate::shared::Server;

/// The header with the ID that identifies a request in the logs of client and server.
pub const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Audit annotations: the plugin that rejected the request, and the plugins that changed the object, with the changed fields.
const REFUSED_BY: &str = "admission.kelson/refused-by";
const CHANGED_BY: &str = "admission.kelson/changed-by";
/// The duration of a slow request (upstream's name and threshold).
const LATENCY: &str = "apiserver.latency.k8s.io/total";
const SLOW: Duration = Duration::from_millis(500);
/// Annotation of an event that does not contain the response because it was too large.
const TRUNCATED: &str = "audit.k8s.io/truncated";
/// Limit of the bytes of one streamed response that are copied for an event.
const COPY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The data of a request that the audit log takes at its beginning.
pub struct AuditedRequest<'a> {
    /// The request's head as it arrived.
    pub parts: &'a Parts,
    /// The parsed path and verb.
    pub info: &'a RequestInfo,
    /// The request's audit ID.
    pub audit_id: &'a HeaderValue,
    /// The other end of the connection.
    pub peer: IpAddr,
    /// The response may last long: a watch or a stream.
    pub long: bool,
}

/// The audit events of one request. Dropping it before its end records that the client closed the connection.
pub struct Trail {
    audit: Arc<Audit>,
    clock: Arc<dyn Clock>,
    decision: Decision,
    event: Event,
    long: bool,
    ended: bool,
}

impl Trail {
    /// Records that the request was received; `None` if the policy records nothing of it.
    ///
    /// # Errors
    /// 500 when the event must be written and cannot be.
    pub async fn begin(
        server: &Server,
        request: AuditedRequest<'_>,
        user: &Arc<UserInfo>,
    ) -> Result<Option<Self>, Status> {
        let Some(mut trail) = Self::new(server, request, user) else { return Ok(None) };
        if !trail.record(Stage::RequestReceived).await {
            trail.audit.rejected();
            trail.ended = true;
            return Err(Status::internal("failed to store audit event"));
        }
        Ok(Some(trail))
    }

    /// Records a request that failed to authenticate.
    pub async fn record_unauthenticated(server: &Server, request: AuditedRequest<'_>) {
        if server.config.audit.is_none() {
            return;
        }
        let unknown = Arc::new(UserInfo::default());
        let Some(mut trail) = Self::new(server, request, &unknown) else { return };
        let status = json!({"metadata": {}, "status": "Failure", "message": "Unauthorized", "reason": "Unauthorized", "code": 401});
        trail.event.response_status = Some(status);
        trail.record(Stage::ResponseStarted).await;
        trail.ended = true;
    }

    fn new(server: &Server, request: AuditedRequest<'_>, user: &Arc<UserInfo>) -> Option<Self> {
        let audit = Arc::clone(server.config.audit.as_ref()?);
        let info = request.info;
        let decision = audit.decide(&Attributes {
            subresource: &info.subresource,
            version: &info.version,
            path: request.parts.uri.path(),
            is_resource: info.is_resource,
            ..Attributes::resource(user, info.verb, &info.group, &info.resource, &info.namespace, &info.name)
        });
        if decision.level == Level::None {
            return None;
        }
        let now = server.clock.now();
        let event = Event {
            level: decision.level,
            audit_id: request.audit_id.to_str().unwrap_or("").to_owned(),
            stage: Stage::RequestReceived,
            request_uri: request_uri(&request.parts.uri),
            verb: info.verb.to_owned(),
            user: Arc::clone(user),
            impersonated_user: None,
            authentication_metadata: None,
            source_ips: source_ips(&request.parts.headers, request.peer),
            user_agent: user_agent(&request.parts.headers),
            object_ref: reference(info),
            response_status: None,
            request_object: None,
            response_object: None,
            received_at: now,
            stage_at: now,
            annotations: BTreeMap::new(),
        };
        let clock = Arc::clone(&server.clock);
        Some(Self { audit, clock, decision, event, long: request.long, ended: false })
    }

    /// Adds the impersonated user.
    pub fn set_impersonated(&mut self, other: &Impersonated) {
        self.event.impersonated_user = Some(Arc::clone(&other.user));
        let impersonation_constraint = other.constraint.clone();
        self.event.authentication_metadata =
            (!impersonation_constraint.is_empty()).then_some(AuthenticationMetadata { impersonation_constraint });
    }

    /// Adds the request's body, as far as the audit level asks for it.
    pub fn add_request_body(&mut self, info: &RequestInfo, route: Option<&Route>, headers: &HeaderMap, body: &Bytes) {
        // In a create request, only the body contains the object's name.
        let names = matches!(info.verb, "create" | "update") && info.is_resource;
        let wanted = self.event.level >= Level::Request;
        if body.is_empty() || !(names || wanted) || matches!(info.verb, "get" | "list" | "watch") {
            return;
        }
        let Some(object) = object(headers, body, self.decision.omit_managed_fields) else { return };
        if let Some(reference) = self.event.object_ref.as_mut().filter(|_| names) {
            fill_reference(reference, &object);
        }
        if wanted {
            self.event.request_object = Some(match request_kind(info, route) {
                Some(gvk) => with_kind(object, &gvk),
                None => object,
            });
        }
    }

    /// Records the response. A complete response is recorded before it is sent, a streamed one after its last piece.
    pub async fn end(mut self, notes: &Notes, answer: Answer, panicked: bool) -> Answer {
        self.event.response_status = Some(response_status(&answer));
        self.event.annotations = annotations(notes, self.event.level);
        if panicked {
            self.record(Stage::Panic).await;
            self.ended = true;
            return answer;
        }
        if self.long {
            self.record(Stage::ResponseStarted).await;
        }
        let wanted = self.event.level == Level::RequestResponse && !self.long;
        if let Some(bytes) = answer.body().whole() {
            if wanted {
                self.event.response_object = object(answer.headers(), &bytes, self.decision.omit_managed_fields);
            }
            self.note_latency();
            self.record(Stage::ResponseComplete).await;
            self.ended = true;
            return answer;
        }
        let media_type = answer.headers().get(header::CONTENT_TYPE).cloned();
        let copied = wanted.then(|| self.copy());
        answer.map(|body| {
            let body = match &copied {
                Some(copied) => body.copy_to(Arc::clone(copied)),
                None => body,
            };
            body.hold(RecordAtEnd { trail: self, media_type, copied })
        })
    }

    /// A buffer for a copy of the response that is being sent. Its bytes count towards the limit that all requests share.
    fn copy(&self) -> Arc<Mutex<BodyCopy>> {
        let audit = Arc::clone(&self.audit);
        let mut held: Vec<OwnedSemaphorePermit> = Vec::new();
        let mut left = COPY_BYTES_MAX;
        Arc::new(Mutex::new(BodyCopy::new(Box::new(move |bytes| {
            let Some(rest) = left.checked_sub(bytes) else { return false };
            left = rest;
            audit.room(bytes).map(|room| held.push(room)).is_some()
        }))))
    }

    fn note_latency(&mut self) {
        let took = self.clock.now().duration_since(self.event.received_at).unsigned_abs();
        if took > SLOW && !self.long {
            self.event.annotations.insert(LATENCY.to_owned(), format!("{took:?}"));
        }
    }

    fn enter_stage(&mut self, stage: Stage) -> bool {
        self.event.stage = stage;
        if stage != Stage::RequestReceived {
            self.event.stage_at = self.clock.now();
        }
        self.decision.reports(stage)
    }

    async fn record(&mut self, stage: Stage) -> bool {
        if !self.enter_stage(stage) {
            return true;
        }
        match self.audit.record(&self.event) {
            Some(written) => written.await,
            None => true,
        }
    }

    fn record_detached(&mut self) {
        self.ended = true;
        self.note_latency();
        if self.enter_stage(Stage::ResponseComplete) {
            self.audit.record_detached(&self.event);
        }
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        if !self.ended {
            let early = json!({"metadata": {}, "status": "Success", "message": "Connection closed early", "code": 200});
            self.event.response_status.get_or_insert(early);
            self.record_detached();
        }
    }
}

/// Records the end of a request when the response's body is dropped: sent, or abandoned by its receiver.
struct RecordAtEnd {
    trail: Trail,
    media_type: Option<HeaderValue>,
    copied: Option<Arc<Mutex<BodyCopy>>>,
}

impl Drop for RecordAtEnd {
    fn drop(&mut self) {
        if let Some(copied) = self.copied.take() {
            match copied.lock().take() {
                Some(bytes) => {
                    let headers =
                        self.media_type.take().map(|value| (header::CONTENT_TYPE, value)).into_iter().collect();
                    self.trail.event.response_object =
                        object(&headers, &bytes, self.trail.decision.omit_managed_fields);
                }
                None => drop(self.trail.event.annotations.insert(TRUNCATED.to_owned(), "true".to_owned())),
            }
        }
        self.trail.record_detached();
    }
}

/// The annotations of authorization and admission. The first one under a key wins.
fn annotations(notes: &Notes, level: Level) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let of_requests = notes.request_annotations.iter().filter(|_| level >= Level::Request);
    for (key, value) in notes.audit_annotations.iter().chain(of_requests) {
        all.entry(key.clone()).or_insert_with(|| value.clone());
    }
    if let Some(plugin) = notes.refused_by {
        all.insert(REFUSED_BY.to_owned(), plugin.to_owned());
    }
    if !notes.changes.is_empty() {
        let changes: Vec<String> = notes.changes.iter().map(ToString::to_string).collect();
        all.insert(CHANGED_BY.to_owned(), changes.join("; "));
    }
    all
}
