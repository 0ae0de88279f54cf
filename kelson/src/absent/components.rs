//! Upstream's node components: none is available.
use crate::flags::Component;

/// The components, of which there are none.
pub static COMPONENTS: &[Component] = &[];

/// The text about them in `kelson help`: empty.
pub const HELP: &str = "";
