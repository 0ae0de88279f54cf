//! The engine without storage, for tests and temporary clusters whose store ends with the process. It never blocks, so commits run in
//! the caller, which keeps tests on a paused clock deterministic.

use super::{Engine, EngineError, Op, Sink};

/// An engine that stores nothing.
#[derive(Debug, Default)]
pub struct MemoryEngine;

impl Engine for MemoryEngine {
    fn load(&mut self, _: &mut Sink<'_>) -> Result<(), EngineError> {
        Ok(())
    }

    fn append(&mut self, _: &[Op], _: bool) -> Result<(), EngineError> {
        Ok(())
    }

    fn sync(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn blocks(&self) -> bool {
        false
    }
}
