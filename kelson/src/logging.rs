//! Log output: one line an event on standard error, level by `--log-level`; how much is logged may be changed while the process runs.
use std::sync::OnceLock;

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

/// Verbosities of upstream from which on our levels log more than the process was started with.
const DEBUG_FROM: u32 = 4;
const TRACE_FROM: u32 = 8;

/// Takes up another filter.
type Reload = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// What the process was started with, and the way to change it.
static LOG: OnceLock<(String, Reload)> = OnceLock::new();

/// Sets up logging for the whole process. The error names what is wrong with the filter.
pub fn init(level: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(level).with_context(|| format!("--log-level {level:?}"))?;
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi);
    // Where the log goes may be full. The line is lost then; to say so there would be the process's end.
    let log = log.log_internal_errors(false).with_filter_reloading();
    let handle = log.reload_handle();
    LOG.get_or_init(|| (level.to_owned(), Box::new(move |filter| handle.reload(filter).map_err(|e| e.to_string()))));
    log.init();
    Ok(())
}

/// Logs as much as upstream's verbosity `text` asks for, from now on: from 4 on what is for debugging, from 8 on everything; below that
/// as the process was started. Gives what clients of `/debug/flags/v` are told.
///
/// # Errors
/// When the text is no number, in upstream's words.
pub fn set_verbosity(text: &str) -> Result<String, String> {
    let level = level(text)?;
    let (started_with, reload) = LOG.get().ok_or("nothing is logged")?;
    let filter = EnvFilter::try_new(level.unwrap_or(started_with)).map_err(|e| e.to_string())?;
    reload(filter)?;
    Ok(format!("successfully set klog.logging.verbosity to {text}"))
}

/// The level of a verbosity; `None`: what the process was started with.
fn level(text: &str) -> Result<Option<&'static str>, String> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let wrong = |why| format!("strconv.ParseUint: parsing {text:?}: {why}");
    let v: u32 = text.parse().map_err(|_| wrong(if is_number { "value out of range" } else { "invalid syntax" }))?;
    Ok(match v {
        TRACE_FROM.. => Some("trace"),
        DEBUG_FROM.. => Some("debug"),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_verbosities() {
        for (text, want) in
            [("0", None), ("3", None), ("4", Some("debug")), ("7", Some("debug")), ("10", Some("trace"))]
        {
            assert_eq!(level(text), Ok(want), "{text}");
        }
        for (text, why) in [
            ("", "strconv.ParseUint: parsing \"\": invalid syntax"),
            ("-1", "strconv.ParseUint: parsing \"-1\": invalid syntax"),
            ("4\n", "strconv.ParseUint: parsing \"4\\n\": invalid syntax"),
            ("4294967296", "strconv.ParseUint: parsing \"4294967296\": value out of range"),
        ] {
            assert_eq!(level(text), Err(why.to_owned()), "{text}");
        }
    }
}
