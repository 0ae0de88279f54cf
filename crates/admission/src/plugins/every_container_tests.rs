//! Every plugin checks all kinds of containers (CVE-2023-2727, CVE-2023-2728, CVE-2024-3177): a pod that is rejected
//! because of one container is rejected whichever list contains that container.
use serde_json::{Value, json};

use super::exec::DenyEscalatingExec;
use super::images::AlwaysPullImages;
use super::pod_security::PodSecurity;
use super::security_context::SecurityContextDeny;
use super::service_account::ServiceAccount;
use crate::containers::ContainerKind;
use crate::testing::{Ask, dependencies, object};
use crate::{Dependencies, Operation};

/// The stored objects: a namespace with strict policies, a service account that may only mount one secret, and a pod
/// for exec requests.
fn world(pod: &Value) -> Dependencies {
    let account = json!({"metadata": {"name": "default", "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}},
        "secrets": [{"name": "own"}]});
    dependencies(&[
        ("namespaces//a", json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})),
        ("serviceaccounts/a/default", account),
        ("pods/a/p", pod.clone()),
    ])
}

/// A pod in which only this container is invalid.
fn pod(kind: ContainerKind, container: Value) -> Value {
    let hardened = json!({"allowPrivilegeEscalation": false, "runAsNonRoot": true, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"}});
    let mut pod = json!({"metadata": {"name": "p"}, "spec": {"automountServiceAccountToken": false, "serviceAccountName": "default",
        "containers": [{"name": "good", "image": "i", "imagePullPolicy": "Always", "securityContext": hardened}]}});
    let mut container = container;
    container["name"] = json!("bad");
    match pod["spec"][kind.field()].as_array_mut() {
        Some(list) => list.push(container),
        None => pod["spec"][kind.field()] = json!([container]),
    }
    pod
}

/// The request by which a container of this kind is added to a pod.
fn ask(kind: ContainerKind, pod: Value) -> Ask<'static> {
    match kind {
        ContainerKind::Init | ContainerKind::Regular => Ask::pod(pod),
        ContainerKind::Ephemeral => {
            let mut old = pod.clone();
            old["spec"].as_object_mut().unwrap().remove(kind.field());
            Ask::update("/pods/ephemeralcontainers", old, pod).named("a", "p")
        }
    }
}

#[tokio::test]
async fn a_bad_container_is_found_in_every_list() {
    let secret = |field: &str| match field {
        "env" => json!({"env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "stolen", "key": "k"}}}]}),
        _ => json!({"envFrom": [{"secretRef": {"name": "stolen"}}]}),
    };
    for &kind in ContainerKind::ALL {
        let privileged = pod(kind, json!({"image": "i", "securityContext": {"privileged": true, "runAsUser": 0}}));
        let d = world(&privileged);
        let refusals = [
            object(PodSecurity::new(&d, &Value::Null).unwrap(), ask(kind, privileged.clone())).await,
            object(SecurityContextDeny, ask(kind, privileged.clone())).await,
            object(
                DenyEscalatingExec::new(&d),
                Ask::new(Operation::Connect, "/pods/exec", Value::Null).named("a", "p"),
            )
            .await,
        ];
        for (plugin, refusal) in ["PodSecurity", "SecurityContextDeny", "DenyEscalatingExec"].iter().zip(refusals) {
            assert!(refusal.is_err(), "{plugin} forgets {}", kind.words());
        }
        for field in ["env", "envFrom"] {
            let thief = pod(kind, secret(field));
            let d = world(&thief);
            let refusal = object(ServiceAccount::new(&d), ask(kind, thief)).await;
            assert!(
                refusal.is_err_and(|why| why.contains("stolen")),
                "ServiceAccount forgets {field} of {}",
                kind.words()
            );
        }
        let cached = pod(kind, json!({"image": "private", "imagePullPolicy": "Never"}));
        let admitted = object(AlwaysPullImages, ask(kind, cached)).await.unwrap();
        let list = admitted["spec"][kind.field()].as_array().unwrap();
        assert_eq!(list.last().unwrap()["imagePullPolicy"], "Always", "AlwaysPullImages forgets {}", kind.words());
    }
}
