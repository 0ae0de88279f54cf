//! Names of definitions: which of the requested names are accepted, because no other definition of the group has them. Upstream:
//! `controller/status/naming_controller.go`.
use std::collections::HashSet;

use crate::custom::conditions::{Condition, ESTABLISHED, NAMES_ACCEPTED, condition};
use crate::custom::definition::{Definition, Names};

/// The names of the other definitions in a group.
#[derive(Default)]
pub struct TakenNames {
    resources: HashSet<String>,
    kinds: HashSet<String>,
}

impl TakenNames {
    /// Adds the accepted names of a definition.
    pub fn add(&mut self, names: &Names) {
        self.resources.extend([names.plural.clone(), names.singular.clone()]);
        self.resources.extend(names.short_names.iter().cloned());
        self.kinds.extend([names.kind.clone(), names.list_kind.clone()]);
    }
}

fn refusal(wanted: &str, accepted: &str, taken: &HashSet<String>) -> Option<String> {
    (wanted != accepted && taken.contains(wanted)).then(|| format!("{wanted:?} is already in use"))
}

/// The accepted names, and the condition NamesAccepted. A name that conflicts keeps its old value.
pub fn grant(definition: &Definition, taken: &TakenNames) -> (Names, Condition) {
    let wanted = &definition.spec.names;
    let have = &definition.status.accepted_names;
    let mut granted = have.clone();
    let mut conflict: Option<(&str, String)> = None;
    let mut single = |reason, wanted: &String, granted: &mut String, taken: &HashSet<String>| match refusal(
        wanted, granted, taken,
    ) {
        Some(why) => conflict = Some((reason, why)),
        None => granted.clone_from(wanted),
    };
    single("PluralConflict", &wanted.plural, &mut granted.plural, &taken.resources);
    single("SingularConflict", &wanted.singular, &mut granted.singular, &taken.resources);
    let new_short = wanted.short_names.iter().filter(|name| !have.short_names.contains(name));
    let refused: Vec<String> = new_short.filter_map(|name| refusal(name, "", &taken.resources)).collect();
    let short_conflict = match refused.len() {
        0 => {
            granted.short_names.clone_from(&wanted.short_names);
            None
        }
        1 => refused.into_iter().next(),
        _ => Some(format!("[{}]", refused.join(", "))),
    };
    let mut last: Option<(&str, String)> = None;
    let mut single_kind = |reason, wanted: &String, granted: &mut String| match refusal(wanted, granted, &taken.kinds) {
        Some(why) => last = Some((reason, why)),
        None => granted.clone_from(wanted),
    };
    single_kind("KindConflict", &wanted.kind, &mut granted.kind);
    single_kind("ListKindConflict", &wanted.list_kind, &mut granted.list_kind);
    granted.categories.clone_from(&wanted.categories);
    // The last conflict is reported.
    let reported = last.or(short_conflict.map(|why| ("ShortNamesConflict", why))).or(conflict);
    let accepted = match reported {
        Some((reason, why)) => condition(NAMES_ACCEPTED, false, reason, why),
        None => condition(NAMES_ACCEPTED, true, "NoConflicts", "no conflicts found"),
    };
    (granted, accepted)
}

/// The condition Established, unless it is true already; it never becomes false again.
pub fn established(definition: &Definition, names_accepted: bool) -> Option<Condition> {
    if definition.has(ESTABLISHED) {
        return None;
    }
    Some(if names_accepted {
        condition(ESTABLISHED, true, "InitialNamesAccepted", "the initial names have been accepted")
    } else {
        condition(ESTABLISHED, false, "NotAccepted", "not all names are accepted")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Names {
        let mut parts = text.split(' ');
        let mut next = || parts.next().unwrap_or("").to_owned();
        let (plural, singular, kind, list_kind) = (next(), next(), next(), next());
        Names { plural, singular, kind, list_kind, short_names: parts.map(str::to_owned).collect(), ..Names::default() }
    }

    #[track_caller]
    fn check(wanted: &str, have: &str, others: &[&str], granted: &str, observed: &str) {
        let mut definition = Definition::default();
        definition.spec.names = names(wanted);
        definition.status.accepted_names = names(have);
        let mut taken = TakenNames::default();
        others.iter().for_each(|other| taken.add(&names(other)));
        let (got, condition) = grant(&definition, &taken);
        assert_eq!(got, names(granted));
        assert_eq!(format!("{} {}: {}", condition.status, condition.reason, condition.message), observed);
    }

    #[test]
    fn names_are_granted_once() {
        let ok = "True NoConflicts: no conflicts found";
        check("as a A AList", "", &[], "as a A AList", ok);
        check("as a A AList s", "as a A AList", &["bs b B BList t"], "as a A AList s", ok);
        check("as a A AList", "", &["as x X XList"], " a A AList", "False PluralConflict: \"as\" is already in use");
        check(
            "as a A AList s t",
            "",
            &["bs s B BList t"],
            "as a A AList",
            "False ShortNamesConflict: [\"s\" is already in use, \"t\" is already in use]",
        );
        check("as a A AList s", "", &["bs b A BList s"], "as a  AList", "False KindConflict: \"A\" is already in use");
        check(
            "as b A AList",
            "as a A AList",
            &["bs b B BList"],
            "as a A AList",
            "False SingularConflict: \"b\" is already in use",
        );
        check("as a A AList", "as a A AList", &["as a A AList"], "as a A AList", ok);
    }

    #[test]
    fn an_established_definition_stays_established() {
        let mut definition = Definition::default();
        let state = |d: &Definition, accepted| established(d, accepted).map(|c| (c.status, c.reason));
        assert_eq!(state(&definition, false), Some(("False".into(), "NotAccepted".into())));
        assert_eq!(state(&definition, true), Some(("True".into(), "InitialNamesAccepted".into())));
        definition.status.conditions.push(condition(ESTABLISHED, true, "", ""));
        assert_eq!(state(&definition, false), None);
    }
}
