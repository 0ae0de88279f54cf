//! Claims on a real node: a stateful set keeps its data when its pods are deleted, volumes are provisioned on demand
//! and removed with their claims, and an ephemeral claim is deleted with its pod.
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Kubectl, Needs::Node, Outcome, Subject, Test, eventually};

use crate::pods::IMAGE;

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "volumes::data_of_a_stateful_set_outlives_its_pods", needs: Node, run: stateful_set },
        Test { name: "volumes::a_volume_made_by_hand_is_bound_and_kept", needs: Node, run: by_hand },
        Test { name: "volumes::a_pods_own_claim_goes_with_it", needs: Node, run: own_claim },
    ]
}

const LIMIT: Duration = Duration::from_secs(60);

fn sleeper(volume_mount: &str) -> String {
    format!(
        "{{name: main, image: {IMAGE}, command: [sh, -c, 'trap exit TERM; while :; do sleep 1 & wait; done'], \
         volumeMounts: [{{name: {volume_mount}, mountPath: /data}}]}}"
    )
}

/// Returns the directory of a volume on this machine, if it has one.
fn directory(k: &Kubectl, volume: &str) -> anyhow::Result<Option<String>> {
    let path = k.ok(&["get", "pv", volume, "-o", "jsonpath={.spec.hostPath.path}"])?;
    Ok(Some(path).filter(|p| !p.is_empty()))
}

fn is_gone(k: &Kubectl, kind: &str, name: &str) -> anyhow::Result<()> {
    eventually(&format!("{kind} {name} gone"), LIMIT, || {
        let left = k.ok(&["get", kind, name, "--ignore-not-found", "-o", "name"])?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
}

fn stateful_set(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("v-set")?;
    k.apply(&format!(
        "apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: db}}
spec:
  serviceName: db
  selector: {{matchLabels: {{app: db}}}}
  template:
    metadata: {{labels: {{app: db}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{}]
  volumeClaimTemplates:
  - metadata: {{name: data}}
    spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 8Mi}}}}}}
",
        sleeper("data")
    ))?;
    k.ok(&["rollout", "status", "statefulset/db", "--timeout=120s"])?;
    let claim = k.json(&["get", "pvc", "data-db-0"])?;
    ensure!(claim["status"]["phase"] == "Bound" && claim["status"]["capacity"]["storage"] == "8Mi", "{claim}");
    let volume = claim["spec"]["volumeName"].as_str().context("a volume")?.to_owned();
    k.ok(&["exec", "db-0", "--", "sh", "-c", "echo kept > /data/file"])?;
    k.ok(&["delete", "pod", "db-0", "--timeout=60s"])?;
    k.ok(&["rollout", "status", "statefulset/db", "--timeout=120s"])?;
    k.ok(&["wait", "pod/db-0", "--for=condition=Ready", "--timeout=60s"])?;
    ensure!(k.ok(&["exec", "db-0", "--", "cat", "/data/file"])?.trim() == "kept");
    let directory = directory(&k, &volume)?;
    if let Some(d) = &directory {
        ensure!(Path::new(d).join("file").exists(), "{d}");
    }
    k.ok(&["delete", "statefulset", "db", "--cascade=foreground", "--timeout=60s"])?;
    ensure!(k.ok(&["get", "pvc", "-o", "name"])?.contains("data-db-0"), "claims outlive their set");
    k.ok(&["delete", "pvc", "data-db-0", "--timeout=60s"])?;
    is_gone(&k, "pv", &volume)?;
    if let Some(d) = &directory {
        ensure!(!Path::new(d).exists(), "{d} is still there");
    }
    Ok(())
}

fn by_hand(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("v-hand")?;
    k.run(&["delete", "pv", "v-hand", "--ignore-not-found", "--timeout=60s"])?;
    let dir = std::env::temp_dir().join(format!("kelson-by-hand-{}", std::process::id()));
    k.apply(&format!(
        "apiVersion: v1
kind: PersistentVolume
metadata: {{name: v-hand}}
spec:
  storageClassName: by-hand
  capacity: {{storage: 16Mi}}
  accessModes: [ReadWriteOnce]
  hostPath: {{path: {}, type: DirectoryOrCreate}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: c}}
spec: {{storageClassName: by-hand, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 8Mi}}}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: p}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{{name: v, persistentVolumeClaim: {{claimName: c}}}}]
  containers: [{}]
",
        dir.display(),
        sleeper("v")
    ))?;
    k.ok(&["wait", "pod/p", "--for=condition=Ready", "--timeout=120s"])?;
    k.ok(&["exec", "p", "--", "sh", "-c", "echo kept > /data/file"])?;
    k.ok(&["delete", "pod", "p", "--timeout=60s"])?;
    k.ok(&["delete", "pvc", "c", "--timeout=60s"])?;
    k.ok(&["wait", "pv/v-hand", "--for=jsonpath={.status.phase}=Released", "--timeout=60s"])?;
    ensure!(std::fs::read_to_string(dir.join("file"))?.trim() == "kept", "its data stay");
    k.ok(&["delete", "pv", "v-hand", "--timeout=60s"])?;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

fn own_claim(s: &Subject) -> Outcome {
    let k = s.kubectl.fresh_namespace("v-own")?;
    k.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: p}}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - name: v
    ephemeral: {{volumeClaimTemplate: {{spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 8Mi}}}}}}}}}}
  containers: [{}]
",
        sleeper("v")
    ))?;
    k.ok(&["wait", "pod/p", "--for=condition=Ready", "--timeout=120s"])?;
    let volume = k.ok(&["get", "pvc", "p-v", "-o", "jsonpath={.spec.volumeName}"])?;
    k.ok(&["exec", "p", "--", "sh", "-c", "echo x > /data/file"])?;
    k.ok(&["delete", "pod", "p", "--timeout=60s"])?;
    is_gone(&k, "pvc", "p-v")?;
    is_gone(&k, "pv", &volume)
}
