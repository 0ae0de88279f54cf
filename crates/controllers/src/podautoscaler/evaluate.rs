//! The evaluation of an autoscaler's metrics: each is read, compared with its target, and reported in the status.
use serde_json::{Value, json};

use super::metrics::MetricsClient;
use super::usage::{Aim, MetricOutcome, Pods};
use crate::shared::scale::Scales;
use crate::views::{CustomSource, MetricSpec, ResourceSource, milli};
use kelson_meta::Quantity;

/// The result of one metric.
pub struct Proposal {
    pub replicas: i32,
    /// The metric's name in conditions and events.
    pub name: String,
    /// The metric's entry in the status.
    pub status: Value,
}

/// The error of one metric: the reason of the event and condition, and the messages.
pub struct MetricFailure {
    pub reason: &'static str,
    /// The message of the condition.
    pub message: String,
    /// The message of the event about all metrics.
    pub of_all: String,
}

/// Evaluates the metrics of one autoscaler.
pub struct Evaluator<'a> {
    /// The metrics APIs.
    pub metrics: &'a MetricsClient,
    /// Resolves the resources of kinds.
    pub scales: &'a Scales,
    /// The autoscaler's namespace.
    pub namespace: &'a str,
    /// The selector of the workload's pods in query form.
    pub selector: &'a str,
    pub pods: Pods<'a>,
}

impl Evaluator<'_> {
    /// Evaluates one metric.
    ///
    /// # Errors
    /// The metric is not available or the spec is invalid.
    pub async fn evaluate(&self, spec: &MetricSpec) -> Result<Proposal, MetricFailure> {
        let fail = |reason: &'static str, what: String| {
            move |fault: Fault| MetricFailure {
                reason,
                of_all: format!("failed to get {what} value: {}{}", fault.of, fault.message),
                message: fault.message,
            }
        };
        match spec {
            MetricSpec { object: Some(source), .. } if spec.r#type == "Object" => {
                self.object(source).await.map_err(fail("FailedGetObjectMetric", "object metric".to_owned()))
            }
            MetricSpec { pods: Some(source), .. } if spec.r#type == "Pods" => {
                self.each_pod(source).await.map_err(fail("FailedGetPodsMetric", "pods metric".to_owned()))
            }
            MetricSpec { resource: Some(source), .. } if spec.r#type == "Resource" => {
                let what = format!("{} resource metric", source.name);
                self.resource(source, false).await.map_err(fail("FailedGetResourceMetric", what))
            }
            MetricSpec { container_resource: Some(source), .. } if spec.r#type == "ContainerResource" => {
                let what = format!("{} container metric", source.container);
                self.resource(source, true).await.map_err(fail("FailedGetContainerResourceMetric", what))
            }
            MetricSpec { external: Some(source), .. } if spec.r#type == "External" => {
                let what = format!("{} external metric", source.metric.name);
                self.external(source).await.map_err(fail("FailedGetExternalMetric", what))
            }
            _ => {
                let message = format!("unknown metric source type {:?}", spec.r#type);
                Err(MetricFailure { reason: "InvalidMetricSourceType", of_all: message.clone(), message })
            }
        }
    }

    async fn resource(&self, source: &ResourceSource, of_container: bool) -> Result<Proposal, Fault> {
        let (name, target) = (&source.name, &source.target);
        let (aim, what) = match (milli(target.average_value.as_ref()), target.average_utilization) {
            (Some(n), _) => (Aim::Average(n), "usage"),
            (None, Some(percent)) => (Aim::Utilization(percent), "utilization"),
            (None, None) => {
                let text = "invalid resource metric source: neither an average utilization target nor an average value (usage) target was set";
                return Err(text.to_owned().into());
            }
        };
        let failed = |e: String| format!("failed to get {name} {what}: {e}");
        let container = if of_container { source.container.as_str() } else { "" };
        let samples = self.metrics.of_pods(self.namespace, self.selector, name, container).await;
        let samples = samples.map_err(|e| failed(format!("unable to get metrics for resource {name}: {e}")))?;
        let need = self.pods.by_each(samples, aim, name, container).map_err(failed)?;
        let mut current = json!({"averageValue": quantity(name, need.usage)});
        if let Some(percent) = need.utilization {
            current["averageUtilization"] = percent.into();
        }
        let shown = match (aim, of_container) {
            (Aim::Average(_), _) => format!("{name} resource"),
            (Aim::Utilization(_), false) => format!("{name} resource utilization (percentage of request)"),
            (Aim::Utilization(_), true) => format!("{name} container resource utilization (percentage of request)"),
        };
        let status = if of_container {
            json!({"type": "ContainerResource",
                "containerResource": {"name": name, "container": container, "current": current}})
        } else {
            json!({"type": "Resource", "resource": {"name": name, "current": current}})
        };
        Ok(Proposal { replicas: need.replicas, name: shown, status })
    }

    async fn each_pod(&self, source: &CustomSource) -> Result<Proposal, Fault> {
        let name = &source.metric.name;
        let target = milli(source.target.average_value.as_ref()).unwrap_or_default();
        let samples = self.metrics.of_each_pod(self.namespace, self.selector, &source.metric).await;
        let samples = samples.map_err(|e| format!("unable to get metric {name}: {e}"))?;
        let need = self.pods.by_each(samples, Aim::Average(target), "", "")?;
        let status = json!({"type": "Pods", "pods": {"metric": source.metric,
            "current": {"averageValue": quantity("", need.usage)}}});
        Ok(Proposal { replicas: need.replicas, name: format!("pods metric {name}"), status })
    }

    async fn object(&self, source: &CustomSource) -> Result<Proposal, Fault> {
        let (name, target) = (&source.metric.name, &source.target);
        let object = source.described_object.clone().unwrap_or_default();
        let kind = &object.kind;
        let (total, share) = (milli(target.value.as_ref()), milli(target.average_value.as_ref()));
        if total.is_none() && share.is_none() {
            let text = "invalid object metric source: neither a value target nor an average value target was set";
            return Err(text.to_owned().into());
        }
        let usage = self.metrics.of_object(self.scales, self.namespace, &object, &source.metric).await;
        let usage = usage.map_err(|e| {
            let text = format!("unable to get metric {name}: {kind} on {} {}/{e}", self.namespace, object.name);
            let of = if total.is_some() { String::new() } else { format!("failed to get {name} object metric: ") };
            Fault { of, message: text }
        })?;
        let (need, current, shown) =
            self.total_or_share(usage, total, share, format!("{kind} metric {name}"), source)?;
        let status = json!({"type": "Object",
            "object": {"describedObject": object, "metric": source.metric, "current": current}});
        Ok(Proposal { replicas: need.replicas, name: shown, status })
    }

    async fn external(&self, source: &CustomSource) -> Result<Proposal, Fault> {
        let (name, target) = (&source.metric.name, &source.target);
        let (total, share) = (milli(target.value.as_ref()), milli(target.average_value.as_ref()));
        if total.is_none() && share.is_none() {
            let text = "invalid external metric source: neither a value target nor an average value target was set";
            return Err(text.to_owned().into());
        }
        // An average value takes precedence over a total, as upstream.
        let total = total.filter(|_| share.is_none());
        let series = source.metric.series();
        let usage = self.metrics.external(self.namespace, &source.metric).await.map_err(|e| {
            let text = format!("unable to get external metric {}/{name}/{series}: {e}", self.namespace);
            let what =
                if total.is_some() { format!("external metric {name}") } else { format!("{name} external metric") };
            Fault { of: format!("failed to get {what}: "), message: text }
        })?;
        let shown = format!("external metric {name}({series})");
        let (need, current, shown) = self.total_or_share(usage, total, share, shown, source)?;
        let status = json!({"type": "External", "external": {"metric": source.metric, "current": current}});
        Ok(Proposal { replicas: need.replicas, name: shown, status })
    }

    /// Compares a value with the target for all pods, or with the average per pod.
    fn total_or_share(
        &self,
        usage: i64,
        total: Option<i64>,
        share: Option<i64>,
        shown: String,
        source: &CustomSource,
    ) -> Result<(MetricOutcome, Value, String), String> {
        if let Some(target) = total {
            let need = self.pods.by_total(usage, target)?;
            return Ok((need, json!({"value": quantity("", need.usage)}), shown));
        }
        let need = self.pods.by_share(usage, share.unwrap_or_default());
        let shown = format!("external metric {}({})", source.metric.name, source.metric.series());
        Ok((need, json!({"averageValue": quantity("", need.usage)}), shown))
    }
}

/// The message of an error in the condition and event, and its prefix in the summary of all metrics.
struct Fault {
    of: String,
    message: String,
}

impl From<String> for Fault {
    fn from(message: String) -> Self {
        Self { of: String::new(), message }
    }
}

/// Formats a value in thousandths as a quantity, with binary suffixes for memory.
fn quantity(resource: &str, milli: i64) -> String {
    if resource == "memory" {
        let bytes = milli.div_euclid(1000) + i64::from(milli.rem_euclid(1000) > 0);
        return Quantity::binary(bytes).to_string();
    }
    Quantity::from_milli(milli).to_string()
}
