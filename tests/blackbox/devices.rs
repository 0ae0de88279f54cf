//! Dynamic resource allocation as far as no node is needed: a driver's slice, written by the test for a node that is
//! only an object, and pods whose claims get its devices.
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::{Kubectl, Needs::Api, Outcome, Subject, Test, eventually};

/// The maximum wait for controllers and the scheduler.
const WAIT: Duration = Duration::from_secs(60);

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "devices::claims_get_devices_and_give_them_back", needs: Api, run: claims },
        Test { name: "devices::extended_resources_of_drivers", needs: Api, run: extended },
    ]
}

/// A class, and two devices of different size on the node.
const OFFER: &str = "apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: devices-test}
spec:
  selectors: [{cel: {expression: device.driver == 'devices.example.com'}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: devices-node-slice}
spec:
  driver: devices.example.com
  nodeName: devices-node
  pool: {name: devices-node, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: small, attributes: {size: {int: 1}}}
  - {name: large, attributes: {size: {int: 2}}}
";

/// A template of claims for one large device.
const TEMPLATE: &str = "apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: large}
spec:
  spec:
    devices:
      requests:
      - name: one
        exactly:
          deviceClassName: devices-test
          selectors: [{cel: {expression: \"device.attributes['devices.example.com'].size >= 2\"}}]
";

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  tolerations: [{{operator: Exists}}]
  containers:
  - name: main
    image: registry.k8s.io/pause:3.10
    resources: {{claims: [{{name: device}}]}}
  resourceClaims: [{{name: device, resourceClaimTemplateName: large}}]
"
    )
}

/// Runs a case in a separate namespace, with a node `NAME-node` that is only an object and its devices: a class
/// `NAME-test` and a slice `NAME-node-slice`. All of them are removed at the end.
fn with_offer(s: &Subject, namespace: &str, name: &str, offer: &str, case: fn(&Kubectl) -> Outcome) -> Outcome {
    let k = s.kubectl.fresh_namespace(namespace)?;
    let node = format!(
        "apiVersion: v1
kind: Node
metadata: {{name: {name}-node}}
status:
  allocatable: {{cpu: '4', memory: 4Gi, pods: '10'}}
  capacity: {{cpu: '4', memory: 4Gi, pods: '10'}}
  conditions: [{{type: Ready, status: 'True', reason: Hollow, message: an object}}]
"
    );
    let done = k.apply(&node).and_then(|_| k.apply(offer)).and_then(|_| case(&k));
    k.ok(&["delete", "pods", "--all", "--force", "--grace-period=0", "--ignore-not-found"])?;
    let all =
        [format!("resourceslice/{name}-node-slice"), format!("deviceclass/{name}-test"), format!("node/{name}-node")];
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    k.ok(&[&["delete", "--ignore-not-found"][..], &all[..]].concat())?;
    done
}

fn claims(s: &Subject) -> Outcome {
    with_offer(s, "devices", "devices", OFFER, offered)
}

fn offered(k: &Kubectl) -> Outcome {
    k.apply(TEMPLATE)?;
    k.apply(&pod("first"))?;
    let node = |pod: &str| k.ok(&["get", "pod", pod, "-o", "jsonpath={.spec.nodeName}"]);
    eventually("the first pod on the node", WAIT, || {
        ensure!(node("first")? == "devices-node", "not scheduled: {}", k.ok(&["get", "pod", "first", "-o", "yaml"])?);
        Ok(())
    })?;
    let first = k.json(&["get", "pod", "first"])?;
    let name = first["status"]["resourceClaimStatuses"][0]["resourceClaimName"].as_str().unwrap_or_default();
    ensure!(name.starts_with("first-device-"), "{name:?}");
    let claim = k.json(&["get", "resourceclaim", name])?;
    let result = &claim["status"]["allocation"]["devices"]["results"][0];
    ensure!(result["device"] == "large" && result["request"] == "one", "{}", claim["status"]);
    ensure!(claim["status"]["reservedFor"][0]["uid"] == first["metadata"]["uid"], "{}", claim["status"]);
    let term = &claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0];
    ensure!(term["values"][0] == "devices-node", "{}", claim["status"]);
    ensure!(claim["metadata"]["finalizers"][0] == "resource.kubernetes.io/delete-protection", "{}", claim["metadata"]);
    let row = k.ok(&["get", "resourceclaim", name, "--no-headers"])?;
    ensure!(row.contains("allocated,reserved"), "{row}");
    // The second pod needs the device that the first has.
    k.apply(&pod("second"))?;
    let reason = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}";
    eventually("why the second waits", WAIT, || {
        let said = k.ok(&["get", "pod", "second", "-o", reason])?;
        ensure!(
            said.contains("cannot allocate all claims") && said.contains("still not schedulable, preemption:"),
            "{said:?}"
        );
        Ok(())
    })?;
    k.ok(&["delete", "pod", "first", "--force", "--grace-period=0"])?;
    eventually("the second pod on the node", WAIT, || {
        ensure!(node("second")? == "devices-node", "the device was not given on");
        Ok(())
    })?;
    eventually("the claim to go", WAIT, || {
        ensure!(k.run(&["get", "resourceclaim", name])?.code != 0, "the first pod's claim is left");
        Ok(())
    })
}

/// Two devices on the node, of a class that maps to an extended resource.
const EXTENDED: &str = "apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: extended-test}
spec:
  extendedResourceName: extended.example.com/gpu
  selectors: [{cel: {expression: device.driver == 'extended.example.com'}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: extended-node-slice}
spec:
  driver: extended.example.com
  nodeName: extended-node
  pool: {name: extended-node, generation: 1, resourceSliceCount: 1}
  devices: [{name: one}, {name: two}]
";

/// Requests the resource by its name, and by the name that every class maps to.
const ASKS: &str = "apiVersion: v1
kind: Pod
metadata: {name: asks}
spec:
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  initContainers:
  - name: first
    image: registry.k8s.io/pause:3.10
    resources: {limits: {extended.example.com/gpu: '1'}}
  containers:
  - name: main
    image: registry.k8s.io/pause:3.10
    resources: {limits: {extended.example.com/gpu: '1'}}
  - name: side
    image: registry.k8s.io/pause:3.10
    resources: {limits: {deviceclass.resource.kubernetes.io/extended-test: '1'}}
";

fn extended(s: &Subject) -> Outcome {
    with_offer(s, "extended-resources", "extended", EXTENDED, extended_in)
}

fn extended_in(k: &Kubectl) -> Outcome {
    k.apply(ASKS)?;
    eventually("the pod on the node", WAIT, || {
        let node = k.ok(&["get", "pod", "asks", "-o", "jsonpath={.spec.nodeName}"])?;
        ensure!(node == "extended-node", "not scheduled: {}", k.ok(&["get", "pod", "asks", "-o", "yaml"])?);
        Ok(())
    })?;
    let pod = k.json(&["get", "pod", "asks"])?;
    let status = &pod["status"]["extendedResourceClaimStatus"];
    let name = status["resourceClaimName"].as_str().unwrap_or_default();
    ensure!(name.starts_with("asks-extended-resources-"), "{}", pod["status"]);
    // The first container has ended before the second starts: they use one device in turn.
    let mapping = |c: &str, resource: &str, request: &str| serde_json::json!({"containerName": c, "resourceName": resource, "requestName": request});
    let (gpu, class) = ("extended.example.com/gpu", "deviceclass.resource.kubernetes.io/extended-test");
    let expected = serde_json::json!([
        mapping("side", class, "container-2-request-0"),
        mapping("main", gpu, "container-1-request-0"),
        mapping("first", gpu, "container-1-request-0"),
    ]);
    ensure!(status["requestMappings"] == expected, "{status}");
    let claim = k.json(&["get", "resourceclaim", name])?;
    let results = claim["status"]["allocation"]["devices"]["results"].as_array().cloned().unwrap_or_default();
    let given: Vec<_> = results.iter().map(|r| (r["request"].as_str(), r["device"].as_str())).collect();
    let expected = [(Some("container-1-request-0"), Some("one")), (Some("container-2-request-0"), Some("two"))];
    ensure!(given == expected, "{}", claim["status"]);
    let mark = &claim["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"];
    ensure!(mark == "true" && claim["metadata"]["ownerReferences"][0]["controller"] == true, "{}", claim["metadata"]);
    ensure!(claim["status"]["reservedFor"][0]["uid"] == pod["metadata"]["uid"], "{}", claim["status"]);
    k.ok(&["delete", "pod", "asks", "--force", "--grace-period=0"])?;
    eventually("the claim to go", WAIT, || {
        ensure!(k.run(&["get", "resourceclaim", name])?.code != 0, "the pod's claim is left");
        Ok(())
    })
}
