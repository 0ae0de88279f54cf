//! `kelson upgrade`: a new version takes the place of the installed one, and the old one returns where the new one does not work, also
//! when the command is killed half-way. The service manager is a loop of a shell that starts the installed program again and again.
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Kubectl, Needs::OwnServer, Outcome, Subject, Test, binary, eventually, free_port, sh};

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "upgrade::a_version_that_works_stays", needs: OwnServer, run: works },
        Test { name: "upgrade::the_old_version_returns_by_the_command_or_by_starts", needs: OwnServer, run: returns },
    ]
}

/// A debug build on a machine under load starts within seconds, and a version that fails is started four times.
const PATIENCE: Duration = Duration::from_secs(120);

/// An installed program that a loop keeps running.
struct Service {
    dir: tempfile::TempDir,
    manager: Child,
}

impl Service {
    fn start() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("kelson-upgrade-").tempdir()?;
        let path = dir.path().display();
        fs::create_dir(dir.path().join("bin"))?;
        copy(&binary(), &dir.path().join("bin/kelson"))?;
        let port = free_port()?;
        let script = format!(
            "while [ -e {path}/run ]; do {path}/bin/kelson server --disable-agent --bind-address=127.0.0.1 \
             --data-dir={path}/data --secure-port={port} >>{path}/log 2>&1; done"
        );
        fs::write(dir.path().join("run"), "")?;
        let manager = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).spawn()?;
        let service = Self { dir, manager };
        service.is_ready()?;
        Ok(service)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// The process with the data directory.
    fn pid(&self) -> anyhow::Result<String> {
        Ok(fs::read_to_string(self.path("data/kelson.lock"))?.trim().to_owned())
    }

    fn is_ready(&self) -> Outcome {
        let kubectl = Kubectl::new(self.path("data/admin.kubeconfig"));
        eventually("a ready server", PATIENCE, || {
            ensure!(kubectl.run(&["get", "--raw", "/readyz"])?.stdout == "ok", "{}", self.log());
            Ok(())
        })
    }

    fn upgrade(&self, from: &Path, more: &[&str]) -> Command {
        let mut command = Command::new(self.path("bin/kelson"));
        let restart = format!("kill $(cat {}) 2>/dev/null || true", self.path("data/kelson.lock").display());
        command.arg("upgrade").arg("--from").arg(from).arg("--data-dir").arg(self.path("data"));
        command.args(["--restart-command", &restart]).args(more).stdin(Stdio::null());
        command
    }

    /// Returns the names of the files in the program's directory.
    fn files(&self) -> anyhow::Result<Vec<String>> {
        let entries =
            fs::read_dir(self.path("bin"))?.map(|entry| anyhow::Ok(entry?.file_name().to_string_lossy().into_owned()));
        let mut names = entries.collect::<anyhow::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    /// A version that runs and says who it is, and whose server never gets ready: the name of a file that it writes is in a directory
    /// that is not there.
    fn broken(&self) -> anyhow::Result<PathBuf> {
        let file = self.path("broken");
        sh(&format!("sed 's#admin\\.kubeconfig#admin/kubeconfig#g' {} >{}", binary().display(), file.display()))?;
        Ok(file)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path("run"));
        if let Ok(pid) = self.pid() {
            let _ = sh(&format!("kill -9 {pid}"));
        }
        let _ = self.manager.wait();
    }
}

/// Copies a program by another process: while this process has a program open for writing, its children inherit it.
fn copy(from: &Path, to: &Path) -> Outcome {
    sh(&format!("cp {} {} && chmod 755 {1}", from.display(), to.display())).map(drop)
}

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

fn sum(file: &Path) -> anyhow::Result<String> {
    Ok(sh(&format!("sha256sum <{}", file.display()))?.trim().to_owned())
}

fn works(_: &Subject) -> Outcome {
    let service = Service::start()?;
    let (program, new) = (service.path("bin/kelson"), service.path("new"));
    sh(&format!("cp {p} {n} && printf x >>{n}", p = program.display(), n = new.display()))?;
    let (old_sum, new_sum, old_pid) = (sum(&program)?, sum(&new)?, service.pid()?);
    // What may not be installed changes nothing.
    let older = service.path("older");
    let about = sh(&format!("{} version -o json", program.display()))?;
    let about: serde_json::Value = serde_json::from_str(&about)?;
    let mut past = about.clone();
    past["minor"] = (about["minor"].as_u64().context("minor")? - 1).into();
    sh(&format!("printf '#!/bin/sh\\necho '\\''%s'\\''\\n' '{past}' >{o} && chmod 755 {o}", o = older.display()))?;
    let out = service.upgrade(&older, &[]).output()?;
    ensure!(!out.status.success() && text(&out).contains("downgrade: Kubernetes"), "{}", text(&out));
    ensure!(service.files()? == ["kelson"] && sum(&program)? == old_sum, "{:?}", service.files()?);
    let out = service.upgrade(&new, &["--check"]).output()?;
    ensure!(out.status.success() && text(&out).contains("can be installed over"), "{}", text(&out));
    ensure!(service.files()? == ["kelson"] && service.pid()? == old_pid, "a check changes nothing");

    let out = service.upgrade(&new, &[]).output()?;
    ensure!(
        out.status.success() && text(&out).contains("the server works with Kelson"),
        "{}\n{}",
        text(&out),
        service.log()
    );
    ensure!(service.files()? == ["kelson", "kelson.previous"], "{:?}", service.files()?);
    ensure!(sum(&program)? == new_sum && sum(&service.path("bin/kelson.previous"))? == old_sum, "who is who");
    ensure!(service.pid()? != old_pid, "it was restarted");
    service.is_ready()?;
    let out = service.upgrade(&new, &[]).output()?;
    ensure!(out.status.success() && text(&out).contains("nothing to do"), "{}", text(&out));
    // The way back is the same.
    let out = service.upgrade(&service.path("bin/kelson.previous"), &[]).output()?;
    ensure!(out.status.success() && sum(&program)? == old_sum, "{}", text(&out));
    service.is_ready()
}

fn returns(_: &Subject) -> Outcome {
    let service = Service::start()?;
    let (program, broken) = (service.path("bin/kelson"), service.broken()?);
    let old_sum = sum(&program)?;
    let out = service.upgrade(&broken, &["--timeout", "5s"]).output()?;
    ensure!(!out.status.success(), "{}", text(&out));
    for said in ["the new version does not work", "the upgrade failed, and the server works again with Kelson"] {
        ensure!(text(&out).contains(said), "{said}: {}\n{}", text(&out), service.log());
    }
    ensure!(sum(&program)? == old_sum && service.files()? == ["kelson", "kelson.previous"], "{:?}", service.files()?);
    service.is_ready()?;

    // Killed as soon as the new version is in place: its own starts bring the old one back.
    let mut command = service.upgrade(&broken, &["--timeout", "1h"]).stdout(Stdio::piped()).spawn()?;
    let lines = BufReader::new(command.stdout.take().context("output")?).lines();
    let restarting = lines.map_while(Result::ok).find(|line| line.contains("restarting the server"));
    command.kill()?;
    command.wait()?;
    ensure!(restarting.is_some(), "{}", service.log());
    ensure!(sum(&program)? != old_sum, "the new version is in place");
    // The kill may have come before the restart.
    sh(&format!("kill {} 2>/dev/null || true", service.pid()?))?;
    eventually("the old version", PATIENCE, || {
        ensure!(sum(&program)? == old_sum, "{}", service.log());
        Ok(())
    })?;
    service.is_ready()?;
    eventually("the end of the upgrade", PATIENCE, || {
        ensure!(service.files()? == ["kelson", "kelson.previous"], "{:?}", service.files()?);
        Ok(())
    })?;
    ensure!(service.log().contains("the new version did not get ready in 3 starts"), "{}", service.log());
    Ok(())
}
