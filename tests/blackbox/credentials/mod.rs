//! Image pull credentials (KEP-2133, KEP-4412, KEP-2535) with a real registry, real plugins and real containerd. Each
//! test runs a separate cluster, since it sets how the node is started, and searches everything the cluster left for
//! the secrets it used.
mod commands;
mod plugins;
mod tenants;
mod world;

use kelson_blackbox::{Needs, Test};

pub fn tests() -> Vec<Test> {
    let node = Needs::OwnNode;
    vec![
        Test { name: "credentials::start_up_faults", needs: Needs::OwnServer, run: commands::start_up_faults },
        Test { name: "credentials::check_command", needs: Needs::OwnServer, run: commands::check },
        Test { name: "credentials::pull_secrets", needs: node, run: tenants::pull_secrets },
        Test { name: "credentials::tenants_and_records", needs: node, run: tenants::tenants },
        Test { name: "credentials::service_account_tokens", needs: node, run: plugins::service_account_tokens },
        Test { name: "credentials::configuration_reload", needs: node, run: plugins::configuration_reload },
        Test { name: "credentials::stalled_pull", needs: node, run: commands::stalled_pull },
        Test { name: "credentials::kubelet_alone", needs: node, run: commands::kubelet_alone },
        Test { name: "credentials::plugins_that_misbehave", needs: node, run: plugins::misbehaving },
    ]
}
