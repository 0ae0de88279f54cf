//! Jobs and cron jobs.
mod cron_job;
mod job;
mod job_selector;
mod job_status;
mod job_update;
mod policies;

pub use cron_job::CronJobs;
pub use job::Jobs;
