//! Trace events of the steps of a write, under upstream's names (`endpoints/handlers`).
use kelson_meta::Status;
use kelson_traces::{KeyValue, event};

/// Records that the body was read.
pub fn record_body(bytes: usize) {
    event("limitedReadBody succeeded", || vec![KeyValue::number("len", bytes)]);
}

/// Records the outcome of the write; `bytes` is the size of its body.
pub fn record_write<T>(bytes: usize, outcome: &Result<T, Status>) {
    let len = || KeyValue::number("len", bytes);
    match outcome {
        Ok(_) => event("Write to database call succeeded", || vec![len()]),
        Err(why) => event("Write to database call failed", || vec![len(), KeyValue::text("err", why.message.as_str())]),
    }
}

/// Records a step.
pub fn record(step: &str) {
    event(step, Vec::new);
}
