//! Jobs and cron jobs.
mod cron_job;
mod job;
mod policies;

pub use cron_job::CronJobs;
pub use job::Jobs;
