//! Names of upstream's volume plugins, for metrics.
use k8s_openapi::api::core::v1::Volume;

use super::persistent::Persistent;

/// Returns the plugin's name of a volume, with the driver's name for CSI. For a claim it is the plugin of the PersistentVolume.
pub(super) fn plugin_name(volume: &Volume, persistent: Option<&Persistent>) -> String {
    let bound = persistent.map(|p| &p.spec);
    let driver = volume.csi.as_ref().map(|csi| &csi.driver);
    let driver = driver.or_else(|| bound.and_then(|spec| spec.csi.as_ref()).map(|csi| &csi.driver));
    if let Some(driver) = driver {
        return format!("kubernetes.io/csi:{driver}");
    }
    let kinds = [
        (volume.config_map.is_some(), "configmap"),
        (volume.secret.is_some(), "secret"),
        (volume.downward_api.is_some(), "downward-api"),
        (volume.projected.is_some(), "projected"),
        (volume.empty_dir.is_some(), "empty-dir"),
        (volume.host_path.is_some() || bound.is_some_and(|spec| spec.host_path.is_some()), "host-path"),
        (volume.nfs.is_some() || bound.is_some_and(|spec| spec.nfs.is_some()), "nfs"),
        (volume.image.is_some(), "image"),
        (bound.is_some_and(|spec| spec.local.is_some()), "local-volume"),
    ];
    let name = kinds.into_iter().find(|(is, _)| *is).map_or("unknown", |(_, name)| name);
    format!("kubernetes.io/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_of_upstreams_plugins() {
        for (volume, wanted) in [
            (json!({"name": "v", "configMap": {}}), "kubernetes.io/configmap"),
            (json!({"name": "v", "emptyDir": {}}), "kubernetes.io/empty-dir"),
            (json!({"name": "v", "csi": {"driver": "d.example.com"}}), "kubernetes.io/csi:d.example.com"),
            (json!({"name": "v", "image": {}}), "kubernetes.io/image"),
        ] {
            assert_eq!(plugin_name(&serde_json::from_value(volume).expect("a volume"), None), wanted);
        }
    }
}
