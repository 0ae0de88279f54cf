//! Templates of stages: Go's template language with kwok's functions and many of sprig's. The output of a template is
//! YAML.
//!
//! Rooms: `surroundings` (the trait for the cluster), `convert` (values of templates and JSON) → `arguments` (of a
//! function) → `text`, `lists`, `numbers`, `times`, `cluster` (functions by subject, a row each) → `functions` (all
//! rows) → this module.

mod arguments;
mod cluster;
mod convert;
mod functions;
mod lists;
mod numbers;
mod surroundings;
mod text;
mod times;

use std::fmt;
use std::io::Write;
use std::sync::Arc;

use gotmpl::{FuncMap, TemplateError};
use kelson_codec::yaml;
use serde_json::Value;

use crate::error::StageError;

pub use self::surroundings::Surroundings;

/// The maximum size of a template's output in bytes.
const OUTPUT_MAX_BYTES: usize = 3 << 20;
/// The maximum number of loop iterations in one rendering.
const ROUNDS_MAX: u64 = 1_000_000;

/// Compiles templates. It is cheap to clone.
#[derive(Clone)]
pub struct Templates {
    functions: FuncMap,
}

impl fmt::Debug for Templates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Templates")
    }
}

/// A compiled template.
pub struct Template(gotmpl::Template);

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Template")
    }
}

impl Templates {
    /// Creates a compiler for templates that read `surroundings`.
    pub fn new(surroundings: &Arc<dyn Surroundings>) -> Self {
        Self { functions: functions::all(surroundings) }
    }

    pub(crate) fn compile(&self, text: &str) -> Result<Arc<Template>, StageError> {
        let template = gotmpl::Template::new("_").funcs(self.functions.clone()).max_range_iters(ROUNDS_MAX);
        Ok(Arc::new(Template(template.parse(text.trim()).map_err(wrong)?)))
    }
}

fn wrong(e: TemplateError) -> StageError {
    StageError::new("template", e)
}

impl Template {
    /// Renders the template for an object and returns the output as a string.
    fn text(&self, object: &Value) -> Result<String, StageError> {
        let mut output = Bounded(Vec::new());
        self.0.execute(&mut output, &convert::to_template(object)).map_err(wrong)?;
        String::from_utf8(output.0).map_err(|e| StageError::new("template", e))
    }

    /// Renders the template for an object and parses the output as YAML.
    ///
    /// # Errors
    /// Fails when the template cannot be rendered, or when the output is not valid YAML.
    pub fn render(&self, object: &Value) -> Result<Value, StageError> {
        let text = self.text(object)?;
        let (value, _) = yaml::to_value(text.as_bytes()).map_err(|e| StageError::new("template", e))?;
        Ok(value)
    }
}

/// A writer that fails beyond the size limit.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT_MAX_BYTES {
            return Err(std::io::Error::other(format!("the output has more than {OUTPUT_MAX_BYTES} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
