//! Queries of the node's logs, and the arguments of journalctl for them (KEP-2258). Pure; `node_journal` runs them.
use std::collections::BTreeSet;

use jiff::Timestamp;
use jiff::civil::DateTime;
use kelson_meta::url::Query;
use kelson_meta::{FieldErrors, FieldPath};

/// Maximum of `tailLines`.
const TAIL_MAX: i64 = 100_000;
/// Maximum length of a service name in bytes, and maximum number of services.
const SERVICE_BYTES_MAX: usize = 256;
const SERVICES_MAX: usize = 4;
/// Supported output formats of journalctl.
const FORMATS: &[&str] = &["cat", "json", "short", "short-iso", "short-iso-precise", "short-precise", "short-unix"];
/// Time format of journalctl's arguments.
const TIME_FORM: &str = "%Y-%-m-%-d %-H:%-M:%-S";

/// A query of the node's logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLogQuery {
    /// Queried services; empty for the whole journal.
    pub services: Vec<String>,
    /// Queried files below the log directory; a slash distinguishes them from services.
    pub files: Vec<String>,
    /// Filters and output format.
    pub options: LogSelection,
}

/// Filters and output format for logs of services. They do not apply to files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSelection {
    since_time: Option<Timestamp>,
    until_time: Option<Timestamp>,
    tail: Option<i64>,
    /// Boot of the machine: 0 is the current one, -1 the previous one.
    boot: Option<i64>,
    pattern: String,
    case_sensitive: bool,
    since: String,
    until: String,
    format: String,
}

impl NodeLogQuery {
    /// Parses the query parameters.
    ///
    /// # Errors
    /// The parameters that cannot be parsed.
    pub fn parse(query: &Query) -> Result<Self, FieldErrors> {
        let mut faults = FieldErrors::new();
        let is_file = |q: &&str| q.contains(['/', '\\']);
        let is_named = |q: &&str| !q.trim().is_empty();
        let files: Vec<String> = query.all("query").filter(is_file).map(str::to_owned).collect();
        let asked = query.all("query").filter(|q| !is_file(q)).chain(query.all("unit"));
        let services: Vec<String> = asked.filter(is_named).map(str::to_owned).collect();
        if (query.has("query") || query.has("unit")) && files.is_empty() && services.is_empty() {
            let given: Vec<&str> = query.all("query").collect();
            faults.invalid(&FieldPath::new("unit"), given, "unit cannot be empty");
        }
        let pattern = either(query, "pattern", "grep").1.to_owned();
        let options = LogSelection {
            since_time: time(query, "sinceTime", &mut faults),
            until_time: time(query, "untilTime", &mut faults),
            boot: number("boot", query.text("boot"), &mut faults),
            tail: number("tailLines", either(query, "tailLines", "tail").1, &mut faults),
            case_sensitive: !pattern.is_empty() && truth(query, "case-sensitive", &mut faults),
            pattern,
            since: query.text("since").to_owned(),
            until: query.text("until").to_owned(),
            format: query.text("output").to_owned(),
        };
        if faults.is_empty() { Ok(Self { services, files, options }) } else { Err(faults) }
    }

    /// Validates the query.
    ///
    /// # Errors
    /// The invalid fields.
    pub fn validate(&self) -> Result<(), FieldErrors> {
        let mut faults = FieldErrors::new();
        let query = FieldPath::new("query");
        for service in &self.services {
            if service.len() > SERVICE_BYTES_MAX {
                faults.invalid(&query, service, format!("length must be less than {SERVICE_BYTES_MAX}"));
            } else if !service.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:@".contains(c)) {
                faults.invalid(&query, service, "input contains unsupported characters");
            }
        }
        if self.services.len() > SERVICES_MAX {
            faults.too_many(&query, self.services.len(), SERVICES_MAX);
        }
        match self.files.len() {
            0 => {}
            _ if !self.services.is_empty() => {
                let both = format!("[{}], [{}]", self.files.join(" "), self.services.join(" "));
                faults.invalid(&query, both, "cannot specify a file and service");
            }
            1 if self.options != LogSelection::default() => {
                faults.invalid(&query, &self.files, "cannot specify file with options");
            }
            1 => {}
            _ => faults.invalid(&query, &self.files, "cannot specify more than one file"),
        }
        self.options.validate(&mut faults);
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }
}

impl LogSelection {
    fn validate(&self, faults: &mut FieldErrors) {
        if let (Some(since), Some(until)) = (self.since_time, self.until_time)
            && since > until
        {
            faults.invalid(&FieldPath::new("untilTime"), until.to_string(), "must be after `sinceTime`");
        }
        if let Some(boot) = self.boot.filter(|b| *b > 0) {
            faults.invalid(&FieldPath::new("boot"), boot, "must be less than 1");
        }
        if let Some(tail) = self.tail.filter(|t| !(0..=TAIL_MAX).contains(t)) {
            let why = format!("must be between 0 and {TAIL_MAX}, inclusive");
            faults.invalid(&FieldPath::new("tailLines"), tail, why);
        }
        if let Err(e) = regex::Regex::new(&self.pattern) {
            faults.invalid(&FieldPath::new("pattern"), &self.pattern, e.to_string());
        }
        let in_words = !self.since.is_empty() || !self.until.is_empty();
        for (name, time) in [("sinceTime", self.since_time), ("untilTime", self.until_time)] {
            if time.is_some() && in_words {
                let why = format!("`since or until` and `{name}` cannot be specified");
                faults.forbidden(&FieldPath::new(name), why);
            }
        }
        for (name, date) in [("since", &self.since), ("until", &self.until)] {
            if !date.is_empty() && !is_relative(date) && DateTime::strptime(TIME_FORM, date).is_err() {
                let why = "date must be a relative time of the form '(+|-)[0-9]+(s|m|h|d)' or a date in 'YYYY-MM-DD HH:MM:SS' form";
                faults.invalid(&FieldPath::new(name), date, why);
            }
        }
        if !self.format.is_empty() && !FORMATS.contains(&self.format.as_str()) {
            faults.not_supported(&FieldPath::new("output"), &self.format, FORMATS);
        }
    }

    /// Returns the arguments of `journalctl` for these services.
    pub fn words(&self, services: &[String]) -> Vec<String> {
        let mut words = vec!["--utc".to_owned(), "--no-pager".to_owned()];
        let shown = |t: Timestamp| t.strftime(TIME_FORM).to_string();
        let either = |words: &str, time: Option<Timestamp>| {
            if words.is_empty() { time.map(shown) } else { Some(words.to_owned()) }
        };
        words.extend(either(&self.since, self.since_time).map(|t| format!("--since={t}")));
        words.extend(either(&self.until, self.until_time).map(|t| format!("--until={t}")));
        if let Some(tail) = self.tail {
            words.extend(["--pager-end".to_owned(), format!("--lines={tail}")]);
        }
        words.extend(services.iter().map(|s| format!("--unit={s}")));
        if !self.pattern.is_empty() {
            words.push(format!("--grep={}", self.pattern));
            words.push(format!("--case-sensitive={}", self.case_sensitive));
        }
        if let Some(boot) = self.boot {
            words.extend(["--boot".to_owned(), boot.to_string()]);
        }
        let format = if self.format.is_empty() { "short-precise" } else { &self.format };
        words.push(format!("--output={format}"));
        words
    }
}

/// Splits the services into those in the journal, according to its list of `units`, and others.
pub fn by_logger(services: &[String], units: &str) -> (Vec<String>, Vec<String>) {
    let known: BTreeSet<&str> = units.lines().map(str::trim).collect();
    services.iter().cloned().partition(|s| known.contains(format!("{s}.service").as_str()))
}

/// Possible file names of a service's log; the first that is a file is used.
pub fn file_names(service: &str) -> [String; 3] {
    [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")]
}

fn is_relative(date: &str) -> bool {
    let amount = date.strip_prefix(['+', '-']).unwrap_or(date);
    let digits = amount.strip_suffix(['s', 'm', 'h', 'd']).unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// Returns the first of two parameters that has a value.
fn either<'q>(query: &'q Query, first: &'static str, second: &'static str) -> (&'static str, &'q str) {
    match query.text(first) {
        "" => (second, query.text(second)),
        found => (first, found),
    }
}

fn time(query: &Query, name: &str, faults: &mut FieldErrors) -> Option<Timestamp> {
    let text = query.get(name).filter(|t| !t.is_empty())?;
    let read = text.parse();
    if read.is_err() {
        faults.invalid(&FieldPath::new(name), text, "invalid time format");
    }
    read.ok()
}

fn number(name: &str, text: &str, faults: &mut FieldErrors) -> Option<i64> {
    if text.is_empty() {
        return None;
    }
    let read = text.parse();
    if let Err(e) = &read {
        faults.invalid(&FieldPath::new(name), text, kelson_meta::url::unread_number("Atoi", text, e));
    }
    read.ok()
}

fn truth(query: &Query, name: &str, faults: &mut FieldErrors) -> bool {
    match query.text(name) {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
        "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
        text => {
            let why = format!("strconv.ParseBool: parsing {text:?}: invalid syntax");
            faults.invalid(&FieldPath::new(name), text, why);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<NodeLogQuery, String> {
        NodeLogQuery::parse(&Query::parse(Some(text))).map_err(|e| e.to_string())
    }

    /// Returns the arguments of journalctl or the error.
    fn words(text: &str) -> String {
        match parsed(text) {
            Err(e) => format!("400 {e}"),
            Ok(query) => match query.validate() {
                Err(e) => format!("406 {e}"),
                Ok(()) => query.options.words(&query.services).join(" "),
            },
        }
    }

    #[test]
    fn services_are_queried_by_unit() {
        for (text, wanted) in [
            ("query=kubelet", "--utc --no-pager --unit=kubelet --output=short-precise"),
            ("query=a&query=b&unit=c", "--utc --no-pager --unit=a --unit=b --unit=c --output=short-precise"),
            (
                "query=a&sinceTime=2026-01-02T03:04:05Z&untilTime=2026-01-02T03:14:05%2B00:00&output=cat",
                "--utc --no-pager --since=2026-1-2 3:4:5 --until=2026-1-2 3:14:5 --unit=a --output=cat",
            ),
            (
                "query=a&since=-5m&until=2026-01-02 3:4:5",
                "--utc --no-pager --since=-5m --until=2026-01-02 3:4:5 --unit=a --output=short-precise",
            ),
            (
                "query=a&tail=10&grep=x.y&case-sensitive=true&boot=-1",
                "--utc --no-pager --pager-end --lines=10 --unit=a --grep=x.y --case-sensitive=true --boot -1 --output=short-precise",
            ),
        ] {
            assert_eq!(words(text), wanted, "{text}");
        }
    }

    #[test]
    fn invalid_query_fields_are_reported() {
        for (text, wanted) in [
            ("query=%20", "400 unit: Invalid value: [\" \"]: unit cannot be empty"),
            ("query=a&boot=x", "400 boot: Invalid value: \"x\": strconv.Atoi: parsing \"x\": invalid syntax"),
            ("query=a&sinceTime=noon", "400 sinceTime: Invalid value: \"noon\": invalid time format"),
            ("query=a%20b", "406 query: Invalid value: \"a b\": input contains unsupported characters"),
            ("query=a&query=b&query=c&query=d&query=e", "406 query: Too many: 5: must have at most 4 items"),
            ("query=a&query=/b", "406 query: Invalid value: \"[/b], [a]\": cannot specify a file and service"),
            ("query=/a&query=/b", "406 query: Invalid value: [\"/a\",\"/b\"]: cannot specify more than one file"),
            ("query=/a&tailLines=1", "406 query: Invalid value: [\"/a\"]: cannot specify file with options"),
            ("query=a&boot=1", "406 boot: Invalid value: 1: must be less than 1"),
            (
                "query=a&tailLines=100001",
                "406 tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive",
            ),
            (
                "query=a&since=yesterday",
                "406 since: Invalid value: \"yesterday\": date must be a relative time of the form '(+|-)[0-9]+(s|m|h|d)' or a date in 'YYYY-MM-DD HH:MM:SS' form",
            ),
            (
                "query=a&sinceTime=2026-01-02T03:04:05Z&since=-5m",
                "406 sinceTime: Forbidden: `since or until` and `sinceTime` cannot be specified",
            ),
        ] {
            assert_eq!(words(text), wanted, "{text}");
        }
        assert!(words("query=a&pattern=(").starts_with("406 pattern: Invalid value: \"(\": "));
        assert!(words("query=a&output=xml").starts_with("406 output: Unsupported value: \"xml\": supported values: "));
        let long = "x".repeat(SERVICE_BYTES_MAX + 1);
        assert!(words(&format!("query={long}")).ends_with("length must be less than 256"));
    }

    #[test]
    fn queries_cannot_contain_paths() {
        assert_eq!(parsed("").expect("fine"), NodeLogQuery::default());
        assert_eq!(parsed("query=/a").expect("fine").files, ["/a"]);
    }

    #[test]
    fn services_are_in_the_journal_or_have_files() {
        let units = "init.scope\nkubelet.service\ncontainerd.service\n";
        let all = ["kubelet", "nginx", "tainerd"].map(str::to_owned);
        let (native, others) = by_logger(&all, units);
        assert_eq!((native, others), (vec!["kubelet".to_owned()], vec!["nginx".to_owned(), "tainerd".to_owned()]));
        assert_eq!(file_names("nginx"), ["nginx", "nginx.log", "nginx/nginx.log"]);
    }
}
