//! `kelson hollow` in place of kwok's controller: a node and pods behave as `Stage` objects in the API define, which
//! change while it runs, with any subject.
use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Kubectl, Needs::Api, Outcome, Subject, Test, binary, eventually};

pub fn tests() -> Vec<Test> {
    vec![Test { name: "stages::nodes_and_pods_live_as_stages_say", needs: Api, run: lives }]
}

const PATIENCE: Duration = Duration::from_secs(60);

const DEFINITION: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: stages.kwok.x-k8s.io}
spec:
  group: kwok.x-k8s.io
  scope: Cluster
  names: {plural: stages, singular: stage, kind: Stage, listKind: StageList}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"#;

const STAGES: &str = r#"
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-begins}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select( .type == "Ready" ) | .status', operator: NotIn, values: ["True"]}
  next:
    statusTemplate: |
      {{ $now := Now }}
      conditions:
      {{ range NodeConditions }}
      - {type: {{ .type }}, status: {{ .status | Quote }}, reason: {{ .reason }}, message: {{ .message | Quote }}, lastHeartbeatTime: {{ $now | Quote }}, lastTransitionTime: {{ $now | Quote }}}
      {{ end }}
      addresses:
      - {type: InternalIP, address: {{ NodeIP }}}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-begins}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Pending]}
  next:
    event: {type: Normal, reason: Begun, message: as a stage says}
    finalizers: {add: [{value: example.com/held}]}
    statusTemplate: |
      phase: Running
      startTime: {{ Now | Quote }}
      hostIP: {{ NodeIPWith .spec.nodeName }}
      podIP: {{ PodIPWith .spec.nodeName ( or .spec.hostNetwork false ) .metadata.uid .metadata.name .metadata.namespace }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-goes}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: Exists}
  next:
    finalizers: {empty: true}
    delete: true
"#;

/// Created when pods run already.
const ENDS: &str = r#"
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-ends}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchLabels: {ends: "yes"}
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Running]}
  next:
    statusTemplate: |
      phase: Succeeded
"#;

const NODE: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: staged-1, annotations: {kwok.x-k8s.io/node: fake}}
spec: {taints: [{key: kwok.x-k8s.io/node, value: fake, effect: NoSchedule}]}
"#;

fn pod(name: &str, ends: bool) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{ends: \"{}\"}}}}\n\
         spec: {{nodeName: staged-1, containers: [{{name: c, image: none}}]}}\n",
        if ends { "yes" } else { "no" }
    )
}

/// The controller, killed when dropped.
struct Player(Child);

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(k: &Kubectl, what: &str, path: &[&str], wanted: &str) -> Outcome {
    eventually(what, PATIENCE, || {
        let found = k.ok(&[&["get"], path].concat())?;
        ensure!(found.trim() == wanted, "{found:?}, not {wanted:?}");
        Ok(())
    })
}

fn lives(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("stages")?;
    k.apply(DEFINITION)?;
    k.ok(&["wait", "--for=condition=Established", "crd/stages.kwok.x-k8s.io", "--timeout=60s"])?;
    eventually("stages are served", PATIENCE, || k.apply(STAGES).map(drop))?;
    let scratch = tempfile::tempdir()?;
    let log = fs::File::create(scratch.path().join("log"))?;
    let flags = ["hollow", "--enable-crds=Stage", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"];
    let mut command = k.other_program(&binary());
    command.args(flags).args(["--node-ip=192.0.2.7"]).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let player = Player(command.spawn().context("kelson hollow")?);
    let outcome = plays(&k);
    drop(player);
    let said = fs::read_to_string(scratch.path().join("log")).unwrap_or_default();
    for what in ["node/staged-1", "crd/stages.kwok.x-k8s.io", "namespace/stages"] {
        let _ = k.run(&["delete", what, "--wait=false"]);
    }
    outcome.with_context(|| said)
}

fn plays(k: &Kubectl) -> Outcome {
    k.apply(NODE)?;
    let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    until(k, "the node is ready", &["node", "staged-1", "-o", ready], "True")?;
    let address = "jsonpath={.status.addresses[?(@.type==\"InternalIP\")].address}";
    until(k, "it has an address", &["node", "staged-1", "-o", address], "192.0.2.7")?;
    let holder = "jsonpath={.spec.holderIdentity}";
    eventually("it has a lease", PATIENCE, || {
        let found = k.ok(&["get", "lease", "-n", "kube-node-lease", "staged-1", "-o", holder])?;
        ensure!(!found.trim().is_empty(), "nobody holds it");
        Ok(())
    })?;
    for (name, ends) in [("stays", false), ("ends", true)] {
        k.apply(&pod(name, ends))?;
    }
    let phase = "jsonpath={.status.phase}";
    for name in ["stays", "ends"] {
        until(k, "a pod runs", &["pod", name, "-o", phase], "Running")?;
        let ip = k.ok(&["get", "pod", name, "-o", "jsonpath={.status.podIP}"])?;
        ensure!(ip.trim().parse::<std::net::IpAddr>().is_ok(), "{name}: {ip:?}");
        until(k, "it is held", &["pod", name, "-o", "jsonpath={.metadata.finalizers[0]}"], "example.com/held")?;
    }
    until(
        k,
        "an event tells of it",
        &["events", "--field-selector=involvedObject.name=stays,reason=Begun", "-o", "jsonpath={.items[0].message}"],
        "as a stage says",
    )?;
    k.apply(ENDS)?;
    until(k, "a stage that came later is played", &["pod", "ends", "-o", phase], "Succeeded")?;
    until(k, "for those alone that it is for", &["pod", "stays", "-o", phase], "Running")?;
    k.ok(&["delete", "pod", "stays", "ends", "--timeout=60s"])?;
    let gone = k.run(&["get", "pod", "stays"])?;
    ensure!(gone.code != 0 && gone.stderr.contains("NotFound"), "{}", gone.stderr);
    Ok(())
}
