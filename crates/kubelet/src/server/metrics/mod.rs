//! Numbers: `/stats/summary` ([`summary`]) and the text formats for scrapers ([`text`]), both from one reading of the
//! runtime's statistics ([`usage`]).
pub mod summary;
pub mod text;
pub mod usage;
