//! A component of upstream's that is run by its own name, with its own flags.
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::{ArgMatches, Args, Command};

use super::help;
use super::table::Table;
use super::words::{ParsedArgs, Spoken, read};

/// Returns the name by which this program was called.
pub fn program(word: &OsStr) -> &str {
    let name = Path::new(word).file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.strip_suffix(".exe").unwrap_or(name)
}

/// A component with its own command name.
pub struct Component {
    /// Upstream's name, which can also be the name of a link.
    pub name: &'static str,
    /// Kelson's shorter name, as a first word.
    pub alias: &'static str,
    /// The description, in one sentence.
    pub about: &'static str,
    /// All flags of upstream's component, one per line.
    pub facts: &'static str,
    /// Adds the flags that have an effect here.
    pub arguments: fn(Command) -> Command,
    /// Runs the component until it ends.
    pub run: fn(&ArgMatches, &Spoken) -> anyhow::Result<()>,
}

/// Runs a command whose typed arguments are `A`.
pub fn typed<A: Args>(
    matches: &ArgMatches,
    spoken: &Spoken,
    run: impl FnOnce(A, &Spoken) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    run(A::from_arg_matches(matches)?, spoken)
}

impl Component {
    /// Returns the clap definition of the flags that have an effect.
    pub fn command(&self) -> Command {
        (self.arguments)(Command::new(self.name).no_binary_name(true).disable_help_flag(true))
    }

    /// Parses the words and runs the component until it ends.
    pub fn main(&self, words: &[OsString]) -> ExitCode {
        let table = Table::of(self.facts, &self.command());
        let spoken = match read(self.name, &table, words.iter().cloned()) {
            Ok(ParsedArgs::Help) => return print(&help::flags(self.name, self.about, &table)),
            Ok(ParsedArgs::Version(asked)) => return print(&help::version(&asked)),
            Ok(ParsedArgs::Run(spoken)) => spoken,
            Err(why) => return failed(&why),
        };
        for name in &spoken.deprecated {
            eprintln!("Flag --{name} has been deprecated");
        }
        let ran = self.matches(&spoken).and_then(|matches| (self.run)(&matches, &spoken).map_err(|e| format!("{e:#}")));
        match ran {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => failed(&why),
        }
    }

    /// Returns the typed arguments; the error is one line.
    pub fn matches(&self, spoken: &Spoken) -> Result<ArgMatches, String> {
        self.command().try_get_matches_from(&spoken.words).map_err(|e| in_one_line(&e))
    }
}

/// Formats an error without the hints after an empty line, which use clap's spelling.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    lines.join(" ").replacen("error: ", "", 1)
}

fn print(text: &str) -> ExitCode {
    out!("{text}");
    ExitCode::SUCCESS
}

fn failed(why: &str) -> ExitCode {
    eprintln!("Error: {why}");
    ExitCode::FAILURE
}
