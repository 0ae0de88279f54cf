//! The compilation budget for the patterns of one request. A pattern of a few characters can take as long as thousands of simple ones,
//! because counted repetitions are expanded.
use std::cell::Cell;

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};

/// Go's error message for a pattern that is too large to compile.
pub(super) const TOO_LARGE: &str = "expression too large";
/// The most states of all patterns of one request together. It is about the number that the largest single pattern may have.
const STATES_MAX: usize = 256 << 10;

thread_local! {
    /// The states that are left for the work of this thread; `None` if nothing is counted.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The number of states that the patterns of one request may still have.
#[derive(Debug)]
pub struct PatternBudget(usize);

impl Default for PatternBudget {
    fn default() -> Self {
        Self(STATES_MAX)
    }
}

impl PatternBudget {
    /// Runs a part of the request's work. Patterns that it compiles are charged to the budget. When the budget is exhausted, they count
    /// as too large.
    pub fn within<T>(&mut self, work: impl FnOnce() -> T) -> T {
        struct Restored<'a>(&'a mut usize, Option<usize>);
        impl Drop for Restored<'_> {
            fn drop(&mut self) {
                *self.0 = LEFT.replace(self.1).unwrap_or_default();
            }
        }
        let before = LEFT.replace(Some(self.0));
        let _restored = Restored(&mut self.0, before);
        work()
    }
}

/// Charges a pattern to the budget of this thread.
pub(super) fn charge(states: usize) -> Result<(), &'static str> {
    let Some(left) = LEFT.get() else { return Ok(()) };
    let rest = left.checked_sub(states);
    LEFT.set(Some(rest.unwrap_or(0)));
    rest.map(drop).ok_or(TOO_LARGE)
}

/// The approximate number of states of a pattern.
pub(super) fn states(pattern: &str, depth: u32) -> Result<usize, &'static str> {
    let hir = ParserBuilder::new().nest_limit(depth).build().parse(pattern).map_err(|_| "invalid syntax")?;
    Ok(states_of(&hir))
}

fn states_of(hir: &Hir) -> usize {
    let of_all = |parts: &[Hir]| parts.iter().map(states_of).fold(1, usize::saturating_add);
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(literal) => literal.0.len(),
        // A range of characters becomes up to a few sequences of bytes.
        HirKind::Class(Class::Unicode(class)) => class.ranges().len() * 2,
        HirKind::Class(Class::Bytes(class)) => class.ranges().len(),
        HirKind::Repetition(repetition) => {
            let times = repetition.max.unwrap_or(repetition.min).max(1) as usize;
            states_of(&repetition.sub).saturating_mul(times).saturating_add(1)
        }
        HirKind::Capture(capture) => states_of(&capture.sub).saturating_add(2),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => of_all(parts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::re2::compile;

    #[test]
    fn repetitions_count_as_often_as_they_repeat() {
        let of = |pattern: &str| states(pattern, 250).unwrap();
        assert!(of("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$") < 40);
        assert!(of("(?:[ab]{1000}){1,9}") > 9_000);
        assert!(of(r"\p{L}{1,10}") > of(r"\p{L}") * 9);
    }

    #[test]
    fn patterns_of_one_request_are_charged_together_and_each_once() {
        let pattern = |i: usize| format!("budget{i}(?:[a-f]{{1000}}){{1,9}}");
        let mut budget = PatternBudget(40_000);
        let ask = |budget: &mut PatternBudget, i: usize| budget.within(|| compile(&pattern(i)).map(drop));
        for _ in 0..100 {
            assert_eq!(ask(&mut budget, 0), Ok(()), "one that was compiled costs nothing");
        }
        assert_eq!((1..4).map(|i| ask(&mut budget, i)).collect::<Vec<_>>(), [Ok(()), Err(TOO_LARGE), Err(TOO_LARGE)]);
        assert_eq!(ask(&mut PatternBudget::default(), 3), Ok(()), "another request has its own");
        assert_eq!(compile("uncounted").map(drop), Ok(()));
    }

    #[test]
    fn work_within_work_has_its_own_budget() {
        let (mut outer, mut inner) = (PatternBudget(10), PatternBudget(10_000));
        outer.within(|| {
            inner.within(|| compile("inner[ab]{100}").map(drop)).unwrap();
            assert_eq!(compile("outer[ab]{100}").map(drop), Err(TOO_LARGE));
        });
        assert!(inner.0 < 10_000 && outer.0 == 0);
    }
}
