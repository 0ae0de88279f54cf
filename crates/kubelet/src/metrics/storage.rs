//! Metrics of volume operations and CSI calls, under the names of upstream's `pkg/volume/util`.
use std::collections::HashMap;
use std::time::Duration;

use kelson_cri::CriError;
use kelson_metrics::{HistogramVec, Registry};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Bounds in seconds for operations.
const BOUNDS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
/// No volume is migrated from an in-tree plugin to CSI.
const NOT_MIGRATED: &str = "false";

/// Histograms of volume operations.
#[derive(Debug)]
pub struct StorageMetrics {
    operations: HistogramVec,
    whole: HistogramVec,
    calls: HistogramVec,
    /// The volumes by UID of the pod and name of the volume in the pod.
    volumes: Mutex<HashMap<String, HashMap<String, MountedVolume>>>,
}

#[derive(Debug)]
struct MountedVolume {
    plugin: String,
    /// Time of the first attempt, until the volume is mounted.
    wanted: Option<Instant>,
}

/// A mount operation in progress.
#[derive(Debug)]
pub struct MountWork<'a> {
    metrics: &'a StorageMetrics,
    pod: &'a str,
    volume: &'a str,
    began: Instant,
}

/// Plugin name of a CSI driver in labels.
fn of_driver(driver: &str) -> String {
    format!("kubernetes.io/csi:{driver}")
}

impl StorageMetrics {
    /// Registers the metrics in `r`.
    pub fn new(r: &Registry) -> Self {
        Self {
            operations: r.histograms(
                "storage_operation_duration_seconds",
                "Duration of volume operations in seconds by plugin, operation and status.",
                &["volume_plugin", "operation_name", "status", "migrated"],
                &BOUNDS,
            ),
            whole: r.histograms(
                "volume_operation_total_seconds",
                "Seconds from the first attempt of a volume operation until it succeeded.",
                &["plugin_name", "operation_name"],
                &BOUNDS,
            ),
            calls: r.histograms(
                "csi_operations_seconds",
                "Duration of gRPC calls to CSI drivers in seconds.",
                &["driver_name", "method_name", "grpc_status_code", "migrated"],
                &BOUNDS,
            ),
            volumes: Mutex::default(),
        }
    }

    /// Starts a mount operation. If the returned value is dropped without a result, nothing is counted.
    pub fn mount<'a>(&'a self, pod: &'a str, volume: &'a str, plugin: String) -> MountWork<'a> {
        let began = Instant::now();
        let mut volumes = self.volumes.lock();
        let known = volumes.entry(pod.to_owned()).or_default();
        known.entry(volume.to_owned()).or_insert(MountedVolume { plugin, wanted: Some(began) });
        MountWork { metrics: self, pod, volume, began }
    }

    /// Records the unmount of a pod's volumes, successful only if all were unmounted.
    pub fn unmounted(&self, pod: &str, success: bool, took: Duration) {
        let mut volumes = self.volumes.lock();
        for v in volumes.get(pod).into_iter().flat_map(HashMap::values) {
            self.worked(&v.plugin, "volume_unmount", success, took);
        }
        if success {
            volumes.remove(pod);
        }
    }

    /// Records a call to a CSI driver by its full method path.
    pub fn called(&self, driver: &str, method: &str, fault: Option<&CriError>, took: Duration) {
        let code = fault.map_or("OK", CriError::code_name);
        let labels = [driver, method, code, NOT_MIGRATED];
        self.calls.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Records the unstaging of a CSI volume.
    pub fn let_go(&self, driver: &str, success: bool, took: Duration) {
        self.worked(&of_driver(driver), "unmount_device", success, took);
    }

    /// Records the expansion of a CSI volume.
    pub fn grown(&self, driver: &str, success: bool, took: Duration) {
        self.worked(&of_driver(driver), "volume_fs_resize", success, took);
    }

    fn worked(&self, plugin: &str, operation: &str, success: bool, took: Duration) {
        let status = if success { "success" } else { "fail-unknown" };
        let labels = [plugin, operation, status, NOT_MIGRATED];
        self.operations.with_label_values(&labels).observe(took.as_secs_f64());
    }
}

impl MountWork<'_> {
    /// Records the result of the mount operation.
    pub fn ended(self, success: bool) {
        let mut volumes = self.metrics.volumes.lock();
        let Some(volume) = volumes.get_mut(self.pod).and_then(|of| of.get_mut(self.volume)) else { return };
        self.metrics.worked(&volume.plugin, "volume_mount", success, self.began.elapsed());
        if let Some(wanted) = volume.wanted.take_if(|_| success) {
            let labels = [volume.plugin.as_str(), "overall_volume_mount"];
            self.metrics.whole.with_label_values(&labels).observe(wanted.elapsed().as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::testing::check;

    #[tokio::test(start_paused = true)]
    async fn volume_operations_are_counted() {
        let registry = Registry::new();
        let m = StorageMetrics::new(&registry);
        let plugin = || "kubernetes.io/csi:d.example.com".to_owned();
        let of = |operation: &str, status: &str| {
            format!(
                "storage_operation_duration_seconds_count{{migrated=\"false\",operation_name=\"{operation}\",status=\"{status}\",volume_plugin=\"kubernetes.io/csi:d.example.com\"}}"
            )
        };
        let whole = "volume_operation_total_seconds_bucket{operation_name=\"overall_volume_mount\",plugin_name=\"kubernetes.io/csi:d.example.com\"";
        m.mount("u", "v", plugin()).ended(false);
        tokio::time::advance(Duration::from_secs(4)).await;
        let work = m.mount("u", "v", plugin());
        tokio::time::advance(Duration::from_secs(2)).await;
        work.ended(true);
        m.mount("u", "v", plugin()).ended(true);
        let _given_up = m.mount("u", "v", plugin());
        let (failed, done) = (of("volume_mount", "fail-unknown"), of("volume_mount", "success"));
        check(
            &registry.text(),
            &[
                &format!("{failed} 1"),
                &format!("{done} 2"),
                &format!("{whole},le=\"5\"}} 0"),
                &format!("{whole},le=\"10\"}} 1"),
                &format!("{whole},le=\"+Inf\"}} 1"),
            ],
        );
        m.unmounted("u", false, Duration::from_secs(1));
        m.unmounted("u", true, Duration::from_secs(1));
        m.unmounted("u", true, Duration::from_secs(1));
        let (failed, done) = (of("volume_unmount", "fail-unknown"), of("volume_unmount", "success"));
        check(&registry.text(), &[&format!("{failed} 1"), &format!("{done} 1")]);
        m.let_go("d.example.com", true, Duration::from_secs(1));
        m.grown("d.example.com", false, Duration::from_secs(1));
        let (gone, small) = (of("unmount_device", "success"), of("volume_fs_resize", "fail-unknown"));
        check(&registry.text(), &[&format!("{gone} 1"), &format!("{small} 1")]);
    }
}
