//! One webhook of a configuration, decoded.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kelson_meta::tree::path::{at, list, text};
use kelson_webhook::Target;
use serde_json::Value;

use super::review::ReviewVersion;
use crate::dynamic::manifests::{Accepted, Manifests};
use crate::dynamic::{Conditions, Criteria, Source};
use crate::{Attributes, Dependencies};

/// The timeout of a webhook without `timeoutSeconds`, which is that of upstream's client.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// Whether calls have side effects besides changing the request's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideEffects {
    /// The field is not set.
    Missing,
    /// None, at least for dry runs.
    NoneOnDryRun,
    /// There are side effects, or may be.
    Some,
}

/// One webhook of a configuration.
pub struct Hook {
    /// The name, which clients see.
    pub name: String,
    /// The name of its configuration.
    pub configuration: String,
    /// A unique ID, since names may repeat.
    pub id: String,
    /// The requests it matches.
    pub criteria: Criteria,
    /// The match conditions.
    pub conditions: Conditions,
    /// The URL or service.
    pub target: Result<Target, String>,
    /// Whether a failed call admits the request (`failurePolicy: Ignore`).
    pub ignores_failures: bool,
    /// Whether dry runs may call it.
    pub side_effects: SideEffects,
    /// The timeout of a call.
    pub timeout: Duration,
    /// The first version of `AdmissionReview` that both sides support; `None` when there is none.
    pub review: Option<ReviewVersion>,
    /// Whether it is called again when the object changes after its call (`reinvocationPolicy: IfNeeded`).
    pub reinvoked: bool,
}

/// The webhooks of one configuration.
pub struct Configuration(Vec<Hook>);

impl Configuration {
    /// Decodes a stored object.
    pub fn parse(tree: &Value) -> Self {
        let configuration = text(tree, &["metadata", "name"]);
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let hook = |webhook| {
            let count = seen.entry(text(webhook, &["name"])).or_default();
            let id = format!("{configuration}/{}/{count}", text(webhook, &["name"]));
            *count += 1;
            Hook::parse(configuration, id, webhook)
        };
        Self(list(tree, &["webhooks"]).iter().map(hook).collect())
    }
    /// Returns its webhooks in the order in which they are listed.
    pub fn hooks(&self) -> &[Hook] {
        &self.0
    }
    /// Reports whether some of its webhooks may match the request's operation and resource, without looking anything
    /// up.
    pub fn may_concern(&self, a: &Attributes<'_>) -> bool {
        self.0.iter().any(|h| h.criteria.may_concern(a))
    }
}

impl Hook {
    fn parse(configuration: &str, id: String, webhook: &Value) -> Self {
        let timeout = at(webhook, &["timeoutSeconds"]).as_u64().map(Duration::from_secs);
        let known = list(webhook, &["admissionReviewVersions"]).iter().filter_map(Value::as_str);
        Self {
            name: text(webhook, &["name"]).to_owned(),
            configuration: configuration.to_owned(),
            id,
            criteria: Criteria::parse(webhook),
            conditions: Conditions::parse(webhook, false),
            target: Target::parse(at(webhook, &["clientConfig"])),
            ignores_failures: text(webhook, &["failurePolicy"]) == "Ignore",
            side_effects: match text(webhook, &["sideEffects"]) {
                "" => SideEffects::Missing,
                "None" | "NoneOnDryRun" => SideEffects::NoneOnDryRun,
                _ => SideEffects::Some,
            },
            timeout: timeout.unwrap_or(TIMEOUT_DEFAULT),
            review: known.filter_map(ReviewVersion::parse).next(),
            reinvoked: text(webhook, &["reinvocationPolicy"]) == "IfNeeded",
        }
    }
}

/// Returns the configurations of one kind, stored and in the files that the plugin's configuration names.
///
/// # Errors
/// A file is invalid.
pub fn source(
    d: &Dependencies,
    configuration: &Value,
    accepted: &'static [Accepted],
) -> Result<(Source<Configuration>, Option<Arc<Manifests>>), String> {
    let manifests = Manifests::open(configuration, accepted, d)?;
    let resource = accepted.first().map_or("", |(_, resource)| *resource);
    let source = Source::new(&d.objects, "admissionregistration.k8s.io", resource, Configuration::parse);
    Ok((source.with_manifests(manifests.clone()), manifests))
}
