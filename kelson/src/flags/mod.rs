//! Command lines with the syntax of upstream's components: the flags (`table`, from `facts/`), their values (`values`),
//! the parser (`words`), the help (`help`), and the command they belong to (`command`). Independent of components.
mod command;
pub mod help;
mod shown;
mod table;
mod values;
mod words;

pub use command::{Component, program, typed};
pub use shown::shown;
pub use table::Table;
pub use values::truth;
pub use words::{ParsedArgs, Spoken, read};
