//! Command lines as upstream's components read them: which flags there are (`table`, from `facts/`), what their values may be
//! (`values`), how they are spelt (`words`), how they are listed (`help`), and the command that they are flags of (`command`). Knows no component.
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
pub use words::{Asked, Spoken, read};
