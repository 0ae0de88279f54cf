//! The configuration file of `kelson server` and `kelson agent`: every flag is a key. The order of precedence is the
//! command line, the environment, `config.yaml.d`, `config.yaml`, the default. The keys are read from the commands'
//! clap definitions (`keys`), files are merged (`layers`), and their settings are inserted before the words of the
//! command line (`expand`). `kelson config view` prints the result (`view`).
mod expand;
mod keys;
mod layers;
mod view;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

pub use expand::expand;
pub use keys::{Key, keys};
pub use layers::{merge, read};

use view::ViewArgs;

/// The flag that names the configuration file.
#[derive(Args, Debug, Clone)]
pub struct ConfigArgs {
    /// File that sets flags, one key for each; files in the directory of its name with `.d` are laid over it, in their order
    /// [default: /etc/kelson/config.yaml, where it is there]
    #[arg(long, value_name = "FILE", env = "KELSON_CONFIG_FILE", hide_env_values = true)]
    pub config: Option<PathBuf>,
}

impl ConfigArgs {
    /// Logs the file in use.
    pub fn log(&self) {
        if let Some(file) = &self.config {
            tracing::info!(file = %file.display(), "configuration file");
        }
    }
}

/// The subcommands of `kelson config`.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Print the value of every flag of `kelson server` or `kelson agent`, and where it comes from. Secrets are not shown.
    View(ViewArgs),
}

/// Every flag of a command (`server`, `agent`) that is started with these words, its value and where that comes from; secrets are hidden.
///
/// # Errors
/// When the configuration cannot be read or is wrong.
pub fn effective(command: &str, flags: &[OsString], cli: &clap::Command) -> anyhow::Result<String> {
    let (output, command, flags) = ("text".to_owned(), command.to_owned(), flags.to_vec());
    view::view(&ViewArgs { output, config: None, command, flags }, cli)
}

/// Carries out `kelson config`, for commands that are `cli`'s.
///
/// # Errors
/// The configuration cannot be read or is invalid.
pub fn run(command: ConfigCommand, cli: &clap::Command) -> anyhow::Result<()> {
    let ConfigCommand::View(args) = command;
    out!("{}", view::view(&args, cli)?);
    Ok(())
}
