//! Flags of upstream's kubelet about CPUs and memory: what is reserved for the node, and what containers use
//! exclusively. Each overrides the field of the same name in the configuration file.
use anyhow::bail;
use clap::Args;
use kelson_kubelet::Config;
use kelson_kubelet::config::file as configuration;
use serde_json::{Map, Value, json};

/// The kubelet's flags about CPUs and memory.
#[derive(Args, Debug, Clone, Default)]
pub struct PlacementArgs {
    /// CPU manager policy: none, or static, which assigns CPUs exclusively to guaranteed pods with integer CPU
    /// requests.
    #[arg(long, value_name = "POLICY")]
    pub cpu_manager_policy: Option<String>,
    /// Options of the CPU manager policy.
    #[arg(long, value_name = "OPTION=VALUE", value_delimiter = ',', value_parser = crate::args::pair)]
    pub cpu_manager_policy_options: Vec<(String, String)>,
    /// Interval of the CPU manager's reconciliation.
    #[arg(long, value_name = "DURATION")]
    pub cpu_manager_reconcile_period: Option<String>,
    /// Memory manager policy: None, or Static, which guarantees memory of NUMA nodes to guaranteed pods.
    #[arg(long, value_name = "POLICY")]
    pub memory_manager_policy: Option<String>,
    /// CPUs reserved for the system, such as 0-1,4; never assigned exclusively.
    #[arg(long, value_name = "CPUS")]
    pub reserved_cpus: Option<String>,
    /// Memory reserved on a NUMA node; separate several by semicolons or repeat the flag.
    #[arg(long, value_name = "NODE:RESOURCE=AMOUNT,…", value_delimiter = ';')]
    pub reserved_memory: Vec<String>,
    /// Topology manager policy: none, best-effort, restricted or single-numa-node.
    #[arg(long, value_name = "POLICY")]
    pub topology_manager_policy: Option<String>,
    /// Scope of the topology manager policy: container or pod.
    #[arg(long, value_name = "SCOPE")]
    pub topology_manager_scope: Option<String>,
    /// Options of the topology manager policy: prefer-closest-numa-nodes, max-allowable-numa-nodes.
    #[arg(long, value_name = "OPTION=VALUE", value_delimiter = ',', value_parser = crate::args::pair)]
    pub topology_manager_policy_options: Vec<(String, String)>,
    /// Resources reserved for the system, by resource name.
    #[arg(long, value_name = "RESOURCE=AMOUNT", value_delimiter = ',', value_parser = crate::args::pair)]
    pub system_reserved: Vec<(String, String)>,
    /// Resources reserved for Kubernetes components, by resource name.
    #[arg(long, value_name = "RESOURCE=AMOUNT", value_delimiter = ',', value_parser = crate::args::pair)]
    pub kube_reserved: Vec<(String, String)>,
}

impl PlacementArgs {
    /// Applies the flags to `config`.
    ///
    /// # Errors
    /// All errors, each with the field's name in the configuration file.
    pub fn apply_to(&self, config: &mut Config) -> anyhow::Result<()> {
        let mut fields = Map::new();
        let texts = [
            ("cpuManagerPolicy", &self.cpu_manager_policy),
            ("cpuManagerReconcilePeriod", &self.cpu_manager_reconcile_period),
            ("memoryManagerPolicy", &self.memory_manager_policy),
            ("reservedSystemCPUs", &self.reserved_cpus),
            ("topologyManagerPolicy", &self.topology_manager_policy),
            ("topologyManagerScope", &self.topology_manager_scope),
        ];
        fields.extend(texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), json!(text.as_ref()?)))));
        let maps = [
            ("cpuManagerPolicyOptions", &self.cpu_manager_policy_options),
            ("topologyManagerPolicyOptions", &self.topology_manager_policy_options),
            ("systemReserved", &self.system_reserved),
            ("kubeReserved", &self.kube_reserved),
        ];
        for (name, pairs) in maps.into_iter().filter(|(_, pairs)| !pairs.is_empty()) {
            let map: Map<String, Value> = pairs.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
            fields.insert(name.to_owned(), Value::Object(map));
        }
        if !self.reserved_memory.is_empty() {
            let list: Result<Vec<Value>, String> = self.reserved_memory.iter().map(|text| memory(text)).collect();
            match list {
                Ok(list) => drop(fields.insert("reservedMemory".to_owned(), Value::Array(list))),
                Err(why) => bail!("--reserved-memory: {why}"),
            }
        }
        if let Err(e) = configuration::apply_placement(&Value::Object(fields), config) {
            bail!("the node's flags are invalid:\n  {}", e.0.join("\n  "));
        }
        Ok(())
    }
}

/// Parses the memory of a NUMA node, such as `0:memory=1Gi,hugepages-1Gi=2Gi`.
fn memory(text: &str) -> Result<Value, String> {
    let wrong = || format!("{text:?} must be NODE:RESOURCE=AMOUNT,…");
    let (node, amounts) = text.split_once(':').ok_or_else(wrong)?;
    let node: u32 = node.trim().parse().map_err(|_| wrong())?;
    let pair = |entry: &str| entry.split_once('=').map(|(k, v)| (k.trim().to_owned(), json!(v.trim())));
    let limits: Option<Map<String, Value>> = amounts.split(',').map(pair).collect();
    Ok(json!({"numaNode": node, "limits": limits.ok_or_else(wrong)?}))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn flags_say_what_fields_say() {
        let pair = |k: &str, v: &str| vec![(k.to_owned(), v.to_owned())];
        let args = PlacementArgs {
            cpu_manager_policy: Some("static".into()),
            cpu_manager_policy_options: pair("full-pcpus-only", "true"),
            reserved_memory: vec!["0:memory=1Gi,hugepages-2Mi=4Mi".into(), "1:memory=1Gi".into()],
            kube_reserved: pair("cpu", "500m"),
            ..PlacementArgs::default()
        };
        let mut config = Config::new("n", Path::new("/"));
        args.apply_to(&mut config).expect("sound");
        assert!(config.placement.has_own_cpus && config.placement.cpu_options.whole_cores);
        assert_eq!(config.placement.reserved_memory[0].amounts["hugepages-2Mi"].to_string(), "4Mi");
        assert_eq!(
            (config.placement.reserved_memory[1].node, config.reserved()["cpu"].to_string()),
            (1, "500m".into())
        );
        let wrong = PlacementArgs { reserved_memory: vec!["0=1Gi".into()], ..PlacementArgs::default() };
        assert!(wrong.apply_to(&mut config).is_err_and(|e| e.to_string().contains("NODE:RESOURCE=AMOUNT")));
        let wrong = PlacementArgs { cpu_manager_policy: Some("fixed".into()), ..PlacementArgs::default() };
        assert!(
            wrong.apply_to(&mut config).is_err_and(|e| e.to_string().contains("cpuManagerPolicy: Unsupported value"))
        );
    }
}
