//! CEL expressions that select devices, with a cache of compiled ones.
use std::collections::HashMap;
use std::sync::Arc;

use kelson_cel::Program;
use kelson_cel::device::{Device, compile, matches};
use parking_lot::Mutex;

use crate::slice::DeviceView;

/// The maximum number of compiled expressions. When it is exceeded, the cache is cleared.
const COMPILED_MAX: usize = 128;

type Compiled = Arc<Result<Program, String>>;

/// Why the expression of a selector has no result for a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The expression is invalid.
    #[error("{of}: selector #{index}: CEL compile error: {why}")]
    Compile {
        /// The class or the claim with the selector.
        of: String,
        /// The index of the selector.
        index: usize,
        /// The compiler's message.
        why: String,
    },
    /// The expression cannot be evaluated for the device, as when an attribute is missing.
    #[error("{of}: selector #{index}: CEL runtime error: {why}")]
    Evaluate {
        /// The class or the claim with the selector.
        of: String,
        /// The index of the selector.
        index: usize,
        /// The message of the evaluation.
        why: String,
    },
}

/// A cache of compiled expressions by their source.
#[derive(Debug, Default)]
pub struct Selectors(Mutex<HashMap<Box<str>, Compiled>>);

impl Selectors {
    fn get(&self, source: &str) -> Compiled {
        let mut all = self.0.lock();
        if let Some(known) = all.get(source) {
            return Arc::clone(known);
        }
        if all.len() >= COMPILED_MAX {
            all.clear();
        }
        let compiled = Arc::new(compile(source));
        all.insert(source.into(), Arc::clone(&compiled));
        compiled
    }

    /// Returns whether a device satisfies all expressions. `of` names their owner in errors.
    ///
    /// # Errors
    /// Fails when an expression cannot be evaluated.
    pub(crate) fn all_match(
        &self,
        sources: &[String],
        driver: &str,
        device: &DeviceView,
        of: impl Fn() -> String,
    ) -> Result<bool, SelectorError> {
        if sources.is_empty() {
            return Ok(true);
        }
        let capacity: Vec<_> = device.capacity.iter().map(|(name, c)| (name.as_str(), c.value)).collect();
        let facts = Device {
            driver,
            allow_multiple_allocations: device.is_shared(),
            attributes: &device.attributes,
            capacity: &capacity,
        };
        for (index, source) in sources.iter().enumerate() {
            let compiled = self.get(source);
            let program = compiled.as_ref().as_ref();
            let program = program.map_err(|why| SelectorError::Compile { of: of(), index, why: why.clone() })?;
            let held = matches(program, &facts);
            if !held.map_err(|why| SelectorError::Evaluate { of: of(), index, why })? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
