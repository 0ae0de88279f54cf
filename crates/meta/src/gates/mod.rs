//! Feature gates: `--feature-gates NAME=BOOL,…` of upstream's components, with its names, stages, defaults and error
//! messages (`component-base/featuregate`). The table is generated for one minor version.
mod generated;

use std::collections::BTreeMap;
use std::fmt;

use generated::GATES;

/// The maturity of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The feature is disabled by default.
    Alpha,
    /// The feature is enabled by default in most cases.
    Beta,
    /// The feature is always enabled.
    Stable,
    /// The feature will be removed.
    Deprecated,
}

impl Stage {
    /// Returns the stage as the metric `kubernetes_feature_enabled` names it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Stable => "",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// A row of the table: name, stage, default, whether the default is locked, and the gates that must be enabled with
/// it.
struct Gate(&'static str, Stage, bool, bool, &'static [&'static str]);

const ALL_ALPHA: &str = "AllAlpha";
const ALL_BETA: &str = "AllBeta";
/// The gates that switch all features of a stage.
const OF_STAGES: [Gate; 2] =
    [Gate(ALL_ALPHA, Stage::Alpha, false, false, &[]), Gate(ALL_BETA, Stage::Beta, false, false, &[])];

/// All errors of a gates configuration, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateErrors(pub Vec<String>);

impl fmt::Display for GateErrors {
    /// Formats several errors as one message, like upstream's aggregates.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0[..] {
            [one] => f.write_str(one),
            many => write!(f, "[{}]", many.join(", ")),
        }
    }
}

impl std::error::Error for GateErrors {}

/// The state of the feature gates. The default value has every gate at its default. `parse` reads the values of
/// `--feature-gates`, with upstream's rules for locked gates, for gates that depend on others and for the groups
/// `AllAlpha` and `AllBeta`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<&'static str, bool>);

impl FeatureGates {
    /// Parses the values of `--feature-gates`. If a gate occurs several times, the last value applies.
    ///
    /// # Errors
    /// Fails for unknown names, values that are not booleans, locked gates, and gates whose dependencies are disabled.
    pub fn parse<'a>(values: impl IntoIterator<Item = &'a str>) -> Result<Self, GateErrors> {
        let mut asked: BTreeMap<&str, bool> = BTreeMap::new();
        for pair in values.into_iter().flat_map(|v| v.split(',')).filter(|p| !p.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(GateErrors(vec![format!("missing bool value for {}", pair.trim())]));
            };
            let (name, value) = (name.trim(), value.trim());
            let truth = truth(value).ok_or_else(|| {
                let why = format!("strconv.ParseBool: parsing {value:?}: invalid syntax");
                GateErrors(vec![format!("invalid value of {name}={value}, err: {why}")])
            })?;
            asked.insert(name, truth);
        }
        let mut faults = Vec::new();
        let mut set = BTreeMap::new();
        for (name, on) in &asked {
            match known(name) {
                None => faults.push(format!("unrecognized feature gate: {name}")),
                Some(Gate(_, _, default, true, _)) if default != on => {
                    faults.push(format!("cannot set feature gate {name} to {on}, feature is locked to {default}"));
                }
                Some(Gate(name, ..)) => drop(set.insert(*name, *on)),
            }
        }
        for (all, stage) in [(ALL_ALPHA, Stage::Alpha), (ALL_BETA, Stage::Beta)] {
            let Some(on) = set.get(all).copied() else { continue };
            for Gate(name, ..) in GATES.iter().filter(|g| g.1 == stage && !g.3) {
                set.entry(*name).or_insert(on);
            }
        }
        let gates = Self(set);
        if faults.is_empty() {
            faults.extend(GATES.iter().filter_map(|gate| gates.lacks(gate)));
        }
        if faults.is_empty() { Ok(gates) } else { Err(GateErrors(faults)) }
    }

    fn lacks(&self, Gate(name, _, _, _, needs): &Gate) -> Option<String> {
        let off: Vec<&str> = needs.iter().copied().filter(|need| !self.enabled(need)).collect();
        (self.enabled(name) && !off.is_empty())
            .then(|| format!("{name} is enabled, but depends on features that are disabled: [{}]", off.join(" ")))
    }

    /// Returns whether a feature is enabled. Unknown features are disabled.
    pub fn enabled(&self, name: &str) -> bool {
        self.0.get(name).copied().or_else(|| known(name).map(|g| g.2)).unwrap_or(false)
    }

    /// Returns every gate by name, with its stage and whether it is enabled.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, Stage, bool)> {
        OF_STAGES.iter().chain(GATES).map(|Gate(name, stage, ..)| (*name, *stage, self.enabled(name)))
    }

    /// Returns the gates that differ from their defaults.
    pub fn changed(&self) -> impl Iterator<Item = (&'static str, bool)> {
        self.0.iter().filter(|(name, on)| known(name).is_some_and(|g| g.2 != **on)).map(|(name, on)| (*name, *on))
    }
}

fn known(name: &str) -> Option<&'static Gate> {
    let of_stage = OF_STAGES.iter().find(|g| g.0 == name);
    of_stage.or_else(|| GATES.binary_search_by(|g| g.0.cmp(name)).ok().map(|at| &GATES[at]))
}

/// Parses a boolean like Go's `strconv.ParseBool`.
fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_whole() {
        assert!(GATES.windows(2).all(|w| w[0].0 < w[1].0));
        assert!(GATES.len() > 200, "{}", GATES.len());
        let unknown = GATES.iter().flat_map(|g| g.4).filter(|need| known(need).is_none()).collect::<Vec<_>>();
        assert!(unknown.is_empty(), "{unknown:?}");
        assert!(FeatureGates::parse([]).is_ok());
    }

    #[test]
    fn what_is_asked_for_counts() {
        let on = |values: &[&str], name: &str| FeatureGates::parse(values.iter().copied()).expect("good").enabled(name);
        assert!(!on(&[], "CBORServingAndStorage"));
        assert!(on(&["CBORServingAndStorage=true"], "CBORServingAndStorage"));
        assert!(on(&["CBORServingAndStorage=false", "CBORServingAndStorage=T"], "CBORServingAndStorage"));
        assert!(on(&["AllAlpha=true"], "CBORServingAndStorage"));
        assert!(!on(&["CBORServingAndStorage=0,AllAlpha=1"], "CBORServingAndStorage"));
        assert!(!on(&[], "Unheard"));
        let gates = FeatureGates::parse(["CBORServingAndStorage=true"]).expect("good");
        assert_eq!(gates.changed().collect::<Vec<_>>(), [("CBORServingAndStorage", true)]);
    }

    #[test]
    fn refusals_are_worded_as_upstream_words_them() {
        let said = |value: &str| FeatureGates::parse([value]).expect_err(value).to_string();
        assert_eq!(said("Unheard=true"), "unrecognized feature gate: Unheard");
        assert_eq!(said("AllAlpha"), "missing bool value for AllAlpha");
        assert_eq!(
            said("AllAlpha=yes"),
            "invalid value of AllAlpha=yes, err: strconv.ParseBool: parsing \"yes\": invalid syntax"
        );
        assert_eq!(said("A=true,B=true"), "[unrecognized feature gate: A, unrecognized feature gate: B]");
        let locked = GATES.iter().find(|g| g.3).expect("some gate is locked");
        let (name, default) = (locked.0, locked.2);
        assert_eq!(
            said(&format!("{name}={}", !default)),
            format!("cannot set feature gate {name} to {}, feature is locked to {default}", !default)
        );
    }
}
