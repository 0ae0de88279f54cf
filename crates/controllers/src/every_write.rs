//! Tests of controllers in which each write fails once: it is rejected, its response is lost, or the object has
//! changed. The final state must always be the same. Controllers whose modules have such tests are not included.
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use kelson_meta::{Clock as _, format_micro};
use kelson_pki::{Authority, Key, create_request};
use kelson_simulation::{Api, DISTURBANCES, at_every_request};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::testing::run;
use crate::{Authorities, Config};

/// Waits until a condition holds.
async fn until(api: &Api, what: &str, so: impl AsyncFn(&Api) -> bool) {
    api.until(what, async |api| so(api).await.then_some(())).await;
}

async fn gone(api: &Api, resource: &str, namespace: &str, name: &str) {
    until(api, &format!("{name} is gone"), async |api| api.get(resource, namespace, name).await.is_none()).await;
}

fn template(label: &str, image: &str) -> Value {
    json!({"metadata": {"labels": {"app": label}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

#[tokio::test(start_paused = true)]
async fn deployments_roll_out() {
    at_every_request(&DISTURBANCES, async |api: Api| {
        api.namespace("n").await;
        let _running = run(&api, &["deployment-controller", "replicaset-controller"], Config::default()).await;
        let spec =
            json!({"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template("web", "v1")});
        let kind = "apps/v1/deployments";
        api.create(kind, json!({"metadata": {"name": "web", "namespace": "n"}, "spec": spec})).await;
        let complete = async |image: &str| {
            until(&api, "rolled out", async |api| {
                api.run_pods().await;
                let d = api.get(kind, "n", "web").await.expect("the deployment");
                let (wanted, s) = (&d["metadata"]["generation"], &d["status"]);
                let counts = ["replicas", "updatedReplicas", "availableReplicas"].iter().all(|c| s[*c] == 2);
                counts
                    && s["observedGeneration"] == *wanted
                    && d["spec"]["template"]["spec"]["containers"][0]["image"] == image
            })
            .await;
        };
        complete("v1").await;
        api.change(kind, "n", "web", |d| d["spec"]["template"]["spec"]["containers"][0]["image"] = json!("v2")).await;
        complete("v2").await;
        let sets = api.list("apps/v1/replicasets").await;
        let mut sizes: Vec<i64> = sets.iter().filter_map(|s| s["spec"]["replicas"].as_i64()).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [0, 2], "one set for each template");
        let revisions = |s: &Value| s["metadata"]["annotations"]["deployment.kubernetes.io/revision"].clone();
        let newest = sets.iter().find(|s| s["spec"]["replicas"] == 2).map(revisions);
        assert_eq!(newest, Some(json!("2")));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn dependents_go_with_their_owner() {
    for policy in ["Foreground", "Background", "Orphan"] {
        at_every_request(&DISTURBANCES, async |api: Api| {
            api.namespace("n").await;
            let _running = run(&api, &["garbage-collector-controller"], Config::default()).await;
            let spec =
                json!({"replicas": 0, "selector": {"matchLabels": {"app": "d"}}, "template": template("d", "i")});
            let sets = "apps/v1/replicasets";
            let made = json!({"metadata": {"name": "owner", "namespace": "n"}, "spec": spec});
            let owner = api.create(sets, made).await;
            let of = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "owner",
                "uid": owner["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true}]);
            for name in ["x", "y"] {
                let map = json!({"metadata": {"name": name, "namespace": "n", "ownerReferences": of}});
                api.create("v1/configmaps", map).await;
            }
            api.settle().await;
            api.delete(sets, "n", "owner", json!({"propagationPolicy": policy})).await;
            gone(&api, sets, "n", "owner").await;
            for name in ["x", "y"] {
                if policy != "Orphan" {
                    gone(&api, "v1/configmaps", "n", name).await;
                    continue;
                }
                let kept = api.get("v1/configmaps", "n", name).await.expect("what was orphaned");
                assert!(kept["metadata"]["ownerReferences"].is_null(), "{name} has an owner that does not exist");
            }
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_with_all_that_is_in_it() {
    at_every_request(&DISTURBANCES, async |api: Api| {
        let _running = run(&api, &["namespace-controller"], Config::default()).await;
        for namespace in ["a", "b"] {
            api.namespace(namespace).await;
            api.create("v1/configmaps", json!({"metadata": {"name": "c", "namespace": namespace}})).await;
        }
        api.delete("v1/namespaces", "", "a", json!({})).await;
        gone(&api, "v1/namespaces", "", "a").await;
        assert!(api.get("v1/configmaps", "a", "c").await.is_none());
        assert!(api.get("v1/configmaps", "b", "c").await.is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_every_cluster_has_comes_back() {
    let api = Api::start().await;
    let _running = run(&api, &["namespace-controller"], Config::default()).await;
    let leases = api.get("v1/namespaces", "", "kube-node-lease").await.expect("from the start");
    api.delete("v1/namespaces", "", "kube-node-lease", json!({})).await;
    until(&api, "another one", async |api| {
        let now = api.get("v1/namespaces", "", "kube-node-lease").await;
        now.is_some_and(|now| now["metadata"]["uid"] != leases["metadata"]["uid"])
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn quotas_are_counted() {
    at_every_request(&DISTURBANCES, async |api: Api| {
        api.namespace("n").await;
        let _running = run(&api, &["resourcequota-controller"], Config::default()).await;
        let map = |name: &str| json!({"metadata": {"name": name, "namespace": "n"}});
        api.create("v1/configmaps", map("before")).await;
        let quotas = "v1/resourcequotas";
        let spec = json!({"hard": {"count/configmaps": "3"}});
        api.create(quotas, json!({"metadata": {"name": "q", "namespace": "n"}, "spec": spec})).await;
        let used = async |hard: &str, used: &str| {
            until(&api, &format!("{used} of {hard}"), async |api| {
                let q = api.get(quotas, "n", "q").await.expect("the quota");
                let count = |part: &str| q["status"][part]["count/configmaps"].clone();
                (count("hard"), count("used")) == (json!(hard), json!(used))
            })
            .await;
        };
        used("3", "1").await;
        api.change(quotas, "n", "q", |q| q["spec"]["hard"] = json!({"count/configmaps": "5"})).await;
        used("5", "1").await;
        api.create("v1/configmaps", map("after")).await;
        used("5", "2").await;
        api.remove("v1/configmaps", "n", "before").await;
        used("5", "1").await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn slices_and_endpoints_follow_pods() {
    at_every_request(&DISTURBANCES, async |api: Api| {
        api.namespace("n").await;
        let names = ["endpointslice-controller", "endpoints-controller"];
        let _running = run(&api, &names, Config::default()).await;
        api.create("v1/nodes", json!({"metadata": {"name": "n1"}})).await;
        let spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]});
        api.create("v1/services", json!({"metadata": {"name": "web", "namespace": "n"}, "spec": spec})).await;
        for (name, ip) in [("a", "10.42.0.2"), ("b", "10.42.0.3")] {
            let status = json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": "True"}]});
            let spec = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "c"}]});
            let metadata = json!({"name": name, "namespace": "n", "labels": {"app": "web"}});
            api.create("v1/pods", json!({"metadata": metadata, "spec": spec, "status": status})).await;
        }
        let shown = async |n: usize| {
            until(&api, &format!("{n} addresses"), async |api| {
                let slices = api.list("discovery.k8s.io/v1/endpointslices").await;
                let of = |s: &Value| s["endpoints"].as_array().map_or(0, Vec::len);
                let legacy = api.get("v1/endpoints", "n", "web").await.unwrap_or_default();
                let addresses = legacy["subsets"][0]["addresses"].as_array().map_or(0, Vec::len);
                slices.iter().map(of).sum::<usize>() == n && addresses == n
            })
            .await;
        };
        shown(2).await;
        api.remove("v1/pods", "n", "a").await;
        shown(1).await;
        // A slice whose creation response was lost is found and does not remain twice.
        assert_eq!(api.list("discovery.k8s.io/v1/endpointslices").await.len(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_loses_its_pods_and_comes_back() {
    let leases = "coordination.k8s.io/v1/leases";
    at_every_request(&DISTURBANCES, async |api: Api| {
        api.namespace("n").await;
        let names = ["node-lifecycle-controller", "taint-eviction-controller"];
        let _running = run(&api, &names, Config::default()).await;
        let condition = |status: &str| json!([{"type": "Ready", "status": status, "reason": "KubeletReady"}]);
        for name in ["n1", "n2"] {
            api.create("v1/nodes", json!({"metadata": {"name": name}, "status": {"conditions": condition("True")}}))
                .await;
            api.create(leases, json!({"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": {}})).await;
        }
        let spec = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "c"}],
            "tolerations": [{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": 5}]});
        let running = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        let metadata = json!({"name": "p", "namespace": "n"});
        api.create("v1/pods", json!({"metadata": metadata, "spec": spec, "status": running})).await;
        let alive = async |name: &str| {
            let now = format_micro(api.clock.now());
            api.change(leases, "kube-node-lease", name, |l| l["spec"]["renewTime"] = json!(now)).await;
        };
        api.until_within(Duration::from_secs(600), "the pod is told to go", async |api| {
            alive("n2").await;
            let pod = api.get("v1/pods", "n", "p").await.expect("the pod");
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let why = conditions.iter().any(|c| c["type"] == "DisruptionTarget");
            (why && !pod["metadata"]["deletionTimestamp"].is_null()).then_some(())
        })
        .await;
        let node = api.get("v1/nodes", "", "n1").await.expect("the node");
        assert_eq!(node["status"]["conditions"][0]["status"], "Unknown");
        api.change("v1/nodes", "", "n1", |n| n["status"]["conditions"] = condition("True")).await;
        api.until_within(Duration::from_secs(600), "the node has no taints", async |api| {
            alive("n1").await;
            alive("n2").await;
            let node = api.get("v1/nodes", "", "n1").await.expect("the node");
            node["spec"]["taints"].as_array().is_none_or(Vec::is_empty).then_some(())
        })
        .await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn certificate_requests_are_approved_signed_and_cleaned_up() {
    let kind = "certificates.k8s.io/v1/certificatesigningrequests";
    let node = "system:node:n1";
    let pem = create_request(&Key::generate().expect("a key"), node, &["system:nodes".into()], &[]).expect("a request");
    let request = base64::engine::general_purpose::STANDARD.encode(pem);
    at_every_request(&DISTURBANCES, async |api: Api| {
        let ca = Arc::new(Authority::create("ca", api.clock.now()).expect("an authority"));
        let signers = Authorities { signer: Some(ca), ..Authorities::default() };
        let config = Config { authorities: signers.fixed(), ..Config::default() };
        let names =
            ["approving", "signing", "cleaner"].map(|part| format!("certificatesigningrequest-{part}-controller"));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let _running = run(&api, &names, config).await;
        let rbac = |plural: &str| format!("rbac.authorization.k8s.io/v1/{plural}");
        let rule = json!({"apiGroups": ["certificates.k8s.io"], "verbs": ["create"],
            "resources": ["certificatesigningrequests/selfnodeclient", "certificatesigningrequests"]});
        api.create(&rbac("clusterroles"), json!({"metadata": {"name": "renew"}, "rules": [rule]})).await;
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "renew"});
        let who = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": node});
        let binding = json!({"metadata": {"name": "renew"}, "roleRef": role, "subjects": [who]});
        api.create(&rbac("clusterrolebindings"), binding).await;
        let spec = json!({"request": request, "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"]});
        // The requesting client's writes fail, too, and it retries.
        let (asker, asked) = (api.acting_as(node), json!({"metadata": {"name": "r"}, "spec": spec}));
        until(&api, "asked", async |api| {
            asker.try_create(kind, asked.clone()).await.is_ok() || api.get(kind, "", "r").await.is_some()
        })
        .await;
        let signed = api.until("signed", async |api| {
            let request = api.get(kind, "", "r").await.expect("the request");
            request["status"]["certificate"].as_str().is_some().then_some(request)
        });
        let signed = signed.await;
        assert_eq!(signed["status"]["conditions"].as_array().map(Vec::len), Some(1), "approved once");
        let patience = Duration::from_secs(4 * 3600);
        api.until_within(patience, "cleaned up", async |api| api.get(kind, "", "r").await.is_none().then_some(()))
            .await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn volumes_are_attached_and_detached() {
    let attachments = "storage.k8s.io/v1/volumeattachments";
    at_every_request(&DISTURBANCES, async |api: Api| {
        api.namespace("n").await;
        let ready = json!([{"type": "Ready", "status": "True"}]);
        api.create("v1/nodes", json!({"metadata": {"name": "n1"}, "status": {"conditions": ready}})).await;
        let spec = json!({"volumeName": "v", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}});
        let metadata =
            json!({"name": "c", "namespace": "n", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}});
        let claim = api.create("v1/persistentvolumeclaims", json!({"metadata": metadata, "spec": spec})).await;
        let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "d", "volumeHandle": "h"},
            "claimRef": {"namespace": "n", "name": "c", "uid": claim["metadata"]["uid"]}});
        api.create("v1/persistentvolumes", json!({"metadata": {"name": "v"}, "spec": spec})).await;
        let _running = run(&api, &["persistentvolume-attach-detach-controller"], Config::default()).await;
        let spec = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "c"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]});
        api.create("v1/pods", json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})).await;
        let attached = async |n: usize| {
            until(&api, &format!("{n} told to the node"), async |api| {
                let node = api.get("v1/nodes", "", "n1").await.expect("the node");
                node["status"]["volumesAttached"].as_array().map_or(0, Vec::len) == n
            })
            .await;
        };
        until(&api, "asked for", async |api| api.list(attachments).await.len() == 1).await;
        let name = api.list(attachments).await[0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        api.change(attachments, "", &name, |a| a["status"]["attached"] = json!(true)).await;
        attached(1).await;
        api.remove("v1/pods", "n", "p").await;
        gone(&api, attachments, "", &name).await;
        attached(0).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn claims_of_pods_are_made_and_kept_while_they_are_used() {
    let claims = "v1/persistentvolumeclaims";
    at_every_request(&DISTURBANCES, async |api: Api| {
        api.namespace("n").await;
        let names = ["ephemeral-volume-controller", "persistentvolumeclaim-protection-controller"];
        let _running = run(&api, &names, Config::default()).await;
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        let volume = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}});
        let spec = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "c"}], "volumes": [volume]});
        let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec});
        let pod = api.create("v1/pods", pod).await;
        until(&api, "the claim", async |api| api.get(claims, "n", "p-v").await.is_some()).await;
        let claim = api.get(claims, "n", "p-v").await.expect("the claim");
        assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], pod["metadata"]["uid"]);
        assert_eq!(claim["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
        api.delete(claims, "n", "p-v", json!({})).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(api.get(claims, "n", "p-v").await.is_some(), "a pod uses it");
        api.remove("v1/pods", "n", "p").await;
        gone(&api, claims, "n", "p-v").await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn volumes_and_classes_are_kept_while_they_are_used() {
    let (volumes, classes) = ("v1/persistentvolumes", "storage.k8s.io/v1/volumeattributesclasses");
    at_every_request(&DISTURBANCES, async |api: Api| {
        let names = ["persistentvolume-protection-controller", "volumeattributesclass-protection-controller"];
        let _running = run(&api, &names, Config::default()).await;
        let class = json!({"metadata": {"name": "gold"}, "driverName": "example.com", "parameters": {"a": "b"}});
        api.create(classes, class).await;
        let spec = json!({"volumeAttributesClassName": "gold", "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"], "csi": {"driver": "example.com", "volumeHandle": "h"}});
        let volume = json!({"metadata": {"name": "v"}, "spec": spec, "status": {"phase": "Bound"}});
        api.create(volumes, volume).await;
        until(&api, "the class is kept", async |api| {
            let class = api.get(classes, "", "gold").await.expect("the class");
            class["metadata"]["finalizers"] == json!(["kubernetes.io/vac-protection"])
        })
        .await;
        api.delete(volumes, "", "v", json!({})).await;
        api.delete(classes, "", "gold", json!({})).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(api.get(volumes, "", "v").await.is_some() && api.get(classes, "", "gold").await.is_some());
        api.change(volumes, "", "v", |v| v["status"]["phase"] = json!("Released")).await;
        gone(&api, volumes, "", "v").await;
        gone(&api, classes, "", "gold").await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn every_namespace_has_the_authority_of_the_time() {
    let (maps, name) = ("v1/configmaps", "kube-root-ca.crt");
    at_every_request(&DISTURBANCES, async |api: Api| {
        let of = |root_ca: &str| Authorities { root_ca: root_ca.into(), ..Authorities::default() };
        let (replace, authorities) = watch::channel(of("old"));
        let _running =
            run(&api, &["root-ca-certificate-publisher-controller"], Config { authorities, ..Config::default() }).await;
        api.namespace("n").await;
        let shown = async |text: &str| {
            until(&api, text, async |api| {
                let map = api.get(maps, "n", name).await.unwrap_or_default();
                map["data"] == json!({"ca.crt": text})
                    && map["metadata"]["annotations"]["kubernetes.io/description"].is_string()
            })
            .await;
        };
        shown("old").await;
        api.change(maps, "n", name, |m| m["data"] = json!({"ca.crt": "mine", "other": "x"})).await;
        shown("old").await;
        api.remove(maps, "n", name).await;
        shown("old").await;
        replace.send_replace(of("new"));
        shown("new").await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_goes_is_given_no_authority_and_none_is_given_without_one() {
    let (maps, name) = ("v1/configmaps", "kube-root-ca.crt");
    for (root_ca, has) in [("ca", true), ("", false)] {
        let api = Api::start().await;
        let authorities = Authorities { root_ca: root_ca.into(), ..Authorities::default() }.fixed();
        let config = Config { authorities, ..Config::default() };
        let _running = run(&api, &["root-ca-certificate-publisher-controller"], config).await;
        api.namespace("n").await;
        api.settle().await;
        assert_eq!(api.get(maps, "n", name).await.is_some(), has);
        api.delete("v1/namespaces", "", "n", json!({})).await;
        api.remove(maps, "n", name).await;
        api.settle().await;
        assert!(api.get(maps, "n", name).await.is_none(), "it is going");
    }
}
