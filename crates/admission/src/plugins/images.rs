//! AlwaysPullImages: nobody uses a private image just because it lies on the node already.
use kelson_meta::Status;
use serde_json::Value;

use crate::containers::aggregate;
use crate::containers::{containers, containers_mut};
use crate::{Attributes, Notes, Operation, Operations, Plugin};
use kelson_meta::tree::path::{at, list, set, text};

/// See the module.
pub struct AlwaysPullImages;

fn concerns(a: &Attributes<'_>) -> bool {
    a.is("", "pods") && matches!(a.subresource, "" | "ephemeralcontainers")
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
        let Some(spec) = a.object.as_mut().and_then(|o| o.get_mut("spec")) else { return Ok(()) };
        containers_mut(spec, |_, _, c| set(c, &["imagePullPolicy"], "Always".into()));
        let volumes = spec.get_mut("volumes").and_then(Value::as_array_mut);
        for image in volumes.into_iter().flatten().filter_map(|v| v.get_mut("image")).filter(|i| i.is_object()) {
            set(image, &["pullPolicy"], "Always".into());
        }
        Ok(())
    }
    fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        if !concerns(a) {
            return Ok(());
        }
        let spec = at(a.new_object(), &["spec"]);
        let fault =
            |path: String, policy: &str| format!("{path}: Unsupported value: {policy:?}: supported values: \"Always\"");
        let mut faults: Vec<String> = containers(spec)
            .filter(|(_, _, c)| text(c, &["imagePullPolicy"]) != "Always")
            .map(|(kind, i, c)| {
                fault(format!("spec.{}[{i}].imagePullPolicy", kind.field()), text(c, &["imagePullPolicy"]))
            })
            .collect();
        for (i, volume) in list(spec, &["volumes"]).iter().enumerate() {
            let policy = text(volume, &["image", "pullPolicy"]);
            if !at(volume, &["image"]).is_null() && policy != "Always" {
                faults.push(fault(format!("spec.volumes[{i}].image.pullPolicy"), policy));
            }
        }
        if faults.is_empty() { Ok(()) } else { Err(a.forbidden(&aggregate(&faults))) }
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
}
