//! Audit: tells the configured sink how far each request is. Without a sink this costs nothing.
use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderName;
use kelson_admission::Notes;

use crate::front::flow::is_long_running;
use crate::request::answer::Answer;
use crate::request::audit::{AuditEvent, AuditSink, AuditStage};
use crate::shared::context::RequestContext;

/// Names a request in logs on both sides.
pub const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Audit annotations: the plugin that refused, and (of a dry run) those that changed the object.
const REFUSED_BY: &str = "admission.kelson/refused-by";
const CHANGED_BY: &str = "admission.kelson/changed-by";

/// The audit of one request.
pub struct Trail {
    sink: Arc<dyn AuditSink>,
    event: AuditEvent,
}

/// Tells of the end when the answer's body is gone: sent, or given up by its receiver.
struct End(Trail);

impl Drop for End {
    fn drop(&mut self) {
        self.0.tell(AuditStage::ResponseComplete);
    }
}

impl Trail {
    /// Tells that the request is there; `None` when nobody audits.
    pub fn begin(cx: &RequestContext) -> Option<Self> {
        let sink = Arc::clone(cx.server.config.audit.as_ref()?);
        let event = AuditEvent {
            stage: AuditStage::RequestReceived,
            audit_id: cx.audit_id.to_str().unwrap_or("").to_owned(),
            uri: cx.uri.to_string(),
            info: Arc::new(cx.info.clone()),
            user: Arc::clone(&cx.user),
            code: None,
            annotations: Default::default(),
        };
        sink.record(&event);
        Some(Self { sink, event })
    }

    /// Tells what came of the request, now and when the body is gone.
    pub fn end(mut self, cx: &RequestContext, answer: Answer, panicked: bool) -> Answer {
        self.event.code = Some(answer.status());
        self.event.annotations = annotations(&cx.notes.lock());
        if panicked {
            self.tell(AuditStage::Panic);
            return answer;
        }
        if is_long_running(&cx.info, &cx.query) {
            self.tell(AuditStage::ResponseStarted);
        }
        answer.map(|body| body.holding(End(self)))
    }

    fn tell(&mut self, stage: AuditStage) {
        self.event.stage = stage;
        self.sink.record(&self.event);
    }
}

/// What authorization and admission left behind; the first note under a key stays.
fn annotations(notes: &Notes) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (key, value) in &notes.audit_annotations {
        all.entry(key.clone()).or_insert_with(|| value.clone());
    }
    if let Some(plugin) = notes.refused_by {
        all.insert(REFUSED_BY.to_owned(), plugin.to_owned());
    }
    if !notes.changed_by.is_empty() {
        all.insert(CHANGED_BY.to_owned(), notes.changed_by.join(","));
    }
    all
}
