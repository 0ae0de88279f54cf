//! Requests for resources that cannot be decrypted, because their key service is not available: they are answered 500 with the reason, as
//! upstream answers them, while everything else is served.

use kelson_meta::Status;
use kelson_store::{Resource, SealError, Store, StoreError};

use crate::catalog::Served;
use crate::request::route::RequestInfo;
use crate::request::version_param;

/// Whether a request may continue.
///
/// # Errors
/// 500 for a resource that is locked. 503 for a write while a resource is locked by which the server decides what may be written: a
/// webhook or a quota that cannot be read must not be bypassed.
pub fn check(store: &Store, served: &Served, info: &RequestInfo) -> Result<(), Status> {
    if !served.options().stored {
        return Ok(());
    }
    if let Some(reason) = store.locked(served.store) {
        return Err(version_param::store_error(&StoreError::Sealed(reason)));
    }
    let connects = matches!(info.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy");
    if matches!(info.verb, "get" | "list" | "watch") && !connects {
        return Ok(());
    }
    match deciding(&store.all_locked()) {
        None => Ok(()),
        Some((resource, reason)) => {
            Err(Status::unavailable(format!("writes wait for {resource}, which cannot be decrypted: {reason}")))
        }
    }
}

/// The first locked resource that decides about requests for others.
fn deciding(locked: &[(Resource, SealError)]) -> Option<&(Resource, SealError)> {
    locked.iter().find(|(resource, _)| {
        let (group, plural) = (resource.group(), resource.plural());
        let data = match group {
            "" => matches!(plural, "secrets" | "configmaps" | "events"),
            "coordination.k8s.io" => true,
            // Kinds that users define. What reads them as parameters of a policy looks whether they are locked.
            group => group.contains('.') && !group.ends_with(".k8s.io"),
        };
        !data
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_its_own_requests_read_holds_up_no_other() {
        let locked = |names: &[&str]| {
            let why = || SealError::Unavailable("away".to_owned());
            let all: Vec<_> = names.iter().map(|name| (Resource::parse(name), why())).collect();
            deciding(&all).map(|(resource, _)| resource.as_str().to_owned())
        };
        assert_eq!(locked(&[]), None);
        assert_eq!(locked(&["configmaps", "example.com/things", "coordination.k8s.io/leases", "secrets"]), None);
        for deciding in [
            "admissionregistration.k8s.io/validatingwebhookconfigurations",
            "apiextensions.k8s.io/customresourcedefinitions",
            "namespaces",
            "policy/poddisruptionbudgets",
            "resourcequotas",
        ] {
            assert_eq!(locked(&["secrets", deciding]).as_deref(), Some(deciding));
        }
    }
}
