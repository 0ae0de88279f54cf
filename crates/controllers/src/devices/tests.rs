//! Claims from the first consumer to the next one, and evicted pods, on the real API server.
use std::time::Duration;

use kelson_simulation::{Api, DISTURBANCES, at_every_request};
use serde_json::{Value, json};

use super::plan::{NamedClaim, evicted_at, name_prefix, named, needs_work};
use crate::testing::run;
use crate::views::PodView;
use crate::{Config, Running};

const CLAIMS: &str = "resource.k8s.io/v1/resourceclaims";
const TEMPLATES: &str = "resource.k8s.io/v1/resourceclaimtemplates";
const SLICES: &str = "resource.k8s.io/v1/resourceslices";

#[test]
fn which_claim_an_entry_is_about() {
    let of = |entry: Value, statuses: Value| -> PodView {
        let pod = json!({"spec": {"resourceClaims": [entry]}, "status": {"resourceClaimStatuses": statuses}});
        serde_json::from_value(pod).unwrap()
    };
    let template = json!({"name": "c", "resourceClaimTemplateName": "t"});
    for (entry, statuses, want) in [
        (json!({"name": "c", "resourceClaimName": "x"}), json!([]), NamedClaim::As { name: "x", own: false }),
        (template.clone(), json!([]), NamedClaim::Missing),
        (template.clone(), json!([{"name": "other", "resourceClaimName": "y"}]), NamedClaim::Missing),
        (template.clone(), json!([{"name": "c", "resourceClaimName": "y"}]), NamedClaim::As { name: "y", own: true }),
        (template, json!([{"name": "c"}]), NamedClaim::Nothing),
        (json!({"name": "c"}), json!([]), NamedClaim::Nothing),
    ] {
        let pod = of(entry, statuses);
        assert_eq!(named(&pod, &pod.spec.device_claims[0]), want);
    }
}

#[test]
fn when_there_is_something_to_do_for_a_pod() {
    let allocated = json!({"allocation": {"devices": {"results": []}}});
    let reserved =
        json!({"allocation": {"devices": {}}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}]});
    let named = json!({"name": "c", "resourceClaimName": "x"});
    let made = json!({"name": "c", "resourceClaimTemplateName": "t"});
    let status = json!([{"name": "c", "resourceClaimName": "x"}]);
    for (entry, statuses, node, owner, claim, want) in [
        (&made, json!([]), "", "p", None, true),
        (&made, status.clone(), "", "p", None, true),
        (&made, status.clone(), "", "p", Some(&allocated), false),
        (&made, status.clone(), "n", "p", Some(&allocated), true),
        (&made, status.clone(), "n", "other", Some(&allocated), false),
        (&named, json!([]), "", "", None, false),
        (&named, json!([]), "n", "", Some(&allocated), true),
        (&named, json!([]), "n", "", Some(&reserved), false),
        (&named, json!([]), "n", "", Some(&json!({})), false),
    ] {
        let pod = json!({"metadata": {"name": "p", "uid": "p"}, "spec": {"nodeName": node, "resourceClaims": [entry]},
            "status": {"resourceClaimStatuses": statuses}});
        let pod: PodView = serde_json::from_value(pod).unwrap();
        let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true}]);
        let claim = claim.map(|status| {
            let claim = json!({"metadata": {"name": "x", "ownerReferences": owners}, "status": status});
            serde_json::from_value(claim).unwrap()
        });
        assert_eq!(needs_work(&pod, |_| claim.as_ref()), want, "{entry} {statuses} {node} {owner}");
    }
}

#[test]
fn names_are_cut_in_proportion() {
    assert_eq!(name_prefix("web", "gpu"), "web-gpu-");
    let long = name_prefix(&"p".repeat(60), &"c".repeat(30));
    assert_eq!((long.matches('p').count(), long.matches('c').count()), (37, 18), "{long}");
}

#[test]
fn when_taints_make_users_go() {
    let granted = |tolerations: Value| json!({"driver": "d", "pool": "p", "device": "x", "tolerations": tolerations});
    let taint = |effect: &str, time: &str| json!([{"key": "k", "value": "v", "effect": effect, "timeAdded": time}]);
    let (evicts, at) = ("NoExecute", "2026-01-01T00:00:00Z");
    let tolerated = |seconds: Value| json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]);
    for (taints, tolerations, want) in [
        (json!([]), json!([]), None),
        (taint("NoSchedule", at), json!([]), None),
        (taint(evicts, at), json!([]), Some(at)),
        (taint(evicts, at), tolerated(Value::Null), None),
        (taint(evicts, at), tolerated(json!(90)), Some("2026-01-01T00:01:30Z")),
        (taint(evicts, at), tolerated(json!(-5)), Some(at)),
        (taint(evicts, at), json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]), Some(at)),
        (json!([{"key": "k", "effect": evicts}]), json!([]), Some("2025-01-01T00:00:00Z")),
    ] {
        let device = serde_json::from_value(json!({"name": "x", "taints": taints})).unwrap();
        let granted = [serde_json::from_value(granted(tolerations.clone())).unwrap()];
        let made = "2025-01-01T00:00:00Z".parse().unwrap();
        let got = evicted_at(&granted, |_| Some((&device, made)));
        assert_eq!(got, want.map(|t| t.parse().unwrap()), "{taints} {tolerations}");
    }
}

fn pod(name: &str, claims: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"resourceClaims": claims,
        "containers": [{"name": "c", "image": "c", "resources": {"claims": [{"name": "gpu"}]}}]}})
}

fn from_template(name: &str) -> Value {
    pod(name, json!([{"name": "gpu", "resourceClaimTemplateName": "t"}]))
}

fn spec() -> Value {
    json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any"}}]}})
}

async fn template(api: &Api) {
    let of = json!({"metadata": {"labels": {"a": "b"}}, "spec": spec()});
    api.create(TEMPLATES, json!({"metadata": {"name": "t", "namespace": "n"}, "spec": of})).await;
}

async fn start(api: &Api, controller: &str) -> Running {
    api.namespace("n").await;
    api.create("resource.k8s.io/v1/deviceclasses", json!({"metadata": {"name": "any"}, "spec": {}})).await;
    run(api, &[controller], Config::default()).await
}

/// Allocates devices and reserves a claim as the scheduler does.
async fn give(api: &Api, claim: &str, pod: &Value, tolerations: Value) {
    let finalizers = json!({"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}});
    api.patch(CLAIMS, "n", claim, "", finalizers).await;
    let m = &pod["metadata"];
    let device =
        json!({"request": "r", "driver": "d.example.com", "pool": "p", "device": "x", "tolerations": tolerations});
    let status = json!({"allocation": {"devices": {"results": [device]}},
        "reservedFor": [{"resource": "pods", "name": m["name"], "uid": m["uid"]}]});
    api.patch(CLAIMS, "n", claim, "status", json!({"status": status})).await;
}

async fn made_for(api: &Api, pod: &str) -> Option<String> {
    let pod = api.get("v1/pods", "n", pod).await?;
    pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"].as_str().map(str::to_owned)
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_made_from_its_template_and_goes_when_the_pod_is_done() {
    let api = Api::start().await;
    let _running = start(&api, "resourceclaim-controller").await;
    let pod = api.create("v1/pods", from_template("p")).await;
    let said = |all: Vec<String>| all.into_iter().find(|e| e.starts_with("FailedResourceClaimCreation"));
    let text = api.until("the event", async |api| said(api.events().await)).await;
    let want =
        "PodResourceClaim gpu: resource claim template \"t\": resourceclaimtemplate.resource.k8s.io \"t\" not found";
    assert!(text.contains(want), "{text}");
    template(&api).await;
    let name = api.until("the claim's name", async |api| made_for(api, "p").await).await;
    assert!(name.starts_with("p-gpu-"), "{name}");
    let claim = api.get(CLAIMS, "n", &name).await.expect("the claim");
    let m = &claim["metadata"];
    assert_eq!((&m["labels"]["a"], &m["ownerReferences"][0]["uid"]), (&json!("b"), &pod["metadata"]["uid"]));
    assert_eq!(m["annotations"]["resource.kubernetes.io/pod-claim-name"], "gpu");
    assert_eq!(claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"], "any");
    give(&api, &name, &pod, json!([])).await;
    api.settle().await;
    assert!(api.get(CLAIMS, "n", &name).await.is_some(), "it is used");
    api.change("v1/pods", "n", "p", |p| p["status"]["phase"] = json!("Succeeded")).await;
    api.until("the claim to go", async |api| api.get(CLAIMS, "n", &name).await.is_none().then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_shared_claim_is_freed_when_its_last_pod_goes() {
    let api = Api::start().await;
    let _running = start(&api, "resourceclaim-controller").await;
    api.create(CLAIMS, json!({"metadata": {"name": "shared", "namespace": "n"}, "spec": spec()})).await;
    let user = |name: &str| pod(name, json!([{"name": "gpu", "resourceClaimName": "shared"}]));
    let one = api.create("v1/pods", user("one")).await;
    give(&api, "shared", &one, json!([])).await;
    // This pod was not bound by a scheduler, so the controller reserves the claim.
    let mut two = user("two");
    two["spec"]["nodeName"] = json!("node");
    api.create("v1/pods", two).await;
    let users = async |api: &Api| {
        let claim = api.get(CLAIMS, "n", "shared").await.expect("the claim");
        claim["status"]["reservedFor"].as_array().map_or(0, Vec::len)
    };
    api.until("both to use it", async |api| (users(api).await == 2).then_some(())).await;
    api.remove("v1/pods", "n", "one").await;
    api.until("one to use it", async |api| (users(api).await == 1).then_some(())).await;
    let claim = api.get(CLAIMS, "n", "shared").await.expect("the claim");
    assert!(!claim["status"]["allocation"].is_null(), "the other pod has its devices still");
    api.change("v1/pods", "n", "two", |p| p["status"]["phase"] = json!("Failed")).await;
    api.until("the devices to be free", async |api| {
        let claim = api.get(CLAIMS, "n", "shared").await.expect("somebody else made it: it stays");
        let free = claim["status"]["allocation"].is_null() && claim["metadata"]["finalizers"].is_null();
        free.then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whatever_fails_a_pod_has_one_claim_and_it_is_freed() {
    at_every_request(&DISTURBANCES, async |api: Api| {
        let running = start(&api, "resourceclaim-controller").await;
        template(&api).await;
        let pod = api.create("v1/pods", from_template("p")).await;
        let name = api.until("the claim's name", async |api| made_for(api, "p").await).await;
        api.settle().await;
        // A lost response may leave an unreferenced claim, which is owned by the pod and deleted with it.
        let all = api.list(CLAIMS).await;
        assert!(all.iter().all(|c| c["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]));
        give(&api, &name, &pod, json!([])).await;
        api.change("v1/pods", "n", "p", |p| p["status"]["phase"] = json!("Succeeded")).await;
        api.until("no claims", async |api| api.list(CLAIMS).await.is_empty().then_some(())).await;
        drop(running);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn pods_lose_devices_that_must_not_be_used() {
    let api = Api::start().await;
    let _running = start(&api, "device-taint-eviction-controller").await;
    let devices = json!([{"name": "x"}]);
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.example.com", "nodeName": "node",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": devices}});
    api.create(SLICES, slice).await;
    let tolerations = json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}]);
    for (name, tolerations) in [("soon", json!([])), ("later", tolerations)] {
        api.create(CLAIMS, json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec()})).await;
        let mut user = pod(name, json!([{"name": "gpu", "resourceClaimName": name}]));
        user["spec"]["nodeName"] = json!("node");
        let user = api.create("v1/pods", user).await;
        give(&api, name, &user, tolerations).await;
    }
    api.settle().await;
    let going = async |api: &Api, name: &str| match api.get("v1/pods", "n", name).await {
        None => true,
        Some(pod) => !pod["metadata"]["deletionTimestamp"].is_null(),
    };
    assert!(!going(&api, "soon").await);
    let now = kelson_meta::format_seconds(kelson_meta::Clock::now(&api.clock));
    let taint = json!([{"key": "k", "effect": "NoExecute", "timeAdded": now}]);
    api.change(SLICES, "", "s", |s| s["spec"]["devices"][0]["taints"] = taint.clone()).await;
    api.until("one to go", async |api| going(api, "soon").await.then_some(())).await;
    assert!(!going(&api, "later").await, "its claim tolerates the taint for a minute");
    assert!(api.events().await.iter().any(|e| e.starts_with("DeviceTaintManagerEviction Marking for deletion")));
    tokio::time::sleep(Duration::from_secs(61)).await;
    api.until("the other to go", async |api| going(api, "later").await.then_some(())).await;
}
