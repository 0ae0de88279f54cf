//! `kelson completion` and `kelson man`: files that packages install with the program, generated from the command
//! line's definition.
#![allow(clippy::disallowed_methods, reason = "blocking: by a command that does nothing else")]

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Command};
use clap_complete::Shell;

/// Arguments of `kelson completion`.
#[derive(Args, Debug)]
pub struct CompletionArgs {
    /// Shell of the completion script.
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Arguments of `kelson man`.
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Directory for the pages, which is created if it does not exist.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Prints the completion script of a shell.
pub fn completion(args: &CompletionArgs, mut command: Command) {
    out!("{}", String::from_utf8_lossy(&script(args.shell, &mut command)));
}

fn script(shell: Shell, command: &mut Command) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "kelson", &mut script);
    script
}

/// Writes one page for each command: `kelson.1`, `kelson-server.1`, `kelson-token-create.1`.
///
/// # Errors
/// A page cannot be written.
pub fn man(args: &ManArgs, command: Command) -> anyhow::Result<()> {
    let dir = || args.dir.display().to_string();
    std::fs::create_dir_all(&args.dir).with_context(dir)?;
    clap_mangen::generate_to(command, &args.dir).with_context(dir)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_shell_completes_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(script(shell, &mut Cli::command())).unwrap();
            for word in ["server", "token", "completion", "data-dir"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn every_command_has_a_page_and_two_runs_are_equal() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let dir = dir.path().join(name);
            man(&ManArgs { dir: dir.clone() }, Cli::command()).unwrap();
            let files = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
            let mut pages: Vec<(String, String)> = files
                .map(|file| {
                    (file.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read_to_string(&file).unwrap())
                })
                .collect();
            pages.sort();
            pages
        };
        let pages = write("a");
        assert_eq!(pages, write("b"));
        let page = |name: &str| pages.iter().find(|(file, _)| file == name).map(|(_, text)| text.as_str());
        assert!(page("kelson-token-create.1").is_some_and(|text| text.contains("ttl")), "{:?}", page("kelson.1"));
        assert!(page("kelson-server.1").is_some_and(|text| text.contains("cluster")));
        assert_eq!(page("kelson-cni.1"), None, "run by runtimes, not by people");
    }
}
