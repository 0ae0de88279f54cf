//! How full the volumes of claims are, under the names by which alerts know them.
use kelson_metrics::Families;

/// How much room there is in the volume of one claim.
pub struct ClaimRoom {
    /// Namespace and name of the claim.
    pub claim: (String, String),
    /// Bytes of its file system: all, those that are left, those that are taken.
    pub bytes: [u64; 3],
    /// Inodes of the same: all, those that are free, those that are taken.
    pub inodes: [u64; 3],
}

/// Shows the volumes of these claims when somebody scrapes.
pub fn claims_room(families: &mut Families, claims: &[ClaimRoom]) {
    type Of = fn(&ClaimRoom) -> u64;
    let rows: [(&str, &str, Of); 6] = [
        ("kubelet_volume_stats_capacity_bytes", "Bytes of the file system of the claim's volume.", |c| c.bytes[0]),
        ("kubelet_volume_stats_available_bytes", "Bytes of it that pods may still write.", |c| c.bytes[1]),
        ("kubelet_volume_stats_used_bytes", "Bytes of it that are taken.", |c| c.bytes[2]),
        ("kubelet_volume_stats_inodes", "Inodes of the file system of the claim's volume.", |c| c.inodes[0]),
        ("kubelet_volume_stats_inodes_free", "Inodes of it that are free.", |c| c.inodes[1]),
        ("kubelet_volume_stats_inodes_used", "Inodes of it that are taken.", |c| c.inodes[2]),
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
    fn by_the_names_that_alerts_ask_for() {
        let mut families = Families::default();
        let claim = ("n".to_owned(), "c".to_owned());
        claims_room(&mut families, &[ClaimRoom { claim, bytes: [9, 4, 5], inodes: [3, 1, 2] }]);
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
