//! Validation rules in CEL (`x-kubernetes-validations`, KEP-2876; upstream `pkg/apiserver/schema/cel`): the names in
//! their expressions, their compilation, and their evaluation.
mod compile;
mod decl;
mod field_path;
mod message;
mod place;
mod run;

pub use compile::{CompiledRule, compile};
pub use decl::Decls;
pub use field_path::{Brackets, field_path};
pub use place::Rules;
pub use run::Verdict;
