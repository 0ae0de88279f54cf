//! `anyOf`, `oneOf`, `allOf`, `not`. Alternatives are first evaluated without errors; only when none matches are the
//! errors of the nearest one reported, so that the cost of nested alternatives is proportional to their number.
use kelson_meta::path::Path;
use serde_json::Value;

use super::Check;
use super::faults::Outcome;
use crate::object::correlate::Old;
use crate::schema::{Child, Node};

impl Check<'_> {
    pub(super) fn clauses(&mut self, value: &Value, node: &Node, old: Option<Old<'_>>, path: &Path<'_>) {
        self.out.matched(2);
        let Some(values) = node.values() else { return };
        if !values.any_of.is_empty() {
            self.any_of(&values.any_of, value, old, path);
        }
        if !values.one_of.is_empty() {
            self.one_of(&values.one_of, value, old, path);
        }
        if !values.all_of.is_empty() {
            self.all_of(&values.all_of, value, old, path);
        }
        if let Some(not) = &values.not
            && self.silently(value, not, old, path).is_valid()
        {
            self.faults.clause(&mut self.out, path, "must not validate the schema (not)");
        }
    }

    fn any_of(&mut self, clauses: &[Child], value: &Value, old: Option<Old<'_>>, path: &Path<'_>) {
        for clause in clauses {
            let outcome = self.silently(value, clause, old, path);
            if outcome.is_valid() {
                return self.out.merge(outcome);
            }
        }
        self.faults.clause(&mut self.out, path, "must validate at least one schema (anyOf)");
        self.nearest(clauses, value, old, path);
    }

    fn one_of(&mut self, clauses: &[Child], value: &Value, old: Option<Old<'_>>, path: &Path<'_>) {
        let mut valid = 0;
        let mut first = None;
        for clause in clauses {
            let outcome = self.silently(value, clause, old, path);
            if outcome.is_valid() {
                valid += 1;
                first.get_or_insert(outcome);
            }
        }
        match (valid, first) {
            (1, Some(outcome)) => self.out.merge(outcome),
            (0, _) => {
                self.faults.clause(
                    &mut self.out,
                    path,
                    "must validate one and only one schema (oneOf). Found none valid",
                );
                self.nearest(clauses, value, old, path);
            }
            (several, _) => {
                let why = format!("must validate one and only one schema (oneOf). Found {several} valid alternatives");
                self.faults.clause(&mut self.out, path, &why);
            }
        }
    }

    fn all_of(&mut self, clauses: &[Child], value: &Value, old: Option<Old<'_>>, path: &Path<'_>) {
        let mut valid = 0;
        for clause in clauses {
            let outcome = self.apart(value, clause, old, path, self.out.is_quiet());
            valid += usize::from(outcome.is_valid());
            self.out.merge(outcome);
        }
        if valid != clauses.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            self.faults.clause(&mut self.out, path, &format!("must validate all the schemas (allOf){none}"));
        }
    }

    /// Reports the errors of the alternative that matches best, if none matches.
    fn nearest(&mut self, clauses: &[Child], value: &Value, old: Option<Old<'_>>, path: &Path<'_>) {
        if self.out.is_quiet() {
            return;
        }
        let mut best: Option<Outcome> = None;
        for clause in clauses {
            let outcome = self.apart(value, clause, old, path, false);
            if best.as_ref().is_none_or(|best| outcome.matches() > best.matches()) {
                best = Some(outcome);
            }
        }
        if let Some(best) = best {
            self.out.merge(best);
        }
    }

    fn silently(&mut self, value: &Value, clause: &Child, old: Option<Old<'_>>, path: &Path<'_>) -> Outcome {
        self.apart(value, clause, old, path, true)
    }

    /// Evaluates a clause separately.
    fn apart(&mut self, value: &Value, clause: &Child, old: Option<Old<'_>>, path: &Path<'_>, quiet: bool) -> Outcome {
        let outer = std::mem::replace(&mut self.out, Outcome::new(quiet));
        self.place(value, clause, old, path);
        std::mem::replace(&mut self.out, outer)
    }
}
