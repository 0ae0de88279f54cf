//! Jobs and cron jobs.
mod cron_job;
mod job;
mod job_status;
mod policies;

pub use cron_job::CronJobs;
pub use job::Jobs;
