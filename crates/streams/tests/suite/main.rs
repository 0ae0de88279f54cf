//! Tests of the public interface: both ends of each protocol, and random input.

mod endings;
mod fuzz;
mod streams;
