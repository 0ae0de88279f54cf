//! A substitute for scheduler and kubelets in tests: pods are bound, run, end and are deleted, without containers.
use serde_json::{Value, json};

use crate::Api;

/// The maximum number of rounds until pods must be stable.
const ROUNDS_MAX: usize = 120;
/// The node for pods without one.
const NODE: &str = "node-1";

/// The fate of a waiting or running pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It runs and is ready.
    Ready,
    /// It runs and is not ready.
    Unready,
    /// All its containers exited with 0.
    Succeeded,
    /// Its first container exited with this code, and the pod failed.
    Failed(i32),
}

impl Api {
    /// Does one round of what scheduler and kubelets do: pods that are being deleted are removed, those without a node
    /// are bound to one, and each gets the state that `fate` returns; `None` does not change it. Returns whether
    /// anything was changed.
    pub async fn play_pods(&self, fate: impl Fn(&Value) -> Option<Fate>) -> bool {
        let mut changed = false;
        for (n, pod) in self.list("v1/pods").await.into_iter().enumerate() {
            let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
            if !text("/metadata/deletionTimestamp").is_empty() {
                changed |= self.let_go(&pod).await;
                continue;
            }
            if matches!(text("/status/phase"), "Succeeded" | "Failed") {
                continue;
            }
            let Some(fate) = fate(&pod) else { continue };
            if text("/spec/nodeName").is_empty() {
                self.bind(namespace, name, NODE).await;
                changed = true;
            }
            let status = self.status_of(&pod, n, fate);
            let is = |key: &str| pod["status"][key] == status[key];
            let ready = |s: &Value| {
                s["conditions"]
                    .as_array()
                    .is_some_and(|c| c.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
            };
            if is("phase") && ready(&pod["status"]) == ready(&status) {
                continue;
            }
            changed = true;
            self.change("v1/pods", namespace, name, |p| {
                for (key, value) in status.as_object().expect("a status") {
                    p["status"][key] = value.clone();
                }
            })
            .await;
        }
        changed
    }

    /// Runs rounds until nothing changes any more: every pod runs and is ready, those that are being deleted are gone.
    pub async fn run_pods(&self) {
        self.run_pods_to(|_| Some(Fate::Ready)).await;
    }

    /// As [`run_pods`](Self::run_pods), with the fate of each pod.
    pub async fn run_pods_to(&self, fate: impl Fn(&Value) -> Option<Fate>) {
        for _ in 0..ROUNDS_MAX {
            self.settle().await;
            if !self.play_pods(&fate).await {
                return;
            }
        }
        panic!("pods never come to rest");
    }

    /// Binds a pod, as the scheduler does.
    pub async fn bind(&self, namespace: &str, name: &str, node: &str) {
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": namespace},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
        self.post(&format!("/api/v1/namespaces/{namespace}/pods/{name}/binding"), &binding).await;
    }

    /// Ends a pod as a kubelet does: its object is removed, or has ended if a finalizer keeps it.
    async fn let_go(&self, pod: &Value) -> bool {
        let (namespace, name) = (pod["metadata"]["namespace"].as_str(), pod["metadata"]["name"].as_str());
        let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
        let over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let held = pod["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        if !over && !pod["spec"]["nodeName"].is_null() {
            let status = self.status_of(pod, 0, Fate::Failed(137));
            self.change("v1/pods", namespace, name, |p| {
                for (key, value) in status.as_object().expect("a status") {
                    p["status"][key] = value.clone();
                }
            })
            .await;
        } else if held && pod["metadata"]["deletionGracePeriodSeconds"] == 0 {
            return false;
        }
        self.remove("v1/pods", namespace, name).await;
        true
    }

    fn status_of(&self, pod: &Value, n: usize, fate: Fate) -> Value {
        let now = kelson_meta::format_seconds(kelson_meta::Clock::now(&self.clock));
        let ip = format!("10.42.{}.{}", n / 250, 2 + n % 250);
        let ip = pod["status"]["podIP"].as_str().map_or(ip, str::to_owned);
        let (phase, ready) = match fate {
            Fate::Ready => ("Running", "True"),
            Fate::Unready => ("Running", "False"),
            Fate::Succeeded => ("Succeeded", "False"),
            Fate::Failed(_) => ("Failed", "False"),
        };
        let over = |code: i32| json!({"terminated": {"exitCode": code, "startedAt": now, "finishedAt": now}});
        let state = match fate {
            Fate::Ready | Fate::Unready => json!({"running": {"startedAt": now}}),
            Fate::Succeeded => over(0),
            Fate::Failed(code) => over(code),
        };
        let container = |c: &Value| {
            json!({"name": c["name"], "image": c["image"], "imageID": "", "restartCount": 0,
            "ready": ready == "True", "started": ready == "True", "state": state})
        };
        let containers: Vec<Value> =
            pod["spec"]["containers"].as_array().into_iter().flatten().map(container).collect();
        let condition = |kind: &str| json!({"type": kind, "status": ready, "lastTransitionTime": now});
        let mut conditions: Vec<Value> = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.retain(|c| c["type"] != "Ready" && c["type"] != "ContainersReady");
        conditions.extend([condition("Ready"), condition("ContainersReady")]);
        let start = pod["status"]["startTime"].as_str().map_or(now, str::to_owned);
        json!({"phase": phase, "podIP": ip, "podIPs": [{"ip": ip}], "startTime": start, "conditions": conditions,
            "containerStatuses": containers})
    }
}
