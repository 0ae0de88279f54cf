//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: call configured servers for requests (upstream
//! `plugin/webhook`; `admissionregistration.k8s.io/v1`).
//!
//! [`hook`] is one configured webhook, [`review`] the request and answer format, [`call`] one call and the handling of
//! its failure; `mutating` calls one after the other, each seeing the changes of those before, `validating` calls all
//! concurrently.
mod call;
mod hook;
mod mutating;
mod own_pods;
mod review;
mod validating;

pub use mutating::MutatingWebhooks;
pub use validating::ValidatingWebhooks;

use std::path::Path;

use kelson_codec::strict::Shape;
use kelson_meta::Status;
use kelson_meta::tree::path::text;
use kelson_webhook::{Credentials, WebhookClient};
use serde_json::Value;

use crate::configuration::Part;
use crate::dynamic::expressions::{self, Asking, Inputs};
use crate::dynamic::{Match, VersionedObjects, is_exempt_from_webhooks};
use crate::metrics::Pass;
use crate::{Attributes, Dependencies, Notes, Operation};
use hook::{Configuration, Hook};

/// Creates the HTTP client of one plugin, with the users of its `kubeConfigFile` (`WebhookAdmission`,
/// `apiserver.config.k8s.io/v1`).
fn client(d: &Dependencies, configuration: &Value) -> Result<WebhookClient, String> {
    let kinds = ["WebhookAdmissionConfiguration", "WebhookAdmission"];
    let part = Part { group: "apiserver.config.k8s.io", versions: &["v1", "v1alpha1"], kinds: &kinds };
    part.check(configuration, &[("kubeConfigFile", Shape::Text), ("staticManifestsDir", Shape::Text)])?;
    let file = text(configuration, &["kubeConfigFile"]);
    let credentials = match file {
        "" => Credentials::default(),
        file if !file.starts_with('/') => {
            return Err(format!("kubeConfigFile: Invalid value: {file:?}: must be an absolute file path"));
        }
        file => Credentials::load(Path::new(file))?,
    };
    Ok(WebhookClient::new(d.services.clone(), credentials).with_own_server(d.own.clone()))
}

/// Warns a client that registers webhooks which would block their own pods.
fn warn_of_own_pods(d: &Dependencies, kind: &str, a: &Attributes<'_>, notes: &mut Notes) {
    let written = matches!(a.operation, Operation::Create | Operation::Update) && a.subresource.is_empty();
    if written && a.kind.kind == kind && is_exempt_from_webhooks(a) {
        own_pods::warn(d, &Configuration::parse(a.new_object()), notes);
    }
}

/// Returns the form in which a webhook gets the request's object; `None` when it does not match.
fn concerns<'a>(d: &Dependencies, hook: &Hook, a: &Attributes<'a>) -> Result<Option<Match<'a>>, Status> {
    if !hook.criteria.may_concern(a) {
        return Ok(None);
    }
    hook.criteria.matches(a, d.objects.as_ref(), d.versions.as_ref())
}

/// Reports whether the match conditions of a webhook are true for a request that its rules match.
fn conditions_hold(
    d: &Dependencies,
    hook: &Hook,
    a: &Attributes<'_>,
    form: &Match<'_>,
    shown: Option<&VersionedObjects<'_>>,
    pass: Pass,
) -> Result<bool, Status> {
    if hook.conditions.is_empty() {
        return Ok(true);
    }
    let (request, asking) = (expressions::request(a, form), Asking::of(a, d));
    let nothing = VersionedObjects::default();
    let inputs = Inputs::new(a, shown.unwrap_or(&nothing), &request, None, &asking);
    let (held, seen) = hook.conditions.hold(&inputs, None);
    d.metrics.conditions(&hook.name, "webhook", pass, a.operation, seen);
    match held {
        Ok(hold) => Ok(hold),
        Err(_) if hook.ignores_failures => Ok(false),
        Err(why) => Err(a.forbidden(&why)),
    }
}
