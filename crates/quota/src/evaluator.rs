//! How the objects of one resource are counted.
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use crate::amounts::Amounts;
use crate::extended::ExtendedResources;
use crate::pods::PodLevel;
use crate::{claims, pods, services};

/// Resources that no quota counts: what is not stored, and events.
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
/// Resources of the core group that quotas may also name without `count/`.
const PLAIN: &[&str] = &["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];

/// Group and plural of claims of devices.
const DEVICE_CLAIMS: (&str, &str) = ("resource.k8s.io", "resourceclaims");

/// The write that is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new object.
    Create,
    /// An object takes the place of another.
    Update,
}

/// How the objects of one resource are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluator {
    /// Pods, by what they ask for as a whole or by container.
    Pods(PodLevel),
    /// Services, with their node ports and load balancers.
    Services,
    /// Claims of volumes.
    Claims,
    /// Claims of devices, by the classes and pods beside them.
    DeviceClaims(Arc<ExtendedResources>),
    /// One of each of these names for every object.
    Count(Vec<String>),
}

impl Evaluator {
    /// For a resource; `None` for what no quota counts.
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

    /// The resources (group and plural) whose objects a quota's name counts.
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

    /// Whether a quota's name is about these objects.
    pub fn counts(&self, name: &str) -> bool {
        match self {
            Self::Pods(_) => pods::counts(name),
            Self::Services => services::NAMES.contains(&name),
            Self::Claims => claims::counts(name),
            Self::DeviceClaims(extended) => claims::counts_devices(name) || extended.counts(name),
            Self::Count(names) => names.iter().any(|n| n == name),
        }
    }

    /// Whether a quota's name may be about these objects, whatever else there is beside them.
    pub fn may_count(&self, name: &str) -> bool {
        self.counts(name) || (matches!(self, Self::DeviceClaims(_)) && pods::counts_extended(name))
    }

    /// What an object uses at `now`.
    pub fn usage(&self, object: &Value, now: Timestamp) -> Amounts {
        match self {
            Self::Pods(level) => pods::usage(object, *level, now),
            Self::Services => services::usage(object),
            Self::Claims => claims::usage(object),
            Self::DeviceClaims(extended) => claims::device_usage(object, extended, now),
            Self::Count(names) => Amounts::one_each(names.iter().cloned()),
        }
    }

    /// Whether the object says what quotas of these names must know.
    ///
    /// # Errors
    /// The words for what it does not say.
    pub fn constraints<'a>(&self, limited: impl Iterator<Item = &'a str>, object: &Value) -> Result<(), String> {
        match self {
            Self::Pods(level) => pods::constraints(limited, object, *level),
            _ => Ok(()),
        }
    }

    /// Whether this write can change what the object uses.
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
