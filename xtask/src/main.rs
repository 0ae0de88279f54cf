//! Developer tasks: generators and repository rules. Nothing here ships.
fn main() {}
