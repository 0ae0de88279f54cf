//! A page of figures from the output of `make bench`: a table for each program, and a plot where a peer ran beside Kelson.
#![allow(clippy::disallowed_methods, reason = "a program that does nothing else")]
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail};

/// Height of a pair of bars, of one bar, and the widths of the label and of the longest bar, in pixels.
const PAIR: usize = 46;
const BAR: usize = 14;
const LABEL: usize = 380;
const LONGEST: usize = 360;

/// A row of a table: what was measured, Kelson's figure, and the peer's if there was one.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    label: String,
    own: String,
    peer: String,
}

/// The rows that one program printed.
#[derive(Debug, PartialEq, Eq)]
struct Section {
    /// The command, such as `bench/run`.
    command: String,
    rows: Vec<Row>,
}

/// The machine and the versions of a measurement.
#[derive(Debug)]
struct Machine {
    processor: String,
    cores: usize,
    memory_mb: u64,
    kernel: String,
    kelson: String,
    peer: String,
}

/// Writes `index.md` and the plots into a directory: `page OUTPUT DIR`. The environment variable `PEER` names the peer and its version.
///
/// # Errors
/// The output has no table, or a file cannot be read or written.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let [output, dir] = args else { bail!("usage: kelson-bench page OUTPUT DIR") };
    let text = std::fs::read_to_string(output).with_context(|| output.clone())?;
    let sections = sections(&text);
    if sections.is_empty() {
        bail!("{output} has no table of figures; it should be the output of make bench");
    }
    let dir = Path::new(dir);
    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).with_context(|| name.to_owned());
    for section in &sections {
        if let Some(plot) = plot(section) {
            write(&file_name(&section.command), &plot)?;
        }
    }
    write("index.md", &page(&machine(), &sections))?;
    println!("{}", dir.join("index.md").display());
    Ok(())
}

fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (cpu, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let after = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let kilobytes =
        after(&memory, "MemTotal").split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or_default();
    Machine {
        processor: after(&cpu, "model name"),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory_mb: kilobytes / 1024,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        kelson: format!("{} ({})", env!("CARGO_PKG_VERSION"), std::env::var("KELSON_COMMIT").unwrap_or_default()),
        peer: std::env::var("PEER").unwrap_or_default(),
    }
}

/// The tables of the output. A line that is a command, as `make` echoes it, or `== NAME` begins a section.
fn sections(text: &str) -> Vec<Section> {
    let mut found: Vec<Section> = Vec::new();
    let mut command = "make bench".to_owned();
    let mut is_new = true;
    for line in text.lines() {
        if line.starts_with("bench/") || line.starts_with("== ") {
            command = line.trim_start_matches("== ").trim().to_owned();
            is_new = true;
            continue;
        }
        let Some(row) = row(line) else { continue };
        match found.last_mut().filter(|_| !is_new) {
            Some(section) => section.rows.push(row),
            None => found.push(Section { command: command.clone(), rows: vec![row] }),
        }
        is_new = false;
    }
    found
}

/// A line of a table with a figure in its second cell; headings and rulers have none.
fn row(line: &str) -> Option<Row> {
    let cells: Vec<&str> = line.strip_prefix('|')?.trim_end().trim_end_matches('|').split('|').map(str::trim).collect();
    let (label, own) = (*cells.first()?, *cells.get(1)?);
    number(own)?;
    Some(Row {
        label: label.to_owned(),
        own: own.to_owned(),
        peer: cells.get(2).copied().unwrap_or_default().to_owned(),
    })
}

/// The first number of a figure such as `1,234/s` or `2.5 % of a core`.
fn number(figure: &str) -> Option<f64> {
    let digits: String =
        figure.chars().take_while(|c| c.is_ascii_digit() || *c == '.' || *c == ',').filter(|c| *c != ',').collect();
    digits.parse().ok()
}

fn file_name(command: &str) -> String {
    let name: String = command.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!("{name}.svg")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A pair of bars for each row that has both figures; each pair has a separate scale.
fn plot(section: &Section) -> Option<String> {
    let pairs: Vec<(&Row, f64, f64)> =
        section.rows.iter().filter_map(|row| Some((row, number(&row.own)?, number(&row.peer)?))).collect();
    if pairs.is_empty() {
        return None;
    }
    let (width, height) = (LABEL + LONGEST + 160, pairs.len() * PAIR + 10);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n"
    );
    for (at, (row, own, peer)) in pairs.into_iter().enumerate() {
        let top = at * PAIR + 10;
        // Writing to a string cannot fail.
        let _ = writeln!(out, "<text x=\"0\" y=\"{}\">{}</text>", top + BAR + 3, escaped(&row.label));
        let bars = [(own, &row.own, "Kelson", "#2a6fb0"), (peer, &row.peer, "peer", "#b0b0b0")];
        for (n, (value, shown, who, colour)) in bars.into_iter().enumerate() {
            let y = top + n * (BAR + 2);
            // Pixels are small whole numbers.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
            let length = (value / own.max(peer).max(f64::MIN_POSITIVE) * LONGEST as f64).round().max(1.0) as usize;
            let _ =
                writeln!(out, "<rect x=\"{LABEL}\" y=\"{y}\" width=\"{length}\" height=\"{BAR}\" fill=\"{colour}\"/>");
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{}\">{who}: {}</text>",
                LABEL + length + 6,
                y + BAR - 3,
                escaped(shown)
            );
        }
    }
    out.push_str("</svg>\n");
    Some(out)
}

fn page(machine: &Machine, sections: &[Section]) -> String {
    let mut out = format!(
        "# Figures\n\nWritten by `make bench-page`. Only the ratio of two sides that were measured in one run is a result.\n\n\
         | | |\n|---|---|\n| processor | {}, {} cores |\n| memory | {} MB |\n| kernel | {} |\n| Kelson | {} |\n",
        machine.processor, machine.cores, machine.memory_mb, machine.kernel, machine.kelson
    );
    let peer = if machine.peer.is_empty() { "not named (PEER)" } else { machine.peer.as_str() };
    let _ = writeln!(out, "| peer | {peer} |");
    for section in sections {
        let _ = writeln!(out, "\n## `{}`\n\n| | Kelson | peer |\n|---|---|---|", section.command);
        for row in &section.rows {
            let _ = writeln!(out, "| {} | {} | {} |", row.label, row.own, row.peer);
        }
        if plot(section).is_some() {
            let _ = writeln!(out, "\n![{}]({})", section.command, file_name(&section.command));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output in the form in which the scripts print it.
    const OUTPUT: &str = "\
bench/run
| work                                         | kelson                   | peer https://127.0.0.1:7443 |
| start to /readyz, empty directory            | 61 ms                    |  |
| POST pods, JSON, 32 connections, synced      | 6,400/s                  | 1600/s |
bench/scale
| what                                                 | kelson                 |                        |
| ---                                                  | ---                    | ---                    |
| at rest: memory, MB                                  | 19                     |                        |
== rbac
one binding: 210 ns (true)
";

    #[test]
    fn tables_are_read_by_program() {
        let found = sections(OUTPUT);
        let row = |label: &str, own: &str, peer: &str| Row { label: label.into(), own: own.into(), peer: peer.into() };
        let run = vec![
            row("start to /readyz, empty directory", "61 ms", ""),
            row("POST pods, JSON, 32 connections, synced", "6,400/s", "1600/s"),
        ];
        let scale = vec![row("at rest: memory, MB", "19", "")];
        let section = |command: &str, rows| Section { command: command.into(), rows };
        assert_eq!(found, [section("bench/run", run), section("bench/scale", scale)]);
        assert_eq!(number("2.5 % of a core"), Some(2.5));
        assert_eq!(number("kelson"), None);
    }

    #[test]
    fn a_page_has_the_machine_the_tables_and_plots_where_there_is_a_peer() {
        let machine = Machine {
            processor: "A CPU".into(),
            cores: 2,
            memory_mb: 4096,
            kernel: "6.1".into(),
            kelson: "0.1 (abc)".into(),
            peer: "Kubernetes 1.36.2, etcd 3.5".into(),
        };
        let sections = sections(OUTPUT);
        let text = page(&machine, &sections);
        for line in [
            "| processor | A CPU, 2 cores |",
            "| peer | Kubernetes 1.36.2, etcd 3.5 |",
            "## `bench/run`",
            "| POST pods, JSON, 32 connections, synced | 6,400/s | 1600/s |",
            "![bench/run](bench-run.svg)",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("bench-scale.svg"), "no peer, no plot");
        let plot = plot(&sections[0]).expect("a plot");
        assert!(plot.contains(&format!("width=\"{LONGEST}\" height=\"{BAR}\" fill=\"#2a6fb0\"")), "{plot}");
        assert!(plot.contains(&format!("width=\"{}\" height=\"{BAR}\" fill=\"#b0b0b0\"", LONGEST / 4)), "{plot}");
        assert_eq!(plot, super::plot(&sections[0]).expect("the same"));
    }

    #[test]
    fn an_output_without_figures_is_rejected() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("out");
        std::fs::write(&file, "make: nothing\n").expect("writes");
        let words = [file.display().to_string(), dir.path().join("page").display().to_string()];
        assert!(run(&words).is_err_and(|e| e.to_string().contains("no table")));
        std::fs::write(&file, OUTPUT).expect("writes");
        run(&words).expect("a page");
        assert!(dir.path().join("page/index.md").exists() && dir.path().join("page/bench-run.svg").exists());
    }
}
