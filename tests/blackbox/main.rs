//! The black-box suite. Files are named after the API concept they test; each lists its tests, and this file runs them.
use kelson_blackbox::{Test, run};

mod admission;
mod aggregation;
mod api_concepts;
mod availability;
mod bad_input;
mod bad_requests;
mod clients;
mod columns;
mod configuration;
mod credentials;
mod definitions;
mod devices;
mod durability;
mod envtest;
mod etcd;
mod extended;
mod first_start;
mod helm;
mod hostile_pods;
mod hostile_requests;
mod hosts;
mod identity;
mod install;
mod jobs;
mod joining;
mod joining_servers;
mod load_balancers;
mod manifests;
mod members;
mod messages;
mod metrics_api;
mod network_policies;
mod node_claims;
mod node_plugins;
mod node_pressure;
mod operators;
mod overload;
mod own_cpus;
mod peers;
mod pod_fields;
mod pod_isolation;
mod pod_lifecycle;
mod pods;
mod releases;
mod restore;
mod servers_and_nodes;
mod services;
mod stages;
mod streaming;
mod support;
mod upgrade;
mod vip;
mod vm;
mod volume_kinds;
mod volumes;
mod workloads;

/// Tests that run after all others, one by one, because their result depends on the load of the machine.
const ALONE: &[&str] = &["overload::leases_and_administrators_are_served"];

fn main() {
    // In a pod this program is the operator that some tests install.
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|first| first == "operator") {
        if let Err(why) = kelson_blackbox::operator::run(&args[1..]) {
            eprintln!("{why:#}");
            std::process::exit(1);
        }
        return;
    }
    let tests: Vec<Test> = [
        api_concepts::tests(),
        columns::tests(),
        configuration::tests(),
        first_start::tests(),
        manifests::tests(),
        messages::tests(),
        bad_input::tests(),
        bad_requests::tests(),
        hostile_requests::tests(),
        definitions::tests(),
        operators::tests(),
        clients::tests(),
        helm::tests(),
        extended::tests(),
        admission::tests(),
        aggregation::tests(),
        workloads::tests(),
        metrics_api::tests(),
        devices::tests(),
        jobs::tests(),
        pods::tests(),
        pod_lifecycle::tests(),
        pod_fields::tests(),
        pod_isolation::tests(),
        hostile_pods::tests(),
        streaming::tests(),
        volumes::tests(),
        volume_kinds::tests(),
        node_claims::tests(),
        node_plugins::tests(),
        node_pressure::tests(),
        own_cpus::tests(),
        peers::tests(),
        services::tests(),
        load_balancers::tests(),
        network_policies::tests(),
        hosts::tests(),
        identity::tests(),
        install::tests(),
        releases::tests(),
        upgrade::tests(),
        vm::tests(),
        support::tests(),
        joining::tests(),
        durability::tests(),
        availability::tests(),
        vip::tests(),
        members::tests(),
        joining_servers::tests(),
        servers_and_nodes::tests(),
        restore::tests(),
        envtest::tests(),
        etcd::tests(),
        stages::tests(),
        credentials::tests(),
        overload::tests(),
    ]
    .into_iter()
    .flatten()
    .collect();
    std::process::exit(run(&tests, ALONE));
}
