//! Fields about the log: verbosity and format. Log lines are not buffered, so there is nothing to flush.
use serde_json::Value;

use super::fields::{Fields, is_zero};
use super::{I32_MAX, Layer};

const FORMATS: [&str; 2] = ["json", "text"];

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One line of text per message.
    Text,
    /// One JSON object per line.
    Json,
}

/// Log settings of the file. The caller applies them to the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoggingSettings {
    /// `logging.verbosity`; `None` keeps the value of the command line.
    pub verbosity: Option<u32>,
    /// `logging.format`; `None` means text.
    pub format: Option<LogFormat>,
}

impl Layer<'_> {
    pub(super) fn logging(&mut self, f: &mut Fields<'_>) -> LoggingSettings {
        let mut log = f.below("logging", self.faults);
        let format = log.string("format", self.faults);
        if let Some(other) = format.filter(|format| !FORMATS.contains(format)) {
            self.faults.invalid(&log.at("format"), other, "Unsupported log format");
        }
        let verbosity = log.integer("verbosity", (0, I32_MAX), self.faults).and_then(|n| u32::try_from(n).ok());
        self.flushes(&mut log);
        let modules = log.list("vmodule", self.faults);
        if !modules.is_empty() && format == Some("json") {
            self.faults.forbidden(&log.at("vmodule"), "Only supported for text log format");
        }
        for (path, module) in &modules {
            let mut module = Fields::of(module, path.clone(), self.faults);
            if module.string("filePattern", self.faults).is_none() {
                self.faults.required(&module.at("filePattern"), "File pattern must not be empty");
            }
            module.integer("verbosity", (0, I32_MAX), self.faults);
            module.finish(&[], self.faults);
        }
        let has_options = log.peek("options").is_some_and(|options| !is_zero(options));
        let mut options = log.below("options", self.faults);
        for form in FORMATS {
            let mut output = options.below(form, self.faults);
            output.get("splitStream");
            output.get("infoBufferSize");
            output.finish(&[], self.faults);
        }
        options.finish(&[], self.faults);
        let parts = [("vmodule", !modules.is_empty()), ("options", has_options)];
        self.ignored.extend(parts.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| log.at(name).to_string()));
        log.finish(&[], self.faults);
        let format = format.map(|format| if format == "json" { LogFormat::Json } else { LogFormat::Text });
        LoggingSettings { verbosity, format }
    }

    /// Validates `flushFrequency`: a duration, or nanoseconds as a number as in older files.
    fn flushes(&mut self, log: &mut Fields<'_>) {
        match log.peek("flushFrequency") {
            Some(Value::Number(n)) => {
                if n.as_i64().is_none_or(|n| n < 0) {
                    self.faults.invalid(&log.at("flushFrequency"), n.clone(), "Must be greater than zero");
                }
                log.get("flushFrequency");
            }
            _ => drop(log.duration("flushFrequency", self.faults)),
        }
    }
}
