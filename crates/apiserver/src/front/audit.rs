//! Audit: tells how far each request is, as the policy wants it. Without audit this costs nothing.
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

use super::identify::ActingAs;
use crate::request::answer::Answer;
use crate::request::audit::{
    named, object, reference, refine, request_uri, response_status, sent_kind, source_ips, user_agent,
};
use crate::request::body::Copied;
use crate::request::route::RequestInfo;
use crate::request::routes::Route;
use crate::shared::Server;

/// Names a request in logs on both sides.
pub const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Audit annotations: the plugin that refused, and those that changed the object, with the fields that they changed.
const REFUSED_BY: &str = "admission.kelson/refused-by";
const CHANGED_BY: &str = "admission.kelson/changed-by";
/// How long a slow request took (upstream's name and threshold).
const LATENCY: &str = "apiserver.latency.k8s.io/total";
const SLOW: Duration = Duration::from_millis(500);
/// Said of an event whose answer was too large to be part of it.
const TRUNCATED: &str = "audit.k8s.io/truncated";
/// Bytes of one answer that is made in pieces.
const COPY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What the audit is told at the beginning.
pub struct AuditedRequest<'a> {
    /// The head as it came.
    pub parts: &'a Parts,
    /// What is asked.
    pub info: &'a RequestInfo,
    /// Names the request.
    pub audit_id: &'a HeaderValue,
    /// The other end of the connection.
    pub peer: IpAddr,
    /// The answer may last: a watch, a stream.
    pub long: bool,
}

/// The audit of one request. One that is dropped before its end was given up by its sender.
pub struct Trail {
    audit: Arc<Audit>,
    clock: Arc<dyn Clock>,
    decision: Decision,
    event: Event,
    long: bool,
    ended: bool,
}

impl Trail {
    /// Tells that the request is there; `None` when nothing of it is to be written.
    ///
    /// # Errors
    /// 500 when it must be written and cannot.
    pub async fn begin(
        server: &Server,
        asked: AuditedRequest<'_>,
        user: &Arc<UserInfo>,
    ) -> Result<Option<Self>, Status> {
        let Some(mut trail) = Self::new(server, asked, user) else { return Ok(None) };
        if !trail.tell(Stage::RequestReceived).await {
            trail.audit.rejected();
            trail.ended = true;
            return Err(Status::internal("failed to store audit event"));
        }
        Ok(Some(trail))
    }

    /// Tells of a request whose sender was not believed.
    pub async fn unbelieved(server: &Server, asked: AuditedRequest<'_>) {
        if server.config.audit.is_none() {
            return;
        }
        let nobody = Arc::new(UserInfo::default());
        let Some(mut trail) = Self::new(server, asked, &nobody) else { return };
        let told = json!({"metadata": {}, "status": "Failure", "message": "Unauthorized", "reason": "Unauthorized", "code": 401});
        trail.event.response_status = Some(told);
        trail.tell(Stage::ResponseStarted).await;
        trail.ended = true;
    }

    fn new(server: &Server, asked: AuditedRequest<'_>, user: &Arc<UserInfo>) -> Option<Self> {
        let audit = Arc::clone(server.config.audit.as_ref()?);
        let info = asked.info;
        let decision = audit.decide(&Attributes {
            subresource: &info.subresource,
            version: &info.version,
            path: asked.parts.uri.path(),
            is_resource: info.is_resource,
            ..Attributes::resource(user, info.verb, &info.group, &info.resource, &info.namespace, &info.name)
        });
        if decision.level == Level::None {
            return None;
        }
        let now = server.clock.now();
        let event = Event {
            level: decision.level,
            audit_id: asked.audit_id.to_str().unwrap_or("").to_owned(),
            stage: Stage::RequestReceived,
            request_uri: request_uri(&asked.parts.uri),
            verb: info.verb.to_owned(),
            user: Arc::clone(user),
            impersonated_user: None,
            authentication_metadata: None,
            source_ips: source_ips(&asked.parts.headers, asked.peer),
            user_agent: user_agent(&asked.parts.headers),
            object_ref: reference(info),
            response_status: None,
            request_object: None,
            response_object: None,
            received_at: now,
            stage_at: now,
            annotations: BTreeMap::new(),
        };
        let clock = Arc::clone(&server.clock);
        Some(Self { audit, clock, decision, event, long: asked.long, ended: false })
    }

    /// Notes whom the sender asked to be.
    pub fn impersonates(&mut self, other: &ActingAs) {
        self.event.impersonated_user = Some(Arc::clone(&other.user));
        let impersonation_constraint = other.constraint.clone();
        self.event.authentication_metadata =
            (!impersonation_constraint.is_empty()).then_some(AuthenticationMetadata { impersonation_constraint });
    }

    /// Takes up the body that was sent, as far as the level wants it.
    pub fn sent(&mut self, info: &RequestInfo, route: Option<&Route>, headers: &HeaderMap, body: &Bytes) {
        // Whoever creates names the object in the body alone.
        let names = matches!(info.verb, "create" | "update") && info.is_resource;
        let wanted = self.event.level >= Level::Request;
        if body.is_empty() || !(names || wanted) || matches!(info.verb, "get" | "list" | "watch") {
            return;
        }
        let Some(object) = object(headers, body, self.decision.omit_managed_fields) else { return };
        if let Some(reference) = self.event.object_ref.as_mut().filter(|_| names) {
            refine(reference, &object);
        }
        if wanted {
            self.event.request_object = Some(match sent_kind(info, route) {
                Some(gvk) => named(object, &gvk),
                None => object,
            });
        }
    }

    /// Tells what came of the request. An answer that is whole is told before it is sent, one that is made in pieces when the
    /// last of them was sent.
    pub async fn end(mut self, notes: &Notes, answer: Answer, panicked: bool) -> Answer {
        self.event.response_status = Some(response_status(&answer));
        self.event.annotations = annotations(notes, self.event.level);
        if panicked {
            self.tell(Stage::Panic).await;
            self.ended = true;
            return answer;
        }
        if self.long {
            self.tell(Stage::ResponseStarted).await;
        }
        let wanted = self.event.level == Level::RequestResponse && !self.long;
        if let Some(bytes) = answer.body().whole() {
            if wanted {
                self.event.response_object = object(answer.headers(), &bytes, self.decision.omit_managed_fields);
            }
            self.note_latency();
            self.tell(Stage::ResponseComplete).await;
            self.ended = true;
            return answer;
        }
        let media_type = answer.headers().get(header::CONTENT_TYPE).cloned();
        let copied = wanted.then(|| self.copy());
        answer.map(|body| {
            let body = match &copied {
                Some(copied) => body.copying(Arc::clone(copied)),
                None => body,
            };
            body.holding(End { trail: self, media_type, copied })
        })
    }

    /// A copy of the answer that is being sent; its bytes are counted with those of all others.
    fn copy(&self) -> Arc<Mutex<Copied>> {
        let audit = Arc::clone(&self.audit);
        let mut held: Vec<OwnedSemaphorePermit> = Vec::new();
        let mut left = COPY_BYTES_MAX;
        Arc::new(Mutex::new(Copied::new(Box::new(move |bytes| {
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

    fn is_told(&mut self, stage: Stage) -> bool {
        self.event.stage = stage;
        if stage != Stage::RequestReceived {
            self.event.stage_at = self.clock.now();
        }
        self.decision.tells(stage)
    }

    async fn tell(&mut self, stage: Stage) -> bool {
        if !self.is_told(stage) {
            return true;
        }
        match self.audit.record(&self.event) {
            Some(written) => written.await,
            None => true,
        }
    }

    fn tell_detached(&mut self) {
        self.ended = true;
        self.note_latency();
        if self.is_told(Stage::ResponseComplete) {
            self.audit.record_detached(&self.event);
        }
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        if !self.ended {
            let early = json!({"metadata": {}, "status": "Success", "message": "Connection closed early", "code": 200});
            self.event.response_status.get_or_insert(early);
            self.tell_detached();
        }
    }
}

/// Tells of the end when the answer's body is gone: sent, or given up by its receiver.
struct End {
    trail: Trail,
    media_type: Option<HeaderValue>,
    copied: Option<Arc<Mutex<Copied>>>,
}

impl Drop for End {
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
        self.trail.tell_detached();
    }
}

/// What authorization and admission left behind; the first note under a key stays.
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
