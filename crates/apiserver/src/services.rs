//! Services: cluster IPs and node ports, handed out from what the stored Services leave free.
use kelson_meta::Status;
use kelson_store::Store;
use serde_json::Value;

use crate::catalog::Served;
use crate::config::{Config, StartError};

/// What is in use.
pub struct Services {}

/// What a write took; given back when the write does not happen.
pub struct Reservation {}

impl Reservation {
    /// The write happened.
    pub fn keep(self) {}
}

impl Services {
    /// From the stored Services.
    ///
    /// # Errors
    /// [`StartError::Config`].
    pub fn new(_config: &Config, _store: &Store) -> Result<Self, StartError> {
        Ok(Self {})
    }
    /// Takes what a new Service asks for.
    ///
    /// # Errors
    /// 422.
    pub fn before_create(&self, _served: &Served, _value: &mut Value, _dry_run: bool) -> Result<Reservation, Status> {
        Ok(Reservation {})
    }
    /// Takes what a changed Service asks for.
    ///
    /// # Errors
    /// 422.
    pub fn before_update(&self, _served: &Served, _new: &mut Value, _old: &Value, _dry_run: bool) -> Result<Reservation, Status> {
        Ok(Reservation {})
    }
    /// Gives back what a Service had.
    pub fn after_delete(&self, _served: &Served, _last: &Value) {}
}
