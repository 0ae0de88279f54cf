//! A call of one webhook: request, answer, and what a failure means for the admitted request.
use std::time::Instant;

use kelson_meta::{Gvr, Status};
use kelson_traces::KeyValue;
use kelson_webhook::{Call, CallError, WebhookClient};

use super::hook::{Hook, SideEffects};
use super::review::{self, Answer, AnswerError};
use crate::dynamic::{Match, VersionedObjects};
use crate::metrics::{Metrics, Pass, RejectionCause};
use crate::{Attributes, Notes};

/// The maximum size of an answer in bytes: a patch that replaces the largest object, encoded.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// Why a webhook did not admit the request.
pub enum Failure {
    /// It could not be called or its answer was invalid; the failure policy decides.
    Calling {
        /// The error, which clients see after `failed calling webhook "x": `.
        why: String,
        /// The status code in metrics.
        code: u16,
    },
    /// It denied the request.
    Refused(Status),
    /// The server cannot apply its answer.
    Server(Status),
}

fn calling(why: impl Into<String>, code: u16) -> Failure {
    Failure::Calling { why: why.into(), code }
}

/// Returns the attributes of a call's span.
fn attributes(hook: &Hook, a: &Attributes<'_>, uid: &str) -> Vec<KeyValue> {
    let Gvr { group, version, resource } = a.resource;
    vec![
        KeyValue::text("configuration", hook.configuration.as_str()),
        KeyValue::text("webhook", hook.name.as_str()),
        KeyValue::text("resource", format!("{group}/{version}, Resource={resource}")),
        KeyValue::text("subresource", a.subresource),
        KeyValue::text("operation", a.operation.as_str()),
        KeyValue::text("UID", uid),
    ]
}

/// The data that calls need.
pub struct Caller<'a> {
    /// The plugin's HTTP client.
    pub client: &'a WebhookClient,
    /// The metrics of calls.
    pub metrics: &'a Metrics,
    /// The current pass.
    pub pass: Pass,
}

impl Caller<'_> {
    /// Calls a webhook. Its warnings and annotations are added to `notes`, also for a rejection.
    ///
    /// # Errors
    /// See [`Failure`].
    pub async fn ask(
        &self,
        hook: &Hook,
        a: &Attributes<'_>,
        form: &Match<'_>,
        shown: &VersionedObjects<'_>,
        notes: &mut Notes,
    ) -> Result<Answer, Failure> {
        if a.dry_run {
            match hook.side_effects {
                SideEffects::Missing => return Err(calling("Webhook SideEffects is nil", 400)),
                SideEffects::NoneOnDryRun => {}
                SideEffects::Some => {
                    let why = format!("admission webhook {:?} does not support dry run", hook.name);
                    return Err(Failure::Server(Status::bad_request(why)));
                }
            }
        }
        let Some(version) = hook.review else {
            let why = "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)";
            return Err(calling(why, 400));
        };
        let no_client = |e: &str| calling(format!("could not get REST client: {e}"), 500);
        let target = hook.target.as_ref().map_err(|e| no_client(e))?;
        let uid = uuid::Uuid::new_v4().to_string();
        let body = review::request(version, &uid, a, form, shown);
        let call = Call { body, timeout: a.time_left(hook.timeout), answer_bytes_max: ANSWER_BYTES_MAX };
        let failed = |e: &dyn std::fmt::Display, code| calling(format!("failed to call webhook: {e}"), code);
        let name = if self.pass == Pass::Admit { "Call mutating webhook" } else { "Call validating webhook" };
        let span = kelson_traces::child(name, || attributes(hook, a, &uid));
        let answered = span.scope(self.client.call(target, call)).await;
        if answered.is_ok() {
            span.event("Request completed", Vec::new);
        }
        drop(span);
        let answered = answered.map_err(|e| match &e {
            CallError::Configuration(why) => no_client(why),
            other => failed(other, other.code()),
        })?;
        let answer = review::answer(version, &uid, self.pass == Pass::Admit, &answered).map_err(|e| match e {
            AnswerError::Undecodable(why) => failed(&why, 503),
            AnswerError::Invalid(why) => calling(format!("received invalid webhook response: {why}"), 503),
        })?;
        for (key, value) in &answer.audit_annotations {
            notes.annotate(format!("{}/{key}", hook.name), value);
        }
        answer.warnings.iter().for_each(|w| notes.warn(w));
        if answer.allowed { Ok(answer) } else { Err(Failure::Refused(review::refusal(&hook.name, answer.status))) }
    }

    /// Counts a call and handles its failure; nothing happens if the failure policy is to ignore it.
    ///
    /// # Errors
    /// The status for the client.
    pub fn judge<T>(
        &self,
        hook: &Hook,
        a: &Attributes<'_>,
        begun: Instant,
        outcome: Result<T, Failure>,
    ) -> Result<Option<T>, Status> {
        let (name, pass, operation, took) = (&hook.name, self.pass, a.operation, begun.elapsed());
        let counted = |code, rejected: Option<RejectionCause>| {
            if let Some(cause) = rejected {
                self.metrics.rejected(name, pass, operation, cause, code);
            }
            self.metrics.called(name, pass, operation, took, code, rejected.is_some());
        };
        match outcome {
            Ok(answer) => {
                counted(200, None);
                Ok(Some(answer))
            }
            Err(Failure::Calling { why, code }) if hook.ignores_failures => {
                counted(code, None);
                self.metrics.failed_open(name, pass);
                tracing::warn!(webhook = name, %why, "calling the webhook failed; ignoring it (failurePolicy Ignore)");
                Ok(None)
            }
            Err(Failure::Calling { why, code }) => {
                counted(code, Some(RejectionCause::Calling));
                Err(Status::internal(format!("failed calling webhook {name:?}: {why}")))
            }
            Err(Failure::Refused(status)) => {
                counted(status.code, Some(RejectionCause::Answer));
                Err(status)
            }
            Err(Failure::Server(status)) => {
                counted(0, Some(RejectionCause::Server));
                Err(status)
            }
        }
    }
}
