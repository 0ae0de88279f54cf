//! Upstream's components of a node: none is here.
use crate::flags::Component;

/// None of them can run here.
pub static COMPONENTS: &[Component] = &[];

/// What `kelson help` says of them: nothing.
pub const HELP: &str = "";
