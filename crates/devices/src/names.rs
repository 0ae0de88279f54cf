//! Names and limits of the API (`k8s.io/api/resource/v1`).

/// The finalizer of allocated claims.
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// The annotation of a claim from a template: the name of the claim in the pod's spec.
pub const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";
/// The annotation with the value `"true"` on a claim that the scheduler created for extended resources of a pod
/// (KEP-5004).
pub const EXTENDED_RESOURCE_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";
/// The prefix of the implicit extended resource of every class.
pub const IMPLICIT_EXTENDED_RESOURCE: &str = "deviceclass.resource.kubernetes.io/";
/// The maximum number of devices of one claim.
pub const RESULTS_MAX: usize = 32;
/// The maximum number of alternatives of a request, which is also the score of the first alternative.
pub const ALTERNATIVES_MAX: usize = 8;
