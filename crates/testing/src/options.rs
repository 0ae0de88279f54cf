//! What a cluster is like.
use std::path::PathBuf;

use kelson_controllers::canonical_name;
use serde::Deserialize;

/// Makes namespaces' default accounts; without it nobody does, and pods are admitted without one.
const SERVICE_ACCOUNTS: &str = "serviceaccount-controller";
/// Takes from new nodes the taint that says that they are not ready yet; without it nodes are admitted without one.
const NODES: &str = "node-lifecycle-controller";

/// What a cluster is like. By default it is an API server in memory and nothing else, as test environments have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Options {
    /// Where objects are kept; in memory when not given.
    #[serde(skip)]
    pub directory: Option<PathBuf>,
    /// Controllers that run, by upstream's names, new or old: `namespace`, `garbagecollector`, `deployment-controller`; `*` stands
    /// for all that upstream runs by default, `-NAME` takes one away.
    pub controllers: Vec<String>,
    /// Whether pods are scheduled.
    pub scheduler: bool,
    /// Nodes without containers, on which pods seem to run.
    pub nodes: Nodes,
}

/// The hollow nodes of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Nodes {
    /// How many, up to [`kelson_hollow::NODES_MAX`].
    pub count: usize,
    /// Labels of all.
    pub labels: std::collections::BTreeMap<String, String>,
}

impl Options {
    /// `controllers` under today's names.
    ///
    /// # Errors
    /// The first name that nobody knows.
    pub(crate) fn controllers(&self) -> Result<Vec<String>, String> {
        let each = self.controllers.iter().map(|asked| match asked.strip_prefix('-') {
            _ if asked == "*" => Ok(asked.clone()),
            Some(off) => canonical_name(off).map(|name| format!("-{name}")).ok_or_else(|| off.to_owned()),
            None => canonical_name(asked).map(str::to_owned).ok_or_else(|| asked.clone()),
        });
        each.collect()
    }

    /// The admission plugins that are off, because the controller that does its part of the work does not run.
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
