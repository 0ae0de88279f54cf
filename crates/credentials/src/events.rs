//! Events about credentials for pod owners and operators. The kubelet writes them; no text given here contains a
//! credential.
use crate::plugin::{PluginError, PodIdentity};

/// Reason of a pod event about a failed plugin.
pub const PLUGIN_FAILED: &str = "FailedCredentialProvider";
/// The reason of a node event about a rejected configuration.
pub const CONFIG_REJECTED: &str = "InvalidCredentialProviderConfig";
/// Reason of a node event about a new configuration.
pub const CONFIG_RELOADED: &str = "CredentialProviderConfigReloaded";
/// Longest event message, bytes (`event.message` of the API).
pub const MESSAGE_BYTES_MAX: usize = 1024;

/// Receives events. Called from any task; must not block.
pub trait Events: Send + Sync + 'static {
    /// A plugin failed for a pod's image: a warning for the pod, with [`plugin_message`].
    fn plugin_failed(&self, pod: &PodIdentity, error: &PluginError);
    /// A changed configuration is invalid and the last valid one stays in use: a warning for the node.
    fn config_rejected(&self, message: &str);
    /// A changed configuration is in force: for the node.
    fn config_reloaded(&self, hash: &str);
}

/// Drops events, for callers without an object: `credential-provider check`, tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEvents;

impl Events for NoEvents {
    fn plugin_failed(&self, _: &PodIdentity, _: &PluginError) {}
    fn config_rejected(&self, _: &str) {}
    fn config_reloaded(&self, _: &str) {}
}

/// The message of a pod event: plugin, reason, duration, tail of stderr.
pub fn plugin_message(e: &PluginError) -> String {
    let mut text = format!(
        "Credential provider {:?} failed for image {:?} after {}: {}: {}",
        e.plugin,
        e.image,
        kelson_codec::go_duration(e.took),
        e.fault.reason,
        e.fault.message
    );
    if !e.fault.stderr.is_empty() {
        text.push_str("; stderr: ");
        text.push_str(&e.fault.stderr);
    }
    bounded(text, MESSAGE_BYTES_MAX)
}

/// Truncates a string to this number of bytes, at a character boundary.
pub fn bounded(mut text: String, bytes_max: usize) -> String {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}
