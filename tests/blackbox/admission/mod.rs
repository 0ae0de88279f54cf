//! Admission as operators and users see it: configuration of the server, exact messages of plugins, policies and
//! webhooks, and operators that depend on webhooks.
mod operators;
mod plugins;
mod policies;
mod start;
mod webhooks;

use anyhow::ensure;
use kelson_blackbox::{Kubectl, Needs, Needs::Api, Needs::OwnNode, Needs::OwnServer, Outcome, Subject, Test};
use serde_json::Value;

pub fn tests() -> Vec<Test> {
    let test = |name, needs: Needs, run: fn(&Subject) -> Outcome| Test { name, needs, run };
    vec![
        test("admission::faults_stop_the_start", OwnServer, start::faults_stop_the_start),
        test("admission::help_lists_the_plugins", OwnServer, start::help_lists_the_plugins),
        test("admission::configured_by_files", OwnServer, start::configured_by_files),
        test("admission::policies_from_files", OwnServer, start::policies_from_files),
        test("admission::a_webhook_that_asks_who_calls", OwnServer, webhooks::that_asks_who_calls),
        test("admission::what_plugins_say", Api, plugins::what_plugins_say),
        test("admission::limits_of_a_namespace", Api, plugins::limits),
        test("admission::quotas_of_a_namespace", Api, plugins::quotas),
        test("admission::quotas_by_extended_resources", Api, plugins::extended_quotas),
        test("admission::pod_security_of_a_namespace", Api, plugins::pod_security),
        test("admission::what_nodes_may_not", Api, plugins::nodes),
        test("admission::policies_of_a_policy_engine", Api, policies::of_an_engine),
        test("admission::policies_with_parameters", Api, policies::with_parameters),
        test("admission::policies_that_mutate", Api, policies::that_mutate),
        test("admission::a_webhook_is_heard", Api, webhooks::heard),
        test("admission::a_webhook_with_faults", Api, webhooks::faults),
        test("admission::certificates_of_an_operator", OwnNode, operators::certificates),
        test("admission::sidecars_of_a_mesh", OwnNode, operators::sidecars),
    ]
}

/// Returns everything that kubectl prints when it sends an object: warnings, then the error or the result.
fn said(k: &Kubectl, args: &[&str], object: &Value) -> anyhow::Result<String> {
    let out = k.with_input(args, object.to_string().as_bytes())?;
    Ok(format!("{}{}", out.stderr, out.stdout).trim().to_owned())
}

/// Creates an object; kubectl must print exactly this.
fn creating(k: &Kubectl, object: &Value, want: &str) -> Outcome {
    let reported = said(k, &["create", "-f", "-"], object)?;
    ensure!(reported == want, "creating {object}\n was answered {reported}\nexpected was {want}");
    Ok(())
}

/// Returns what kubectl prints for a forbidden request.
fn forbidden(why: &str) -> String {
    format!("Error from server (Forbidden): error when creating \"STDIN\": {why}")
}
