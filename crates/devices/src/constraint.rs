//! Constraints on the devices of a claim. A constraint that fails for some devices also fails for more devices, so the
//! search can stop early.
use kelson_cel::device::Attribute;

use crate::claim::DeviceConstraint;

/// A constraint, with the attribute values of the devices that were chosen so far.
#[derive(Debug)]
pub(crate) struct Constraint<'c> {
    requests: &'c [String],
    attribute: &'c str,
    /// Whether all values must be different instead of equal.
    distinct: bool,
    values: Vec<Attribute>,
}

impl<'c> Constraint<'c> {
    /// Creates the constraint, or returns `None` for an unknown kind.
    pub fn new(constraint: &'c DeviceConstraint) -> Option<Self> {
        let (attribute, distinct) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
            (Some(name), _) => (name, false),
            (None, Some(name)) => (name, true),
            (None, None) => return None,
        };
        Some(Self { requests: &constraint.requests, attribute, distinct, values: Vec::new() })
    }

    /// Returns the full name of the compared attribute.
    pub fn attribute(&self) -> &'c str {
        self.attribute
    }

    /// Returns whether the constraint applies to a request or to one of its alternatives.
    pub fn concerns(&self, request: &str, alternative: Option<&str>) -> bool {
        let named = |r: &String| {
            r == request
                || alternative.is_some_and(|a| r.split_once('/').is_some_and(|(of, name)| of == request && name == a))
        };
        self.requests.is_empty() || self.requests.iter().any(named)
    }

    /// Adds a device with this attribute value, if the constraint allows it. Returns whether it does.
    pub fn add(&mut self, value: Option<&Attribute>) -> bool {
        let Some(value) = value.filter(|v| **v != Attribute::Unknown) else { return false };
        let fits = if self.distinct {
            !self.values.contains(value)
        } else {
            self.values.first().is_none_or(|first| first == value)
        };
        if fits {
            self.values.push(value.clone());
        }
        fits
    }

    /// Removes the device that was added last.
    pub fn remove(&mut self) {
        self.values.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(distinct: bool, requests: &[&str]) -> DeviceConstraint {
        let name = Some("d/model".to_owned());
        let requests = requests.iter().map(|r| (*r).to_owned()).collect();
        if distinct {
            DeviceConstraint { requests, distinct_attribute: name, ..DeviceConstraint::default() }
        } else {
            DeviceConstraint { requests, match_attribute: name, ..DeviceConstraint::default() }
        }
    }

    #[test]
    fn values_are_the_same_or_differ() {
        let (a, b) = (Attribute::Text("a".into()), Attribute::Text("b".into()));
        let number = Attribute::Int(1);
        for (distinct, values, want) in [
            (false, vec![Some(&a), Some(&a)], vec![true, true]),
            (false, vec![Some(&a), Some(&b), Some(&a)], vec![true, false, true]),
            (false, vec![None, Some(&Attribute::Unknown)], vec![false, false]),
            (true, vec![Some(&a), Some(&b), Some(&a), Some(&number)], vec![true, true, false, true]),
        ] {
            let wanted = of(distinct, &[]);
            let mut constraint = Constraint::new(&wanted).unwrap();
            assert_eq!(values.into_iter().map(|v| constraint.add(v)).collect::<Vec<_>>(), want);
        }
        let same = of(false, &[]);
        let mut same = Constraint::new(&same).unwrap();
        assert!(same.add(Some(&a)));
        same.remove();
        assert!(same.add(Some(&b)), "what was given back no longer counts");
    }

    #[test]
    fn which_requests_it_is_about() {
        for (requests, request, alternative, want) in [
            (&[][..], "r", None, true),
            (&["r"][..], "r", None, true),
            (&["r"][..], "r", Some("a"), true),
            (&["r/a"][..], "r", Some("a"), true),
            (&["r/a"][..], "r", Some("b"), false),
            (&["r/a"][..], "r", None, false),
            (&["s"][..], "r", None, false),
        ] {
            let constraint = of(false, requests);
            assert_eq!(Constraint::new(&constraint).unwrap().concerns(request, alternative), want, "{requests:?}");
        }
    }
}
