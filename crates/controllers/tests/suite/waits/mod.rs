//! One test for each controller that waits. Times are those of upstream's documentation or, where it gives none, of upstream's code.
mod autoscaler;
mod cleaners;
mod disruption;
mod jobs;
mod nodes;
mod workloads;
