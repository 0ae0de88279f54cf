//! How often an update's metadata is judged, by kind: a fault is told as often as the reference finds it, and what only new objects
//! are asked elsewhere is asked of changed ones of some kinds as well.

/// What a kind's own rules look at in the metadata of an object that is changed, besides what all kinds have looked at twice: as of a
/// new object (where any name will do) and as of a changed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejudged {
    /// How often as that of a changed object.
    pub changed: u8,
    /// How often as that of a new object, whose name follows the kind's rule.
    pub new: u8,
    /// Whether finalizers need a domain.
    pub qualified: bool,
}

const fn times(changed: u8, new: u8, qualified: bool) -> Rejudged {
    Rejudged { changed, new, qualified }
}

impl Rejudged {
    /// Custom resources, and kinds whose rules are those of all.
    pub const CUSTOM: Self = times(1, 0, false);

    /// Of a built-in kind.
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

    /// Of a built-in kind's subresources.
    pub fn of_views(group: &str, resource: &str) -> Self {
        match (group, resource) {
            ("batch", "cronjobs") | ("policy", "poddisruptionbudgets") => times(0, 0, false),
            ("apiextensions.k8s.io", _) => times(1, 0, false),
            ("certificates.k8s.io", "certificatesigningrequests") => times(2, 0, true),
            _ => times(1, 0, true),
        }
    }
}

/// Whether a write of the status keeps labels, annotations, finalizers and owners as they were.
pub fn status_stands_alone(group: &str, resource: &str) -> bool {
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
