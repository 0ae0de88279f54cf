//! The pods table: READY, STATUS and RESTARTS are computed from container states (upstream `printPod`).
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::column::{AGE, Column, NAME};
use crate::parts::{IDENTITY, Parts};
use crate::table::{age, name, or_none, since, time};
use crate::tree::{flag, int0, items, present, text};

/// The columns of pods.
pub const COLUMNS: &[Column] = &[
    NAME,
    Column::text("Ready", "Ready containers of all containers."),
    Column::text("Status", "Summary of the pod's state."),
    Column::text("Restarts", "Container restarts, and when the last one was."),
    AGE,
    Column::text("IP", "Address of the pod.").wide(),
    Column::text("Node", "Node the pod is bound to.").wide(),
    Column::text("Nominated Node", "Node set aside for the pod by preemption.").wide(),
    Column::text("Readiness Gates", "Number of true readiness gate conditions out of those required.").wide(),
];

/// The parts of a pod that its row shows.
pub const PARTS: Parts = Parts::Only(&[
    ("metadata", IDENTITY),
    (
        "spec",
        Parts::Only(&[
            ("containers", Parts::Each(&Parts::Only(&[]))),
            ("initContainers", Parts::Each(&Parts::Only(&[("name", Parts::All), ("restartPolicy", Parts::All)]))),
            ("nodeName", Parts::All),
            ("readinessGates", Parts::All),
        ]),
    ),
    (
        "status",
        Parts::Only(&[
            ("phase", Parts::All),
            ("reason", Parts::All),
            (
                "conditions",
                Parts::Each(&Parts::Only(&[("type", Parts::All), ("status", Parts::All), ("reason", Parts::All)])),
            ),
            ("initContainerStatuses", Parts::Each(&CONTAINER)),
            ("containerStatuses", Parts::Each(&CONTAINER)),
            ("podIPs", Parts::All),
            ("nominatedNodeName", Parts::All),
        ]),
    ),
]);

/// The parts of a container's status that the row of its pod shows.
const CONTAINER: Parts = Parts::Only(&[
    ("name", Parts::All),
    ("ready", Parts::All),
    ("started", Parts::All),
    ("restartCount", Parts::All),
    ("state", Parts::All),
    ("lastState", Parts::All),
]);

#[derive(Default)]
struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count += int0(&status["restartCount"]);
        self.last = self.last.max(time(&status["lastState"]["terminated"]["finishedAt"]));
    }
}

fn restartable(spec: &Value, name: &str) -> bool {
    items(&spec["initContainers"]).iter().any(|c| text(&c["name"]) == name && text(&c["restartPolicy"]) == "Always")
}

fn terminated_reason(t: &Value) -> String {
    let (reason, signal) = (text(&t["reason"]), int0(&t["signal"]));
    if !reason.is_empty() {
        reason.to_owned()
    } else if signal != 0 {
        format!("Signal:{signal}")
    } else {
        format!("ExitCode:{}", int0(&t["exitCode"]))
    }
}

fn condition<'a>(obj: &'a Value, kind: &str) -> &'a Value {
    items(&obj["status"]["conditions"]).iter().find(|c| text(&c["type"]) == kind).unwrap_or(&Value::Null)
}

/// Returns for init containers: restarts of all and of sidecars, ready sidecars, and the reason while they are not
/// done.
fn init_state(obj: &Value) -> (Restarts, Restarts, usize, Option<String>) {
    let spec = &obj["spec"];
    let (mut all, mut sidecars, mut ready) = (Restarts::default(), Restarts::default(), 0);
    for (i, s) in items(&obj["status"]["initContainerStatuses"]).iter().enumerate() {
        all.add(s);
        let sidecar = restartable(spec, text(&s["name"]));
        if sidecar {
            sidecars.add(s);
        }
        let (terminated, waiting) = (&s["state"]["terminated"], text(&s["state"]["waiting"]["reason"]));
        if present(terminated) && int0(&terminated["exitCode"]) == 0 {
            continue;
        }
        if sidecar && flag(&s["started"]) {
            ready += usize::from(flag(&s["ready"]));
            continue;
        }
        let reason = if present(terminated) {
            format!("Init:{}", terminated_reason(terminated))
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            format!("Init:{waiting}")
        } else {
            format!("Init:{i}/{}", items(&spec["initContainers"]).len())
        };
        return (all, sidecars, ready, Some(reason));
    }
    (all, sidecars, ready, None)
}

/// Evaluates main containers: adds restarts, counts ready ones, and overrides the reason.
fn main_state(obj: &Value, restarts: &mut Restarts, ready: &mut usize, reason: &mut String) {
    let (mut running, mut error) = (false, String::new());
    for s in items(&obj["status"]["containerStatuses"]).iter().rev() {
        restarts.add(s);
        let (terminated, waiting) = (&s["state"]["terminated"], text(&s["state"]["waiting"]["reason"]));
        if !waiting.is_empty() {
            waiting.clone_into(reason);
        } else if present(terminated) {
            *reason = terminated_reason(terminated);
            if int0(&terminated["exitCode"]) != 0 {
                error.clone_from(reason);
            }
        } else if flag(&s["ready"]) && present(&s["state"]["running"]) {
            running = true;
            *ready += 1;
        }
    }
    if reason == "Completed" {
        if running && text(&condition(obj, "Ready")["status"]) == "True" {
            "Running".clone_into(reason);
        } else if !error.is_empty() {
            *reason = error;
        } else if running {
            "NotReady".clone_into(reason);
        }
    }
}

fn gates(obj: &Value) -> Value {
    let gates = items(&obj["spec"]["readinessGates"]);
    if gates.is_empty() {
        return or_none("");
    }
    let ok = gates.iter().filter(|g| text(&condition(obj, text(&g["conditionType"]))["status"]) == "True").count();
    json!(format!("{ok}/{}", gates.len()))
}

/// Returns a pod's cells.
pub fn row(obj: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&obj["spec"], &obj["status"]);
    let phase = text(&status["phase"]);
    let mut reason = text(&status["reason"]).to_owned();
    if reason.is_empty() {
        phase.clone_into(&mut reason);
    }
    if text(&condition(obj, "PodScheduled")["reason"]) == "SchedulingGated" {
        "SchedulingGated".clone_into(&mut reason);
    }
    let sidecar_count = items(&spec["initContainers"]).iter().filter(|c| text(&c["restartPolicy"]) == "Always").count();
    let total = items(&spec["containers"]).len() + sidecar_count;
    let (mut restarts, sidecars, mut ready, initializing) = init_state(obj);
    let initialized = initializing.is_none() || text(&condition(obj, "Initialized")["status"]) == "True";
    if let Some(r) = initializing {
        reason = r;
    }
    if initialized {
        restarts = sidecars;
        main_state(obj, &mut restarts, &mut ready, &mut reason);
    }
    if present(&obj["metadata"]["deletionTimestamp"]) {
        if text(&status["reason"]) == "NodeLost" {
            "Unknown".clone_into(&mut reason);
        } else if !matches!(phase, "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut reason);
        }
    }
    let shown = match restarts.last {
        Some(last) if restarts.count != 0 => {
            format!("{} ({} ago)", restarts.count, since(&json!(last.to_string()), now))
        }
        _ => restarts.count.to_string(),
    };
    vec![
        name(obj),
        json!(format!("{ready}/{total}")),
        json!(reason),
        json!(shown),
        age(obj, now),
        or_none(text(&status["podIPs"][0]["ip"])),
        or_none(text(&spec["nodeName"])),
        or_none(text(&status["nominatedNodeName"])),
        gates(obj),
    ]
}

/// Returns `Completed` for finished pods.
pub fn row_conditions(obj: &Value) -> Vec<Value> {
    let (reason, message) = match text(&obj["status"]["phase"]) {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return Vec::new(),
    };
    vec![json!({"type": "Completed", "status": "True", "reason": reason, "message": message})]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(obj: Value, want: &[&str]) {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let whole = row(&obj, now);
        let obj = PARTS.parse(&obj.to_string()).unwrap();
        let row = row(&obj, now);
        assert_eq!(row, whole, "the parts are enough");
        let got: Vec<&str> = row.iter().map(text).take(5).collect();
        assert_eq!(got, want);
        assert_eq!(row.len(), COLUMNS.len());
    }

    #[test]
    fn states() {
        let meta = json!({"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"});
        let spec = json!({"containers": [{"name": "a"}, {"name": "b"}]});
        check(
            json!({"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}),
            &["p", "0/2", "Pending", "0", "60m"],
        );
        check(
            json!({"metadata": meta, "spec": spec, "status": {"phase": "Running", "containerStatuses": [
                {"name": "a", "ready": true, "restartCount": 2, "state": {"running": {}},
                 "lastState": {"terminated": {"finishedAt": "2026-01-01T00:57:00Z"}}},
                {"name": "b", "ready": true, "restartCount": 0, "state": {"running": {}}}]}}),
            &["p", "2/2", "Running", "2 (3m ago)", "60m"],
        );
        check(
            json!({"metadata": meta, "spec": {"initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{"name": "a"}]},
                "status": {"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "restartCount": 0, "state": {"terminated": {"exitCode": 0}}},
                {"name": "j", "restartCount": 0, "state": {"running": {}}}]}}),
            &["p", "0/1", "Init:1/2", "0", "60m"],
        );
        check(
            json!({"metadata": meta, "spec": spec, "status": {"phase": "Running", "containerStatuses": [
                {"name": "a", "restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}}),
            &["p", "0/2", "CrashLoopBackOff", "1", "60m"],
        );
        let gone = json!({"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:30:00Z"});
        check(
            json!({"metadata": gone, "spec": spec, "status": {"phase": "Running"}}),
            &["p", "0/2", "Terminating", "0", "60m"],
        );
        check(
            json!({"metadata": meta, "spec": spec, "status": {"phase": "Succeeded", "containerStatuses": [
                {"name": "a", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}]}}),
            &["p", "0/2", "Completed", "0", "60m"],
        );
    }
}
