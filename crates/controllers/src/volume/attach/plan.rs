//! Decides which volumes are attached to and detached from one node. Pure. Upstream
//! `pkg/controller/volume/attachdetach/{cache,reconciler,populator}`.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::views::{AttachmentView, PodView, VolumeView};

/// A volume that pods of the node need.
#[derive(Clone, Debug)]
pub struct Need {
    /// The PersistentVolume to attach.
    pub volume: Arc<VolumeView>,
    /// The pods that need it, in order.
    pub pods: Vec<Arc<PodView>>,
}

/// The changes for one node.
#[derive(Debug, Default)]
pub struct AttachPlan {
    /// Volumes to attach, by the names of their attachments.
    pub attach: BTreeMap<String, Need>,
    /// Volumes that are exclusively attached to another node.
    pub wait: Vec<Need>,
    /// Attachments that no pod needs and the node has unmounted.
    pub detach: Vec<String>,
    /// Attachments that no pod needs and the node still has mounted.
    pub busy: Vec<String>,
    /// Names for the node's `volumesAttached`.
    pub attached: BTreeSet<String>,
}

/// Returns the name of a CSI volume in a node's status.
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// Returns the name of an attachment. Drivers and kubelets compute the same hash.
pub fn attachment_name(driver: &str, handle: &str, node: &str) -> String {
    let sum = Sha256::digest(format!("{handle}{driver}{node}"));
    let mut name = String::from("csi-");
    for byte in sum {
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// Whether only one node may have the volume at a time.
fn is_exclusive(volume: &VolumeView) -> bool {
    let modes = &volume.spec.access_modes;
    !modes.is_empty() && modes.iter().all(|m| m == "ReadWriteOnce" || m == "ReadWriteOncePod")
}

/// The current state of one node.
pub struct Situation<'a> {
    /// The node's name.
    pub node: &'a str,
    /// Volumes that the node has mounted or may be about to mount, or `None` if the node does not exist.
    pub in_use: Option<&'a [String]>,
    /// Volumes that the node's pods need, by name.
    pub needs: BTreeMap<String, Need>,
    /// All VolumeAttachments of the node.
    pub attachments: &'a [Arc<AttachmentView>],
}

/// Returns the changes for one node. `volume` returns a volume by name, and `elsewhere` whether another node has it
/// attached.
pub fn plan(
    now: Situation<'_>,
    volume: impl Fn(&str) -> Option<Arc<VolumeView>>,
    elsewhere: impl Fn(&str) -> bool,
) -> AttachPlan {
    let mut out = AttachPlan::default();
    let mut there: BTreeSet<&str> = BTreeSet::new();
    for a in now.attachments {
        let of = a.spec.source.persistent_volume_name.as_str();
        let known = volume(of);
        let csi = known.as_ref().and_then(|v| v.spec.csi.as_ref());
        let name = csi.map(|c| unique_name(&c.driver, &c.volume_handle));
        let going = a.metadata.is_deleting();
        there.insert(of);
        if a.status.attached && !going {
            out.attached.extend(name.clone());
        }
        // Attachments of unknown or inline volumes are left to their creator.
        let Some(name) = name.filter(|_| !going && !now.needs.contains_key(of)) else { continue };
        let in_use = now.in_use.is_some_and(|all| all.contains(&name));
        if in_use { &mut out.busy } else { &mut out.detach }.push(a.metadata.name.clone());
    }
    for (name, need) in now.needs {
        let Some(csi) = need.volume.spec.csi.as_ref().filter(|_| !there.contains(name.as_str())) else { continue };
        if is_exclusive(&need.volume) && elsewhere(&name) {
            out.wait.push(need);
        } else {
            out.attach.insert(attachment_name(&csi.driver, &csi.volume_handle, now.node), need);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn volume(name: &str) -> Arc<VolumeView> {
        let mode = if name.starts_with("many") { "ReadWriteMany" } else { "ReadWriteOnce" };
        let spec = json!({"accessModes": [mode], "csi": {"driver": "d", "volumeHandle": format!("h-{name}")}});
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap())
    }

    fn attachment(name: &str, volume: &str) -> Arc<AttachmentView> {
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name}, "status": {"attached": true},
                "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": volume}}}))
            .unwrap(),
        )
    }

    /// Attached, waiting, detached, busy.
    fn decide(needs: &[&str], in_use: Option<&[&str]>, there: &[(&str, &str)], elsewhere: &[&str]) -> String {
        let need = |n: &&str| ((*n).to_owned(), Need { volume: volume(n), pods: Vec::new() });
        let attachments: Vec<_> = there.iter().map(|(n, v)| attachment(n, v)).collect();
        let unique = |n: &&str| unique_name("d", &format!("h-{n}"));
        let in_use: Option<Vec<String>> = in_use.map(|all| all.iter().map(unique).collect());
        let needs = needs.iter().map(need).collect();
        let now = Situation { node: "n", in_use: in_use.as_deref(), needs, attachments: &attachments };
        let p = plan(now, |n| Some(volume(n)).filter(|_| n != "unknown"), |n| elsewhere.contains(&n));
        let of = |all: &[Need]| all.iter().map(|n| n.volume.metadata.name.clone()).collect::<Vec<_>>().join(",");
        let attach: Vec<Need> = p.attach.into_values().collect();
        format!("+{} ?{} -{} !{}", of(&attach), of(&p.wait), p.detach.join(","), p.busy.join(","))
    }

    #[test]
    fn what_is_attached_and_detached() {
        let none: &[&str] = &[];
        for (got, want) in [
            (decide(&["a"], Some(none), &[], &[]), "+a ? - !"),
            (decide(&["a"], Some(none), &[("x", "a")], &[]), "+ ? - !"),
            (decide(&["a"], Some(none), &[], &["a"]), "+ ?a - !"),
            (decide(&["many"], Some(none), &[], &["many"]), "+many ? - !"),
            (decide(&[], Some(none), &[("x", "a")], &[]), "+ ? -x !"),
            (decide(&[], Some(&["a"]), &[("x", "a")], &[]), "+ ? - !x"),
            (decide(&[], None, &[("x", "a")], &[]), "+ ? -x !"),
            (decide(&[], Some(none), &[("x", "unknown")], &[]), "+ ? - !"),
        ] {
            assert_eq!(got, want);
        }
    }

    #[test]
    fn names_that_others_compute_too() {
        assert_eq!(unique_name("d.example.com", "h"), "kubernetes.io/csi/d.example.com^h");
        // The hash of `hdn`, by sha256sum.
        let sum = "9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d";
        assert_eq!(attachment_name("d", "h", "n"), format!("csi-{sum}"));
    }
}
