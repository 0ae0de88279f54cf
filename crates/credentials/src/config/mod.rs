//! The `CredentialProviderConfig` file (`kubelet.config.k8s.io` v1alpha1, v1beta1, v1): what it says once it is found
//! sound. [`load`] reads it, [`read`] finds the faults, [`watch`] notices changes.
mod load;
mod read;
mod watch;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use kelson_meta::FieldError;

use crate::pattern::Pattern;
use crate::secret::Secret;

pub use load::{load, load_text};
pub use watch::watch;

/// Providers in one configuration.
pub const PROVIDERS_MAX: usize = 1000;
/// Bytes of one configuration file.
pub const CONFIG_BYTES_MAX: usize = kelson_codec::DOCUMENT_BYTES_MAX;
/// Files of a configuration directory.
pub const CONFIG_FILES_MAX: usize = 1000;

/// A sound configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// In order of the file: where answers overlap, the earlier provider's credentials are tried first.
    pub providers: Vec<ProviderConfig>,
    /// `sha256:` and hex over all files as read; the label of the config-info metric.
    pub hash: String,
}

/// Version of the protocol a plugin speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiVersion {
    /// The version `credentialprovider.kubelet.k8s.io/v1alpha1`.
    V1Alpha1,
    /// The version `credentialprovider.kubelet.k8s.io/v1beta1`.
    V1Beta1,
    /// The version `credentialprovider.kubelet.k8s.io/v1`.
    V1,
}

impl ApiVersion {
    /// All of them, sorted as error messages list them.
    pub const ALL: [Self; 3] = [Self::V1, Self::V1Alpha1, Self::V1Beta1];

    /// Returns the value of `apiVersion`.
    pub fn text(self) -> &'static str {
        match self {
            Self::V1Alpha1 => "credentialprovider.kubelet.k8s.io/v1alpha1",
            Self::V1Beta1 => "credentialprovider.kubelet.k8s.io/v1beta1",
            Self::V1 => "credentialprovider.kubelet.k8s.io/v1",
        }
    }
    /// Parses a document's `apiVersion`; `None` for an unsupported one.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|v| v.text() == text)
    }
}

/// One plugin: which images it is asked for, and how it is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderConfig {
    /// Name, which is also the executable's in the bin directory.
    pub name: String,
    /// The patterns of images, with their spelling in the configuration.
    pub match_images: Vec<(String, Pattern)>,
    /// The time for which an answer without a duration is cached; zero disables caching.
    pub default_cache_duration: Duration,
    /// The version that is spoken with the plugin over stdin and stdout.
    pub api_version: ApiVersion,
    /// Arguments; operators put keys in them, so they do not print.
    pub args: Vec<Secret>,
    /// Environment laid over the node agent's own.
    pub env: Vec<(String, Secret)>,
    /// Service account tokens for the plugin (KEP-4412).
    pub token_attributes: Option<TokenAttributes>,
}

/// The scope of an answer made with a service account token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheType {
    /// The token's pod.
    Token,
    /// All pods of the service account.
    ServiceAccount,
}

/// `tokenAttributes` of a provider (KEP-4412).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenAttributes {
    /// Audience of the token.
    pub audience: String,
    /// Reach of the answers.
    pub cache_type: CacheType,
    /// Whether pods without a service account are passed over.
    pub require_service_account: bool,
    /// Annotations without which the plugin is not asked.
    pub required_annotation_keys: Vec<String>,
    /// Annotations passed on where they are set.
    pub optional_annotation_keys: Vec<String>,
}

/// One fault of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// The file, where there may be several.
    pub file: Option<PathBuf>,
    /// The kind of error.
    pub kind: FaultKind,
}

/// The location of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An error of a field.
    Field(FieldError),
    /// In the file as a whole, or in what it needs on disk.
    Other(String),
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}: ", file.display())?;
        }
        match &self.kind {
            FaultKind::Field(e) => e.fmt(f),
            FaultKind::Other(e) => f.write_str(e),
        }
    }
}

/// All faults of a configuration; never empty. Shows no value of `args` or `env`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to validate credential provider config: {}", list(.0))]
pub struct ConfigError(pub Vec<ConfigFault>);

fn list(faults: &[ConfigFault]) -> String {
    match faults {
        [one] => one.to_string(),
        many => format!("[{}]", many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}
