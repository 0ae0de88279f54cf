//! Flags of single controllers: certificate signing, autoscaling, and the size of endpoint slices.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use kelson_controllers::{Authorities, AutoscalerRules, SliceSizes};
use kelson_meta::parse_duration;
use kelson_pki::{Authority, Key};

/// Upstream's limits of both numbers.
const SLICE_SIZES: std::ops::RangeInclusive<i64> = 1..=1000;

/// The CAs for certificate requests: one for all signers, or one for each.
#[derive(Args, Debug, Clone, Default)]
pub struct SigningArgs {
    /// Certificate of the CA that signs for all signers.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_cert_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_key_file: Option<PathBuf>,
    /// Certificate of the CA that signs for kubernetes.io/kubelet-serving.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_serving_cert_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_serving_key_file: Option<PathBuf>,
    /// Certificate of the CA that signs for kubernetes.io/kube-apiserver-client-kubelet.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_client_cert_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kubelet_client_key_file: Option<PathBuf>,
    /// Certificate of the CA that signs for kubernetes.io/kube-apiserver-client.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kube_apiserver_client_cert_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_kube_apiserver_client_key_file: Option<PathBuf>,
    /// Certificate of the CA that signs for kubernetes.io/legacy-unknown.
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_legacy_unknown_cert_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE")]
    pub cluster_signing_legacy_unknown_key_file: Option<PathBuf>,
}

/// Reads a file.
pub fn text(flag: &str, file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("{flag} {}", file.display()))
}

/// Returns the CA of a pair of files; `None` when neither is given.
fn authority(
    flag: &str,
    cert: Option<&PathBuf>,
    key: Option<&PathBuf>,
    which: &str,
) -> anyhow::Result<Option<Arc<Authority>>> {
    match (cert, key) {
        (None, None) => Ok(None),
        (None, Some(_)) => bail!("{which:?}: cannot specify key without cert"),
        (Some(_), None) => bail!("{which:?}: cannot specify cert without key"),
        (Some(cert), Some(key)) => {
            let key = Key::from_pem(&text(&format!("--{flag}-key-file"), key)?)?;
            let authority = Authority::from_parts(&text(&format!("--{flag}-cert-file"), cert)?, key)?;
            Ok(Some(Arc::new(authority)))
        }
    }
}

impl SigningArgs {
    /// Returns the CA of each signer. As upstream, a signer without files signs nothing if others have files.
    pub fn authorities(&self) -> anyhow::Result<Authorities> {
        let own = |flag: &str, cert: &Option<PathBuf>, key: &Option<PathBuf>, which: &str| {
            authority(
                &format!("cluster-signing-{flag}"),
                cert.as_ref(),
                key.as_ref(),
                &format!("cluster-signing-{which}"),
            )
        };
        let serving = own(
            "kubelet-serving",
            &self.cluster_signing_kubelet_serving_cert_file,
            &self.cluster_signing_kubelet_serving_key_file,
            "kubelet-serving",
        )?;
        // Upstream's message, with its names for these two.
        let kubelets = own(
            "kubelet-client",
            &self.cluster_signing_kubelet_client_cert_file,
            &self.cluster_signing_kubelet_client_key_file,
            "kube-apiserver-client",
        )?;
        let clients = own(
            "kube-apiserver-client",
            &self.cluster_signing_kube_apiserver_client_cert_file,
            &self.cluster_signing_kube_apiserver_client_key_file,
            "kube-apiserver",
        )?;
        let legacy = own(
            "legacy-unknown",
            &self.cluster_signing_legacy_unknown_cert_file,
            &self.cluster_signing_legacy_unknown_key_file,
            "legacy-unknown",
        )?;
        let (cert, key) = (self.cluster_signing_cert_file.as_ref(), self.cluster_signing_key_file.as_ref());
        let any = serving.is_some() || kubelets.is_some() || clients.is_some() || legacy.is_some();
        if any && (cert.is_some() || key.is_some()) {
            let both = "--cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags";
            bail!("cannot specify {both} at the same time");
        }
        let one = authority("cluster-signing", cert, key, "cluster-signing")?;
        Ok(Authorities {
            kubelet_serving_signer: serving.or_else(|| one.clone()),
            signer: one,
            kubelet_client_signer: kubelets,
            client_signer: clients,
            legacy_signer: legacy,
            ..Authorities::default()
        })
    }
}

/// Settings of the autoscaler.
#[derive(Args, Debug, Clone)]
pub struct AutoscalerArgs {
    /// Interval of HorizontalPodAutoscaler syncs.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub horizontal_pod_autoscaler_sync_period: Duration,
    /// Stabilization window for scaling down: the highest recommendation in it applies.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub horizontal_pod_autoscaler_downscale_stabilization: Duration,
    /// Time after a pod's start in which its CPU usage counts only while the pod is ready.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub horizontal_pod_autoscaler_cpu_initialization_period: Duration,
    /// Time after a pod's start in which an unready pod counts as not yet ready.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    pub horizontal_pod_autoscaler_initial_readiness_delay: Duration,
    /// Relative deviation from the target below which an autoscaler does not scale.
    #[arg(long, value_name = "PART", default_value_t = 0.1)]
    pub horizontal_pod_autoscaler_tolerance: f64,
}

impl AutoscalerArgs {
    /// Returns the settings of the flags.
    pub fn rules(&self) -> anyhow::Result<AutoscalerRules> {
        if self.horizontal_pod_autoscaler_sync_period.is_zero() {
            bail!("--horizontal-pod-autoscaler-sync-period must be greater than 0");
        }
        Ok(AutoscalerRules {
            period: self.horizontal_pod_autoscaler_sync_period,
            down_window: self.horizontal_pod_autoscaler_downscale_stabilization,
            cpu_initialization: self.horizontal_pod_autoscaler_cpu_initialization_period,
            initial_readiness: self.horizontal_pod_autoscaler_initial_readiness_delay,
            tolerance: self.horizontal_pod_autoscaler_tolerance,
        })
    }
}

/// The size of endpoint slices.
#[derive(Args, Debug, Clone)]
pub struct SliceArgs {
    /// Maximum number of endpoints per EndpointSlice of a service, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 100, allow_hyphen_values = true)]
    pub max_endpoints_per_slice: i64,
    /// Maximum number of addresses mirrored per Endpoints subset, and of endpoints per mirrored slice, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 1000, allow_hyphen_values = true)]
    pub mirroring_max_endpoints_per_subset: i64,
}

impl SliceArgs {
    /// Returns the sizes of the flags.
    pub fn sizes(&self) -> anyhow::Result<SliceSizes> {
        let size = |flag: &str, n: i64| {
            let (least, most) = (SLICE_SIZES.start(), SLICE_SIZES.end());
            match usize::try_from(n) {
                Ok(size) if SLICE_SIZES.contains(&n) => Ok(size),
                _ if n < *least => bail!("{flag} must not be less than {least}, but got {n}"),
                _ => bail!("{flag} must not be more than {most}, but got {n}"),
            }
        };
        Ok(SliceSizes {
            own: size("max-endpoints-per-slice", self.max_endpoints_per_slice)?,
            mirrored: size("mirroring-max-endpoints-per-subset", self.mirroring_max_endpoints_per_subset)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use kelson_pki::{KUBE_APISERVER_CLIENT, KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING, LEGACY_UNKNOWN};

    use super::*;

    #[test]
    fn who_signs_what() {
        let dir = tempfile::tempdir().expect("a folder");
        let files = |name: &str| {
            Authority::load_or_create(dir.path(), name, name, Timestamp::UNIX_EPOCH).expect("an authority");
            let file = |end: &str| Some(dir.path().join(format!("{name}.{end}")));
            (file("crt"), file("key"))
        };
        let (all, serving) = (files("all"), files("serving"));
        let signers = [KUBELET_SERVING, KUBE_APISERVER_CLIENT_KUBELET, KUBE_APISERVER_CLIENT, LEGACY_UNKNOWN];
        let signs = |args: &SigningArgs| {
            let authorities = args.authorities().map_err(|e| e.to_string())?;
            Ok::<_, String>(signers.map(|signer| authorities.of(signer).is_some()))
        };
        let (cluster_signing_cert_file, cluster_signing_key_file) = all;
        let one = SigningArgs { cluster_signing_cert_file, cluster_signing_key_file, ..SigningArgs::default() };
        assert_eq!(signs(&one), Ok([true; 4]));
        assert_eq!(signs(&SigningArgs::default()), Ok([false; 4]));
        let (cluster_signing_kubelet_serving_cert_file, cluster_signing_kubelet_serving_key_file) = serving;
        let own = SigningArgs {
            cluster_signing_kubelet_serving_cert_file,
            cluster_signing_kubelet_serving_key_file,
            ..SigningArgs::default()
        };
        assert_eq!(signs(&own), Ok([true, false, false, false]), "the others have none");
        let both = SigningArgs { cluster_signing_cert_file: one.cluster_signing_cert_file.clone(), ..own.clone() };
        assert!(signs(&both).is_err_and(|why| why.contains("at the same time")));
        let half = SigningArgs { cluster_signing_kubelet_serving_key_file: None, ..own };
        assert_eq!(signs(&half), Err("\"cluster-signing-kubelet-serving\": cannot specify cert without key".into()));
    }

    #[test]
    fn sizes_of_slices() {
        let sizes = |own, mirrored| {
            let args = SliceArgs { max_endpoints_per_slice: own, mirroring_max_endpoints_per_subset: mirrored };
            args.sizes().map(|s| (s.own, s.mirrored)).map_err(|e| e.to_string())
        };
        assert_eq!(sizes(1, 1000), Ok((1, 1000)));
        assert_eq!(sizes(0, 1), Err("max-endpoints-per-slice must not be less than 1, but got 0".into()));
        let why = "mirroring-max-endpoints-per-subset must not be more than 1000, but got 1001";
        assert_eq!(sizes(1, 1001), Err(why.into()));
    }
}
