//! Validation rules in CEL (`x-kubernetes-validations`, KEP-2876; upstream `pkg/apiserver/schema/cel`): what their
//! expressions may name, whether they compile, and what they say of an object.
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
