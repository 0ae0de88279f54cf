//! Jobs and cron jobs.
