//! Keys and limits of the API (`k8s.io/api/resource/v1`).

/// The finalizer of claims that are allocated.
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// On a claim made from a template: the name that the pod's spec has for it.
pub const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";
/// `"true"` on a claim that the scheduler made for extended resources of a pod (KEP-5004).
pub const EXTENDED_RESOURCE_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";
/// Before the name of a class: the extended resource that every class stands for.
pub const IMPLICIT_EXTENDED_RESOURCE: &str = "deviceclass.resource.kubernetes.io/";
/// Most devices that one claim can have.
pub const RESULTS_MAX: usize = 32;
/// Most alternatives of a request: the first of them is worth this much when nodes are compared.
pub const ALTERNATIVES_MAX: usize = 8;
