//! Arguments of single plugins (`pluginConfig`).
use std::time::Duration;

use kelson_meta::DurationError;
use serde_json::Value;

use super::reader::{Reader, join};
use super::rules;
use crate::evaluation::preempt::Thoroughness;
use crate::plugins::balanced_allocation::NodeResourcesBalancedAllocation;
use crate::plugins::inter_pod_affinity::InterPodAffinity;
use crate::plugins::node_resources_fit::{NodeResourcesFit, Strategy};
use crate::plugins::plugin::Plugin;
use crate::profile::Profile;

/// Reads the arguments of a profile's plugins.
pub(super) fn arguments(r: &mut Reader, at: &str, value: &Value, profile: &mut Profile) {
    let mut seen: Vec<&str> = Vec::new();
    for (i, entry) in r.list(at, value).iter().enumerate() {
        let at = format!("{at}[{i}]");
        r.fields(&at, entry, &["name", "args"]);
        let name = r.text(&join(&at, "name"), &entry["name"]).unwrap_or_default();
        if seen.contains(&name) {
            r.fault(&at, &format!("repeated config for plugin {name}"));
        }
        seen.push(name);
        let (at, args) = (join(&at, "args"), &entry["args"]);
        let fields = |r: &mut Reader, known: &[&str]| {
            let all: Vec<&str> = ["apiVersion", "kind"].iter().chain(known).copied().collect();
            r.fields(&at, args, &all);
        };
        match name {
            "NodeResourcesFit" => {
                fields(r, &["ignoredResources", "ignoredResourceGroups", "scoringStrategy"]);
                profile.fit = fit(r, &at, args);
                replace(profile, name, profile.fit);
            }
            "DefaultPreemption" => {
                fields(r, &["minCandidateNodesPercentage", "minCandidateNodesAbsolute"]);
                profile.preemption = Some(preemption(r, &at, args));
            }
            "InterPodAffinity" => {
                fields(r, &["hardPodAffinityWeight", "ignorePreferredTermsOfExistingPods"]);
                replace(profile, name, affinity(r, &at, args));
            }
            "PodTopologySpread" => {
                fields(r, &["defaultConstraints", "defaultingType"]);
                replace(profile, name, rules::spread(r, &at, args));
            }
            "NodeAffinity" => {
                fields(r, &["addedAffinity"]);
                replace(profile, name, rules::affinity(r, &join(&at, "addedAffinity"), &args["addedAffinity"]));
            }
            "NodeResourcesBalancedAllocation" => {
                fields(r, &["resources"]);
                replace(profile, name, balanced(r, &join(&at, "resources"), &args["resources"]));
            }
            "DynamicResources" => {
                fields(r, &["filterTimeout", "bindingTimeout"]);
                // The search for devices is bounded by its number of steps, not by time.
                let any = (Duration::ZERO, "must be zero or positive");
                duration(r, &join(&at, "filterTimeout"), &args["filterTimeout"], any);
                let least = (Duration::from_secs(1), "must be at least 1 second");
                let within = duration(r, &join(&at, "bindingTimeout"), &args["bindingTimeout"], least);
                profile.devices_within = within.unwrap_or(profile.devices_within);
            }
            "VolumeBinding" => {
                fields(r, &["bindTimeoutSeconds", "shape"]);
                let seconds = &args["bindTimeoutSeconds"];
                let seconds = r.number(&join(&at, "bindTimeoutSeconds"), seconds, (0, i64::from(i32::MAX)));
                profile.volumes_within =
                    seconds.map_or(profile.volumes_within, |n| Duration::from_secs(n.unsigned_abs()));
                // Same as upstream, whose feature gate for it is off by default.
                r.only(&join(&at, "shape"), &args["shape"], &[]);
            }
            _ => r.fault(&at, &format!("plugin {name:?} has no supported arguments")),
        }
    }
}

/// Replaces a plugin with one that has arguments.
fn replace(profile: &mut Profile, name: &str, plugin: impl Plugin + 'static) {
    let plugin: &'static dyn Plugin = Box::leak(Box::new(plugin));
    profile.rows.iter_mut().filter(|row| row.plugin.name() == name).for_each(|row| row.plugin = plugin);
}

/// Reads the resources whose use should be balanced.
fn balanced(r: &mut Reader, at: &str, value: &Value) -> NodeResourcesBalancedAllocation {
    let mut names: Vec<&'static str> = Vec::new();
    for (i, entry) in r.list(at, value).iter().enumerate() {
        let at = format!("{at}[{i}]");
        r.fields(&at, entry, &["name", "weight"]);
        let name = r.text(&join(&at, "name"), &entry["name"]).unwrap_or_default();
        if names.contains(&name) {
            r.fault(&join(&at, "name"), &format!("Duplicate value: {name:?}"));
        }
        let weight = &entry["weight"];
        if !weight.is_null() && weight != 0 && weight != 1 {
            r.fault(&join(&at, "weight"), &format!("Invalid value: {weight}: must be 1"));
        }
        names.push(kept_text(name));
    }
    match names.is_empty() {
        true => NodeResourcesBalancedAllocation::DEFAULT,
        false => NodeResourcesBalancedAllocation { resources: kept(names) },
    }
}

/// Reads how many candidates preemption looks for.
fn preemption(r: &mut Reader, at: &str, args: &Value) -> Thoroughness {
    let mut out = Thoroughness::default();
    let percent = &args["minCandidateNodesPercentage"];
    let percent = r.number(&join(at, "minCandidateNodesPercentage"), percent, (0, 100));
    let nodes = &args["minCandidateNodesAbsolute"];
    let nodes = r.number(&join(at, "minCandidateNodesAbsolute"), nodes, (0, i64::from(i32::MAX)));
    out.percent = percent.and_then(|n| n.try_into().ok()).unwrap_or(out.percent);
    out.nodes = nodes.and_then(|n| n.try_into().ok()).unwrap_or(out.nodes);
    if out.percent == 0 && out.nodes == 0 {
        r.fault(at, "minCandidateNodesPercentage and minCandidateNodesAbsolute cannot both be zero");
    }
    out
}

/// Reads the arguments of InterPodAffinity.
fn affinity(r: &mut Reader, at: &str, args: &Value) -> InterPodAffinity {
    let weight = r.number(&join(at, "hardPodAffinityWeight"), &args["hardPodAffinityWeight"], (0, 100));
    let ignores_existing = args["ignorePreferredTermsOfExistingPods"] == true;
    let required_weight = weight.unwrap_or(InterPodAffinity::DEFAULT.required_weight);
    InterPodAffinity { required_weight, ignores_existing }
}

/// Reads a duration in Go's format that is at least `least`; `why` is the message when it is shorter.
pub(super) fn duration(r: &mut Reader, at: &str, value: &Value, (least, why): (Duration, &str)) -> Option<Duration> {
    let text = r.text(at, value)?;
    match kelson_meta::parse_duration(text) {
        Ok(duration) if duration >= least => return Some(duration),
        Err(e) if e != DurationError::Negative => r.fault(at, &e.to_string()),
        Ok(_) | Err(_) => r.fault(at, &format!("{text:?}: {why}")),
    }
    None
}

/// Gives plugin arguments the lifetime of the process. A configuration is read once.
fn kept<T>(values: Vec<T>) -> &'static [T] {
    Vec::leak(values)
}

fn kept_text(text: &str) -> &'static str {
    String::leak(text.to_owned())
}

fn fit(r: &mut Reader, at: &str, args: &Value) -> NodeResourcesFit {
    let mut out = NodeResourcesFit::DEFAULT;
    let mut texts = |field: &str| {
        let at = join(at, field);
        let all: Vec<&str> = r.list(&at, &args[field]).iter().filter_map(Value::as_str).collect();
        kept(all.into_iter().map(kept_text).collect())
    };
    out.ignored = texts("ignoredResources");
    out.ignored_groups = texts("ignoredResourceGroups");
    let at = join(at, "scoringStrategy");
    let strategy = &args["scoringStrategy"];
    r.fields(&at, strategy, &["type", "resources", "requestedToCapacityRatio"]);
    let at_resources = join(&at, "resources");
    let mut resources = Vec::new();
    for (i, entry) in r.list(&at_resources, &strategy["resources"]).iter().enumerate() {
        let at = format!("{at_resources}[{i}]");
        r.fields(&at, entry, &["name", "weight"]);
        let name = r.text(&join(&at, "name"), &entry["name"]).unwrap_or_default();
        let weight = r.number(&join(&at, "weight"), &entry["weight"], (0, 100)).filter(|w| *w > 0).unwrap_or(1);
        resources.push((kept_text(name), weight));
    }
    if !resources.is_empty() {
        out.resources = kept(resources);
    }
    match r.text(&join(&at, "type"), &strategy["type"]) {
        None | Some("LeastAllocated") => {}
        Some("MostAllocated") => out.strategy = Strategy::MostAllocated,
        Some("RequestedToCapacityRatio") => {
            let points =
                shape(r, &join(&at, "requestedToCapacityRatio.shape"), &strategy["requestedToCapacityRatio"]["shape"]);
            out.strategy = Strategy::RequestedToCapacityRatio(points);
        }
        Some(other) => r.fault(&join(&at, "type"), &format!("unsupported value {other:?}")),
    }
    out
}

fn shape(r: &mut Reader, at: &str, value: &Value) -> &'static [(i64, i64)] {
    let mut points: Vec<(i64, i64)> = Vec::new();
    for (i, entry) in r.list(at, value).iter().enumerate() {
        let at = format!("{at}[{i}]");
        r.fields(&at, entry, &["utilization", "score"]);
        let utilization = r.number(&join(&at, "utilization"), &entry["utilization"], (0, 100)).unwrap_or(0);
        let score = r.number(&join(&at, "score"), &entry["score"], (0, 10)).unwrap_or(0);
        if points.last().is_some_and(|(before, _)| *before >= utilization) {
            r.fault(&join(&at, "utilization"), "utilization values must be sorted in increasing order");
        }
        points.push((utilization, score));
    }
    if points.is_empty() {
        r.fault(at, "at least one point must be specified");
    }
    kept(points)
}
