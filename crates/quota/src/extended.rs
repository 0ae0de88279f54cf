//! Device classes for extended resources (KEP-5004). A quota of `requests.example.com/gpu` counts the devices of the
//! class that claims use. The scheduler's claims for pods that request the resource by name are not counted twice.
use std::collections::BTreeMap;

use jiff::Timestamp;
use kelson_meta::tree::{items, text};
use serde_json::Value;

use crate::amounts::Amounts;
use crate::pods::{self, PodLevel};

/// The prefix of the implicit extended resource of every class.
const IMPLICIT: &str = "deviceclass.resource.kubernetes.io/";
const REQUESTS: &str = "requests.";
const OF_SCHEDULER: &str = "resource.kubernetes.io/extended-resource-claim";

/// The objects besides the claim that the usage of a resource claim depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtendedResources {
    /// The extended resource that each class names.
    named: BTreeMap<String, Option<String>>,
    /// The pods that own a claim of the scheduler, by name.
    pods: BTreeMap<String, Value>,
    /// The metadata of the scheduler's claims in the namespace.
    claims: Vec<Value>,
    level: PodLevel,
}

impl ExtendedResources {
    /// Creates the value from DeviceClasses, without pods and claims.
    pub fn of_classes<'a>(classes: impl Iterator<Item = &'a Value>, level: PodLevel) -> Self {
        let named = classes.map(|class| {
            let resource = text(&class["spec"]["extendedResourceName"]);
            (text(&class["metadata"]["name"]).to_owned(), Some(resource.to_owned()).filter(|r| !r.is_empty()))
        });
        Self { named: named.collect(), pods: BTreeMap::new(), claims: Vec::new(), level }
    }

    /// Adds the scheduler's claims in the namespace, and looks up the pods that own them.
    pub fn with_claims<'a>(
        mut self,
        claims: impl Iterator<Item = &'a Value>,
        pod: impl Fn(&str) -> Option<Value>,
    ) -> Self {
        for claim in claims {
            let Some(owner) = pod_of(claim) else { continue };
            let name = text(&owner["name"]);
            if !self.pods.contains_key(name)
                && let Some(found) = pod(name)
            {
                self.pods.insert(name.to_owned(), found);
            }
            self.claims.push(serde_json::json!({"metadata": claim["metadata"]}));
        }
        self
    }

    /// Returns whether a resource name of a quota is an extended resource of some class.
    pub fn counts(&self, name: &str) -> bool {
        let Some(resource) = name.strip_prefix(REQUESTS).filter(|_| pods::counts_extended(name)) else { return false };
        let implicit = resource.strip_prefix(IMPLICIT).is_some_and(|class| self.named.contains_key(class));
        implicit || self.named.values().flatten().any(|r| r == resource)
    }

    /// Returns the usage of a claim by extended resource. `devices` is its usage of each class.
    pub fn usage<'a>(&self, claim: &Value, devices: impl Iterator<Item = (&'a str, i64)>, now: Timestamp) -> Amounts {
        let mut out = Amounts::default();
        for (class, amount) in devices {
            let amount = kelson_meta::Quantity::from_i64(amount);
            let named = self.named.get(class).and_then(Option::as_ref);
            let names = [Some(format!("{IMPLICIT}{class}")), named.cloned()];
            for resource in names.into_iter().flatten() {
                out.add(&Amounts([(format!("{REQUESTS}{resource}"), amount)].into()));
            }
        }
        match self.pod_counted_for(claim) {
            Some(pod) => out.over(&pods::usage(pod, self.level, now)).not_zero(),
            None => out,
        }
    }

    /// Returns the pod whose usage already includes the claim. The pod owns the claim and its status names the claim.
    /// While the status names none, the first claim counts.
    fn pod_counted_for(&self, claim: &Value) -> Option<&Value> {
        let owner = pod_of(claim)?;
        let pod = self.pods.get(text(&owner["name"])).filter(|pod| pod["metadata"]["uid"] == owner["uid"])?;
        let status = &pod["status"]["extendedResourceClaimStatus"];
        let own = &claim["metadata"];
        let is_it = if status.is_null() {
            let earlier =
                |other: &&Value| pod_of(other).is_some_and(|o| o["uid"] == owner["uid"]) && age(other) < age(claim);
            !self.claims.iter().any(|other| earlier(&other))
        } else {
            status["resourceClaimName"] == own["name"]
        };
        is_it.then_some(pod)
    }
}

/// The sort key of a claim: older claims come first, then the order of names. A claim that is not stored yet is last.
fn age(claim: &Value) -> (bool, &str, &str) {
    let made = text(&claim["metadata"]["creationTimestamp"]);
    (made.is_empty(), made, text(&claim["metadata"]["name"]))
}

/// Returns the reference to the pod for which the scheduler created the claim, or `None` for claims of users.
fn pod_of(claim: &Value) -> Option<&Value> {
    let metadata = &claim["metadata"];
    if text(&metadata["annotations"][OF_SCHEDULER]) != "true" {
        return None;
    }
    let owner = items(&metadata["ownerReferences"]).iter().find(|o| o["controller"] == true)?;
    (owner["kind"] == "Pod" && owner["apiVersion"] == "v1").then_some(owner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn classes() -> ExtendedResources {
        let classes = [
            json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}}),
            json!({"metadata": {"name": "plain"}, "spec": {}}),
        ];
        ExtendedResources::of_classes(classes.iter(), PodLevel::Counted)
    }

    #[test]
    fn names_are_counted_if_a_class_has_them() {
        for (name, want) in [
            ("requests.example.com/gpu", true),
            ("example.com/gpu", false),
            ("requests.example.com/other", false),
            ("requests.deviceclass.resource.kubernetes.io/gpu", true),
            ("requests.deviceclass.resource.kubernetes.io/plain", true),
            ("requests.deviceclass.resource.kubernetes.io/nobody", false),
            ("requests.cpu", false),
            ("pods", false),
        ] {
            assert_eq!(classes().counts(name), want, "{name}");
        }
    }

    fn claim(name: &str, made: &str, pod_uid: &str) -> Value {
        json!({"metadata": {"name": name, "creationTimestamp": made, "annotations": {OF_SCHEDULER: "true"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod_uid, "controller": true}]}})
    }

    fn used(pod: &Value, all: &[Value], claim: &Value) -> String {
        let around = classes().with_claims(all.iter().chain([claim]), |name| (name == "p").then(|| pod.clone()));
        around.usage(claim, [("gpu", 3)].into_iter(), "2026-01-01T00:00:00Z".parse().unwrap()).words()
    }

    #[test]
    fn what_the_pod_is_charged_for_is_not_charged_again() {
        let pod = |status: Value| {
            json!({"metadata": {"name": "p", "uid": "1"}, "status": status, "spec": {"containers": [
                {"name": "c", "resources": {"requests": {"example.com/gpu": "2"}}}]}})
        };
        let (silent, names_a) =
            (pod(json!({})), pod(json!({"extendedResourceClaimStatus": {"resourceClaimName": "a"}})));
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
        let whole = "requests.deviceclass.resource.kubernetes.io/gpu=3,requests.example.com/gpu=3";
        let rest = "requests.deviceclass.resource.kubernetes.io/gpu=3,requests.example.com/gpu=1";
        let other = claim("a", early, "1");
        let mut of_user = claim("b", late, "1");
        of_user["metadata"]["annotations"] = json!({});
        for (pod, all, claim, want, why) in [
            (&silent, &[][..], claim("b", late, "1"), rest, "the only claim of the pod"),
            (&silent, std::slice::from_ref(&other), claim("b", late, "1"), whole, "an older one is the pod's"),
            (
                &silent,
                std::slice::from_ref(&other),
                claim("b", early, "1"),
                whole,
                "the first by name of one second is the pod's",
            ),
            (
                &silent,
                std::slice::from_ref(&other),
                claim("b", "", "1"),
                whole,
                "what is not stored yet is the youngest",
            ),
            (&silent, &[], claim("b", late, "2"), whole, "another pod of that name"),
            (&silent, &[], of_user, whole, "a claim of a user"),
            (&names_a, &[], claim("b", early, "1"), whole, "the pod names another one"),
            (&names_a, &[claim("b", early, "1")], claim("a", late, "1"), rest, "the pod names it"),
        ] {
            assert_eq!(used(pod, all, &claim), want, "{why}");
        }
    }
}
