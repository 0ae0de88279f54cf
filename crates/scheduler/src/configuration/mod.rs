//! `KubeSchedulerConfiguration` (`kubescheduler.config.k8s.io/v1`): profiles with their plugins, weights and arguments,
//! and the pauses between attempts. A field that has no effect here is an error, so that no one relies on it.
mod arguments;
mod completed;
mod component;
mod extenders;
mod reader;
mod rules;

use std::fmt;
use std::time::Duration;

use kelson_meta::Backoff;
use serde_json::Value;

use arguments::arguments;
pub use completed::completed;
pub use component::{ClientConnection, LeaderElection};
use reader::{Reader, join};

use crate::plugins::table::{DEFAULT, Row};
use crate::profile::Profile;
use crate::queue::BACKOFF;
use crate::run::Config;

const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";
/// The maximum number of profiles in a configuration. Each profile caches results for the nodes.
const PROFILES_MAX: usize = 16;
/// Highest weight of a plugin (upstream leaves room for a sum of scores in 64 bits).
const WEIGHT_MAX: i64 = 100_000_000;
/// Upstream's plugins that are built into another part here. They may be named, and only some can be disabled.
const WITHOUT_A_ROW: &[&str] =
    &["SchedulingGates", "PrioritySort", "NodeName", "VolumeZone", "DefaultPreemption", "DefaultBinder"];
/// Extension points whose plugins can be enabled and disabled one by one.
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
    "placementGenerate",
    "placementScore",
];

/// Extension points at which only built-in plugins run.
const BUILT_IN: &[&str] = &[
    "preEnqueue",
    "queueSort",
    "reserve",
    "permit",
    "preBind",
    "bind",
    "postBind",
    "placementGenerate",
    "placementScore",
];

/// All errors of a configuration, each with its field.
#[derive(Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<String>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for Faults {}

/// The content of a configuration file.
#[derive(Debug, Default)]
pub struct Configuration {
    /// Profiles and queue settings.
    pub config: Config,
    /// The connection to the API server.
    pub connection: ClientConnection,
    /// The settings of the leader election.
    pub election: LeaderElection,
}

/// Reads a configuration; `tree` is the document.
///
/// # Errors
/// All errors of the document at once.
pub fn read(tree: &Value) -> Result<Configuration, Faults> {
    let mut r = Reader { faults: Vec::new() };
    if tree["apiVersion"] != API_VERSION || tree["kind"] != KIND {
        return Err(Faults(vec![format!("apiVersion and kind must be {API_VERSION} and {KIND}")]));
    }
    // The fields without effect tune upstream's process: parallelism, debugging.
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
    let connection = component::connection(&mut r, &tree["clientConnection"]);
    let election = component::election(&mut r, &tree["leaderElection"]);
    let extenders = extenders::extenders(&mut r, &tree["extenders"]);
    extenders::ignore(&extenders, &mut profiles);
    let extenders = extenders::reach(&mut r, extenders);
    if !r.faults.is_empty() {
        return Err(Faults(r.faults));
    }
    let config = Config { profiles, pauses: Backoff::new(first, longest), extenders, ..Config::default() };
    Ok(Configuration { config, connection, election })
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

/// The configuration of one extension point.
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
                r.fault(&join(&at, "name"), &format!("plugin {name:?} is not available"));
            }
            let weight = r.number(&join(&at, "weight"), &entry["weight"], (0, WEIGHT_MAX)).filter(|w| *w > 0);
            if enables { out.enabled.push((name, weight)) } else { out.disabled.push(name) }
        }
    }
    out
}

/// Computes which plugins filter and score, in which order and with which weight. A specific extension point overrides
/// `multiPoint`.
fn plugins(r: &mut Reader, at: &str, value: &Value, profile: &mut Profile) {
    r.fields(at, value, POINTS);
    let points: Vec<(&str, Point<'_>)> =
        POINTS.iter().map(|name| (*name, point(r, &join(at, name), &value[*name]))).collect();
    // Built-in plugins may be named anywhere, and cannot be disabled.
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
        // A plugin without a weight has the weight 1; a plugin that cannot score has none.
        let weight = if row.weight == 0 { 0 } else { weight.unwrap_or(if named { 1 } else { row.weight }) };
        row.weight = if on(name, &scores) { weight } else { 0 };
    }
    // Plugins that multiPoint disables and enables again come last, in its order; the others keep their position.
    let place = |row: &Row| {
        let at = multi.enabled.iter().position(|(n, _)| *n == row.plugin.name());
        at.filter(|_| multi.is_off(row.plugin.name())).map_or(0, |at| at + 1)
    };
    profile.rows.sort_by_key(place);
}
