//! NodeRestriction for PodCertificateRequests (KEP-4317): a kubelet may request certificates for pods on its node, with
//! the pod's service account, and may not change such a request later.
use kelson_auth::Objects;
use kelson_meta::Status;
use kelson_meta::tree::path::{at, text};
use serde_json::Value;

use crate::{Attributes, Operation};

/// The annotation of mirror pods, which represent static pods of a node.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

/// Checks a PodCertificateRequest of the kubelet of `node`.
///
/// # Errors
/// 403 for a request that no node may make. 500 when a referenced object is missing or has another UID: the node may
/// have a newer version and retries.
pub fn check(objects: &dyn Objects, node: &str, a: &Attributes<'_>) -> Result<(), Status> {
    if a.operation != Operation::Create {
        return Err(a.forbidden(&format!("unexpected operation {}", a.operation.as_str())));
    }
    if !a.subresource.is_empty() {
        return Err(a.forbidden(&format!("unexpected subresource {}", a.subresource)));
    }
    let field = |name: &str| text(a.new_object(), &["spec", name]);
    let find = |resource: &str, what: &str, namespace: &str, name: &str| {
        let found = objects.get("", resource, namespace, name).and_then(|b| serde_json::from_slice::<Value>(&b).ok());
        let shown = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
        let lost = format!(
            "while retrieving {what} {shown:?} named in the PodCertificateRequest: {resource} {name:?} not found"
        );
        found.ok_or_else(|| Status::internal(lost))
    };
    let uid = |object: &Value| text(object, &["metadata", "uid"]).to_owned();
    let asked = field("nodeName");
    if asked != node {
        let why = format!("PodCertificateRequest.Spec.NodeName={asked:?}, which is not the requesting node {node:?}");
        return Err(a.forbidden(&why));
    }
    let of = format!("{}/{}", a.namespace, field("podName"));
    let stored = uid(&find("nodes", "node", "", node)?);
    if stored != field("nodeUID") {
        return Err(Status::internal(format!(
            "PodCertificateRequest for pod {of:?} names node UID {:?}, inconsistent with the running node ({stored:?})",
            field("nodeUID")
        )));
    }
    let pod = find("pods", "pod", a.namespace, field("podName"))?;
    if uid(&pod) != field("podUID") {
        return Err(Status::internal(format!(
            "PodCertificateRequest for pod {of:?} contains pod UID ({:?}) which differs from running pod {:?}",
            field("podUID"),
            uid(&pod)
        )));
    }
    if text(&pod, &["spec", "nodeName"]) != node {
        return Err(
            a.forbidden(&format!("pod {of:?} is not running on node {node:?} named in the PodCertificateRequest"))
        );
    }
    if !at(&pod, &["metadata", "annotations", MIRROR]).is_null() {
        return Err(a.forbidden(&format!("pod {of:?} is a mirror pod")));
    }
    let (account, has) = (field("serviceAccountName"), text(&pod, &["spec", "serviceAccountName"]));
    if account != has {
        return Err(a.forbidden(&format!(
            "PodCertificateRequest for pod {of:?} contains serviceAccountName ({account:?}) that differs from running pod ({has:?})"
        )));
    }
    let stored = uid(&find("serviceaccounts", "service account", a.namespace, account)?);
    if stored != field("serviceAccountUID") {
        return Err(Status::internal(format!(
            "PodCertificateRequest for pod {of:?} names service account UID {:?}, which differs from the running service account \
             ({stored:?})",
            field("serviceAccountUID")
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, dependencies};
    use serde_json::json;

    const REQUESTS: &str = "certificates.k8s.io/podcertificaterequests";

    fn ask(ask: Ask<'_>) -> Result<(), String> {
        let pod = |uid: &str, node: &str, annotations: Value| {
            json!({"metadata": {"uid": uid, "annotations": annotations},
                "spec": {"nodeName": node, "serviceAccountName": "web"}})
        };
        let world = [
            ("nodes//n1", json!({"metadata": {"uid": "n1-uid"}})),
            ("pods/a/p", pod("p-uid", "n1", json!({}))),
            ("pods/a/theirs", pod("p-uid", "n2", json!({}))),
            ("pods/a/mirror", pod("p-uid", "n1", json!({"kubernetes.io/config.mirror": "x"}))),
            ("serviceaccounts/a/web", json!({"metadata": {"uid": "web-uid"}})),
        ];
        let d = dependencies(&world);
        ask.with(|a| check(d.objects.as_ref(), "n1", a)).map_err(|status| status.message)
    }

    fn request(change: (&str, &str)) -> Value {
        let mut spec = json!({"nodeName": "n1", "nodeUID": "n1-uid", "podName": "p", "podUID": "p-uid",
            "serviceAccountName": "web", "serviceAccountUID": "web-uid"});
        if !change.0.is_empty() {
            spec[change.0] = change.1.into();
        }
        json!({"metadata": {"name": "x"}, "spec": spec})
    }

    #[test]
    fn of_pods_on_the_node_alone() {
        assert!(ask(Ask::create(REQUESTS, request(("", "")))).is_ok());
        for (field, value, want) in [
            ("nodeName", "n2", "NodeName=\"n2\", which is not the requesting node \"n1\""),
            ("nodeUID", "old", "pod \"a/p\" names node UID \"old\", inconsistent with the running node (\"n1-uid\")"),
            ("podName", "gone", "while retrieving pod \"a/gone\" named in the PodCertificateRequest"),
            ("podUID", "old", "contains pod UID (\"old\") which differs from running pod \"p-uid\""),
            ("podName", "theirs", "pod \"a/theirs\" is not running on node \"n1\" named in the PodCertificateRequest"),
            ("podName", "mirror", "pod \"a/mirror\" is a mirror pod"),
            ("serviceAccountName", "root", "serviceAccountName (\"root\") that differs from running pod (\"web\")"),
            (
                "serviceAccountUID",
                "old",
                "service account UID \"old\", which differs from the running service account (\"web-uid\")",
            ),
        ] {
            let reported = ask(Ask::create(REQUESTS, request((field, value)))).unwrap_err();
            assert!(reported.contains(want), "{field}: {reported}");
        }
        let update = Ask::update(REQUESTS, request(("", "")), request(("", "")));
        assert!(ask(update).unwrap_err().ends_with("unexpected operation UPDATE"));
    }
}
