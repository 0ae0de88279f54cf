//! Settings of the kubelet's process: OOM score, open files, kernel checks, rate limits.
#![allow(clippy::disallowed_methods, reason = "blocking: only kernel files, no disk; at start")]
use std::path::Path;
use std::time::Duration;

/// A token bucket rate limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pacing {
    /// Sustained requests per second.
    pub per_second: f64,
    /// Burst of requests.
    pub burst: u32,
}

/// Settings of the kubelet's process.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessConfig {
    /// `oomScoreAdj`: the kernel's OOM score of the process. `None` leaves it unchanged.
    pub oom_score: Option<i32>,
    /// `maxOpenFiles`: limit of open files. `None`: the maximum that the machine allows.
    pub open_files: Option<u64>,
    /// `kubeAPIQPS` and `kubeAPIBurst`. `None`: no limit.
    pub api: Option<Pacing>,
    /// `eventRecordQPS` and `eventBurst`. `None`: no limit.
    pub events: Option<Pacing>,
    /// `runtimeRequestTimeout`: timeout of ordinary CRI calls.
    pub runtime_request: Duration,
    /// `protectKernelDefaults`: whether the kubelet does not start if kernel settings differ from the expected ones.
    pub protects_kernel: bool,
    /// `failCgroupV1`: whether the kubelet does not start on cgroup v1. `true` by default in upstream; Kelson supports both versions.
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

/// Kernel settings and the values that kubelets expect.
const KERNEL: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

impl ProcessConfig {
    /// Checks whether the kubelet can run on this machine.
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

    /// Applies the settings to this process. Returns a message for each setting that the kernel rejects; the kubelet runs without it.
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
    fn unsuitable_machines_are_rejected() {
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
