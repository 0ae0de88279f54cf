//! Tests of the stream protocols from outside: both ends against each other, and random input.

mod fuzz;
mod streams;
