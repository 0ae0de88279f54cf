//! PodSecurity: enforces the Pod Security level that a namespace's labels set; other modes warn or audit (upstream
//! `pod-security-admission`).
//!
//! `level` has the policy of a namespace, `checks` and `rules` the checks of pods, `existing` the evaluation of
//! existing pods.
mod checks;
mod configuration;
mod existing;
mod level;
mod rules;

use std::sync::Arc;

use async_trait::async_trait;
use kelson_auth::Objects;
use kelson_meta::{FieldErrors, GroupKind, Status};
use serde_json::Value;

pub use checks::Violation;
pub use level::{Demand, Demands, Level, Version};
pub use rules::faults;

use crate::metrics::SecurityMode;
use crate::{AsyncPlugin, Attributes, Dependencies, Metrics, Notes, Operation, Operations, Plugin};
use configuration::SecurityConfiguration;
use kelson_meta::tree::path::{at, strings, text};
use level::PREFIX;

/// The audit annotation with the enforced policy, and its value for a policy that cannot be read.
const ENFORCED: &str = "pod-security.kubernetes.io/enforce-policy";
const NO_DEMAND: &str = "privileged:latest";

/// The plugin; see the module.
pub struct PodSecurity {
    objects: Arc<dyn Objects>,
    metrics: Arc<Metrics>,
    configuration: SecurityConfiguration,
}

impl PodSecurity {
    /// Creates the plugin with a `PodSecurityConfiguration`, if there is one.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn new(d: &Dependencies, configuration: &Value) -> Result<Self, String> {
        let configuration = SecurityConfiguration::read(configuration)?;
        Ok(Self { objects: d.objects.clone(), metrics: d.metrics.clone(), configuration })
    }

    /// Evaluates a pod or an object with a pod template. `enforced` is true for a pod.
    fn check(&self, a: &Attributes<'_>, pod: &Value, enforced: bool, notes: &mut Notes) -> Result<(), Status> {
        let exempt = |notes: &mut Notes, why: &str| {
            self.metrics.security_exemption(a);
            notes.annotate(format!("{PREFIX}exempt"), why);
            Ok(())
        };
        let configuration = &self.configuration;
        if configuration.exempts_namespace(a.namespace) {
            return exempt(notes, "namespace");
        }
        if configuration.exempts_user(&a.user.name) {
            return exempt(notes, "user");
        }
        let Some(namespace) = self.objects.tree("", "namespaces", "", a.namespace) else {
            self.metrics.security_error(true, a);
            let why = format!("failed to lookup namespace {:?}", a.namespace);
            notes.annotate(format!("{PREFIX}error"), why.as_str());
            return if enforced { Err(Status::internal(why)) } else { Ok(()) };
        };
        let mut faults = FieldErrors::new();
        let policy = Demands::of_namespace(&namespace, &configuration.defaults, &mut faults);
        if faults.is_empty() && policy.is_privileged() {
            if enforced {
                self.count(true, policy.enforce, SecurityMode::Enforce, a);
                notes.annotate(ENFORCED, NO_DEMAND);
            }
            return Ok(());
        }
        if enforced && a.operation == Operation::Update && !significant(a.stored(), a.new_object()) {
            return Ok(());
        }
        let (metadata, spec) = (at(pod, &["metadata"]), at(pod, &["spec"]));
        if configuration.exempts_class(text(spec, &["runtimeClassName"])) {
            return exempt(notes, "runtimeClass");
        }
        if !faults.is_empty() {
            self.metrics.security_error(false, a);
            notes.annotate(format!("{PREFIX}error"), format!("Failed to parse policy: {faults}"));
        }
        self.judge(a, &policy, (metadata, spec), enforced, notes)
    }

    fn count(&self, allowed: bool, demand: Demand, mode: SecurityMode, a: &Attributes<'_>) {
        let (level, version) = demand.labels();
        self.metrics.security_evaluation(allowed, (level, &version), mode, a);
    }

    fn judge(
        &self,
        a: &Attributes<'_>,
        policy: &Demands,
        (metadata, spec): (&Value, &Value),
        enforced: bool,
        notes: &mut Notes,
    ) -> Result<(), Status> {
        let mut refused = Ok(());
        if enforced {
            notes.annotate(ENFORCED, policy.enforce.to_string());
            let violated = rules::violated(policy.enforce, metadata, spec);
            self.count(violated.is_none(), policy.enforce, SecurityMode::Enforce, a);
            if let Some(why) = violated {
                refused = Err(a.forbidden(&format!("violates {why}")));
            }
        }
        if let Some(why) = rules::violated(policy.audit, metadata, spec) {
            self.count(false, policy.audit, SecurityMode::Audit, a);
            notes.annotate(format!("{PREFIX}audit-violations"), format!("would violate {why}"));
        }
        // A rejected request gets no warnings.
        refused?;
        if let Some(why) = rules::violated(policy.warn, metadata, spec) {
            self.count(false, policy.warn, SecurityMode::Warn, a);
            notes.warn(format!("would violate {why}"));
        }
        Ok(())
    }

    /// Checks a new or changed namespace, whose labels must be valid.
    fn namespace(&self, a: &Attributes<'_>, notes: &mut Notes) -> Result<Option<Demand>, Status> {
        let defaults = &self.configuration.defaults;
        let (mut faults, mut faults_before) = (FieldErrors::new(), FieldErrors::new());
        let policy = Demands::of_namespace(a.new_object(), defaults, &mut faults);
        let before = Demands::of_namespace(a.stored(), defaults, &mut faults_before);
        // An invalid label that was there before does not prevent other changes.
        if !faults.is_empty() && (a.operation == Operation::Create || faults.to_string() != faults_before.to_string()) {
            let kind = GroupKind { group: String::new(), kind: "Namespace".into() };
            return Err(Status::invalid(&kind, a.object_name(), &faults));
        }
        if a.operation == Operation::Update {
            let (now, then) = (policy.enforce, before.enforce);
            let lowered = now.version == then.version && now.level <= then.level;
            if now == then || now.level == Level::Privileged || lowered {
                return Ok(None);
            }
        }
        if self.configuration.exempts_namespace(a.object_name()) {
            if !policy.is_privileged() && !policy.same_as(defaults) {
                notes.warn(format!(
                    "namespace {:?} is exempt from Pod Security, and the policy ({}) will be ignored",
                    a.object_name(),
                    policy.words(a.new_object())
                ));
            }
            return Ok(None);
        }
        Ok((a.operation == Operation::Update).then_some(policy.enforce))
    }
}

/// Returns pod metadata and spec of an object with a pod template.
fn template<'a>(a: &'a Attributes<'_>) -> Option<&'a Value> {
    let path: &[&str] = match (a.resource.group.as_str(), a.resource.resource.as_str()) {
        ("", "podtemplates") => &["template"],
        ("", "replicationcontrollers")
        | ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
        | ("batch", "jobs") => &["spec", "template"],
        ("batch", "cronjobs") => &["spec", "jobTemplate", "spec", "template"],
        _ => return None,
    };
    let template = at(a.new_object(), path);
    (a.subresource.is_empty() && !template.is_null()).then_some(template)
}

/// Reports whether an update of a pod changes fields that the checks read: images, containers, and annotations with
/// profiles. The other fields that they read are immutable.
fn significant(old: &Value, new: &Value) -> bool {
    let images =
        |pod| crate::containers::containers(at(pod, &["spec"])).map(|(kind, i, c)| (kind, i, text(c, &["image"])));
    let profiles = |(key, _): &(&str, &str)| key.contains("apparmor") || key.contains("seccomp");
    let annotations = |pod| strings(pod, &["metadata", "annotations"]).filter(profiles);
    !images(old).eq(images(new)) || !annotations(old).eq(annotations(new))
}

impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn validate(&self, a: &Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        if let Some(template) = template(a) {
            return self.check(a, template, false, notes);
        }
        // Other subresources do not change fields that the checks read.
        if a.is("", "pods") && matches!(a.subresource, "" | "ephemeralcontainers" | "resize") {
            return self.check(a, a.new_object(), true, notes);
        }
        Ok(())
    }
    fn as_async(&self, a: &Attributes<'_>) -> Option<&dyn AsyncPlugin> {
        a.is_main("", "namespaces").then_some(self as &dyn AsyncPlugin)
    }
}

#[async_trait]
impl AsyncPlugin for PodSecurity {
    async fn validate(&self, a: &Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        if let Some(raised) = self.namespace(a, notes)? {
            let pods = self.objects.list("", "pods", a.object_name());
            for warning in existing::warnings(a.object_name(), raised, pods, &self.configuration).await {
                notes.warn(warning);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
