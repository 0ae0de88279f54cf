//! Decisions: what is remembered of a spec, the choice of a node, and the room that less important pods could make.
pub mod memo;
pub mod nominations;
pub mod preempt;
pub mod select;
