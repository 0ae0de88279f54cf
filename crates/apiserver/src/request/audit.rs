//! Audit: what the server tells an audit log about a request, stage by stage. Which requests are written, and how, is the
//! sink's to decide.
use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use kelson_auth::UserInfo;

use crate::request::route::RequestInfo;

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditStage {
    /// Its sender is known; nothing was done yet.
    RequestReceived,
    /// The head of a long answer (a watch, an exec) was sent.
    ResponseStarted,
    /// The answer was sent, or its receiver went.
    ResponseComplete,
    /// The server had a fault.
    Panic,
}

/// One stage of one request.
#[derive(Debug, Clone)]
pub struct AuditEvent {
    /// How far the request is.
    pub stage: AuditStage,
    /// Names the request in logs on both sides (`Audit-ID`).
    pub audit_id: String,
    /// Path and query as they came.
    pub uri: String,
    /// What is asked.
    pub info: Arc<RequestInfo>,
    /// Who asks, after impersonation.
    pub user: Arc<UserInfo>,
    /// The answer's code, once there is an answer.
    pub code: Option<StatusCode>,
    /// What authorization and admission noted.
    pub annotations: BTreeMap<String, String>,
}

/// Where audit events go. It is called on the threads that answer requests: it must not wait.
pub trait AuditSink: Send + Sync {
    /// Takes one event.
    fn record(&self, event: &AuditEvent);
}
