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

/// A webhook without `timeoutSeconds` is given as long as upstream's client waits.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// What calls may change beside the request's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideEffects {
    /// It is not said.
    Missing,
    /// Nothing, at least on dry runs.
    NoneOnDryRun,
    /// They change something, or may.
    Some,
}

/// One webhook of a configuration.
pub struct Hook {
    /// Its name, which clients see.
    pub name: String,
    /// The configuration it is of.
    pub configuration: String,
    /// Tells it from all others: names may repeat.
    pub id: String,
    /// Which requests it is for.
    pub criteria: Criteria,
    /// Which of these it is called for.
    pub conditions: Conditions,
    /// Where it is.
    pub target: Result<Target, String>,
    /// A failed call lets the request pass (`failurePolicy: Ignore`).
    pub ignores_failures: bool,
    /// Whether dry runs may call it.
    pub side_effects: SideEffects,
    /// How long a call may take.
    pub timeout: Duration,
    /// The first version of `AdmissionReview` that both sides know; `None`: there is none.
    pub review: Option<ReviewVersion>,
    /// It is called again when the object changes after its call (`reinvocationPolicy: IfNeeded`).
    pub reinvoked: bool,
}

/// The webhooks of one configuration.
pub struct Configuration(Vec<Hook>);

impl Configuration {
    /// From a stored object.
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
    /// Its webhooks, in the order in which they are written.
    pub fn hooks(&self) -> &[Hook] {
        &self.0
    }
    /// Whether some of its webhooks may be for the request's operation and resource, as far as can be told at once.
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

/// The configurations of one kind, stored and in the files that the plugin's configuration names.
///
/// # Errors
/// What is wrong with the files.
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
