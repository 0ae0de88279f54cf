//! Options of a test cluster.
use std::path::PathBuf;

use kelson_controllers::canonical_name;
use serde::Deserialize;

/// The controller that creates default service accounts; without it there are none, and pods are admitted without one.
const SERVICE_ACCOUNTS: &str = "serviceaccount-controller";
/// The controller that removes the not-ready taint from new nodes; without it nodes are admitted without the taint.
const NODES: &str = "node-lifecycle-controller";

/// Options of a test cluster. The default is only an API server in memory, as in envtest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Options {
    /// The directory for objects; `None` keeps them in memory.
    #[serde(skip)]
    pub directory: Option<PathBuf>,
    /// The controllers to run, by upstream's names, new or old: `namespace`, `garbagecollector`,
    /// `deployment-controller`; `*` means all that upstream runs by default, `-NAME` removes one.
    pub controllers: Vec<String>,
    /// Whether the scheduler runs.
    pub scheduler: bool,
    /// Nodes without containers, which simulate running pods.
    pub nodes: Nodes,
}

/// The hollow nodes of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Nodes {
    /// The number of nodes, up to [`kelson_hollow::NODES_MAX`].
    pub count: usize,
    /// The labels of all nodes.
    pub labels: std::collections::BTreeMap<String, String>,
}

impl Options {
    /// Returns the current names of `controllers`.
    ///
    /// # Errors
    /// The first unknown name.
    pub(crate) fn controllers(&self) -> Result<Vec<String>, String> {
        let each = self.controllers.iter().map(|asked| match asked.strip_prefix('-') {
            _ if asked == "*" => Ok(asked.clone()),
            Some(off) => canonical_name(off).map(|name| format!("-{name}")).ok_or_else(|| off.to_owned()),
            None => canonical_name(asked).map(str::to_owned).ok_or_else(|| asked.clone()),
        });
        each.collect()
    }

    /// Returns the admission plugins that are disabled, because the controller they depend on does not run.
    pub(crate) fn plugins_off(&self) -> Vec<String> {
        let names = self.controllers().unwrap_or_default();
        let runs = |name: &str| {
            let off = format!("-{name}");
            names.iter().any(|n| n == "*" || n == name) && !names.contains(&off)
        };
        let pairs = [(SERVICE_ACCOUNTS, "ServiceAccount"), (NODES, "TaintNodesByCondition")];
        pairs.into_iter().filter(|(controller, _)| !runs(controller)).map(|(_, plugin)| plugin.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(names: &[&str]) -> Options {
        Options { controllers: names.iter().map(|n| (*n).to_owned()).collect(), ..Options::default() }
    }

    #[test]
    fn names_of_controllers() {
        let read = with(&["*", "-garbagecollector", "namespace"]).controllers();
        assert_eq!(read.unwrap(), ["*", "-garbage-collector-controller", "namespace-controller"]);
        assert_eq!(with(&["namespaces"]).controllers(), Err("namespaces".to_owned()));
    }

    #[test]
    fn plugins_that_rely_on_a_controller_are_off_without_it() {
        let (accounts, taints) = ("ServiceAccount", "TaintNodesByCondition");
        let rows: [(&[&str], &[&str]); 5] = [
            (&[], &[accounts, taints]),
            (&["namespace"], &[accounts, taints]),
            (&["serviceaccount"], &[taints]),
            (&["*"], &[]),
            (&["*", "-serviceaccount"], &[accounts]),
        ];
        for (names, want) in rows {
            assert_eq!(with(names).plugins_off(), want, "{names:?}");
        }
    }
}
