//! VolumeAttachments.
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::is_dns1123_subdomain;
use serde_json::{Value, json};

use super::GROUP;
use crate::column::{AGE, Column, NAME};
use crate::core::inline_volume_spec;
use crate::metadata::IMMUTABLE;
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::rules;
use crate::strategy::Strategy;
use crate::table::{age, name};
use crate::tree::{at_mut, default_to, ensure, entries, flag, present, same, text};
use crate::volume_sources;

/// The maximum size of `status.attachmentMetadata`, keys and values together, in bytes.
const METADATA_BYTES_MAX: usize = 256 * 1024;
/// The maximum size of `status.attachError.message` and the other error messages, in bytes.
const ERROR_MESSAGE_MAX: usize = 1024;
const ONE_SOURCE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";

/// The strategy of volumeattachments.
pub struct VolumeAttachments;

static ATTACHMENTS: LazyLock<Options> = LazyLock::new(|| Options {
    allow_unconditional_update: false,
    columns: columns![
        NAME,
        Column::identifying("Attacher", "Driver that attaches the volume."),
        Column::text("PV", "Volume that is attached."),
        Column::text("Node", "Node it is attached to."),
        Column::boolean("Attached", "Whether it is attached."),
        AGE,
    ],
    delete_returns_object: true,
    ..Options::of(GROUP, "volumeattachments")
});

impl Strategy for VolumeAttachments {
    fn options(&self) -> &Options {
        &ATTACHMENTS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        if let Some(s) = ensure(obj, "status") {
            default_to(s, "attached", false);
        }
        if let Some(volume) = at_mut(obj, &["spec", "source", "inlineVolumeSpec"]) {
            volume_sources::defaults(volume);
        }
    }
    fn initial_status(&self) -> Value {
        json!({"attached": false})
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (spec, p) = (&obj["spec"], Path::new("spec"));
        volume_sources::driver_name(text(&spec["attacher"]), &p.child("attacher"), e);
        let source = p.child("source");
        let (pv, inline) = (&spec["source"]["persistentVolumeName"], &spec["source"]["inlineVolumeSpec"]);
        let at = source.child("persistentVolumeName");
        match (present(pv), present(inline)) {
            (true, true) => e.forbidden(&source, ONE_SOURCE),
            (false, false) => e.required(&source, ONE_SOURCE),
            (true, false) => {
                rules::required(pv, &at, e);
            }
            (false, true) => inline_volume_spec(inline, &source.child("inlineVolumeSpec"), e),
        }
        if present(pv) {
            e.invalid_each(&at, text(pv), is_dns1123_subdomain(text(pv)));
        }
        let status = Path::new("status");
        let metadata = entries(&obj["status"]["attachmentMetadata"]).map(|(k, v)| k.len() + text(v).len());
        if metadata.sum::<usize>() > METADATA_BYTES_MAX {
            e.too_long(&status.child("attachmentMetadata"), METADATA_BYTES_MAX);
        }
        for f in ["attachError", "detachError"] {
            let (error, at) = (&obj["status"][f], status.child(f));
            if text(&error["message"]).len() > ERROR_MESSAGE_MAX {
                e.too_long(&at.child("message"), ERROR_MESSAGE_MAX);
            }
            rules::not_negative(&error["errorCode"], &at.child("errorCode"), e);
        }
        let node = text(&spec["nodeName"]);
        e.invalid_each(&p.child("nodeName"), node, is_dns1123_subdomain(node));
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        if !same(&new["spec"], &old["spec"]) {
            e.invalid(&Path::new("spec"), &new["spec"], IMMUTABLE);
        }
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        self.check_update(new, old, e);
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &obj["spec"];
        vec![
            name(obj),
            json!(text(&spec["attacher"])),
            json!(text(&spec["source"]["persistentVolumeName"])),
            json!(text(&spec["nodeName"])),
            json!(flag(&obj["status"]["attached"])),
            age(obj, now),
        ]
    }
}
