//! Dynamic resource allocation as far as no node is needed: a driver's slice, written by hand for a node that is only an
//! object, and pods whose claims get its devices.
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::{Needs::Api, Outcome, Subject, Test, eventually};

/// Longest time for what controllers and the scheduler do.
const WAIT: Duration = Duration::from_secs(60);

pub fn tests() -> Vec<Test> {
    vec![Test { name: "devices::claims_get_devices_and_give_them_back", needs: Api, run: claims }]
}

/// A node that is only an object, a class, and two devices of different size on that node.
const OFFER: &str = "apiVersion: v1
kind: Node
metadata: {name: devices-node}
status:
  allocatable: {cpu: '4', memory: 4Gi, pods: '10'}
  capacity: {cpu: '4', memory: 4Gi, pods: '10'}
  conditions: [{type: Ready, status: 'True', reason: Hollow, message: an object}]
---
apiVersion: resource.k8s.io/v1
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

fn claims(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("devices")?;
    let done = offered(&k);
    k.ok(&["delete", "pods", "--all", "--force", "--grace-period=0", "--ignore-not-found"])?;
    let offer = ["resourceslice/devices-node-slice", "deviceclass/devices-test", "node/devices-node"];
    k.ok(&[&["delete", "--ignore-not-found"][..], &offer[..]].concat())?;
    done
}

fn offered(k: &kelson_blackbox::Kubectl) -> Outcome {
    k.apply(OFFER)?;
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
    // The second pod wants the device that the first has.
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
