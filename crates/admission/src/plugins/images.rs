//! AlwaysPullImages: sets `imagePullPolicy: Always`, so that a private image on the node cannot be used without
//! credentials.
use kelson_meta::Status;
use serde_json::Value;

use crate::containers::aggregate;
use crate::containers::{containers, containers_mut};
use crate::{Attributes, Notes, OldObject, Operation, Operations, Plugin};
use kelson_meta::tree::path::{at, list, set, text};

/// The plugin; see the module.
pub struct AlwaysPullImages;

fn concerns(a: &Attributes<'_>) -> bool {
    a.is("", "pods") && matches!(a.subresource, "" | "ephemeralcontainers")
}

/// Reports whether an update leaves the container unchanged: its policy cannot change any more. For pods from before
/// the plugin was enabled only new images are checked, also those of ephemeral containers.
fn is_old(stored: &Value, container: &Value) -> bool {
    let same = |old: &Value| ["name", "image"].iter().all(|f| text(old, &[f]) == text(container, &[f]));
    containers(at(stored, &["spec"])).any(|(_, _, old)| same(old))
}

impl Plugin for AlwaysPullImages {
    fn name(&self) -> &'static str {
        "AlwaysPullImages"
    }
    fn handles(&self, op: Operation) -> bool {
        Operations::WRITE.contains(op)
    }
    fn admit(&self, a: &mut Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !concerns(a) {
            return Ok(());
        }
        let stored = a.old_object.map_or(&Value::Null, OldObject::get);
        let Some(spec) = a.object.as_mut().and_then(|o| o.get_mut("spec")) else { return Ok(()) };
        containers_mut(spec, |_, _, c| {
            if !is_old(stored, c) {
                set(c, &["imagePullPolicy"], "Always".into());
            }
        });
        if a.operation == Operation::Create {
            let volumes = spec.get_mut("volumes").and_then(Value::as_array_mut);
            for image in volumes.into_iter().flatten().filter_map(|v| v.get_mut("image")).filter(|i| i.is_object()) {
                set(image, &["pullPolicy"], "Always".into());
            }
        }
        Ok(())
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !concerns(a) {
            return Ok(());
        }
        let spec = at(a.new_object(), &["spec"]);
        let fault = |path: String, policy: &str| {
            let why = format!("{path}: Unsupported value: {policy:?}: supported values: \"Always\"");
            a.forbidden(&why).message
        };
        let mut faults: Vec<String> = containers(spec)
            .filter(|(_, _, c)| text(c, &["imagePullPolicy"]) != "Always" && !is_old(a.stored(), c))
            .map(|(kind, i, c)| {
                fault(format!("spec.{}[{i}].imagePullPolicy", kind.field()), text(c, &["imagePullPolicy"]))
            })
            .collect();
        for (i, volume) in list(spec, &["volumes"]).iter().enumerate().filter(|_| a.operation == Operation::Create) {
            let policy = text(volume, &["image", "pullPolicy"]);
            if !at(volume, &["image"]).is_null() && policy != "Always" {
                faults.push(fault(format!("spec.volumes[{i}].image.pullPolicy"), policy));
            }
        }
        if faults.is_empty() {
            return Ok(());
        }
        let mut status = a.forbidden("");
        status.message = aggregate(&faults);
        Err(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ask, object};
    use serde_json::json;

    #[tokio::test]
    async fn every_container_and_volume() {
        let pod = json!({"spec": {"containers": [{"imagePullPolicy": "Never"}], "initContainers": [{}],
            "ephemeralContainers": [{"imagePullPolicy": "IfNotPresent"}], "volumes": [{"image": {"reference": "x"}}, {"emptyDir": {}}]}});
        let out = object(AlwaysPullImages, Ask::pod(pod)).await.unwrap();
        assert!(containers(&out["spec"]).all(|(_, _, c)| c["imagePullPolicy"] == "Always"));
        assert_eq!(
            out["spec"]["volumes"],
            json!([{"image": {"reference": "x", "pullPolicy": "Always"}}, {"emptyDir": {}}])
        );
    }

    #[tokio::test]
    async fn updates_touch_new_images_alone() {
        let pod = |containers: Value| json!({"metadata": {"name": "x"}, "spec": {"containers": containers}});
        let c = |name: &str, image: &str| json!({"name": name, "image": image, "imagePullPolicy": "IfNotPresent"});
        let old = || pod(json!([c("a", "1"), c("b", "1")]));
        let mut labelled = old();
        labelled["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(object(AlwaysPullImages, Ask::update("/pods", old(), labelled.clone())).await.unwrap(), labelled);
        let out = object(AlwaysPullImages, Ask::update("/pods", old(), pod(json!([c("a", "2"), c("b", "1")])))).await;
        let policies =
            |out: &Value| containers(&out["spec"]).map(|(_, _, c)| c["imagePullPolicy"].clone()).collect::<Vec<_>>();
        assert_eq!(policies(&out.unwrap()), ["Always", "IfNotPresent"]);
        let mut debugged = old();
        debugged["spec"]["ephemeralContainers"] = json!([c("debug", "1")]);
        let out = object(AlwaysPullImages, Ask::update("/pods/ephemeralcontainers", old(), debugged)).await.unwrap();
        assert_eq!(policies(&out), ["IfNotPresent", "IfNotPresent", "Always"]);
        let status = Ask::update("/pods/status", old(), pod(json!([c("z", "9")])));
        assert_eq!(policies(&object(AlwaysPullImages, status).await.unwrap()), ["IfNotPresent"]);
    }

    #[test]
    fn what_was_changed_back_is_refused() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "imagePullPolicy": "Never"}],
            "volumes": [{"image": {"pullPolicy": "Never"}}]}});
        let refused = Ask::pod(pod).with(|a| AlwaysPullImages.validate(a, &mut Notes::default())).unwrap_err();
        let unsupported = "Unsupported value: \"Never\": supported values: \"Always\"";
        assert_eq!(
            refused.message,
            format!(
                "[pods \"p\" is forbidden: spec.containers[0].imagePullPolicy: {unsupported}, \
                 pods \"p\" is forbidden: spec.volumes[0].image.pullPolicy: {unsupported}]"
            )
        );
    }
}
