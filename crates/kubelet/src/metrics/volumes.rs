//! Metrics of claims' volume usage, under the names that alerts use.
use kelson_metrics::Families;

/// Usage of one claim's volume.
pub struct ClaimUsage {
    /// Namespace and name of the claim.
    pub claim: (String, String),
    /// Bytes of the file system: total, available, used.
    pub bytes: [u64; 3],
    /// Inodes of the file system: total, free, used.
    pub inodes: [u64; 3],
}

/// Writes the metrics of these claims.
pub fn claims_room(families: &mut Families, claims: &[ClaimUsage]) {
    type Of = fn(&ClaimUsage) -> u64;
    let rows: [(&str, &str, Of); 6] = [
        ("kubelet_volume_stats_capacity_bytes", "Capacity of the claim's volume in bytes.", |c| c.bytes[0]),
        ("kubelet_volume_stats_available_bytes", "Available bytes of the claim's volume.", |c| c.bytes[1]),
        ("kubelet_volume_stats_used_bytes", "Used bytes of the claim's volume.", |c| c.bytes[2]),
        ("kubelet_volume_stats_inodes", "Total inodes of the claim's volume.", |c| c.inodes[0]),
        ("kubelet_volume_stats_inodes_free", "Free inodes of the claim's volume.", |c| c.inodes[1]),
        ("kubelet_volume_stats_inodes_used", "Used inodes of the claim's volume.", |c| c.inodes[2]),
    ];
    for (name, help, of) in rows {
        let mut gauge = families.gauge(name, help);
        for c in claims {
            let labels = [("namespace", c.claim.0.as_str()), ("persistentvolumeclaim", c.claim.1.as_str())];
            gauge.sample(&labels, of(c) as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_metrics_have_upstreams_names() {
        let mut families = Families::default();
        let claim = ("n".to_owned(), "c".to_owned());
        claims_room(&mut families, &[ClaimUsage { claim, bytes: [9, 4, 5], inodes: [3, 1, 2] }]);
        let text = families.text();
        for line in [
            "kubelet_volume_stats_capacity_bytes{namespace=\"n\",persistentvolumeclaim=\"c\"} 9",
            "kubelet_volume_stats_available_bytes{namespace=\"n\",persistentvolumeclaim=\"c\"} 4",
            "kubelet_volume_stats_inodes_used{namespace=\"n\",persistentvolumeclaim=\"c\"} 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
