//! Devices allocated to claims, on a node with a driver: a test program that behaves like published drivers, on the
//! node's own sockets.
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::dra_driver::{DEVICE, DRA_DRIVER, DraDriver, POOL};
use kelson_blackbox::{Kubectl, Needs::OwnNode, Outcome, Subject, Test, eventually, sh};
use serde_json::{Value, json};

use crate::pods::{IMAGE, log_of, ready};

pub fn tests() -> Vec<Test> {
    vec![Test { name: "devices::claims_of_a_driver", needs: OwnNode, run: claims }]
}

const LIMIT: Duration = Duration::from_secs(90);

/// Returns a class for the driver's devices, its slice for this node, and a claim template.
fn offer(node: &str) -> String {
    format!(
        "apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: kelson-test}}
spec: {{selectors: [{{cel: {{expression: device.driver == '{DRA_DRIVER}'}}}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {{name: kelson-test}}
spec:
  driver: {DRA_DRIVER}
  nodeName: {node}
  pool: {{name: {POOL}, generation: 1, resourceSliceCount: 1}}
  devices: [{{name: {}}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {{name: one}}
spec: {{spec: {{devices: {{requests: [{{name: one, exactly: {{deviceClassName: kelson-test}}}}]}}}}}}
",
        DEVICE.0
    )
}

fn user(name: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: {IMAGE}
    command: [sh, -c, 'trap \"exit 3\" TERM; echo device $KELSON_DEVICE; while :; do sleep 1; done']
    resources: {{claims: [{{name: device, request: one}}]}}
  resourceClaims: [{{name: device, resourceClaimTemplateName: one}}]
"
    )
}

/// Waits until the pod's status shows this health of its device.
fn says(k: &Kubectl, pod: &str, health: &str, words: Option<&str>) -> Outcome {
    eventually("the device's health in the pod's status", LIMIT, || {
        let status =
            k.json(&["get", "pod", pod])?["status"]["containerStatuses"][0]["allocatedResourcesStatus"].clone();
        let mut device = json!({"resourceID": DEVICE.1, "health": health});
        if let Some(words) = words {
            device["message"] = words.into();
        }
        let wanted = json!([{"name": "claim:device/one", "resources": [device]}]);
        ensure!(status == wanted, "{status} is not {wanted}");
        Ok(())
    })
}

/// Returns the claim that was created for a pod.
fn claim_of(k: &Kubectl, pod: &str) -> anyhow::Result<String> {
    let status: Value = k.json(&["get", "pod", pod])?["status"].clone();
    let name = status["resourceClaimStatuses"][0]["resourceClaimName"].as_str();
    Ok(name.with_context(|| format!("no claim of {pod} in {status}"))?.to_owned())
}

/// Reports whether the runtime knows devices by name: containerd does since 1.7.
fn has_named_devices() -> anyhow::Result<bool> {
    let version = sh("containerd --version")?;
    Ok(!version.split_whitespace().any(|w| w.trim_start_matches('v').starts_with("1.6.")))
}

fn no_slices(k: &Kubectl) -> Outcome {
    eventually("slices go", LIMIT, || {
        let left = k.ok(&["get", "resourceslices", "-o", "name"])?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
}

fn claims(s: &Subject) -> Outcome {
    let server = s.server.as_ref().context("own server")?;
    let kubelet = server.dir.join("kubelet");
    let k = s.kubectl.fresh_namespace("d-claims")?;
    let done = with_driver(s, &k, &kubelet);
    k.ok(&["delete", "pods", "--all", "--force", "--grace-period=0", "--ignore-not-found"])?;
    k.ok(&["delete", "--ignore-not-found", "resourceslice/kelson-test", "deviceclass/kelson-test"])?;
    done
}

fn with_driver(s: &Subject, k: &Kubectl, kubelet: &Path) -> Outcome {
    let server = s.server.as_ref().context("own server")?;
    let driver = eventually("the kubelet takes drivers", LIMIT, || DraDriver::start(kubelet))?;
    let node = k.ok(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"])?;
    k.apply(&offer(&node))?;

    // If a driver cannot prepare the device the pod waits, with the reason.
    driver.refuse("no power");
    k.apply(&user("first"))?;
    eventually("why the pod waits", LIMIT, || {
        let events = k.ok(&["get", "events", "-o", "jsonpath={range .items[*]}{.reason}: {.message}{\"\\n\"}{end}"])?;
        let reported =
            events.lines().any(|e| e.starts_with("FailedPrepareDynamicResources: ") && e.ends_with("no power"));
        ensure!(reported, "{events}");
        Ok(())
    })?;
    ensure!(
        k.ok(&["get", "pod", "first", "-o", "jsonpath={.status.phase}"])? == "Pending",
        "it runs without its device"
    );
    driver.refuse("");
    ready(k, "first")?;
    let claim = claim_of(k, "first")?;
    let calls = driver.calls();
    ensure!(calls.last() == Some(&format!("prepare d-claims/{claim}")) && calls.len() > 1, "{calls:?}");
    if has_named_devices()? {
        let log = log_of(k, "first", 1)?;
        ensure!(log == "device first\n", "{log}");
    }

    // The health of the device is reported while the pod runs, with the driver's message.
    says(k, "first", "Healthy", None)?;
    driver.say(false, "too hot");
    says(k, "first", "Unhealthy", Some("too hot"))?;
    driver.say(true, "");
    says(k, "first", "Healthy", None)?;
    let metrics = k.ok(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/metrics")])?;
    for driver_name in ["<any>", DRA_DRIVER] {
        let line = format!("dra_resource_claims_in_use{{driver_name=\"{driver_name}\"}} 1");
        ensure!(metrics.lines().any(|l| l == line), "{line} in {metrics}");
    }

    // A restarted container has its device, also when the pod was updated meanwhile.
    k.ok(&["label", "pod", "first", "changed=yes"])?;
    k.ok(&["exec", "first", "--", "kill", "1"])?;
    eventually("it starts again", LIMIT, || {
        let c = k.json(&["get", "pod", "first"])?["status"]["containerStatuses"][0].clone();
        ensure!(c["restartCount"] == 1 && c["ready"] == true, "{c}");
        Ok(())
    })?;

    // The restarted kubelet knows prepared claims, and finds the running driver.
    let asked = driver.calls().len();
    server.terminate()?;
    server.launch()?;
    ready(k, "first")?;
    says(k, "first", "Healthy", None)?;
    ensure!(driver.calls().len() == asked, "a pod that runs is not made ready again: {:?}", driver.calls());
    // It starts without slices, and drivers publish them again.
    no_slices(k)?;
    k.apply(&offer(&node))?;

    // The device is given to the next pod when the first has ended, and the driver is called in this order.
    k.apply(&user("second"))?;
    eventually("the second waits", LIMIT, || {
        let why = k.ok(&["get", "pod", "second", "-o", "jsonpath={.status.conditions[0].message}"])?;
        ensure!(why.contains("cannot allocate all claims"), "{why}");
        Ok(())
    })?;
    k.ok(&["delete", "pod", "first", "--timeout=60s"])?;
    ready(k, "second")?;
    let (calls, second) = (driver.calls(), claim_of(k, "second")?);
    let last = [format!("unprepare d-claims/{claim}"), format!("prepare d-claims/{second}")];
    ensure!(calls.ends_with(&last), "{calls:?} does not end with {last:?}");

    // The slices of a driver that ends are removed; its pods continue, and the health is unknown.
    drop(driver);
    says(k, "second", "Unknown", None)?;
    no_slices(k)?;
    let log = k.ok(&["exec", "second", "--", "echo", "on"])?;
    ensure!(log == "on\n", "{log}");
    // A pod that ends waits for its driver: no claim may stay prepared.
    k.ok(&["delete", "pod", "second", "--wait=false"])?;
    eventually("its containers end", LIMIT, || {
        let phase = k.run(&["exec", "second", "--", "true"])?;
        ensure!(phase.code != 0, "it runs");
        Ok(())
    })?;
    let driver = DraDriver::start(kubelet)?;
    k.ok(&["wait", "pod/second", "--for=delete", "--timeout=90s"])?;
    ensure!(driver.calls() == [format!("unprepare d-claims/{second}")], "{:?}", driver.calls());
    Ok(())
}
