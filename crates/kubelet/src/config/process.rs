//! The kubelet as a process: what it takes of its machine, what it wants of the kernel, and how often it asks others.
#![allow(clippy::disallowed_methods, reason = "blocking: the kernel's memory, no disk; at start")]
use std::path::Path;
use std::time::Duration;

/// How many requests go at once, and how many a second after that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pacing {
    /// Requests a second.
    pub per_second: f64,
    /// Requests at once.
    pub burst: u32,
}

/// What it is to be as a process.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessConfig {
    /// `oomScoreAdj`: how soon the kernel ends it when memory is short; `None`: as it was started.
    pub oom_score: Option<i32>,
    /// `maxOpenFiles`: as many files as it may have open; `None`: as many as the machine lets it.
    pub open_files: Option<u64>,
    /// `kubeAPIQPS` and `kubeAPIBurst`; `None`: the API is asked as often as there is need.
    pub api: Option<Pacing>,
    /// `eventRecordQPS` and `eventBurst`; `None`: events are written as they happen.
    pub events: Option<Pacing>,
    /// `runtimeRequestTimeout`: how long the runtime may take for an ordinary call.
    pub runtime_request: Duration,
    /// `protectKernelDefaults`: whether a kernel is refused that does otherwise than kubelets count on.
    pub protects_kernel: bool,
    /// `failCgroupV1`: whether a machine is refused whose cgroups are of version 1. Upstream's kubelet does unless it is told
    /// otherwise; here both work.
    pub refuses_cgroup_v1: bool,
}

impl Default for ProcessConfig {
    fn default() -> Self {
        Self {
            oom_score: None,
            open_files: None,
            api: None,
            events: None,
            runtime_request: Duration::from_secs(120),
            protects_kernel: false,
            refuses_cgroup_v1: false,
        }
    }
}

/// Settings of the kernel that kubelets count on, with the value each is to have.
const KERNEL: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

impl ProcessConfig {
    /// Why it does not run on this machine, if there is a reason.
    ///
    /// # Errors
    /// The reasons, in upstream's words.
    pub fn suits(&self, sysctls: &Path, cgroups: &Path) -> Result<(), String> {
        if self.refuses_cgroup_v1 && !cgroups.join("cgroup.controllers").exists() {
            let why = "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and \
                       will be removed in a future release";
            return Err(why.to_owned());
        }
        if !self.protects_kernel {
            return Ok(());
        }
        let fault = |(name, wanted): &(&str, &str)| match std::fs::read_to_string(sysctls.join(name)) {
            Ok(value) if value.trim() == *wanted => None,
            Ok(value) => {
                let value = value.trim();
                Some(format!("invalid kernel flag: {name}, expected value: {wanted}, actual value: {value}"))
            }
            Err(e) => Some(format!("{}: {e}", sysctls.join(name).display())),
        };
        let faults: Vec<String> = KERNEL.iter().filter_map(fault).collect();
        match faults.as_slice() {
            [] => Ok(()),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }

    /// Makes this process so; gives what the kernel does not let it have, which is no reason not to run.
    pub fn settle(&self) -> Vec<String> {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let mut faults = Vec::new();
        if let Some(score) = self.oom_score
            && let Err(e) = std::fs::write("/proc/self/oom_score_adj", score.to_string())
        {
            faults.push(format!("oomScoreAdj {score}: {e}"));
        }
        if let Some(files) = self.open_files
            && let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum: Some(files) })
        {
            faults.push(format!("maxOpenFiles {files}: {e}"));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_it_does_not_run_on() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (sysctls, cgroups) = (dir.path().join("sys"), dir.path().join("cgroup"));
        std::fs::create_dir_all(sysctls.join("kernel/keys")).expect("mkdir");
        std::fs::create_dir_all(sysctls.join("vm")).expect("mkdir");
        std::fs::create_dir(&cgroups).expect("mkdir");
        for (name, value) in KERNEL {
            std::fs::write(sysctls.join(name), format!("{value}\n")).expect("written");
        }
        let usual = ProcessConfig::default();
        let strict = ProcessConfig { protects_kernel: true, ..usual.clone() };
        assert_eq!(strict.suits(&sysctls, &cgroups), Ok(()));
        std::fs::write(sysctls.join("kernel/panic"), "0\n").expect("written");
        let why = "invalid kernel flag: kernel/panic, expected value: 10, actual value: 0";
        assert_eq!((strict.suits(&sysctls, &cgroups), usual.suits(&sysctls, &cgroups)), (Err(why.into()), Ok(())));
        std::fs::remove_file(sysctls.join("vm/panic_on_oom")).expect("removed");
        assert!(strict.suits(&sysctls, &cgroups).is_err_and(|e| e.starts_with('[') && e.contains("vm/panic_on_oom")));
        let new = ProcessConfig { refuses_cgroup_v1: true, ..usual };
        assert!(new.suits(&sysctls, &cgroups).is_err_and(|e| e.contains("not run on a host using cgroup v1")));
        std::fs::write(cgroups.join("cgroup.controllers"), "cpu").expect("written");
        assert_eq!(new.suits(&sysctls, &cgroups), Ok(()));
    }
}
