//! MutatingAdmissionWebhook: webhooks are called in the order of their configurations' names; each sees the changes of
//! those before (upstream `plugin/webhook/mutating`).
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kelson_codec::{Budget, Limits};
use kelson_meta::Status;
use kelson_webhook::WebhookClient;
use serde::Serialize;
use serde_json::Value;

use super::call::{Caller, Failure};
use super::hook::{self, Configuration, Hook};
use super::review::{Answer, JSON_PATCH};
use crate::dynamic::manifests::{Accepted, Manifests};
use crate::dynamic::{Match, Source, VersionedObjects, protect};
use crate::metrics::Pass;
use crate::{AsyncPlugin, Attributes, Dependencies, Notes, Operation, Plugin};

/// Prefixes of audit annotations, followed by the round and the index of the webhook.
const PATCH: &str = "patch.webhook.admission.k8s.io/";
const MUTATION: &str = "mutation.webhook.admission.k8s.io/";
const FAILED_OPEN: &str = "failed-open.mutation.webhook.admission.k8s.io/";

/// The kind that it reads from files.
const ACCEPTED: [Accepted; 1] = [("MutatingWebhookConfiguration", "mutatingwebhookconfigurations")];

/// The value of an annotation under [`MUTATION`], with its keys in upstream's order.
#[derive(Serialize)]
struct MutationNote<'a> {
    configuration: &'a str,
    webhook: &'a str,
    mutated: bool,
}

/// The value of an annotation under [`PATCH`].
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PatchNote<'a> {
    configuration: &'a str,
    webhook: &'a str,
    patch: &'a Value,
    patch_type: &'a str,
}

fn written(note: &impl Serialize) -> String {
    serde_json::to_string(note).unwrap_or_default()
}

/// The plugin; see the module.
pub struct MutatingWebhooks {
    d: Dependencies,
    source: Source<Configuration>,
    manifests: Option<Arc<Manifests>>,
    client: WebhookClient,
}

/// An object after a webhook's patch.
struct PatchedObject {
    /// The object in the stored form.
    object: Value,
    /// The operations, for the audit log.
    patch: Value,
    changed: bool,
}

impl MutatingWebhooks {
    /// Creates the plugin from its section of the configuration file.
    ///
    /// # Errors
    /// The section is invalid.
    pub fn new(d: &Dependencies, configuration: &Value) -> Result<Self, String> {
        let client = super::client(d, configuration)?;
        let (source, manifests) = hook::source(d, configuration, &ACCEPTED)?;
        Ok(Self { d: d.clone(), source, manifests, client })
    }

    /// Calls one webhook, if it matches the request.
    async fn one(&self, hook: &Hook, index: usize, a: &mut Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        let Some(form) = super::concerns(&self.d, hook, a)? else { return Ok(()) };
        let begun = Instant::now();
        let place = format!("round_{}_index_{index}", u8::from(a.rounds.second));
        let caller = Caller { client: &self.client, metrics: &self.d.metrics, pass: Pass::Admit };
        let mutation = {
            let a = &*a;
            let shown = VersionedObjects::of(a, self.d.versions.as_ref(), &form).await?;
            if !super::conditions_hold(&self.d, hook, a, &form, Some(&shown), Pass::Admit)? {
                return Ok(());
            }
            if a.rounds.second && !a.rounds.webhooks.is_due(&hook.id) {
                return Ok(());
            }
            let mutated = match caller.ask(hook, a, &form, &shown, notes).await {
                Ok(answer) => self.mutation(hook, a, answer, &form, &shown, notes).await,
                Err(failure) => Err(failure),
            };
            let changed = mutated.as_ref().is_ok_and(|m| m.as_ref().is_some_and(|m| m.changed));
            let reported = MutationNote { configuration: &hook.configuration, webhook: &hook.name, mutated: changed };
            notes.annotate(format!("{MUTATION}{place}"), written(&reported));
            caller.judge(hook, a, begun, mutated)
        };
        if let Ok(Some(Some(PatchedObject { changed: true, .. }))) = &mutation {
            a.rounds.webhooks.changed();
            a.rounds.again = true;
            notes.actors.push(format!("webhook {:?}", hook.name));
        }
        if hook.reinvoked {
            a.rounds.webhooks.ran(&hook.id);
        }
        match mutation? {
            None => notes.annotate(format!("{FAILED_OPEN}{place}"), hook.name.as_str()),
            Some(None) => {}
            Some(Some(mutation)) => {
                let reported = PatchNote {
                    configuration: &hook.configuration,
                    webhook: &hook.name,
                    patch: &mutation.patch,
                    patch_type: JSON_PATCH,
                };
                notes.request_annotations.push((format!("{PATCH}{place}"), written(&reported)));
                a.object = Some(mutation.object);
            }
        }
        Ok(())
    }

    /// Returns the object after applying an answer; `None` when the answer has no patch.
    async fn mutation(
        &self,
        hook: &Hook,
        a: &Attributes<'_>,
        answer: Answer,
        form: &Match<'_>,
        shown: &VersionedObjects<'_>,
        notes: &mut Notes,
    ) -> Result<Option<PatchedObject>, Failure> {
        let calling = |why: String| Failure::Calling { why, code: 503 };
        if answer.patch.is_empty() {
            return Ok(None);
        }
        let patch: Value =
            kelson_meta::from_json(&answer.patch).ok().filter(|p: &Value| p.is_array() || p.is_null()).ok_or_else(
                || calling("received undecodable patch in webhook response: not a list of operations".to_owned()),
            )?;
        if patch.as_array().is_none_or(Vec::is_empty) {
            return Ok(None);
        }
        let Some(object) = shown.object.as_deref() else {
            return Err(Failure::Server(Status::internal(format!(
                "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                hook.name
            ))));
        };
        if answer.patch_type != JSON_PATCH {
            return Err(calling(format!("unsupported patch type {:?}", answer.patch_type)));
        }
        let server = |e: &dyn std::fmt::Display| Failure::Server(Status::internal(e));
        let mut patched = object.clone();
        kelson_patch::json_patch_within(&mut patched, &patch, &mut Budget::new(Limits::DOCUMENT))
            .map_err(|e| server(&e))?;
        protect(a.operation, object, &mut patched, notes);
        let changed = patched != *object;
        let taken = self.d.versions.take(a.resource, &form.resource, &form.kind, patched).await;
        let object = taken.map_err(|e| server(&e.message))?;
        Ok(Some(PatchedObject { object, patch, changed }))
    }
}

impl Plugin for MutatingWebhooks {
    fn name(&self) -> &'static str {
        "MutatingAdmissionWebhook"
    }
    fn handles(&self, _: Operation) -> bool {
        true
    }
    fn admit(&self, a: &mut Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        super::warn_of_own_pods(&self.d, "MutatingWebhookConfiguration", a, notes);
        Ok(())
    }
    fn reload(&self) -> Option<BoxFuture<'_, ()>> {
        self.manifests.as_ref().map(|manifests| manifests.reload().boxed())
    }
    fn as_async(&self, a: &Attributes<'_>) -> Option<&dyn AsyncPlugin> {
        let concerned = self.source.of(a).iter().any(|c| c.may_concern(a));
        concerned.then_some(self as &dyn AsyncPlugin)
    }
}

#[async_trait]
impl AsyncPlugin for MutatingWebhooks {
    async fn admit(&self, a: &mut Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        super::warn_of_own_pods(&self.d, "MutatingWebhookConfiguration", a, notes);
        if a.rounds.second {
            a.rounds.webhooks.begin_second(a.object.as_ref());
        }
        let configurations = self.source.of(a);
        for (index, hook) in configurations.iter().flat_map(|c| c.hooks()).enumerate() {
            self.one(hook, index, a, notes).await?;
        }
        a.rounds.webhooks.end(a.object.as_ref());
        Ok(())
    }
}
