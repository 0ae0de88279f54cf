//! Steps of a write, as a trace tells them, under upstream's names (`endpoints/handlers`).
use kelson_meta::Status;
use kelson_traces::{KeyValue, event};

/// The body was read.
pub fn body_read(bytes: usize) {
    event("limitedReadBody succeeded", || vec![KeyValue::number("len", bytes)]);
}

/// What the request did in the store; `bytes` are those of its body.
pub fn written<T>(bytes: usize, outcome: &Result<T, Status>) {
    let len = || KeyValue::number("len", bytes);
    match outcome {
        Ok(_) => event("Write to database call succeeded", || vec![len()]),
        Err(why) => event("Write to database call failed", || vec![len(), KeyValue::text("err", why.message.as_str())]),
    }
}

/// Something begins, or is over.
pub fn at(step: &str) {
    event(step, Vec::new);
}
