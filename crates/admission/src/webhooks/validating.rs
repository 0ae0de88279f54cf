//! ValidatingAdmissionWebhook: all matching webhooks are called concurrently; the first rejection in their order is the
//! answer (upstream `plugin/webhook/validating`).
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kelson_meta::Status;
use kelson_webhook::WebhookClient;
use serde_json::Value;

use super::call::Caller;
use super::hook::{self, Configuration, Hook};
use crate::dynamic::manifests::{Accepted, Manifests};
use crate::dynamic::{Match, Source, Versioned};
use crate::metrics::Pass;
use crate::{AsyncPlugin, Attributes, Dependencies, Notes, Operation, Plugin};

/// The audit annotation for a failed call that was ignored.
const FAILED_OPEN: &str = "failed-open.validating.webhook.admission.k8s.io/";

/// The kind that it reads from files.
const ACCEPTED: [Accepted; 1] = [("ValidatingWebhookConfiguration", "validatingwebhookconfigurations")];

/// The plugin; see the module.
pub struct ValidatingWebhooks {
    d: Dependencies,
    source: Source<Configuration>,
    manifests: Option<Arc<Manifests>>,
    client: WebhookClient,
}

impl ValidatingWebhooks {
    /// Creates the plugin from its section of the configuration file.
    ///
    /// # Errors
    /// The section is invalid.
    pub fn new(d: &Dependencies, configuration: &Value) -> Result<Self, String> {
        let client = super::client(d, configuration)?;
        let (source, manifests) = hook::source(d, configuration, &ACCEPTED)?;
        Ok(Self { d: d.clone(), source, manifests, client })
    }

    /// Returns the webhooks to call, with the form of the object that each needs.
    async fn concerned<'c>(
        &self,
        a: &'c Attributes<'_>,
        configurations: &'c [Arc<Configuration>],
        versioned: &mut Versioned<'c>,
    ) -> Result<Vec<(&'c Hook, Match<'c>)>, Status> {
        let mut concerned = Vec::new();
        for hook in configurations.iter().flat_map(|c| c.hooks()) {
            let Some(form) = super::concerns(&self.d, hook, a)? else { continue };
            versioned.make(a, self.d.versions.as_ref(), &form).await?;
            let shown = versioned.get(&form);
            if super::conditions_hold(&self.d, hook, a, &form, shown, Pass::Validate)? {
                concerned.push((hook, form));
            }
        }
        Ok(concerned)
    }
}

impl Plugin for ValidatingWebhooks {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionWebhook"
    }
    fn handles(&self, _: Operation) -> bool {
        true
    }
    fn validate(&self, a: &Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        super::warn_of_own_pods(&self.d, "ValidatingWebhookConfiguration", a, notes);
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
impl AsyncPlugin for ValidatingWebhooks {
    async fn validate(&self, a: &Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        let configurations = self.source.of(a);
        super::warn_of_own_pods(&self.d, "ValidatingWebhookConfiguration", a, notes);
        let mut versioned = Versioned::default();
        let concerned = self.concerned(a, &configurations, &mut versioned).await?;
        let caller = Caller { client: &self.client, metrics: &self.d.metrics, pass: Pass::Validate };
        let (caller, versioned) = (&caller, &versioned);
        let calls = concerned.iter().enumerate().map(|(index, (hook, form))| async move {
            let (begun, mut notes) = (Instant::now(), Notes::default());
            let Some(shown) = versioned.get(form) else { return (Ok(()), notes) };
            let outcome = caller.ask(hook, a, form, shown, &mut notes).await;
            let judged = caller.judge(hook, a, begun, outcome);
            if let Ok(None) = judged {
                notes.annotate(format!("{FAILED_OPEN}round_0_index_{index}"), hook.name.as_str());
            }
            (judged.map(drop), notes)
        });
        let mut refused = None;
        for (outcome, said) in futures::future::join_all(calls).await {
            notes.absorb(said);
            refused = refused.or(outcome.err());
        }
        refused.map_or(Ok(()), Err)
    }
}
