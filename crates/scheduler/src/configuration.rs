//! `KubeSchedulerConfiguration` (`kubescheduler.config.k8s.io/v1`): profiles, their plugins, weights and arguments, and the
//! pauses between tries. What is written there and has no effect here is a fault, so that nobody relies on it.
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use kelson_meta::Backoff;
use serde_json::{Map, Value};

use crate::evaluation::preempt::Thoroughness;
use crate::plugins::node_resources_fit::{NodeResourcesFit, Strategy};
use crate::plugins::plugin::Plugin;
use crate::plugins::table::{DEFAULT, Row};
use crate::profile::Profile;
use crate::queue::BACKOFF;
use crate::run::Config;

const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";
/// Profiles that one configuration may have: each keeps what it knows of nodes.
const PROFILES_MAX: usize = 16;
/// Highest weight of a plugin (upstream leaves room for a sum of scores in 64 bits).
const WEIGHT_MAX: i64 = 100_000_000;
/// Upstream's plugins that are part of something else here, or of the whole scheduler: they may be named, and only some may be off.
const WITHOUT_A_ROW: &[&str] =
    &["SchedulingGates", "PrioritySort", "NodeName", "VolumeZone", "DefaultPreemption", "DefaultBinder"];
/// Extension points whose plugins are decided on one by one here.
const FILTER: &[&str] = &["preFilter", "filter"];
const SCORE: &[&str] = &["preScore", "score"];
const POINTS: &[&str] = &[
    "preEnqueue",
    "queueSort",
    "preFilter",
    "filter",
    "postFilter",
    "preScore",
    "score",
    "reserve",
    "permit",
    "preBind",
    "bind",
    "postBind",
    "multiPoint",
];

/// Points at which only what is built in works.
const BUILT_IN: &[&str] = &["preEnqueue", "queueSort", "reserve", "permit", "preBind", "bind", "postBind"];

/// Everything that is wrong with a configuration, each with its field.
#[derive(Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<String>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for Faults {}

/// What a file says.
#[derive(Debug)]
pub struct Configuration {
    /// How to schedule.
    pub config: Config,
    /// `clientConnection.kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `leaderElection.leaderElect`, where it says.
    pub leader_elect: Option<bool>,
}

/// A place in the document, and what was found wrong so far.
struct Reader {
    faults: Vec<String>,
}

impl Reader {
    fn fault(&mut self, at: &str, why: &str) {
        self.faults.push(format!("{at}: {why}"));
    }

    /// The fields of an object, each of which must be known.
    fn fields<'v>(&mut self, at: &str, value: &'v Value, known: &[&str]) -> Option<&'v Map<String, Value>> {
        match value {
            Value::Null => None,
            Value::Object(map) => {
                for name in map.keys().filter(|name| !known.contains(&name.as_str())) {
                    self.fault(&join(at, name), "unknown field");
                }
                Some(map)
            }
            _ => {
                self.fault(at, "must be an object");
                None
            }
        }
    }

    fn list<'v>(&mut self, at: &str, value: &'v Value) -> &'v [Value] {
        match value {
            Value::Null => &[],
            Value::Array(all) => all,
            _ => {
                self.fault(at, "must be a list");
                &[]
            }
        }
    }

    fn text<'v>(&mut self, at: &str, value: &'v Value) -> Option<&'v str> {
        match value {
            Value::Null => None,
            Value::String(text) => Some(text),
            _ => {
                self.fault(at, "must be a string");
                None
            }
        }
    }

    /// A whole number from `low` to `high`.
    fn number(&mut self, at: &str, value: &Value, (low, high): (i64, i64)) -> Option<i64> {
        if value.is_null() {
            return None;
        }
        let number = value.as_i64().filter(|n| (low..=high).contains(n));
        if number.is_none() {
            self.fault(at, &format!("{value} is no whole number from {low} to {high}"));
        }
        number
    }

    /// A field that has no effect here and may only say what happens anyway.
    fn only(&mut self, at: &str, value: &Value, same: &[Value]) {
        if !value.is_null() && !same.contains(value) {
            self.fault(at, "is not supported");
        }
    }
}

fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

/// Reads a configuration; `tree` is the document.
///
/// # Errors
/// All faults at once.
pub fn read(tree: &Value) -> Result<Configuration, Faults> {
    let mut r = Reader { faults: Vec::new() };
    if tree["apiVersion"] != API_VERSION || tree["kind"] != KIND {
        return Err(Faults(vec![format!("apiVersion and kind must be {API_VERSION} and {KIND}")]));
    }
    // Those of no effect are for tuning a process of upstream's kind: parallelism, rates of its client, debugging.
    let known = [
        "apiVersion",
        "kind",
        "parallelism",
        "leaderElection",
        "clientConnection",
        "enableProfiling",
        "enableContentionProfiling",
        "percentageOfNodesToScore",
        "podInitialBackoffSeconds",
        "podMaxBackoffSeconds",
        "profiles",
        "extenders",
        "delayCacheUntilActive",
    ];
    r.fields("", tree, &known);
    r.number("parallelism", &tree["parallelism"], (1, i64::from(i32::MAX)));
    if !r.list("extenders", &tree["extenders"]).is_empty() {
        r.fault("extenders", "is not supported");
    }
    let percent = r.number("percentageOfNodesToScore", &tree["percentageOfNodesToScore"], (0, 100)).unwrap_or(0);
    let seconds = |n: i64| Duration::from_secs(n.unsigned_abs());
    let first = r.number("podInitialBackoffSeconds", &tree["podInitialBackoffSeconds"], (1, i64::from(i32::MAX)));
    let first = first.map_or(BACKOFF.base, seconds);
    let longest = r.number("podMaxBackoffSeconds", &tree["podMaxBackoffSeconds"], (1, i64::from(i32::MAX)));
    let longest = longest.map_or(BACKOFF.max, seconds);
    if longest < first {
        r.fault("podMaxBackoffSeconds", "must be greater than or equal to podInitialBackoffSeconds");
    }
    let mut profiles: Vec<Profile> = Vec::new();
    let all = r.list("profiles", &tree["profiles"]);
    for (i, value) in all.iter().enumerate() {
        let at = format!("profiles[{i}]");
        let profile = profile(&mut r, &at, value, percent);
        if profiles.iter().any(|p| p.name == profile.name) {
            r.fault(&join(&at, "schedulerName"), &format!("duplicate value {:?}", profile.name));
        }
        profiles.push(profile);
    }
    if all.len() > PROFILES_MAX {
        r.fault("profiles", &format!("more than {PROFILES_MAX}"));
    }
    if profiles.is_empty() {
        profiles.push(Profile { percent: usize::try_from(percent).unwrap_or(0), ..Profile::default() });
    }
    let kubeconfig = r.text("clientConnection.kubeconfig", &tree["clientConnection"]["kubeconfig"]);
    let kubeconfig = kubeconfig.filter(|k| !k.is_empty()).map(PathBuf::from);
    let leader_elect = tree["leaderElection"]["leaderElect"].as_bool();
    if !r.faults.is_empty() {
        return Err(Faults(r.faults));
    }
    let config = Config { profiles, pauses: Backoff::new(first, longest), ..Config::default() };
    Ok(Configuration { config, kubeconfig, leader_elect })
}

fn profile(r: &mut Reader, at: &str, value: &Value, percent: i64) -> Profile {
    r.fields(at, value, &["schedulerName", "percentageOfNodesToScore", "plugins", "pluginConfig"]);
    let name = r.text(&join(at, "schedulerName"), &value["schedulerName"]).unwrap_or("default-scheduler");
    if name.is_empty() {
        r.fault(&join(at, "schedulerName"), "required value");
    }
    let own = r.number(&join(at, "percentageOfNodesToScore"), &value["percentageOfNodesToScore"], (0, 100));
    let percent = usize::try_from(own.unwrap_or(percent)).unwrap_or(0);
    let mut out = Profile { name: name.into(), percent, ..Profile::default() };
    arguments(r, &join(at, "pluginConfig"), &value["pluginConfig"], &mut out);
    plugins(r, &join(at, "plugins"), &value["plugins"], &mut out);
    out
}

/// What one extension point says.
#[derive(Default)]
struct Point<'v> {
    enabled: Vec<(&'v str, Option<i64>)>,
    disabled: Vec<&'v str>,
}

impl Point<'_> {
    fn is_off(&self, name: &str) -> bool {
        self.disabled.contains(&name) || self.disabled.contains(&"*")
    }
    fn is_on(&self, name: &str) -> bool {
        self.enabled.iter().any(|(on, _)| *on == name)
    }
    fn weight(&self, name: &str) -> Option<i64> {
        self.enabled.iter().find(|(on, _)| *on == name).and_then(|(_, weight)| *weight)
    }
}

fn point<'v>(r: &mut Reader, at: &str, value: &'v Value) -> Point<'v> {
    r.fields(at, value, &["enabled", "disabled"]);
    let mut out = Point::default();
    for (list, enables) in [("enabled", true), ("disabled", false)] {
        let at = join(at, list);
        for (i, entry) in r.list(&at, &value[list]).iter().enumerate() {
            let at = format!("{at}[{i}]");
            r.fields(&at, entry, &["name", "weight"]);
            let name = r.text(&join(&at, "name"), &entry["name"]).unwrap_or_default();
            let known = DEFAULT.iter().any(|p| p.name() == name) || WITHOUT_A_ROW.contains(&name);
            if !known && (enables || name != "*") {
                r.fault(&join(&at, "name"), &format!("no plugin {name:?} is here"));
            }
            let weight = r.number(&join(&at, "weight"), &entry["weight"], (0, WEIGHT_MAX)).filter(|w| *w > 0);
            if enables { out.enabled.push((name, weight)) } else { out.disabled.push(name) }
        }
    }
    out
}

/// Which plugins filter and score, in which order and with which weight. A point of its own says more than `multiPoint`.
fn plugins(r: &mut Reader, at: &str, value: &Value, profile: &mut Profile) {
    r.fields(at, value, POINTS);
    let points: Vec<(&str, Point<'_>)> =
        POINTS.iter().map(|name| (*name, point(r, &join(at, name), &value[*name]))).collect();
    // What is built in may be named anywhere, and cannot be switched off.
    for (name, point) in points.iter().filter(|(name, _)| BUILT_IN.contains(name)) {
        if let Some(off) = point.disabled.iter().find(|off| WITHOUT_A_ROW.contains(off)) {
            r.fault(&join(at, name), &format!("{off:?} cannot be disabled"));
        }
    }
    let of =
        |wanted: &[&str]| points.iter().filter(|(name, _)| wanted.contains(name)).map(|(_, p)| p).collect::<Vec<_>>();
    let (filters, scores, after) = (of(FILTER), of(SCORE), of(&["postFilter"]));
    let none = Point::default();
    let multi = points.iter().find(|(name, _)| *name == "multiPoint").map_or(&none, |(_, p)| p);
    let on = |name: &str, points: &[&Point<'_>]| {
        points.iter().any(|p| p.is_on(name))
            || (!points.iter().any(|p| p.is_off(name)) && (multi.is_on(name) || !multi.is_off(name)))
    };
    if !on("DefaultPreemption", &after) {
        profile.preemption = None;
    }
    for row in &mut profile.rows {
        let name = row.plugin.name();
        row.filters = on(name, &filters);
        let named = scores.iter().any(|p| p.is_on(name)) || multi.is_on(name);
        let weight = scores.iter().find_map(|p| p.weight(name)).or(multi.weight(name));
        // Who is named without a weight counts once; one that cannot score says nothing.
        let weight = if row.weight == 0 { 0 } else { weight.unwrap_or(if named { 1 } else { row.weight }) };
        row.weight = if on(name, &scores) { weight } else { 0 };
    }
    // Those that multiPoint names come first, in its order.
    let place = |row: &Row| multi.enabled.iter().position(|(n, _)| *n == row.plugin.name()).unwrap_or(usize::MAX);
    profile.rows.sort_by_key(place);
}

fn arguments(r: &mut Reader, at: &str, value: &Value, profile: &mut Profile) {
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
                let plugin: &'static dyn Plugin = fit(r, &at, args);
                profile.rows.iter_mut().filter(|row| row.plugin.name() == name).for_each(|row| row.plugin = plugin);
            }
            "DefaultPreemption" => {
                fields(r, &["minCandidateNodesPercentage", "minCandidateNodesAbsolute"]);
                let mut out = Thoroughness::default();
                let percent = &args["minCandidateNodesPercentage"];
                let percent = r.number(&join(&at, "minCandidateNodesPercentage"), percent, (0, 100));
                let nodes = &args["minCandidateNodesAbsolute"];
                let nodes = r.number(&join(&at, "minCandidateNodesAbsolute"), nodes, (0, i64::from(i32::MAX)));
                out.percent = percent.and_then(|n| n.try_into().ok()).unwrap_or(out.percent);
                out.nodes = nodes.and_then(|n| n.try_into().ok()).unwrap_or(out.nodes);
                if out.percent == 0 && out.nodes == 0 {
                    r.fault(&at, "minCandidateNodesPercentage and minCandidateNodesAbsolute cannot both be zero");
                }
                profile.preemption = Some(out);
            }
            "InterPodAffinity" => {
                fields(r, &["hardPodAffinityWeight", "ignorePreferredTermsOfExistingPods"]);
                r.only(&join(&at, "hardPodAffinityWeight"), &args["hardPodAffinityWeight"], &[1.into()]);
                let ignore = &args["ignorePreferredTermsOfExistingPods"];
                r.only(&join(&at, "ignorePreferredTermsOfExistingPods"), ignore, &[false.into()]);
            }
            "PodTopologySpread" => {
                fields(r, &["defaultConstraints", "defaultingType"]);
                r.only(&join(&at, "defaultingType"), &args["defaultingType"], &["System".into()]);
                r.only(&join(&at, "defaultConstraints"), &args["defaultConstraints"], &[Value::Array(Vec::new())]);
            }
            "NodeAffinity" => {
                fields(r, &["addedAffinity"]);
                r.only(&join(&at, "addedAffinity"), &args["addedAffinity"], &[]);
            }
            "NodeResourcesBalancedAllocation" => {
                fields(r, &["resources"]);
                let usual = serde_json::json!([{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]);
                r.only(&join(&at, "resources"), &args["resources"], &[usual]);
            }
            "DynamicResources" => {
                fields(r, &["filterTimeout", "bindingTimeout"]);
                let usual = ["600s".into(), "10m".into(), "10m0s".into()];
                r.only(&join(&at, "bindingTimeout"), &args["bindingTimeout"], &usual);
            }
            "VolumeBinding" => {
                fields(r, &["bindTimeoutSeconds", "shape"]);
                r.only(&join(&at, "bindTimeoutSeconds"), &args["bindTimeoutSeconds"], &[600.into()]);
                r.only(&join(&at, "shape"), &args["shape"], &[]);
            }
            _ => r.fault(&at, &format!("plugin {name:?} takes no arguments here")),
        }
    }
}

/// Keeps what a plugin holds for as long as the process lives: a configuration is read once.
fn kept<T>(values: Vec<T>) -> &'static [T] {
    Vec::leak(values)
}

fn kept_text(text: &str) -> &'static str {
    String::leak(text.to_owned())
}

fn fit(r: &mut Reader, at: &str, args: &Value) -> &'static NodeResourcesFit {
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
    Box::leak(Box::new(out))
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
