//! The pod of a job, made from its template: the tracking finalizer, and for an index its annotation, label, host name and
//! environment variable.
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::plan::NewPod;
use super::pods::{COMPLETION_INDEX, INDEX_FAILURES, INDEX_FAILURES_IGNORED, TRACKING_FINALIZER};
use crate::shared::pods::Template;

/// The environment variable with the completion index.
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";
/// The maximum length of the prefix of a generated name.
const PREFIX_BYTES_MAX: usize = 58;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Policy {
    #[serde(default)]
    restart_policy: String,
}

/// Whether failed containers of the template are restarted in their pods.
pub fn restarts_in_place(template: &Template) -> bool {
    serde_json::from_str::<Policy>(template.spec.get()).is_ok_and(|p| p.restart_policy == "OnFailure")
}

/// Creates the templates of a job's pods. The job's template is parsed once per sync.
pub struct PodMaker {
    template: Template,
    /// The spec as a tree for indexed jobs, whose pods differ.
    indexed: Option<Value>,
}

impl PodMaker {
    /// Parses a job's template.
    ///
    /// # Errors
    /// The spec is not JSON.
    pub fn new(mut template: Template, indexed: bool) -> Result<Self, serde_json::Error> {
        let finalizers = &mut template.metadata.finalizers;
        if !finalizers.iter().any(|f| f == TRACKING_FINALIZER) {
            finalizers.push(TRACKING_FINALIZER.to_owned());
        }
        let mut tree = indexed.then(|| serde_json::from_str::<Value>(template.spec.get())).transpose()?;
        for list in ["initContainers", "containers"] {
            let containers = tree.as_mut().and_then(|t| t.get_mut(list)).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                add_variable(container);
            }
        }
        Ok(Self { template, indexed: tree })
    }

    /// Returns the template of one pod and the prefix of its name.
    ///
    /// # Errors
    /// The spec cannot be serialized as JSON.
    pub fn pod(&self, job: &str, new: &NewPod) -> Result<(String, Template), serde_json::Error> {
        let (mut metadata, spec) = (self.template.metadata.clone(), &self.template.spec);
        let (Some(index), Some(tree)) = (new.index, &self.indexed) else {
            return Ok((prefix(job, "-"), Template { metadata, spec: spec.clone() }));
        };
        metadata.annotations.insert(COMPLETION_INDEX.to_owned(), index.to_string());
        metadata.labels.insert(COMPLETION_INDEX.to_owned(), index.to_string());
        if let Some((counted, ignored)) = new.failures {
            metadata.annotations.insert(INDEX_FAILURES.to_owned(), counted.to_string());
            if ignored > 0 {
                metadata.annotations.insert(INDEX_FAILURES_IGNORED.to_owned(), ignored.to_string());
            }
        }
        let mut tree = tree.clone();
        tree["hostname"] = json!(format!("{job}-{index}"));
        let spec = RawValue::from_string(tree.to_string())?;
        Ok((prefix(job, &format!("-{index}-")), Template { metadata, spec }))
    }
}

/// Returns the job's name, truncated so that `end` and the random suffix fit.
fn prefix(job: &str, end: &str) -> String {
    let mut length = job.len().min(PREFIX_BYTES_MAX.saturating_sub(end.len()));
    while !job.is_char_boundary(length) {
        length -= 1;
    }
    format!("{}{end}", &job[..length])
}

fn add_variable(container: &mut Value) {
    let Some(container) = container.as_object_mut() else { return };
    let env = container.entry("env").or_insert_with(|| json!([]));
    if env.is_null() {
        *env = json!([]);
    }
    let Some(env) = env.as_array_mut() else { return };
    if !env.iter().any(|v| v["name"] == INDEX_VARIABLE) {
        let path = format!("metadata.labels['{COMPLETION_INDEX}']");
        env.push(json!({"name": INDEX_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": path}}}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> Template {
        serde_json::from_value(json!({"metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": "OnFailure",
            "initContainers": [{"name": "i", "env": null}],
            "containers": [{"name": "c"}, {"name": "own", "env": [{"name": INDEX_VARIABLE, "value": "x"}]}]}}))
        .unwrap()
    }

    #[test]
    fn plain_pods_get_the_finalizer() {
        assert!(restarts_in_place(&template()));
        let maker = PodMaker::new(template(), false).unwrap();
        let (prefix, pod) = maker.pod("pi", &NewPod::default()).unwrap();
        assert_eq!((prefix.as_str(), pod.spec.get()), ("pi-", template().spec.get()));
        assert_eq!(pod.metadata.finalizers, [TRACKING_FINALIZER]);
    }

    #[test]
    fn indexed_pods_know_their_index() {
        let maker = PodMaker::new(template(), true).unwrap();
        let (prefix, pod) = maker.pod("pi", &NewPod { index: Some(12), failures: Some((2, 1)) }).unwrap();
        let spec: Value = serde_json::from_str(pod.spec.get()).unwrap();
        let path = &spec["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["fieldPath"];
        assert_eq!((prefix.as_str(), &spec["hostname"]), ("pi-12-", &json!("pi-12")));
        assert_eq!(path, "metadata.labels['batch.kubernetes.io/job-completion-index']");
        assert_eq!(spec["initContainers"][0]["env"][0]["name"], INDEX_VARIABLE);
        assert_eq!(spec["containers"][1]["env"], json!([{"name": INDEX_VARIABLE, "value": "x"}]));
        assert_eq!(pod.metadata.labels[COMPLETION_INDEX], "12");
        let a = &pod.metadata.annotations;
        assert_eq!((a[COMPLETION_INDEX].as_str(), a[INDEX_FAILURES].as_str()), ("12", "2"));
        assert_eq!(a[INDEX_FAILURES_IGNORED], "1");
        let (_, pod) = maker.pod("pi", &NewPod { index: Some(0), failures: Some((0, 0)) }).unwrap();
        assert!(!pod.metadata.annotations.contains_key(INDEX_FAILURES_IGNORED));
    }

    #[test]
    fn long_names_are_cut() {
        let (name, _) = PodMaker::new(template(), true)
            .unwrap()
            .pod(&"j".repeat(63), &NewPod { index: Some(7), failures: None })
            .unwrap();
        assert_eq!((name.len(), name.ends_with("j-7-")), (58, true));
    }
}
