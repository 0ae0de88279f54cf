//! The number of validations of an update's metadata, by kind: each error is returned as often as upstream returns it,
//! and for some kinds the rules of new objects also apply to changed ones.

/// The number of validations of a changed object's metadata by the kind's rules, in addition to the two common
/// validations: as a new object (with any name) and as a changed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejudged {
    /// The number of validations as a changed object.
    pub changed: u8,
    /// The number of validations as a new object, whose name follows the kind's rule.
    pub new: u8,
    /// Whether finalizers need a domain.
    pub qualified: bool,
}

const fn times(changed: u8, new: u8, qualified: bool) -> Rejudged {
    Rejudged { changed, new, qualified }
}

impl Rejudged {
    /// The value for custom resources, and for kinds without rules for metadata.
    pub const CUSTOM: Self = times(1, 0, false);

    /// Returns the value of a built-in kind.
    pub fn of(group: &str, resource: &str) -> Self {
        match (group, resource) {
            ("", "events") | ("policy", "poddisruptionbudgets") => times(0, 0, false),
            ("admissionregistration.k8s.io", _) => times(0, 1, false),
            ("", "limitranges")
            | ("discovery.k8s.io", "endpointslices")
            | ("flowcontrol.apiserver.k8s.io", _)
            | ("storage.k8s.io", "volumeattachments" | "csinodes") => times(0, 1, true),
            ("", "persistentvolumes") => times(0, 2, true),
            ("coordination.k8s.io", "leases") | ("apiextensions.k8s.io", _) => times(1, 0, false),
            ("apiregistration.k8s.io", _) | ("node.k8s.io", "runtimeclasses") => times(1, 1, false),
            (
                "",
                "configmaps"
                | "pods"
                | "endpoints"
                | "namespaces"
                | "nodes"
                | "persistentvolumeclaims"
                | "serviceaccounts"
                | "secrets",
            )
            | ("apps", "controllerrevisions")
            | ("batch", "jobs")
            | ("networking.k8s.io", "ingresses" | "ingressclasses" | "ipaddresses")
            | ("storage.k8s.io", "volumeattributesclasses" | "storageclasses" | "csistoragecapacities")
            | ("rbac.authorization.k8s.io", _)
            | ("resource.k8s.io", "resourceclaims" | "resourceclaimtemplates") => times(1, 1, true),
            ("certificates.k8s.io", "certificatesigningrequests") | ("resource.k8s.io", "deviceclasses") => {
                times(2, 0, true)
            }
            _ => times(1, 0, true),
        }
    }

    /// Returns the value for a built-in kind's subresources.
    pub fn of_views(group: &str, resource: &str) -> Self {
        match (group, resource) {
            ("batch", "cronjobs") | ("policy", "poddisruptionbudgets") => times(0, 0, false),
            ("apiextensions.k8s.io", _) => times(1, 0, false),
            ("certificates.k8s.io", "certificatesigningrequests") => times(2, 0, true),
            _ => times(1, 0, true),
        }
    }
}

/// Reports whether a write of the status keeps labels, annotations, finalizers and owners unchanged.
pub fn status_is_independent(group: &str, resource: &str) -> bool {
    match group {
        "flowcontrol.apiserver.k8s.io" | "storagemigration.k8s.io" | "internal.apiserver.k8s.io" => true,
        "apiregistration.k8s.io" | "admissionregistration.k8s.io" => true,
        "networking.k8s.io" => resource == "servicecidrs",
        "storage.k8s.io" => resource == "volumeattachments",
        "scheduling.k8s.io" => resource == "podgroups",
        "resource.k8s.io" => {
            matches!(resource, "resourceclaims" | "devicetaintrules" | "resourcepoolstatusrequests")
        }
        _ => false,
    }
}
