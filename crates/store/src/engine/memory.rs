//! The engine that keeps nothing: for tests and throw-away clusters, whose store ends with the process. It never
//! blocks, so commits happen inside the caller, which keeps tests on a paused clock deterministic.

use super::{Engine, EngineError, Op, Sink};

/// Keeps nothing beyond the process.
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
