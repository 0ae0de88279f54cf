//! A component of upstream's that is run by its own name, with its own flags.
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::{ArgMatches, Args, Command};

use super::help;
use super::table::Table;
use super::words::{Asked, Spoken, read};

/// The name by which this program was called.
pub fn program(word: &OsStr) -> &str {
    let name = Path::new(word).file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.strip_suffix(".exe").unwrap_or(name)
}

/// A component that has a name of its own.
pub struct Component {
    /// Upstream's name, which is a link's as well.
    pub name: &'static str,
    /// Kelson's shorter one, as a first word.
    pub alias: &'static str,
    /// What it is, in a sentence.
    pub about: &'static str,
    /// All flags that upstream's has, a line each.
    pub facts: &'static str,
    /// The flags that have an effect here.
    pub arguments: fn(Command) -> Command,
    /// Runs it to its end.
    pub run: fn(&ArgMatches, &Spoken) -> anyhow::Result<()>,
}

/// Carries out a command whose typed arguments are `A`.
pub fn typed<A: Args>(
    matches: &ArgMatches,
    spoken: &Spoken,
    run: impl FnOnce(A, &Spoken) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    run(A::from_arg_matches(matches)?, spoken)
}

impl Component {
    /// The flags that have an effect, as the library that reads them has them.
    pub fn command(&self) -> Command {
        (self.arguments)(Command::new(self.name).no_binary_name(true).disable_help_flag(true))
    }

    /// Reads the words and runs the component to its end.
    pub fn main(&self, words: &[OsString]) -> ExitCode {
        let table = Table::of(self.facts, &self.command());
        let spoken = match read(self.name, &table, words.iter().cloned()) {
            Ok(Asked::Help) => return print(&help::flags(self.name, self.about, &table)),
            Ok(Asked::Version(asked)) => return print(&help::version(&asked)),
            Ok(Asked::Run(spoken)) => spoken,
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

    /// The typed arguments; the error is one line.
    pub fn matches(&self, spoken: &Spoken) -> Result<ArgMatches, String> {
        self.command().try_get_matches_from(&spoken.words).map_err(|e| in_one_line(&e))
    }
}

/// All that is wrong; what follows after an empty line are hints in the spelling of the library that reads the arguments.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    lines.join(" ").replacen("error: ", "", 1)
}

fn print(text: &str) -> ExitCode {
    print!("{text}");
    ExitCode::SUCCESS
}

fn failed(why: &str) -> ExitCode {
    eprintln!("Error: {why}");
    ExitCode::FAILURE
}
