//! Tests of the crate's interface: with a model of the rules, and with the kernel.
#![allow(clippy::unwrap_used)]

mod cases;
mod interpreter;
mod kernel;
mod matrix;
mod model;
mod sctp;

/// Moves this thread into a network namespace.
fn enter(namespace: &std::fs::File) {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    use std::os::fd::AsFd as _;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}
