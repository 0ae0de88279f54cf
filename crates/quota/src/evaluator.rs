//! Computes the usage of the objects of one resource.
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use crate::amounts::Amounts;
use crate::extended::ExtendedResources;
use crate::pods::PodLevel;
use crate::{claims, pods, services};

/// The resources that no quota counts: those that are not stored, and events.
const IGNORED: &[(&str, &str)] = &[
    ("", "bindings"),
    ("", "componentstatuses"),
    ("", "events"),
    ("events.k8s.io", "events"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
];
/// The resources of the core group that quotas may name without `count/`.
const PLAIN: &[&str] = &["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];

/// The group and the plural name of resource claims.
const DEVICE_CLAIMS: (&str, &str) = ("resource.k8s.io", "resourceclaims");

/// The operation of the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new object is created.
    Create,
    /// An existing object is updated.
    Update,
}

/// The rule that computes the usage of the objects of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluator {
    /// Pods count by their requests and limits, for the pod or by container.
    Pods(PodLevel),
    /// Services count with their node ports and load balancers.
    Services,
    /// Volume claims count with their storage.
    Claims,
    /// Resource claims count their devices. Classes and pods supply the extended resources.
    DeviceClaims(Arc<ExtendedResources>),
    /// Each object counts as one of each of these names.
    Count(Vec<String>),
}

impl Evaluator {
    /// Returns the evaluator for a resource, or `None` if no quota counts it.
    pub fn of(group: &str, resource: &str, level: PodLevel) -> Option<Self> {
        if IGNORED.contains(&(group, resource)) {
            return None;
        }
        Some(match (group, resource) {
            ("", "pods") => Self::Pods(level),
            ("", "services") => Self::Services,
            ("", "persistentvolumeclaims") => Self::Claims,
            DEVICE_CLAIMS => Self::DeviceClaims(Arc::default()),
            ("", _) => {
                let plain = PLAIN.contains(&resource).then(|| resource.to_owned());
                Self::Count([format!("count/{resource}")].into_iter().chain(plain).collect())
            }
            _ => Self::Count(vec![format!("count/{resource}.{group}")]),
        })
    }

    /// Returns the resources (group and plural name) whose objects a resource name of a quota counts.
    pub fn resources_of(name: &str) -> Vec<(String, String)> {
        let claims = pods::counts_extended(name).then(|| (DEVICE_CLAIMS.0.to_owned(), DEVICE_CLAIMS.1.to_owned()));
        Self::resource_of(name).into_iter().chain(claims).collect()
    }

    fn resource_of(name: &str) -> Option<(String, String)> {
        if let Some(counted) = name.strip_prefix("count/") {
            let (plural, group) = counted.split_once('.').unwrap_or((counted, ""));
            return Some((group.to_owned(), plural.to_owned()));
        }
        let core = |plural: &str| Some((String::new(), plural.to_owned()));
        match name {
            n if PLAIN.contains(&n) => core(n),
            n if claims::counts(n) => core("persistentvolumeclaims"),
            n if services::NAMES.contains(&n) => core("services"),
            n if claims::counts_devices(n) => Some((DEVICE_CLAIMS.0.to_owned(), DEVICE_CLAIMS.1.to_owned())),
            n if pods::counts(n) => core("pods"),
            _ => None,
        }
    }

    /// Returns whether a resource name of a quota counts these objects.
    pub fn counts(&self, name: &str) -> bool {
        match self {
            Self::Pods(_) => pods::counts(name),
            Self::Services => services::NAMES.contains(&name),
            Self::Claims => claims::counts(name),
            Self::DeviceClaims(extended) => claims::counts_devices(name) || extended.counts(name),
            Self::Count(names) => names.iter().any(|n| n == name),
        }
    }

    /// Returns whether a resource name of a quota may count these objects, independent of other objects.
    pub fn may_count(&self, name: &str) -> bool {
        self.counts(name) || (matches!(self, Self::DeviceClaims(_)) && pods::counts_extended(name))
    }

    /// Returns the usage of an object at the time `now`.
    pub fn usage(&self, object: &Value, now: Timestamp) -> Amounts {
        match self {
            Self::Pods(level) => pods::usage(object, *level, now),
            Self::Services => services::usage(object),
            Self::Claims => claims::usage(object),
            Self::DeviceClaims(extended) => claims::device_usage(object, extended, now),
            Self::Count(names) => Amounts::one_each(names.iter().cloned()),
        }
    }

    /// Checks whether the object specifies everything that quotas with these names require.
    ///
    /// # Errors
    /// Returns the message for what is missing.
    pub fn constraints<'a>(&self, limited: impl Iterator<Item = &'a str>, object: &Value) -> Result<(), String> {
        match self {
            Self::Pods(level) => pods::constraints(limited, object, *level),
            _ => Ok(()),
        }
    }

    /// Returns whether this write can change the object's usage.
    pub fn handles(&self, operation: Operation, subresource: &str, new: &Value, old: &Value) -> bool {
        match (self, operation, subresource) {
            (_, Operation::Create, "") => true,
            (Self::Pods(_), Operation::Update, "") => pods::is_terminating(new) != pods::is_terminating(old),
            (Self::Pods(_), Operation::Update, "resize")
            | (Self::Services | Self::Claims | Self::DeviceClaims(_), Operation::Update, "") => true,
            (Self::Claims, Operation::Update, "status") => claims::status_matters(new, old),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_resources_and_back() {
        for (name, group, plural) in [
            ("pods", "", "pods"),
            ("requests.cpu", "", "pods"),
            ("count/deployments.apps", "apps", "deployments"),
            ("count/widgets.example.com", "example.com", "widgets"),
            ("configmaps", "", "configmaps"),
            ("count/secrets", "", "secrets"),
            ("services.nodeports", "", "services"),
            ("requests.storage", "", "persistentvolumeclaims"),
            ("gpu.deviceclass.resource.k8s.io/devices", "resource.k8s.io", "resourceclaims"),
        ] {
            assert_eq!(Evaluator::resources_of(name), [(group.to_owned(), plural.to_owned())], "{name}");
            assert!(Evaluator::of(group, plural, PodLevel::Counted).unwrap().counts(name), "{name}");
        }
        assert_eq!(Evaluator::resources_of("nothing"), []);
        let both = [("", "pods"), DEVICE_CLAIMS].map(|(g, p)| (g.to_owned(), p.to_owned()));
        assert_eq!(Evaluator::resources_of("requests.example.com/gpu"), both);
        assert_eq!(Evaluator::of("", "events", PodLevel::Counted), None);
    }
}
