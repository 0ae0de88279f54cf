//! Tests of the stream protocols from outside: both ends against each other, and random input.

mod endings;
mod fuzz;
mod streams;
