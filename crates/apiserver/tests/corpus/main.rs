//! A separate process: only its test harness can print *ignored* if the published cases are missing.
//!
//! Requests with one invalid field each, and the answers of kube-apiserver 1.36.2: the published corpus, sent to a server in memory.
//! Code, reason, causes and, if given, the object must be the same, except for what `deliberate.txt` lists.
//!
//! A run takes a share of the cases, chosen by a hash. `KELSON_CORPUS=all` takes all of them, as required before a change of
//! `resources` is
//! merged; `KELSON_CORPUS=KIND` takes those of one kind. `KELSON_CORPUS_REPORT=FILE` writes every difference to a file, one JSON object
//! per line, and prints them by cluster.
// Helpers of a test panic on errors, like the test itself.
#![allow(clippy::unwrap_used)]
#[path = "../suite/common/mod.rs"]
mod common;
mod compare;
mod deliberate;
mod edit;
mod server;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use compare::Difference;
use deliberate::Table;
use serde_json::{Value, json};
use server::{CONFLICTS_MAX, State, Subject, name};

const NAME: &str = "the_reference_answers_the_same";
/// A usual run takes one of this number of cases.
const SHARE: u64 = 24;

/// The corpus: named bases, and cases.
struct Corpus {
    bases: Vec<Value>,
    by_name: BTreeMap<String, usize>,
    cases: Vec<Value>,
}

impl Corpus {
    /// The directory of the published cases; `None` if tests run without them.
    fn place() -> Option<PathBuf> {
        let shared = std::env::var("KELSON_SHARED")
            .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared").to_owned());
        (shared != "none").then(|| PathBuf::from(shared).join("reference/validation/cases.jsonl.gz"))
    }

    fn read(path: &PathBuf, wanted: &dyn Fn(&str, &Value) -> bool) -> Self {
        let file = std::fs::File::open(path)
            .unwrap_or_else(|e| panic!("{}: {e}; KELSON_SHARED=none does without", path.display()));
        let mut corpus = Self { bases: Vec::new(), by_name: BTreeMap::new(), cases: Vec::new() };
        for line in BufReader::new(flate2::read::GzDecoder::new(file)).lines() {
            let line = line.expect("a line");
            let record: Value = serde_json::from_str(&line).expect("JSON");
            match record["base"].as_str() {
                Some(base) => {
                    corpus.by_name.insert(base.to_owned(), corpus.bases.len());
                    corpus.bases.push(record);
                }
                None if wanted(&line, corpus.base(&record)) => corpus.cases.push(record),
                None => {}
            }
        }
        corpus
    }

    fn base(&self, case: &Value) -> &Value {
        let name = case["b"].as_str().expect("a base");
        &self.bases[*self.by_name.get(name).unwrap_or_else(|| panic!("no base {name}"))]
    }
}

/// The initial state of a case.
fn state(case: &Value) -> State {
    match case["m"].as_str().expect("a mode") {
        "create" | "strict" | "pairs" => State::Empty,
        "restatus" => State::Status,
        _ => State::Stored,
    }
}

/// The request of a case: method, path with query, object before the edits, and the path of the object whose revision it contains.
fn request(case: &Value, base: &Value, subject: &Subject) -> (String, String, Value, Option<String>) {
    let collection = base["path"].as_str().expect("a path");
    let mode = case["m"].as_str().expect("a mode");
    let stored = || subject.stored(case["b"].as_str().expect("a base")).clone();
    let post =
        |query: &str| ("POST".to_owned(), format!("{collection}?dryRun=All{query}"), base["object"].clone(), None);
    let at = || format!("{collection}/{}", name(base));
    let put = |view: &str, object: Value| ("PUT".to_owned(), format!("{}{view}?dryRun=All", at()), object, Some(at()));
    match mode {
        "create" | "pairs" => post(""),
        "strict" => post("&fieldValidation=Strict"),
        "update" => put("", stored()),
        "status" => {
            let mut object = stored();
            object["status"] = base["status"].clone();
            put("/status", object)
        }
        "restatus" => put("/status", stored()),
        "sub" => {
            let view = case["s"].as_str().expect("a subresource");
            let sub = &base["subs"][view];
            let own = sub["kind"] == base["kind"];
            let object = if own { merged(stored(), &sub["body"]) } else { sub["body"].clone() };
            let method = sub["method"].as_str().expect("a method").to_owned();
            (method, format!("{}/{view}?dryRun=All", at()), object, own.then(at))
        }
        other => panic!("no mode {other}"),
    }
}

/// Merges another object into an object.
fn merged(mut object: Value, other: &Value) -> Value {
    for (key, value) in other.as_object().expect("an object") {
        match value {
            Value::Object(map) if object[key].is_object() => {
                map.iter().for_each(|(k, v)| object[key][k] = v.clone());
            }
            other => object[key] = other.clone(),
        }
    }
    object
}

async fn judge(case: &Value, base: &Value, subject: &Subject) -> Option<Difference> {
    let (method, uri, mut object, revised) = request(case, base, subject);
    for _ in 0..CONFLICTS_MAX {
        let mut edited = object.clone();
        case["e"].as_array().expect("edits").iter().for_each(|edit| edit::apply(&mut edited, edit));
        let answer = subject.ask(&method, &uri, edit::text(&edited)).await;
        match &revised {
            // A controller of the server wrote the object since it was read.
            Some(at) if answer.code == 409 => object["metadata"]["resourceVersion"] = subject.revision(at).await,
            _ => return compare::difference(case, base, &answer),
        }
    }
    panic!("{method} {uri} conflicts again and again");
}

/// The differences of all cases, found by several threads, each with its own servers.
fn differences(corpus: &Corpus) -> Vec<(usize, Difference)> {
    let found = Mutex::new(Vec::new());
    for state in [State::Empty, State::Stored, State::Status] {
        let cases: Vec<usize> = (0..corpus.cases.len()).filter(|i| self::state(&corpus.cases[*i]) == state).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let subject = Subject::start(state, &corpus.bases).await;
                while let Some(i) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let case = &corpus.cases[*i];
                    if let Some(difference) = judge(case, corpus.base(case), &subject).await {
                        found.lock().expect("unpoisoned").push((*i, difference));
                    }
                }
            });
        };
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    }
    let mut found = found.into_inner().expect("unpoisoned");
    found.sort_by_key(|(i, _)| *i);
    found
}

/// Writes the differences to a file and prints them by cluster, the largest first.
fn report(corpus: &Corpus, found: &[(usize, Difference)], file: &str) {
    let mut clusters: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    let mut lines = String::new();
    for (i, d) in found {
        clusters.entry(&d.cluster).or_insert((0, &d.detail)).0 += 1;
        let line = json!({"case": corpus.cases[*i], "cluster": d.cluster, "verdict": d.verdict, "detail": d.detail});
        lines.push_str(&line.to_string());
        lines.push('\n');
    }
    std::fs::write(file, lines).expect("a file that can be written");
    let mut clusters: Vec<_> = clusters.into_iter().collect();
    clusters.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
    for (cluster, (count, detail)) in clusters {
        println!("{count} {cluster}\n    {detail}");
    }
}

fn the_reference_answers_the_same(path: &PathBuf) {
    let asked = std::env::var("KELSON_CORPUS").unwrap_or_default();
    let wanted = |line: &str, base: &Value| match asked.as_str() {
        "all" => true,
        "" => {
            let mut hasher = DefaultHasher::new();
            line.hash(&mut hasher);
            hasher.finish().is_multiple_of(SHARE)
        }
        kinds => kinds.split(',').any(|kind| base["kind"] == kind),
    };
    let corpus = Corpus::read(path, &wanted);
    let mut found = differences(&corpus);
    println!("{} of {} cases differ", found.len(), corpus.cases.len());
    let table = Table::read();
    let stale = table.take(&mut found, |i| (&corpus.cases[i], corpus.base(&corpus.cases[i])));
    println!("{} of them are not in the table", found.len());
    if let Ok(file) = std::env::var("KELSON_CORPUS_REPORT") {
        report(&corpus, &found, &file);
    }
    let limit = match asked.as_str() {
        "all" => table.all_max,
        "" => table.share_max,
        _ => table.all_max,
    };
    let sample: Vec<&str> = found.iter().take(20).map(|(_, d)| d.cluster.as_str()).collect();
    assert!(
        found.len() <= limit,
        "{} cases differ, the limit is {limit}; among them\n{}",
        found.len(),
        sample.join("\n")
    );
    assert!(asked != "all" || stale.is_empty(), "rows of the table that matched nothing: {stale:?}");
}

/// A custom test harness, because only that can report *ignored* at runtime.
fn main() {
    if std::env::args().any(|a| a == "--list") {
        println!("{NAME}: test");
        return;
    }
    let Some(path) = Corpus::place() else {
        println!("test {NAME} ... ignored, KELSON_SHARED=none");
        return;
    };
    the_reference_answers_the_same(&path);
    println!("test {NAME} ... ok");
}
