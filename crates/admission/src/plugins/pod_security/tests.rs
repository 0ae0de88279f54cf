//! Whole requests through the plugin: modes, exemptions, namespaces.
use super::*;
use crate::testing::{Ask, dependencies, run};
use serde_json::json;

#[tokio::test]
async fn modes() {
    let d = dependencies(&[
        (
            "namespaces//a",
            json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline",
            "pod-security.kubernetes.io/warn": "restricted", "pod-security.kubernetes.io/warn-version": "v1.30"}}}),
        ),
        ("namespaces//free", json!({})),
    ]);
    let plugin = || PodSecurity::new(&d, &Value::Null).unwrap();
    let pod =
        |host: bool| json!({"metadata": {"name": "p"}, "spec": {"hostNetwork": host, "containers": [{"name": "c"}]}});
    let refused = run(plugin(), Ask::pod(pod(true))).await.err().unwrap();
    assert_eq!(
        refused.message,
        "pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"
    );
    let warned = run(plugin(), Ask::pod(pod(false))).await.unwrap().notes;
    assert!(warned.warnings[0].starts_with("would violate PodSecurity \"restricted:v1.30\": allowPrivilegeEscalation"));
    assert_eq!(warned.audit_annotations[0].1, "baseline:latest");
    let deployment = json!({"spec": {"template": {"spec": {"hostNetwork": true, "containers": []}}}});
    let notes = run(plugin(), Ask::create("apps/deployments", deployment)).await.unwrap().notes;
    assert!(notes.warnings[0].contains("host namespaces (hostNetwork=true)"));
    assert!(run(plugin(), Ask::pod(pod(true)).named("free", "p")).await.unwrap().notes.warnings.is_empty());
    assert!(run(plugin(), Ask::update("/pods", pod(true), pod(true))).await.is_ok(), "nothing significant changed");
    let changed = |path: &str, value: Value| {
        let mut new = pod(true);
        *new.pointer_mut(path).unwrap() = value;
        significant(&pod(true), &new)
    };
    assert!(!changed("/spec/hostNetwork", json!(false)), "the checks look at it, but it cannot change");
    assert!(changed("/spec/containers", json!([{"name": "c", "image": "new"}])));
    assert!(changed("/spec/containers", json!([{"name": "c"}, {"name": "d"}])));
    let mut debugged = pod(true);
    debugged["spec"]["ephemeralContainers"] = json!([{"name": "e"}]);
    assert!(significant(&pod(true), &debugged));
    let mut profiled = pod(true);
    profiled["metadata"]["annotations"] = json!({"container.apparmor.security.beta.kubernetes.io/c": "unconfined"});
    assert!(significant(&pod(true), &profiled) && significant(&profiled, &pod(true)));
    profiled["metadata"]["annotations"] = json!({"other": "x"});
    assert!(!significant(&pod(true), &profiled));
    let exempt = json!({"exemptions": {"namespaces": ["a"]}, "defaults": {"enforce": "restricted"}});
    let configured = || PodSecurity::new(&d, &exempt).unwrap();
    assert!(run(configured(), Ask::pod(pod(true))).await.is_ok());
    assert!(run(configured(), Ask::pod(pod(false)).named("free", "p")).await.is_err());
    assert!(PodSecurity::new(&d, &json!({"defaults": {"enforce": "x"}})).is_err());
}

#[tokio::test]
async fn labels() {
    let d = dependencies(&[]);
    let ns = |v: &str| json!({"metadata": {"name": "n", "labels": {"pod-security.kubernetes.io/enforce": v}}});
    let ask = |a| run(PodSecurity::new(&d, &Value::Null).unwrap(), a);
    assert!(ask(Ask::create("/namespaces", ns("restricted"))).await.is_ok());
    let refused = ask(Ask::create("/namespaces", ns("strict"))).await.err().unwrap();
    assert!(refused.code == 422 && refused.message.contains("must be one of privileged, baseline, restricted"));
    assert!(ask(Ask::update("/namespaces", ns("strict"), ns("strict"))).await.is_ok());
}

#[tokio::test]
async fn a_raised_level_warns_of_pods_that_violate_it() {
    let pod = |name: &str, owner: &str, spec: Value| {
        let owners = if owner.is_empty() { json!([]) } else { json!([{"controller": true, "uid": owner}]) };
        json!({"metadata": {"name": name, "namespace": "n", "ownerReferences": owners}, "spec": spec})
    };
    let host = || json!({"hostNetwork": true, "containers": [{"name": "c"}]});
    let exempt = json!({"hostPID": true, "runtimeClassName": "free", "containers": []});
    let privileged = json!({"containers": [{"name": "c", "securityContext": {"privileged": true}}]});
    let d = dependencies(&[
        ("pods/n/a", pod("a", "r", host())),
        ("pods/n/b", pod("b", "r", host())),
        ("pods/n/c", pod("c", "", host())),
        ("pods/n/d", pod("d", "", privileged)),
        ("pods/n/e", pod("e", "", json!({"containers": [{"name": "c"}]}))),
        ("pods/n/f", pod("f", "", exempt)),
        ("pods/other/x", pod("x", "", host())),
    ]);
    let namespace = |labels: Value| json!({"kind": "Namespace", "metadata": {"name": "n", "labels": labels}});
    let level = |l: &str| json!({"pod-security.kubernetes.io/enforce": l});
    let configuration = json!({"exemptions": {"runtimeClasses": ["free"], "namespaces": ["kube-system"]}});
    let reported = async |old: Value, new: Value| {
        let ask = Ask::update("/namespaces", namespace(old), namespace(new)).named("n", "n");
        run(PodSecurity::new(&d, &configuration).unwrap(), ask).await.unwrap().notes.warnings
    };
    assert_eq!(
        reported(json!({}), level("baseline")).await,
        [
            "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"",
            "a (and 2 other pods): host namespaces",
            "d: privileged",
        ]
    );
    assert!(reported(level("baseline"), level("baseline")).await.is_empty());
    assert!(reported(level("restricted"), level("baseline")).await.is_empty(), "lowered");
    assert!(reported(level("baseline"), level("privileged")).await.is_empty());
    let old_rules = json!({"pod-security.kubernetes.io/enforce": "baseline",
        "pod-security.kubernetes.io/enforce-version": "v1.20"});
    assert_eq!(reported(level("baseline"), old_rules).await.len(), 3, "another version is another set of rules");
    let ask = Ask::create("/namespaces", {
        let mut system = namespace(level("baseline"));
        system["metadata"]["name"] = json!("kube-system");
        system
    });
    let warned = run(PodSecurity::new(&d, &configuration).unwrap(), ask).await.unwrap().notes.warnings;
    assert_eq!(
        warned,
        [
            "namespace \"kube-system\" is exempt from Pod Security, and the policy (enforce=baseline:latest) will be ignored"
        ]
    );
}
