//! Final states of the containers of a pod that has ended.
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};

use super::container::not_located;
use crate::pod::{self, Role};

/// Sets a terminated state for each container that waits although its pod has ended. Containers after init containers that never completed
/// stay waiting (upstream: `status_manager.go` TerminatePod).
pub fn end(pod: &Pod, inits: &mut [ContainerStatus], apps: &mut [ContainerStatus]) {
    let waits = |c: &ContainerStatus| c.state.as_ref().is_none_or(|s| s.running.is_none() && s.terminated.is_none());
    let ended_before = |c: &ContainerStatus| c.last_state.as_ref().is_some_and(|s| s.terminated.is_some());
    let has_begun = |c: &ContainerStatus| !waits(c) || ended_before(c);
    let completed =
        |s: &Option<ContainerState>| s.as_ref().and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.exit_code == 0);
    let last_init_done = inits.last().is_none_or(|last| match pod::member(pod, &last.name).map(|m| m.role) {
        Some(Role::Sidecar) => last.started == Some(true) && last.state.as_ref().is_some_and(|s| s.running.is_some()),
        _ => completed(&last.state) || completed(&last.last_state),
    });
    let is_initialized = last_init_done || apps.iter().any(has_begun);
    // The first init container was next to run, even without any status.
    let tried = inits.iter().rposition(has_begun).map_or(1, |last| last + 1).min(inits.len());
    let apps = apps.iter_mut().filter(|_| is_initialized);
    for c in inits[..tried].iter_mut().chain(apps).filter(|c| c.state.as_ref().is_none_or(|s| s.terminated.is_none())) {
        c.state = Some(not_located());
        c.ready = false;
        c.started = Some(false);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_container_of_a_pod_that_has_ended_has_a_final_state_as_far_as_the_pod_got() {
        let status = |name: &str, state: &str| -> ContainerStatus {
            let waiting = json!({"waiting": {"reason": "x"}});
            let ended = |code: i32| json!({"terminated": {"exitCode": code}});
            let (state, last) = match state {
                "waits" => (waiting, json!({})),
                "crashes" => (waiting, ended(1)),
                "ran" => (ended(0), json!({})),
                "failed" => (ended(1), json!({})),
                _ => (json!({"running": {}}), json!({})),
            };
            let (image, id) = ("i", "");
            serde_json::from_value(json!({"name": name, "state": state, "lastState": last, "ready": false,
                "started": true, "restartCount": 0, "image": image, "imageID": id}))
            .expect("a status")
        };
        let spec = |sidecar: bool| {
            let mut init = json!({"name": "j"});
            if sidecar {
                init["restartPolicy"] = json!("Always");
            }
            json!({"initContainers": [{"name": "i"}, init], "containers": [{"name": "a"}, {"name": "b"}]})
        };
        let plain = json!({"containers": [{"name": "a"}, {"name": "b"}]});
        // States of init and ordinary containers, and the containers whose end is unknown.
        for (spec, inits, apps, lost) in [
            (plain.clone(), &[][..], ["waits", "waits"], "ab"),
            (plain.clone(), &[], ["ran", "waits"], "b"),
            (plain, &[], ["failed", "runs"], "b"),
            (spec(false), &["waits", "waits"], ["waits", "waits"], "i"),
            (spec(false), &["crashes", "waits"], ["waits", "waits"], "i"),
            (spec(false), &["ran", "crashes"], ["waits", "waits"], "j"),
            (spec(false), &["ran", "failed"], ["waits", "waits"], ""),
            (spec(false), &["ran", "ran"], ["waits", "failed"], "a"),
            (spec(true), &["ran", "runs"], ["waits", "waits"], "jab"),
            (spec(true), &["ran", "waits"], ["waits", "waits"], ""),
            (spec(true), &["ran", "waits"], ["waits", "crashes"], "ab"),
        ] {
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).expect("pod");
            let named = |names: [&str; 2], states: &[&str]| -> Vec<ContainerStatus> {
                names.iter().zip(states).map(|(name, state)| status(name, state)).collect()
            };
            let (mut of_inits, mut of_apps) = (named(["i", "j"], inits), named(["a", "b"], &apps));
            end(&pod, &mut of_inits, &mut of_apps);
            let is_lost = |c: &&ContainerStatus| {
                let ended = c.state.as_ref().and_then(|s| s.terminated.as_ref());
                ended.is_some_and(|t| t.reason.as_deref() == Some("ContainerStatusUnknown") && t.exit_code == 137)
            };
            let found: String = of_inits.iter().chain(&of_apps).filter(is_lost).map(|c| c.name.as_str()).collect();
            assert_eq!(found, lost, "{inits:?} {apps:?}");
        }
    }
}
