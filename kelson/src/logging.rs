//! Log output: one line per event on standard error, level by `--log-level`; the level may be changed while the process
//! runs. Lines for the journal begin with a priority and have no time, which the journal adds.
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyhow::Context as _;
use jiff::Timestamp;
use kelson_meta::{Clock as _, SystemClock};
use kelson_platform::service;
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Level};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, format};
use tracing_subscriber::registry::LookupSpan;

/// The lowest of upstream's verbosities that raises the level above that of the start.
const DEBUG_FROM: u32 = 4;
const TRACE_FROM: u32 = 8;

/// Applies another filter.
type Reload = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// The filter of the start, and how to change it.
static LOG: OnceLock<(String, Reload)> = OnceLock::new();
/// The verbosity of the configuration file that the process was started with; 0 where it has none.
static CONFIGURED_VERBOSITY: AtomicU32 = AtomicU32::new(0);
/// Whether lines are objects of JSON.
static JSON: AtomicBool = AtomicBool::new(false);

/// HTTP/2 warnings are excluded: they are about peers' behaviour, and clients without credentials can cause any number
/// of them.
const QUIET: &str = "h2=error";

/// Returns the filter for a level, or for directives of the user, which take precedence over ours.
fn filter(level: &str) -> Result<EnvFilter, tracing_subscriber::filter::ParseError> {
    match level.split(',').any(|directive| directive.trim_start().starts_with("h2")) {
        true => EnvFilter::try_new(level),
        false => EnvFilter::try_new(format!("{level},{QUIET}")),
    }
}

/// Sets up logging for the process. The error says what is wrong with the filter.
pub fn init(level: &str) -> anyhow::Result<()> {
    let filter = filter(level).with_context(|| format!("--log-level {level:?}"))?;
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi);
    // The log's disk may be full. The line is lost then; a panic about it would end the process.
    let log =
        log.log_internal_errors(false).event_format(Lines::new(service::logs_to_journal())).with_filter_reloading();
    let handle = log.reload_handle();
    LOG.get_or_init(|| (level.to_owned(), Box::new(move |filter| handle.reload(filter).map_err(|e| e.to_string()))));
    log.init();
    Ok(())
}

/// Applies the settings of a configuration file: its verbosity, if it has one, and JSON lines.
///
/// # Errors
/// Logging is not set up.
pub fn follow(verbosity: Option<u32>, json: bool) -> Result<(), String> {
    JSON.store(json, Ordering::Relaxed);
    let Some(verbosity) = verbosity else { return Ok(()) };
    CONFIGURED_VERBOSITY.store(verbosity, Ordering::Relaxed);
    restore()
}

/// Logs as much as the process was started with: as its flags and its configuration file say.
///
/// # Errors
/// Logging is not set up.
pub fn restore() -> Result<(), String> {
    set_verbosity(&CONFIGURED_VERBOSITY.load(Ordering::Relaxed).to_string()).map(drop)
}

/// Returns the prefix of a printed error: the journal's priority, if the journal reads it.
pub fn error_prefix() -> &'static str {
    if service::logs_to_journal() { priority(Level::ERROR) } else { "" }
}

/// Returns the priority of a level (`sd-daemon(3)`).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

/// Formats events as text lines, or as upstream's JSON (`logging.format: json`).
struct Lines {
    text: format::Format,
    /// Used instead of `text` for the journal.
    journal: Option<format::Format<format::Full, ()>>,
}

impl Lines {
    fn new(to_journal: bool) -> Self {
        let journal = to_journal.then(|| format::format().without_time().with_level(false));
        Self { text: format::format(), journal }
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, c: &FmtContext<'_, S, N>, mut to: format::Writer<'_>, event: &Event<'_>) -> fmt::Result {
        if !JSON.load(Ordering::Relaxed) {
            let mut line = String::new();
            let prefix = match &self.journal {
                // A person at a terminal reads several lines better.
                None if to.has_ansi_escapes() => return self.text.format_event(c, to, event),
                None => {
                    self.text.format_event(c, format::Writer::new(&mut line), event)?;
                    ""
                }
                Some(journal) => {
                    journal.format_event(c, format::Writer::new(&mut line), event)?;
                    priority(*event.metadata().level())
                }
            };
            // An event is one line: the journal and programs that read the log would take further ones for other events.
            let line = line.trim_end().replace('\n', "\\n");
            return writeln!(to, "{prefix}{line}");
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let about = event.metadata();
        writeln!(to, "{}", fields.line(*about.level(), about.file().zip(about.line()), SystemClock.now()))
    }
}

/// The fields of an event, by name.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    /// Formats the line: time (milliseconds), source, message, and verbosity; errors have no verbosity.
    fn line(mut self, level: Level, place: Option<(&str, u32)>, now: Timestamp) -> String {
        let mut line = Map::new();
        line.insert("ts".to_owned(), json!(now.as_nanosecond() as f64 / 1e6));
        if let Some((file, number)) = place {
            let mut parts = file.rsplitn(3, '/');
            let (name, dir) = (parts.next().unwrap_or_default(), parts.next());
            let short = dir.map_or_else(|| name.to_owned(), |dir| format!("{dir}/{name}"));
            line.insert("caller".to_owned(), json!(format!("{short}:{number}")));
        }
        line.insert("msg".to_owned(), self.0.remove("message").unwrap_or_else(|| json!("")));
        match level {
            Level::ERROR => {
                if let Some(error) = self.0.remove("error") {
                    line.insert("err".to_owned(), error);
                }
            }
            Level::DEBUG => drop(line.insert("v".to_owned(), json!(DEBUG_FROM))),
            Level::TRACE => drop(line.insert("v".to_owned(), json!(TRACE_FROM))),
            _ => drop(line.insert("v".to_owned(), json!(0))),
        }
        for (name, value) in self.0 {
            line.entry(name).or_insert(value);
        }
        Value::Object(line).to_string()
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), json!(format!("{value:?}")));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), json!(value));
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), json!(value));
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), json!(value));
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), json!(value));
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().to_owned(), json!(value));
    }
}

/// Sets the level for upstream's verbosity `text`: debug messages from 4 on, everything from 8 on; below that the level
/// of the start. Returns the answer for clients of `/debug/flags/v`.
///
/// # Errors
/// The string is not a number; upstream's message.
pub fn set_verbosity(text: &str) -> Result<String, String> {
    let level = level(text)?;
    let (started_with, reload) = LOG.get().ok_or("logging is not initialized")?;
    let filter = filter(level.unwrap_or(started_with)).map_err(|e| e.to_string())?;
    reload(filter)?;
    Ok(format!("successfully set klog.logging.verbosity to {text}"))
}

/// Returns the level of a verbosity; `None` is that of the start.
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
    fn warnings_about_connections_are_left_out_unless_they_are_asked_for() {
        let of = |level: &str| filter(level).expect("a filter").to_string();
        for level in ["info", "kelson_apiserver=debug,warn"] {
            assert!(of(level).split(',').any(|directive| directive == QUIET), "{level}: {}", of(level));
        }
        assert!(!of("info,h2=trace").contains(QUIET));
        assert!(filter("nonsense=loud").is_err());
    }

    #[test]
    fn lines_of_json() {
        let line = |level, place| {
            let said = json!({"message": "it \"runs\"", "error": "no", "node": "n", "port": 7});
            let Value::Object(said) = said else { panic!("an object") };
            let now = Timestamp::from_microsecond(1_580_306_777_047_280).expect("a time");
            let text = Fields(said).line(level, place, now);
            assert!(!text.contains('\n'), "{text}");
            serde_json::from_str::<Value>(&text).expect("JSON")
        };
        let reported = line(Level::INFO, Some(("kelson/src/node/run.rs", 12)));
        let wanted = json!({"ts": 1_580_306_777_047.28, "caller": "node/run.rs:12", "msg": "it \"runs\"", "v": 0, "error": "no", "node": "n", "port": 7});
        assert_eq!(reported, wanted);
        let reported = line(Level::ERROR, None);
        assert_eq!((&reported["err"], reported.get("v"), reported.get("caller")), (&json!("no"), None, None));
        assert_eq!(
            (line(Level::DEBUG, None)["v"].clone(), line(Level::TRACE, None)["v"].clone()),
            (json!(4), json!(8))
        );
    }

    #[test]
    fn lines_for_the_journal_have_a_priority_and_no_time() {
        #[derive(Clone, Default)]
        struct Written(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
        impl std::io::Write for Written {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let lines = |to_journal: bool| {
            let written = Written::default();
            let to = written.clone();
            let log = tracing_subscriber::fmt().with_env_filter("trace").with_ansi(false);
            let log = log.with_writer(move || to.clone()).event_format(Lines::new(to_journal));
            tracing::subscriber::with_default(log.finish(), || {
                tracing::error!(node = "n", "it\nfailed");
                tracing::warn!("w");
                tracing::info!("i");
                tracing::debug!("d");
            });
            let text = written.0.lock().unwrap().clone();
            String::from_utf8(text).unwrap()
        };
        let (text, file) = (lines(true), lines(false));
        assert_eq!(file.lines().count(), 4, "an event in a file is one line as well: {file}");
        assert!(file.lines().all(|line| !line.starts_with('<')) && file.contains("it\\nfailed"), "{file}");
        let at = module_path!();
        let wanted = format!("<3>{at}: it\\nfailed node=\"n\"\n<4>{at}: w\n<6>{at}: i\n<7>{at}: d\n");
        assert_eq!(text, wanted);
    }

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
