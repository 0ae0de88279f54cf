//! Who starts the server or agent of a data directory, and how it is restarted.
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use kelson_check::Host;

/// The service manager that restarts a server or agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manager {
    /// A unit of systemd.
    Systemd(String),
    /// A service of OpenRC.
    OpenRc(String),
    /// A command of the user's (`--restart-command`).
    Command(String),
    /// Nothing that is known.
    None,
}

impl Manager {
    /// The manager of a process, or of the service that install.sh makes for a role (`server`, `agent`).
    pub fn find(host: &Host, pid: Option<u32>, role: &str) -> Self {
        let name = format!("kelson-{role}");
        if host.has("/run/systemd/system") {
            let unit = pid.and_then(|pid| unit_of(&host.text(format!("/proc/{pid}/cgroup"))));
            let is_installed = || {
                let dirs = ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
                dirs.iter().any(|dir| host.has(format!("{dir}/{name}.service")))
            };
            if let Some(unit) = unit.or_else(|| is_installed().then(|| format!("{name}.service"))) {
                return Self::Systemd(unit);
            }
        }
        if host.has("/sbin/openrc-run") && host.has(format!("/etc/init.d/{name}")) {
            return Self::OpenRc(name);
        }
        Self::None
    }

    /// The command line that restarts the service; `None` where only the user can.
    fn command(&self) -> Option<Vec<&str>> {
        match self {
            // The unit is ready when the server is, and a server that does not get ready would be waited for without end.
            Self::Systemd(unit) => Some(vec!["systemctl", "restart", "--no-block", unit]),
            Self::OpenRc(service) => Some(vec!["rc-service", service, "restart"]),
            Self::Command(command) => Some(vec!["sh", "-c", command]),
            Self::None => None,
        }
    }

    /// The command as a user types it, for messages.
    pub fn shown(&self) -> String {
        match self {
            Self::Systemd(unit) => format!("systemctl restart {unit}"),
            Self::OpenRc(service) => format!("rc-service {service} restart"),
            Self::Command(command) => command.clone(),
            Self::None => "restart it as you have started it".to_owned(),
        }
    }

    /// Whether this can restart the service.
    pub fn can_restart(&self) -> bool {
        *self != Self::None
    }

    /// Restarts the service, and waits at most `limit` for the command.
    ///
    /// # Errors
    /// The command cannot be started, fails, or does not end.
    pub async fn restart(&self, limit: Duration) -> anyhow::Result<()> {
        let Some(words) = self.command() else { bail!("the service cannot be restarted by this command") };
        let mut command = tokio::process::Command::new(words[0]);
        command.args(&words[1..]).stdin(std::process::Stdio::null()).kill_on_drop(true);
        let shown = self.shown();
        let status = match tokio::time::timeout(limit, command.status()).await {
            Ok(status) => status.with_context(|| shown.clone())?,
            Err(_) => bail!("{shown} has not ended within {} s", limit.as_secs()),
        };
        if !status.success() {
            bail!("{shown} failed: {status}");
        }
        Ok(())
    }
}

/// The unit of systemd whose journal has the log of a server or agent.
pub fn unit(host: &Host, pid: Option<u32>, role: &str) -> Option<String> {
    match Manager::find(host, pid, role) {
        Manager::Systemd(unit) => Some(unit),
        _ => None,
    }
}

/// The unit in which systemd runs a process, by its cgroups (`/proc/PID/cgroup`). `None`: it is in a user's session.
fn unit_of(cgroups: &str) -> Option<String> {
    let path = cgroups.lines().find_map(|line| {
        let (hierarchy, path) = line.split_once(':')?.1.split_once(':')?;
        (hierarchy.is_empty() || hierarchy == "name=systemd").then_some(path)
    })?;
    let unit = path.split('/').find(|part| part.ends_with(".service"))?;
    (!unit.starts_with("user@")).then(|| unit.to_owned())
}

/// The file of a process's program, also where its name has another file by now; `None`: it cannot be read.
pub fn program_of(host: &Host, pid: u32) -> Option<PathBuf> {
    let link = host.link(format!("/proc/{pid}/exe"))?;
    let text = link.to_string_lossy();
    Some(text.strip_suffix(" (deleted)").map_or_else(|| link.clone(), PathBuf::from))
}

/// The Debian package that a file belongs to.
pub fn package_of(host: &Host, file: &Path) -> Option<String> {
    let lists = host
        .names("/var/lib/dpkg/info")
        .into_iter()
        .filter(|name| name.starts_with("kelson") && name.ends_with(".list"));
    let has =
        |list: &String| host.text(format!("/var/lib/dpkg/info/{list}")).lines().any(|line| Path::new(line) == file);
    lists.into_iter().find(has).map(|list| list.trim_end_matches(".list").to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_unit_of_a_process_is_that_of_its_cgroup() {
        let rows = [
            ("0::/system.slice/kelson-server.service\n", Some("kelson-server.service")),
            ("0::/system.slice/box.service/kelson\n", Some("box.service")),
            ("12:cpu:/a.service\n1:name=systemd:/system.slice/kelson-agent.service\n", Some("kelson-agent.service")),
            ("0::/user.slice/user-0.slice/session-1.scope\n", None),
            ("0::/user.slice/user-0.slice/user@0.service/app.slice/tmux.scope\n", None),
            ("0::/\n", None),
            ("", None),
        ];
        for (text, want) in rows {
            assert_eq!(unit_of(text).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn the_manager_of_the_machine_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let find = |pid| Manager::find(&Host::fake(dir.path(), &[]), pid, "server");
        assert_eq!(find(None), Manager::None);
        put("sbin/openrc-run", "");
        assert_eq!(find(None), Manager::None, "no service is installed");
        put("etc/init.d/kelson-server", "");
        assert_eq!(find(Some(7)), Manager::OpenRc("kelson-server".to_owned()));
        put("run/systemd/system/x", "");
        put("proc/7/cgroup", "0::/system.slice/second.service\n");
        assert_eq!(find(Some(7)), Manager::Systemd("second.service".to_owned()));
        put("etc/systemd/system/kelson-server.service", "");
        assert_eq!(find(None), Manager::Systemd("kelson-server.service".to_owned()));
    }

    #[test]
    fn a_file_of_a_package_and_a_program_that_was_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("var/lib/dpkg/info")).unwrap();
        fs::create_dir_all(dir.path().join("proc/7")).unwrap();
        fs::write(dir.path().join("var/lib/dpkg/info/kelson.list"), "/.\n/usr/bin/kelson\n").unwrap();
        std::os::unix::fs::symlink("/opt/kelson (deleted)", dir.path().join("proc/7/exe")).unwrap();
        let host = Host::fake(dir.path(), &[]);
        assert_eq!(package_of(&host, Path::new("/usr/bin/kelson")).as_deref(), Some("kelson"));
        assert_eq!(package_of(&host, Path::new("/usr/local/bin/kelson")), None);
        assert_eq!(program_of(&host, 7), Some("/opt/kelson".into()));
        assert_eq!(program_of(&host, 8), None);
    }

    #[tokio::test]
    async fn a_restart_that_fails_or_does_not_end_is_an_error() {
        let restart = async |command: &str, limit| {
            Manager::Command(command.to_owned()).restart(limit).await.err().map(|e| e.to_string())
        };
        assert_eq!(restart("exit 0", Duration::from_secs(60)).await, None);
        assert!(restart("exit 3", Duration::from_secs(60)).await.unwrap().contains("exit 3 failed"));
        assert!(restart("sleep 2", Duration::from_millis(50)).await.unwrap().contains("has not ended"));
    }
}
