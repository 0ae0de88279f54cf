//! The admission chain, built from the configuration over the store, the authorizer and the catalog.
use std::sync::Arc;

use kelson_admission::{AdmissionOptions, Chain, Dependencies, KindMapper};
use kelson_auth::Objects;
use kelson_meta::Gvr;

use crate::catalog::Catalog;
use crate::config::{Config, StartError};
use crate::shared::identity::Auth;

/// The catalog as admission asks it.
pub struct Kinds(pub Arc<Catalog>);

impl KindMapper for Kinds {
    fn resources(&self, api_version: &str, kind: &str) -> Vec<(Gvr, bool)> {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let all = self.0.of(group, version).unwrap_or_default();
        all.iter().filter(|s| s.gvk.kind == kind).map(|s| (s.gvr.clone(), s.namespaced)).collect()
    }
}

/// Builds the admission chain.
///
/// # Errors
/// [`StartError::Config`].
pub fn chain(
    config: &Config,
    objects: &Arc<dyn Objects>,
    auth: &Auth,
    catalog: &Arc<Catalog>,
) -> Result<Chain, StartError> {
    let options = AdmissionOptions {
        enable: config.enable_admission.clone(),
        disable: config.disable_admission.clone(),
        ..AdmissionOptions::default()
    };
    let dependencies = Dependencies {
        objects: Arc::clone(objects),
        authorizer: Arc::clone(&auth.authorizer),
        kinds: Arc::new(Kinds(Arc::clone(catalog))),
    };
    kelson_admission::build(&options, &dependencies).map_err(|e| StartError::Config(e.to_string()))
}
