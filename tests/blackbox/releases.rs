//! What is published of a version: the Debian package, in archives and on a fresh Debian, and the list of crates.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use kelson_blackbox::{
    Kubectl,
    Needs::{Installation, OwnServer},
    Outcome, Subject, Test, binary, eventually, free_port, repo_root, sh,
};

use crate::install;

/// A debug build on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "releases::an_air_gap_archive_brings_images_and_a_runtime", needs: OwnServer, run: airgap },
        Test {
            name: "releases::a_package_is_installed_upgraded_removed_and_purged",
            needs: Installation,
            run: lifecycle,
        },
        Test { name: "releases::from_the_script_to_nothing_left", needs: Installation, run: script },
    ]
}

/// The Debian package and the list of crates.
pub fn package(out: &Path) -> Outcome {
    let deb = out.join("kelson_0.1.0_amd64.deb");
    let listed = sh(&format!("dpkg-deb -c {}", deb.display()))?;
    for file in [
        "./usr/bin/kelson",
        "./usr/lib/systemd/system/kelson-server.service",
        "./etc/kelson/kelson.env",
        "./usr/share/man/man1/kelson.1.gz",
        "./usr/share/bash-completion/completions/kelson",
        "./usr/share/doc/kelson/copyright",
    ] {
        ensure!(listed.lines().any(|line| line.ends_with(file) && line.contains(" 0/0 ")), "{file}: {listed}");
    }
    let unit = sh(&format!(
        "dpkg-deb --fsys-tarfile {} | tar -xO ./usr/lib/systemd/system/kelson-agent.service",
        deb.display()
    ))?;
    ensure!(unit.contains("ExecStart=/usr/bin/kelson agent $KELSON_ARGS"), "{unit}");
    let about = sh(&format!("dpkg-deb -f {} Package Version Architecture Depends", deb.display()))?;
    ensure!(about.contains("Version: 0.1.0") && about.contains("Architecture: amd64"), "{about}");
    let crates: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(out.join("kelson-0.1.0-linux-amd64.cdx.json"))?)?;
    let has = |name: &str| crates["components"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == name));
    ensure!(crates["bomFormat"] == "CycloneDX" && has("rustls") && has("kelson-store"), "{crates}");
    ensure!(!has("kelson-doubles"), "what only tests need is no part of it");
    Ok(())
}

/// The archive for machines without a network, and what install.sh takes from it.
fn airgap(_: &Subject) -> Outcome {
    let dir = tempfile::tempdir()?;
    let path = dir.path().display();
    let program = dir.path().join("kelson");
    install::script(&program, &install::PROGRAM.replace("/log", "/dev/null"))?;
    sh(&format!(
        "mkdir {path}/images {path}/runtime {path}/empty && echo image >{path}/images/a.tar && echo no >{path}/images/b.txt"
    ))?;
    let release = |images: &str, runtime: &str| {
        sh(&format!(
            "{} IMAGES_DIR={path}/{images} RUNTIME_DIR={path}/{runtime} {}/scripts/release {} {path}/out 2>&1",
            xtask(),
            repo_root().display(),
            program.display()
        ))
    };
    for (images, runtime) in [("empty", "runtime"), ("images", "runtime")] {
        ensure!(release(images, runtime).is_err(), "{images} {runtime}: something is missing");
    }
    for name in ["containerd", "containerd-shim-runc-v2", "runc"] {
        install::script(&dir.path().join("runtime").join(name), "#!/bin/sh\n")?;
    }
    release("images", "runtime")?;
    sh(&format!(
        "DESTDIR={path}/root KELSON_INSTALL_FROM={path}/out/kelson-0.1.0-linux-amd64-airgap.tar.gz KELSON_INSTALL_SERVICE=systemd \
         sh {}/scripts/install.sh",
        repo_root().display()
    ))?;
    let root = dir.path().join("root");
    for file in ["var/lib/kelson/images/a.tar", "usr/local/bin/containerd", "usr/local/bin/runc"] {
        ensure!(root.join(file).is_file(), "{file}");
    }
    ensure!(!root.join("var/lib/kelson/images/b.txt").exists(), "no archive of an image");
    let mode = sh(&format!("stat -c %a {path}/root/var/lib/kelson"))?;
    ensure!(mode.trim() == "700", "keys will be in it: {mode}");
    Ok(())
}

/// Returns the command that lists the crates for a release: built with everything else, or by cargo.
fn xtask() -> String {
    let xtask = binary().with_file_name("xtask");
    if xtask.is_file() { format!("XTASK={}", xtask.display()) } else { String::new() }
}

/// A fresh Debian, made once and copied for each test.
struct Debian(tempfile::TempDir);

impl Debian {
    fn new() -> anyhow::Result<Self> {
        // Tests run beside each other, and the first one makes it.
        static MAKING: Mutex<()> = Mutex::new(());
        let cached = repo_root().join(".cache/debian");
        let making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        if !cached.join("etc/debian_version").exists() {
            sh(&format!(
                "rm -rf {c}.new && debootstrap --variant=minbase bookworm {c}.new >&2 && mv {c}.new {c}",
                c = cached.display()
            ))?;
        }
        drop(making);
        let root = Self(tempfile::Builder::new().prefix("kelson-debian-").tempdir()?);
        sh(&format!("cp -a {}/. {}/", cached.display(), root.0.path().display()))?;
        for dir in ["proc", "dev"] {
            sh(&format!("mount --rbind /{dir} {p} && mount --make-rslave {p}", p = root.path(dir).display()))?;
        }
        Ok(root)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new("chroot");
        let set = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        command.arg(self.0.path()).args([
            "/usr/bin/env",
            "-i",
            set,
            "DEBIAN_FRONTEND=noninteractive",
            "sh",
            "-ec",
            words,
        ]);
        command
    }

    fn ok(&self, words: &str) -> anyhow::Result<String> {
        let out = self.command(words).output()?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "{words}: {text}");
        Ok(text)
    }

    /// Every path but for what the package manager and programs note for themselves.
    fn tree(&self) -> anyhow::Result<String> {
        sh(&format!(
            "cd {} && find . -xdev -path ./proc -prune -o -path ./dev -prune -o -path './var/lib/dpkg/*' -prune -o -path './var/lib/apt/*' -prune \
             -o -path './var/cache/*' -prune -o -path './var/log/*' -prune -o -path './tmp/*' -prune -o -printf '%p %y %m\n' | sort",
            self.0.path().display()
        ))
    }
}

impl Drop for Debian {
    fn drop(&mut self) {
        for dir in ["proc", "dev"] {
            // Lazily: a program of a failed test may still be in it.
            let _ = sh(&format!("umount -R -l {}", self.path(dir).display()));
        }
    }
}

/// Package → server → workload → upgrade → remove → purge, and nothing is left. No service manager runs in a directory, so the server is
/// started by hand.
fn lifecycle(_: &Subject) -> Outcome {
    let out = published()?;
    let root = Debian::new()?;
    sh(&format!("cp {}/*.deb {}", out.path().display(), root.path("tmp/kelson.deb").display()))?;
    let before = root.tree()?;
    let said = root.ok("apt-get install -y --no-install-recommends /tmp/kelson.deb")?;
    ensure!(said.contains("kelson check looks at this machine"), "{said}");
    let port = free_port()?;
    let serve =
        format!("exec kelson server --disable-agent --bind-address 127.0.0.1 --secure-port {port} >/tmp/log 2>&1");
    let mut server = root.command(&serve).spawn()?;
    let served = served(&root);
    // The file of the package that runs is not replaced by anything but the package.
    let rejected =
        root.command("cp /usr/bin/kelson /tmp/new && printf x >>/tmp/new && kelson upgrade --from /tmp/new").output();
    server.kill()?;
    server.wait()?;
    served?;
    let rejected = String::from_utf8_lossy(&rejected?.stderr).into_owned();
    ensure!(rejected.contains("belongs to the package kelson"), "{rejected}");
    root.ok("sed -i \"s/^KELSON_ARGS=.*/KELSON_ARGS='--disable-agent'/\" /etc/kelson/kelson.env")?;
    root.ok("apt-get install -y --reinstall /tmp/kelson.deb")?;
    ensure!(
        fs::read_to_string(root.path("etc/kelson/kelson.env"))?.contains("--disable-agent"),
        "a changed file stays"
    );
    root.ok("apt-get remove -y kelson")?;
    ensure!(!root.path("usr/bin/kelson").exists() && root.path("var/lib/kelson/store").exists(), "the data stays");
    ensure!(root.path("etc/kelson/kelson.env").exists(), "and the configuration");
    root.ok("apt-get purge -y kelson && rm -f /tmp/*")?;
    let after = root.tree()?;
    ensure!(after == before, "before:\n{before}\nafter:\n{after}");
    Ok(())
}

/// A server in the root serves a workload.
fn served(root: &Debian) -> Outcome {
    let kubectl = Kubectl::new(root.path("var/lib/kelson/admin.kubeconfig"));
    eventually("a ready server", PATIENCE, || {
        let log = || fs::read_to_string(root.path("tmp/log")).unwrap_or_default();
        ensure!(kubectl.run(&["get", "--raw", "/readyz"])?.stdout == "ok", "{}", log());
        Ok(())
    })?;
    kubectl.ok(&["create", "deployment", "web", "--image=example.test/web:1", "--replicas=2"])?;
    eventually("the deployment's pods", PATIENCE, || {
        let pods = kubectl.ok(&["get", "pods", "-l", "app=web", "-o", "name"])?;
        ensure!(pods.lines().count() == 2, "{pods}");
        Ok(())
    })
}

/// A release of the binary under test, without its debug information, as all machines get it.
fn published() -> anyhow::Result<tempfile::TempDir> {
    let out = tempfile::tempdir()?;
    let program = out.path().join("kelson");
    sh(&format!("strip -o {} {}", program.display(), binary().display()))?;
    sh(&format!(
        "{} {}/scripts/release {} {}",
        xtask(),
        repo_root().display(),
        program.display(),
        out.path().display()
    ))?;
    Ok(out)
}

/// Script → server → workload → upgrade → uninstall, and nothing is left. A loop of a shell is the service manager.
fn script(_: &Subject) -> Outcome {
    let out = published()?;
    let root = Debian::new()?;
    let before = root.tree()?;
    sh(&format!(
        "cp {o}/*-linux-amd64.tar.gz {t}/kelson.tar.gz && tar -xzf {t}/kelson.tar.gz -C {t}",
        o = out.path().display(),
        t = root.path("tmp").display()
    ))?;
    let port = free_port()?;
    root.ok(&format!(
        "sh /tmp/kelson-*/install.sh server --disable-agent --bind-address 127.0.0.1 --secure-port {port}"
    ))?;
    let manager =
        ". /etc/kelson/kelson.env; while [ -e /tmp/run ]; do kelson server $KELSON_ARGS >>/tmp/log 2>&1; done";
    fs::write(root.path("tmp/run"), "")?;
    let mut manager = root.command(manager).spawn()?;
    let upgraded = served(&root).and_then(|()| {
        root.ok("cp /usr/local/bin/kelson /tmp/new && printf x >>/tmp/new
             kelson upgrade --from /tmp/new --restart-command 'kill $(cat /var/lib/kelson/kelson.lock)'")
    });
    fs::remove_file(root.path("tmp/run"))?;
    root.ok("kill $(cat /var/lib/kelson/kelson.lock)")?;
    manager.wait()?;
    let said = upgraded?;
    ensure!(said.contains("the server works with Kelson"), "{said}");
    ensure!(root.path("usr/local/bin/kelson.previous").exists(), "the way back");
    root.ok("kelson-uninstall.sh && rm -rf /tmp/*")?;
    let after = root.tree()?;
    ensure!(after == before, "before:\n{before}\nafter:\n{after}");
    Ok(())
}
