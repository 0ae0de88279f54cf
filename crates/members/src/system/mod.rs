//! What operating systems do differently with child processes.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use unix::{ask_to_end, end_with_parent, is_executable};
#[cfg(windows)]
pub(crate) use windows::{ask_to_end, end_with_parent, is_executable};
