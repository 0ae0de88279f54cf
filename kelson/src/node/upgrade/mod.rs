//! `kelson upgrade`: a new version takes the place of the installed one, is started, and stays if it works. `compare` decides whether it
//! may, `program` changes names, `trial` is the journal that survives a kill, `manager` restarts the service, `health` looks at it.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: before anything is started, or by a command that does nothing else"
)]

mod compare;
mod health;
mod manager;
mod program;
mod trial;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use kelson_check::Host;
use sha2::{Digest as _, Sha256};
use tokio::signal::unix::{SignalKind, signal};

use super::args::UpgradeArgs;
use super::status::gather;
use crate::about::About;
use compare::{Circumstances, compare};
use health::Before;
pub use manager::unit;
use manager::{Manager, package_of, program_of};
use program::Program;
use trial::{Decision, Journal};

/// The time that a program may take to print its version.
const VERSION_MAX: Duration = Duration::from_secs(30);
/// The pause after which a program that is open for writing is tried again.
const BUSY: Duration = Duration::from_millis(20);
/// The previous version has worked before, and gets at least this long to work again, however short the user's limit for the new one is.
const RETURN_MIN: Duration = Duration::from_secs(300);
/// The time that the command that restarts the service may take.
const RESTART_MAX: Duration = Duration::from_secs(120);

/// The service of a data directory.
struct Installation {
    dir: PathBuf,
    program: Program,
    manager: Manager,
    is_server: bool,
    before: Before,
}

impl Installation {
    async fn find(args: &UpgradeArgs) -> anyhow::Result<Self> {
        let dir =
            args.data_dir.canonicalize().with_context(|| format!("data directory {}", args.data_dir.display()))?;
        let host = Host::this();
        let pid = gather::holder(&dir)?;
        let running = pid.and_then(|pid| program_of(&host, pid)).filter(|file| file.exists());
        let file = match running {
            Some(file) => file,
            None => {
                std::env::current_exe().and_then(|file| file.canonicalize()).context("find the installed program")?
            }
        };
        if let Some(package) = package_of(&host, &file) {
            bail!(
                "{} belongs to the package {package}; upgrade the package: apt install ./{package}_VERSION.deb",
                file.display()
            );
        }
        let is_server = dir.join("pki").join("ca.crt").exists();
        let role = if is_server { "server" } else { "agent" };
        let manager = match &args.restart_command {
            Some(command) => Manager::Command(command.clone()),
            None => Manager::find(&host, pid, role),
        };
        let before = health::before(&dir, pid, is_server).await;
        Ok(Self { dir, program: Program::new(&file), manager, is_server, before })
    }

    /// Returns the name of the process with the data directory, for messages.
    fn name(&self) -> &'static str {
        if self.is_server { "server" } else { "agent" }
    }

    /// Restarts the service and waits until it works.
    async fn restart(&self, before: &Before, limit: Duration) -> anyhow::Result<u32> {
        let restarted = Timestamp::now();
        self.manager.restart(RESTART_MAX).await?;
        health::wait(&self.dir, before, restarted, limit).await.map_err(|missing| anyhow::anyhow!("{missing}"))
    }
}

/// Runs the command.
///
/// # Errors
/// The new version may not be installed, or does not work; the message says which version runs.
pub async fn run(args: &UpgradeArgs) -> anyhow::Result<()> {
    // A connection that is lost, as with SSH, must not end an upgrade half-way.
    let _hangups = signal(SignalKind::hangup()).context("listen for signals")?;
    let found = Installation::find(args).await?;
    let (file, from) = (found.program.file().display().to_string(), &args.from);
    if digest(from)? == digest(found.program.file())? {
        outln!("{file} is the same file as {}; nothing to do", from.display());
        return Ok(());
    }
    verify_checksum(from)?;
    if args.check {
        let (installed, new) = about_both(found.program.file(), from, &found, args.one_way).await?;
        outln!("{}: {} can be installed over {}", from.display(), named(&new), named(&installed));
        return Ok(());
    }
    // What is checked is the very file that takes the place: the one that was named may change meanwhile, or be where nothing may run.
    found.program.stage(from).with_context(|| format!("copy {} beside {file}", from.display()))?;
    let staged = found.program.staged();
    let (installed, new) = match about_both(found.program.file(), &staged, &found, args.one_way).await {
        Ok(both) => both,
        Err(refused) => {
            found.program.discard().with_context(|| format!("remove {}", staged.display()))?;
            return Err(refused);
        }
    };
    outln!("{file}: {} replaces {}", named(&new), named(&installed));
    found.program.keep().context("keep the installed version")?;
    let journal = Journal::begin(&found.program)?;
    found.program.swap().with_context(|| format!("replace {file}"))?;
    outln!("the previous version is kept as {}", found.program.previous().display());
    let Some(pid) = found.before.pid else {
        journal.leave();
        outln!("nothing runs with {}; the new version is used at the next start", found.dir.display());
        return Ok(());
    };
    if !found.manager.can_restart() {
        journal.leave();
        outln!(
            "process {pid} was not started by systemd or OpenRC: end it (kill {pid}) and start it again as you have started it; pods continue. If the new version does not get ready in {} starts, the next one returns to the previous version",
            trial::STARTS_MAX
        );
        return Ok(());
    }
    outln!("restarting the {} ({}); pods continue", found.name(), found.manager.shown());
    match found.restart(&found.before, args.timeout).await {
        Ok(pid) => {
            journal.end(&found.program).context("remove the journal of the upgrade")?;
            outln!("the {} works with {} (process {pid})", found.name(), named(&new));
            Ok(())
        }
        Err(why) if args.one_way => {
            journal.end(&found.program).context("remove the journal of the upgrade")?;
            bail!(
                "the new version does not work: {why}. It stays, as --one-way says: look at its log, or restore a snapshot with the previous version"
            )
        }
        Err(why) => give_back(&found, journal, &installed, &why, args.timeout).await,
    }
}

/// Returns to the previous version.
async fn give_back(
    found: &Installation,
    journal: Journal,
    installed: &About,
    why: &anyhow::Error,
    limit: Duration,
) -> anyhow::Result<()> {
    outln!("the new version does not work: {why:#}");
    found.program.put_back().context("put the previous version back")?;
    outln!("{} is the previous version again; restarting the {}", found.program.file().display(), found.name());
    // Whichever process has the directory now is the new version's.
    let failed = Before { pid: gather::holder(&found.dir)?, ..found.before.clone() };
    let back = found.restart(&failed, limit.max(RETURN_MIN)).await;
    journal.end(&found.program).context("remove the journal of the upgrade")?;
    let name = found.name();
    match back {
        Ok(pid) => bail!(
            "the upgrade failed, and the {name} works again with {} (process {pid}); its log says why: {why:#}",
            named(installed)
        ),
        Err(still) => bail!(
            "the upgrade failed ({why:#}), the previous version is installed again, and the {name} does not work either: {still:#}"
        ),
    }
}

fn named(about: &About) -> String {
    format!("Kelson {} (Kubernetes {})", about.kelson_version, about.kubernetes_version)
}

/// Returns the descriptions of both programs after a check that the new one may replace the installed one.
async fn about_both(
    installed: &Path,
    new: &Path,
    found: &Installation,
    one_way: bool,
) -> anyhow::Result<(About, About)> {
    let installed = about(installed).await?;
    let new = about(new).await?;
    let circumstances = Circumstances { server_minor: found.before.server_minor, one_way };
    compare(&installed, &new, circumstances)?;
    Ok((installed, new))
}

/// Returns the description that a program prints, which proves that it runs on this machine.
async fn about(program: &Path) -> anyhow::Result<About> {
    let shown = format!("{} version -o json", program.display());
    let mut command = tokio::process::Command::new(program);
    command.args(["version", "-o", "json"]).stdin(std::process::Stdio::null()).kill_on_drop(true);
    let run = async {
        loop {
            match command.output().await {
                // A process that is being started has it open for writing, from the moment when it was copied.
                Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => tokio::time::sleep(BUSY).await,
                done => return done,
            }
        }
    };
    let output = match tokio::time::timeout(VERSION_MAX, run).await {
        Ok(output) => output.with_context(|| format!("{} does not run on this machine", program.display()))?,
        Err(_) => bail!("{shown}: no output within {} s", VERSION_MAX.as_secs()),
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{shown}: {}: {}", output.status, said.lines().next_back().unwrap_or_default());
    }
    kelson_meta::from_json(&output.stdout).with_context(|| format!("{shown}: this is not a program of Kelson"))
}

fn digest(file: &Path) -> anyhow::Result<Vec<u8>> {
    let read = || -> std::io::Result<Vec<u8>> {
        let (mut hash, mut from) = (Sha256::new(), std::fs::File::open(file)?);
        std::io::copy(&mut from, &mut hash)?;
        Ok(hash.finalize().to_vec())
    };
    read().with_context(|| format!("read {}", file.display()))
}

/// Compares a file with its line in the `SHA256SUMS` beside it, where there is one.
fn verify_checksum(file: &Path) -> anyhow::Result<()> {
    let sums = file.with_file_name("SHA256SUMS");
    let Ok(text) = std::fs::read_to_string(&sums) else { return Ok(()) };
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let of_file = |line: &str| {
        let (sum, path) = line.split_once(char::is_whitespace)?;
        (path.trim_start().trim_start_matches('*') == name).then(|| sum.to_owned())
    };
    let Some(wanted) = text.lines().find_map(of_file) else { return Ok(()) };
    let found: String = digest(file)?.iter().map(|byte| format!("{byte:02x}")).collect();
    if found != wanted {
        bail!("{} is damaged: its checksum is not the one in {}", file.display(), sums.display());
    }
    Ok(())
}

/// As a server or agent starts: where an upgrade to this program is in progress, no command watches it, and it did not get ready in
/// several starts, the previous version takes its place and is started instead of it.
pub fn at_start(words: &[OsString]) {
    if !words.get(1).is_some_and(|word| word == "server" || word == "agent") {
        return;
    }
    let Ok(file) = std::env::current_exe() else { return };
    match trial::at_start(&Program::new(&file)) {
        Ok(Decision::Continue) => limit_start(Program::new(&file)),
        Ok(Decision::Returned) => {
            eprintln!(
                "the new version did not get ready in {} starts; starting the previous version, which {} is again",
                trial::STARTS_MAX,
                file.display()
            );
            let error = Command::new(&file).args(&words[1..]).exec();
            eprintln!("start {}: {error}", file.display());
        }
        // Only root can look after root's program; the start does not depend on it.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
        Err(error) => eprintln!("reading the journal of an upgrade of {} failed: {error}", file.display()),
    }
}

/// Ends this process if it does not get ready in time while an upgrade to its program is in progress: a service manager's watchdog begins
/// only when a service is ready. A separate thread, because what hangs may be the runtime.
fn limit_start(program: Program) {
    if !matches!(trial::is_abandoned(&program), Ok(Some(_))) {
        return;
    }
    let limited = std::thread::Builder::new().name("upgrade-trial".to_owned()).spawn(move || {
        loop {
            std::thread::sleep(trial::READY_MAX);
            match trial::is_abandoned(&program) {
                Ok(Some(true)) => {
                    let minutes = trial::READY_MAX.as_secs() / 60;
                    eprintln!("the new version did not get ready within {minutes} minutes; ending it, so that it is started again");
                    std::process::abort();
                }
                Ok(Some(false)) => {}
                Ok(None) | Err(_) => return,
            }
        }
    });
    if let Err(error) = limited {
        eprintln!("limiting the duration of the start failed: {error}");
    }
}

/// A server or agent is ready: an upgrade to this program that no command watches is over.
pub fn at_ready() {
    let done = std::env::current_exe().and_then(|file| trial::at_ready(&Program::new(&file)));
    if let Err(error) = done.or_else(|e| if e.kind() == std::io::ErrorKind::PermissionDenied { Ok(()) } else { Err(e) })
    {
        tracing::warn!(%error, "removing the journal of an upgrade failed; the previous version may return at a later start");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_differs_from_its_checksum_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kelson");
        std::fs::write(&file, "new").unwrap();
        verify_checksum(&file).unwrap();
        let sum: String = digest(&file).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        let sums = |text: &str| std::fs::write(dir.path().join("SHA256SUMS"), text).unwrap();
        sums(&format!("{sum}  other\n"));
        verify_checksum(&file).unwrap();
        sums(&format!("0000  other\n{sum} *kelson\n"));
        verify_checksum(&file).unwrap();
        std::fs::write(&file, "cut").unwrap();
        assert!(verify_checksum(&file).unwrap_err().to_string().contains("is damaged"));
    }

    #[tokio::test]
    async fn another_program_is_rejected_before_anything_changes() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let program = |text: &str| {
            let file = dir.path().join("program");
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
            file
        };
        let why = async |text: &str| format!("{:#}", about(&program(text)).await.unwrap_err());
        assert!(why("\x7fELF of another machine").await.contains("does not run on this machine"));
        assert!(why("#!/bin/sh\necho hello\n").await.contains("is not a program of Kelson"));
        assert!(why("#!/bin/sh\necho no such command >&2; exit 2\n").await.contains("no such command"));
        let json = serde_json::to_string(&About::this()).unwrap();
        assert_eq!(about(&program(&format!("#!/bin/sh\necho '{json}'\n"))).await.unwrap(), About::this());
    }
}
