//! Flags of upstream's kubelet that set a field of its configuration file, over the file's value. Flags whose field has
//! no effect here are not listed: they are accepted and logged as such.
use std::collections::BTreeMap;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Map, Value, json};

/// The format of a flag's value.
#[derive(Clone, Copy, Debug)]
enum ValueFormat {
    Text,
    Truth,
    Whole,
    /// Separated by commas, or repeated.
    List,
    /// Pairs of a name and a string, separated by this character.
    Pairs(char),
    /// Pairs of a name and a string, separated by a colon; a name may be repeated.
    Lists,
    /// Pairs of a name and a boolean.
    Truths,
}

/// Flag, field, format, and help.
const FLAGS: &[(&str, &str, ValueFormat, &str)] = &[
    ("allowed-unsafe-sysctls", "allowedUnsafeSysctls", ValueFormat::List, "Unsafe sysctls that pods may set."),
    (
        "anonymous-auth",
        "authentication.anonymous.enabled",
        ValueFormat::Truth,
        "Allow anonymous requests; not supported.",
    ),
    (
        "authentication-token-webhook",
        "authentication.webhook.enabled",
        ValueFormat::Truth,
        "Authenticate bearer tokens with TokenReviews.",
    ),
    (
        "authentication-token-webhook-cache-ttl",
        "authentication.webhook.cacheTTL",
        ValueFormat::Text,
        "Time to cache successful TokenReviews.",
    ),
    (
        "authorization-mode",
        "authorization.mode",
        ValueFormat::Text,
        "Authorization mode of the kubelet's API: Webhook authorizes with SubjectAccessReviews.",
    ),
    (
        "authorization-webhook-cache-authorized-ttl",
        "authorization.webhook.cacheAuthorizedTTL",
        ValueFormat::Text,
        "Time to cache allowed requests.",
    ),
    (
        "authorization-webhook-cache-unauthorized-ttl",
        "authorization.webhook.cacheUnauthorizedTTL",
        ValueFormat::Text,
        "Time to cache denied requests.",
    ),
    ("cgroup-driver", "cgroupDriver", ValueFormat::Text, "Cgroup driver: cgroupfs or systemd."),
    ("cgroup-root", "cgroupRoot", ValueFormat::Text, "Parent cgroup of all pods."),
    ("cgroups-per-qos", "cgroupsPerQOS", ValueFormat::Truth, "Create a cgroup hierarchy by QoS class and pod."),
    (
        "container-log-max-files",
        "containerLogMaxFiles",
        ValueFormat::Whole,
        "Maximum number of log files per container.",
    ),
    ("container-log-max-size", "containerLogMaxSize", ValueFormat::Text, "Size at which a container's log is rotated."),
    ("cpu-cfs-quota", "cpuCFSQuota", ValueFormat::Truth, "Enforce CPU limits with CFS quotas."),
    (
        "enable-debugging-handlers",
        "enableDebuggingHandlers",
        ValueFormat::Truth,
        "Serve exec, attach, port-forward and logs.",
    ),
    ("enable-server", "enableServer", ValueFormat::Truth, "Serve the kubelet's API."),
    (
        "enforce-node-allocatable",
        "enforceNodeAllocatable",
        ValueFormat::List,
        "Cgroups on which the node's reservations are enforced.",
    ),
    ("event-burst", "eventBurst", ValueFormat::Whole, "Burst of events."),
    ("event-qps", "eventRecordQPS", ValueFormat::Whole, "Events per second; 0 is unlimited."),
    ("eviction-hard", "evictionHard", ValueFormat::Pairs('<'), "Hard eviction thresholds."),
    (
        "eviction-max-pod-grace-period",
        "evictionMaxPodGracePeriod",
        ValueFormat::Whole,
        "Maximum grace period in seconds of pods evicted by a soft threshold.",
    ),
    (
        "eviction-minimum-reclaim",
        "evictionMinimumReclaim",
        ValueFormat::Pairs('='),
        "Minimum resources to reclaim beyond an eviction threshold.",
    ),
    (
        "eviction-pressure-transition-period",
        "evictionPressureTransitionPeriod",
        ValueFormat::Text,
        "Time without pressure before a pressure condition is cleared.",
    ),
    ("eviction-soft", "evictionSoft", ValueFormat::Pairs('<'), "Soft eviction thresholds."),
    (
        "eviction-soft-grace-period",
        "evictionSoftGracePeriod",
        ValueFormat::Pairs('='),
        "Grace periods of soft eviction thresholds.",
    ),
    ("fail-cgroupv1", "failCgroupV1", ValueFormat::Truth, "Fail to start on a machine with cgroup v1."),
    (
        "feature-gates",
        "featureGates",
        ValueFormat::Truths,
        "Feature gates to enable or disable. Gates that are always on have no effect.",
    ),
    (
        "file-check-frequency",
        "fileCheckFrequency",
        ValueFormat::Text,
        "Interval of checks for changed static pod manifests.",
    ),
    ("healthz-bind-address", "healthzBindAddress", ValueFormat::Text, "Address of the kubelet's health endpoint."),
    ("healthz-port", "healthzPort", ValueFormat::Whole, "Port of the health endpoint; 0 disables it."),
    (
        "image-gc-high-threshold",
        "imageGCHighThresholdPercent",
        ValueFormat::Whole,
        "Disk usage in percent above which image garbage collection starts.",
    ),
    (
        "image-gc-low-threshold",
        "imageGCLowThresholdPercent",
        ValueFormat::Whole,
        "Disk usage in percent at which image garbage collection stops.",
    ),
    ("http-check-frequency", "httpCheckFrequency", ValueFormat::Text, "Interval of requests to --manifest-url."),
    (
        "image-service-endpoint",
        "imageServiceEndpoint",
        ValueFormat::Text,
        "Socket of the image service [default: the runtime's]",
    ),
    ("kube-api-burst", "kubeAPIBurst", ValueFormat::Whole, "Burst of requests to the API server."),
    ("kube-api-qps", "kubeAPIQPS", ValueFormat::Whole, "Requests per second to the API server [default: unlimited]"),
    ("kube-reserved-cgroup", "kubeReservedCgroup", ValueFormat::Text, "Cgroup of Kubernetes components."),
    (
        "local-storage-capacity-isolation",
        "localStorageCapacityIsolation",
        ValueFormat::Truth,
        "Enforce ephemeral storage limits.",
    ),
    ("manifest-url", "staticPodURL", ValueFormat::Text, "URL of additional static pod manifests."),
    (
        "manifest-url-header",
        "staticPodURLHeader",
        ValueFormat::Lists,
        "HTTP headers for requests to --manifest-url. Repeatable.",
    ),
    ("max-open-files", "maxOpenFiles", ValueFormat::Whole, "Limit of open files of the kubelet."),
    (
        "minimum-image-ttl-duration",
        "imageMinimumGCAge",
        ValueFormat::Text,
        "Minimum time that an unused image is kept.",
    ),
    (
        "node-status-max-images",
        "nodeStatusMaxImages",
        ValueFormat::Whole,
        "Maximum number of images in the node's status; -1 is unlimited.",
    ),
    (
        "node-status-update-frequency",
        "nodeStatusUpdateFrequency",
        ValueFormat::Text,
        "Interval of node status computation.",
    ),
    ("oom-score-adj", "oomScoreAdj", ValueFormat::Whole, "OOM score adjustment of the kubelet."),
    ("pod-manifest-path", "staticPodPath", ValueFormat::Text, "Directory of static pods' manifests."),
    (
        "pod-max-pids",
        "podPidsLimit",
        ValueFormat::Whole,
        "Maximum number of processes per pod; -1 applies only the node's limit.",
    ),
    ("pods-per-core", "podsPerCore", ValueFormat::Whole, "Maximum number of pods per CPU; 0 applies only --max-pods."),
    (
        "protect-kernel-defaults",
        "protectKernelDefaults",
        ValueFormat::Truth,
        "Fail to start when kernel parameters differ from the kubelet's defaults.",
    ),
    ("provider-id", "providerID", ValueFormat::Text, "ID of this machine at its cloud provider."),
    (
        "qos-reserved",
        "qosReserved",
        ValueFormat::Pairs('='),
        "Percentage of requests withheld from lower QoS classes (memory=50%; feature gate QOSReserved).",
    ),
    ("read-only-port", "readOnlyPort", ValueFormat::Whole, "Unauthenticated port; only 0 (disabled) is supported."),
    ("registry-burst", "registryBurst", ValueFormat::Whole, "Burst of image pulls."),
    ("registry-qps", "registryPullQPS", ValueFormat::Whole, "Image pulls per second; 0 is unlimited."),
    (
        "rotate-server-certificates",
        "serverTLSBootstrap",
        ValueFormat::Truth,
        "Request the serving certificate from the cluster.",
    ),
    ("runonce", "runOnce", ValueFormat::Truth, "Not supported, as in upstream Kubernetes."),
    (
        "runtime-request-timeout",
        "runtimeRequestTimeout",
        ValueFormat::Text,
        "Timeout of runtime requests other than long-running ones.",
    ),
    (
        "seccomp-default",
        "seccompDefault",
        ValueFormat::Truth,
        "Use the runtime's default seccomp profile for containers without one.",
    ),
    ("serialize-image-pulls", "serializeImagePulls", ValueFormat::Truth, "Pull one image at a time."),
    (
        "streaming-connection-idle-timeout",
        "streamingConnectionIdleTimeout",
        ValueFormat::Text,
        "Idle time after which a stream is closed.",
    ),
    ("system-reserved-cgroup", "systemReservedCgroup", ValueFormat::Text, "Cgroup of system processes."),
    ("tls-cert-file", "tlsCertFile", ValueFormat::Text, "Serving certificate."),
    ("tls-cipher-suites", "tlsCipherSuites", ValueFormat::List, "Allowed TLS 1.2 cipher suites, by Go's names."),
    ("tls-min-version", "tlsMinVersion", ValueFormat::Text, "Minimum TLS version, such as VersionTLS13."),
    ("tls-private-key-file", "tlsPrivateKeyFile", ValueFormat::Text, "Private key of the serving certificate."),
    ("volume-stats-agg-period", "volumeStatsAggPeriod", ValueFormat::Text, "Interval of volume usage measurements."),
];

/// The values of these flags, by the paths of their fields.
#[derive(Clone, Debug, Default)]
pub struct FieldArgs(pub Vec<(&'static str, Value)>);

impl Args for FieldArgs {
    fn augment_args(command: Command) -> Command {
        FLAGS.iter().fold(command, |command, (flag, _, form, help)| {
            let arg = Arg::new(*flag).long(*flag).help(*help);
            command.arg(match form {
                ValueFormat::Text => arg.value_name("TEXT"),
                ValueFormat::Truth => arg.value_name("BOOL").num_args(0..=1).default_missing_value("true"),
                ValueFormat::Whole => arg.value_name("N").allow_negative_numbers(true),
                ValueFormat::List => arg.value_name("A,B,…").action(ArgAction::Append),
                ValueFormat::Pairs(_) => arg.value_name("NAME=VALUE,…").action(ArgAction::Append),
                ValueFormat::Lists => arg.value_name("NAME:VALUE,…").action(ArgAction::Append),
                ValueFormat::Truths => arg.value_name("NAME=BOOL,…").action(ArgAction::Append),
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for FieldArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut found = Self::default();
        found.update_from_arg_matches(matches)?;
        Ok(found)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for (flag, path, form, _) in FLAGS {
            let Some(words) = matches.get_many::<String>(flag) else { continue };
            let words: Vec<&str> = words.map(String::as_str).collect();
            let value = value(*form, &words).map_err(|why| {
                let why = format!("invalid value {:?} for '--{flag}': {why}\n", words.join(","));
                clap::Error::raw(ErrorKind::InvalidValue, why)
            })?;
            self.0.push((*path, value));
        }
        Ok(())
    }
}

/// Returns the value of the field; for a flag with a single value, the last one is used.
fn value(form: ValueFormat, words: &[&str]) -> Result<Value, String> {
    let last = words.last().copied().unwrap_or_default();
    let parts = || words.iter().flat_map(|w| w.split(',')).map(str::trim).filter(|p| !p.is_empty());
    Ok(match form {
        ValueFormat::Text => json!(last),
        ValueFormat::Truth => json!(truth(last)?),
        ValueFormat::Whole => json!(last.parse::<i64>().map_err(|e| e.to_string())?),
        ValueFormat::List => json!(parts().collect::<Vec<_>>()),
        ValueFormat::Pairs(between) => {
            let pair = |part: &str| {
                let (name, value) = part.split_once(between).ok_or_else(|| format!("expected NAME{between}VALUE"))?;
                Ok::<_, String>((name.trim().to_owned(), json!(value.trim())))
            };
            Value::Object(parts().map(pair).collect::<Result<Map<String, Value>, String>>()?)
        }
        ValueFormat::Lists => {
            let mut lists: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for part in parts() {
                let (name, value) = part.split_once(':').ok_or("expected NAME:VALUE")?;
                lists.entry(name.trim().to_owned()).or_default().push(value.trim());
            }
            json!(lists)
        }
        ValueFormat::Truths => {
            let pair = |part: &str| {
                let (name, value) = part.split_once('=').ok_or("expected NAME=BOOL")?;
                Ok::<_, String>((name.trim().to_owned(), json!(truth(value.trim())?)))
            };
            Value::Object(parts().map(pair).collect::<Result<Map<String, Value>, String>>()?)
        }
    })
}

/// Parses a boolean as Go does.
fn truth(word: &str) -> Result<bool, String> {
    match word {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kelson_kubelet::Config;
    use kelson_kubelet::config::file as configuration;

    use super::*;

    fn read(words: &[&str]) -> Result<FieldArgs, String> {
        let command = FieldArgs::augment_args(Command::new("kubelet").no_binary_name(true));
        let matches = command.try_get_matches_from(words).map_err(|e| e.to_string())?;
        FieldArgs::from_arg_matches(&matches).map_err(|e| e.to_string())
    }

    #[test]
    fn flags_say_what_fields_say() {
        let args = read(&[
            "--eviction-hard=memory.available<1Gi,nodefs.available<10%",
            "--oom-score-adj=-500",
            "--cpu-cfs-quota=false",
            "--enable-server",
            "--enforce-node-allocatable=none",
            "--allowed-unsafe-sysctls=a.b,c.*",
            "--allowed-unsafe-sysctls=d",
            "--authentication-token-webhook-cache-ttl=5s",
        ])
        .expect("sound");
        let mut config = Config::new("n", Path::new("/"));
        configuration::load(None, &args.0, &mut config).expect("sound");
        let mut hard: Vec<String> =
            config.eviction.thresholds.iter().map(|t| format!("{}<{}", t.signal.name(), t.value)).collect();
        hard.sort();
        assert_eq!(hard, ["memory.available<1Gi", "nodefs.available<10%"]);
        assert_eq!((config.process.oom_score, config.cpu_quota), (Some(-500), false));
        assert_eq!(config.allowed_unsafe_sysctls, ["a.b", "c.*", "d"]);
        assert_eq!(config.server.reviews.token_for.as_secs(), 5);
        assert!(!config.cgroups.expect("made").enforced.pods);
    }

    #[test]
    fn gates_and_headers() {
        let args = read(&[
            "--feature-gates=MemoryQoS=true,QOSReserved=t",
            "--qos-reserved=memory=50%",
            "--manifest-url=https://example.com/pods",
            "--manifest-url-header=a:hello,b:again,a:world",
            "--manifest-url-header=b:beautiful",
            "--http-check-frequency=5s",
        ])
        .expect("sound");
        let mut config = Config::new("n", Path::new("/"));
        let laid = configuration::load(None, &args.0, &mut config).expect("sound");
        assert_eq!(laid.ignored, Vec::<String>::new());
        assert!(config.memory.qos.is_some() && config.memory.reserved_percent == Some(50));
        let published = config.published_pods.expect("a URL");
        let sent: Vec<String> = published.headers.iter().map(|(name, value)| format!("{name}:{value}")).collect();
        assert_eq!((published.every.as_secs(), sent.join(" ")), (5, "a:hello a:world b:again b:beautiful".to_owned()));
        assert!(read(&["--feature-gates=MemoryQoS"]).is_err_and(|e| e.contains("expected NAME=BOOL")));
        assert!(read(&["--manifest-url-header=a"]).is_err_and(|e| e.contains("expected NAME:VALUE")));
    }

    #[test]
    fn gates_of_flags_and_file_are_laid_together() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("kubelet.yaml");
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        for (of_file, flag, has_qos) in [
            ("{MemoryQoS: true}", "--feature-gates=QOSReserved=false", true),
            ("{MemoryQoS: true}", "--feature-gates=MemoryQoS=false", false),
            ("{QOSReserved: true}", "--feature-gates=MemoryQoS=true", true),
        ] {
            std::fs::write(&file, format!("{head}featureGates: {of_file}\n")).expect("written");
            let mut config = Config::new("n", Path::new("/"));
            let args = read(&[flag]).expect("sound");
            configuration::load(Some(&file), &args.0, &mut config).expect("sound");
            assert_eq!(config.memory.qos.is_some(), has_qos, "{of_file} {flag}");
        }
    }

    #[test]
    fn every_flag_is_of_a_field_that_has_an_effect() {
        for (flag, path, form, _) in FLAGS {
            let word = match form {
                ValueFormat::Pairs(between) => format!("--{flag}=a{between}b"),
                ValueFormat::Text | ValueFormat::List => format!("--{flag}=a"),
                ValueFormat::Truth | ValueFormat::Whole => format!("--{flag}=1"),
                ValueFormat::Lists => format!("--{flag}=a:b"),
                ValueFormat::Truths => format!("--{flag}=MemoryQoS=true"),
            };
            // Headers and intervals of a URL have no meaning without one.
            let url = "--manifest-url=http://example.com/";
            let words = if *flag == "manifest-url" { vec![word.as_str()] } else { vec![word.as_str(), url] };
            let args = read(&words).expect(flag);
            let mut config = Config::new("n", Path::new("/"));
            let reported = match configuration::load(None, &args.0, &mut config) {
                Ok(laid) => laid.ignored,
                Err(e) => e.0.into_iter().filter(|f| f.contains("unknown field")).collect(),
            };
            assert_eq!(reported, Vec::<String>::new(), "--{flag} says {path}");
        }
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_flag() {
        for (word, wanted) in [
            ("--oom-score-adj=low", "--oom-score-adj"),
            ("--cpu-cfs-quota=perhaps", "must be true or false"),
            ("--eviction-soft=memory.available", "expected NAME<VALUE"),
        ] {
            assert!(read(&[word]).is_err_and(|e| e.contains(wanted)), "{word}");
        }
    }
}
