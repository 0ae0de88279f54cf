//! Writes: from a decoded body to the store, one file for each step and one for each verb.
pub mod admit;
pub mod commit;
pub mod create;
pub mod decode;
pub mod delete;
pub mod draft;
pub mod fields;
mod misfit;
mod owners;
pub mod patch;
pub mod prepare;
mod privileged;
pub mod quota;
pub mod retry;
mod shown;
mod steps;
pub mod update;
mod warn;
