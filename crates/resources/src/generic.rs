//! Kinds without rules of their own: metadata validation, status and generation handling, the base table.
use crate::strategy::{Options, Strategy};

/// A kind that needs nothing but its facts.
pub struct Generic(pub Options);

impl Strategy for Generic {
    fn options(&self) -> &Options {
        &self.0
    }
}

const STATUS: &[&str] = &["status"];
const API_EXTENSIONS: &[&str] = &["api-extensions"];
const ADMISSION: &str = "admissionregistration.k8s.io";
const RESOURCE: &str = "resource.k8s.io";

/// All such kinds.
pub static KINDS: &[Generic] = &[
    Generic(Options {
        short_names: &["cs"],
        stored: false,
        ..Options::cluster("", "componentstatuses", "ComponentStatus")
    }),
    Generic(Options { stored: false, ..Options::namespaced("", "bindings", "Binding") }),
    Generic(Options {
        categories: API_EXTENSIONS,
        subresources: STATUS,
        ..Options::cluster("apiregistration.k8s.io", "apiservices", "APIService")
    }),
    Generic(Options {
        short_names: &["crd", "crds"],
        categories: API_EXTENSIONS,
        subresources: STATUS,
        generation: true,
        ..Options::cluster("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition")
    }),
    Generic(Options {
        stored: false,
        ..Options::cluster("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview")
    }),
    Generic(Options { stored: false, ..Options::cluster("authentication.k8s.io", "tokenreviews", "TokenReview") }),
    Generic(Options {
        stored: false,
        ..Options::namespaced("authorization.k8s.io", "localsubjectaccessreviews", "LocalSubjectAccessReview")
    }),
    Generic(Options {
        stored: false,
        ..Options::cluster("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
    }),
    Generic(Options {
        stored: false,
        ..Options::cluster("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview")
    }),
    Generic(Options {
        stored: false,
        ..Options::cluster("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview")
    }),
    Generic(Options {
        versions: &["v1", "v1beta1", "v1alpha1"],
        categories: API_EXTENSIONS,
        generation: true,
        allow_unconditional_update: false,
        ..Options::cluster(ADMISSION, "mutatingadmissionpolicies", "MutatingAdmissionPolicy")
    }),
    Generic(Options {
        versions: &["v1", "v1beta1", "v1alpha1"],
        categories: API_EXTENSIONS,
        generation: true,
        allow_unconditional_update: false,
        ..Options::cluster(ADMISSION, "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding")
    }),
    Generic(Options {
        categories: API_EXTENSIONS,
        generation: true,
        allow_unconditional_update: false,
        ..Options::cluster(ADMISSION, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration")
    }),
    Generic(Options {
        categories: API_EXTENSIONS,
        subresources: STATUS,
        generation: true,
        allow_unconditional_update: false,
        ..Options::cluster(ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy")
    }),
    Generic(Options {
        categories: API_EXTENSIONS,
        generation: true,
        allow_unconditional_update: false,
        ..Options::cluster(ADMISSION, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding")
    }),
    Generic(Options {
        categories: API_EXTENSIONS,
        generation: true,
        allow_unconditional_update: false,
        ..Options::cluster(ADMISSION, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration")
    }),
    Generic(Options {
        versions: &["v1alpha2"],
        storage: ("scheduling.k8s.io", "v1alpha2"),
        subresources: STATUS,
        ..Options::namespaced("scheduling.k8s.io", "podgroups", "PodGroup")
    }),
    Generic(Options {
        versions: &["v1alpha2"],
        storage: ("scheduling.k8s.io", "v1alpha2"),
        ..Options::namespaced("scheduling.k8s.io", "workloads", "Workload")
    }),
    Generic(Options {
        versions: &["v1", "v1beta2", "v1beta1"],
        generation: true,
        ..Options::cluster(RESOURCE, "deviceclasses", "DeviceClass")
    }),
    Generic(Options {
        versions: &["v1", "v1beta2", "v1beta1"],
        subresources: STATUS,
        ..Options::namespaced(RESOURCE, "resourceclaims", "ResourceClaim")
    }),
    Generic(Options {
        versions: &["v1", "v1beta2", "v1beta1"],
        ..Options::namespaced(RESOURCE, "resourceclaimtemplates", "ResourceClaimTemplate")
    }),
    Generic(Options {
        versions: &["v1", "v1beta2", "v1beta1"],
        generation: true,
        ..Options::cluster(RESOURCE, "resourceslices", "ResourceSlice")
    }),
    Generic(Options {
        versions: &["v1beta2", "v1alpha3"],
        storage: (RESOURCE, "v1beta2"),
        subresources: STATUS,
        generation: true,
        ..Options::cluster(RESOURCE, "devicetaintrules", "DeviceTaintRule")
    }),
    Generic(Options {
        versions: &["v1alpha3"],
        storage: (RESOURCE, "v1alpha3"),
        subresources: STATUS,
        allow_unconditional_update: false,
        ..Options::cluster(RESOURCE, "resourcepoolstatusrequests", "ResourcePoolStatusRequest")
    }),
    Generic(Options {
        subresources: STATUS,
        generation: true,
        ..Options::cluster("flowcontrol.apiserver.k8s.io", "flowschemas", "FlowSchema")
    }),
    Generic(Options {
        subresources: STATUS,
        generation: true,
        ..Options::cluster("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations", "PriorityLevelConfiguration")
    }),
    Generic(Options {
        versions: &["v1alpha1"],
        storage: ("internal.apiserver.k8s.io", "v1alpha1"),
        subresources: STATUS,
        allow_unconditional_update: false,
        ..Options::cluster("internal.apiserver.k8s.io", "storageversions", "StorageVersion")
    }),
    Generic(Options {
        versions: &["v1beta1"],
        storage: ("storagemigration.k8s.io", "v1beta1"),
        subresources: STATUS,
        allow_unconditional_update: false,
        ..Options::cluster("storagemigration.k8s.io", "storageversionmigrations", "StorageVersionMigration")
    }),
];
