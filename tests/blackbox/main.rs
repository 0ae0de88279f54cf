//! The black-box suite. Files are named after the API concept they check; each lists its tests, this file runs them.
use kelson_blackbox::{Test, run};

mod admission;
mod api_concepts;
mod bad_input;
mod credentials;
mod durability;
mod hosts;
mod jobs;
mod overload;
mod pod_isolation;
mod pod_lifecycle;
mod pods;
mod services;
mod streaming;
mod volumes;
mod workloads;

fn main() {
    let tests: Vec<Test> = [
        api_concepts::tests(),
        bad_input::tests(),
        admission::tests(),
        workloads::tests(),
        jobs::tests(),
        pods::tests(),
        pod_lifecycle::tests(),
        pod_isolation::tests(),
        streaming::tests(),
        volumes::tests(),
        services::tests(),
        hosts::tests(),
        durability::tests(),
        credentials::tests(),
        overload::tests(),
    ]
    .into_iter()
    .flatten()
    .collect();
    std::process::exit(run(&tests));
}
