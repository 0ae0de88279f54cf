//! Upstream's components by their own names: `kube-apiserver`, `kubelet` and the others, by the name of the program (a
//! link, or a launcher) or as the first word. They accept upstream's flags in upstream's syntax; the list of flags is
//! in `flags/facts/`, those that have an effect are in the typed arguments of each command.
use std::ffi::OsString;

use clap::{Args, Command};

use crate::controller_manager::ControllerManagerArgs;
use crate::flags::{self, Component, Spoken, typed};
use crate::kube_apiserver::ApiserverArgs;
use crate::node::components;
use crate::scheduler::SchedulerArgs;

/// The components of a control plane.
static CONTROL_PLANE: &[Component] = &[
    Component {
        name: "kube-apiserver",
        alias: "apiserver",
        about: "Run the API server only: no controllers, no scheduler, no node.",
        facts: include_str!("flags/facts/kube-apiserver.txt"),
        arguments: ApiserverArgs::augment_args,
        run: |matches, spoken| {
            let flags = crate::flags::shown(&ApiserverArgs::augment_args(Command::new("kube-apiserver")), matches);
            let with_flags =
                |args, spoken: &Spoken| crate::kube_apiserver::run(ApiserverArgs { flags, ..args }, spoken);
            typed::<ApiserverArgs>(matches, spoken, with_flags)
        },
    },
    Component {
        name: "kube-controller-manager",
        alias: "controller-manager",
        about: "Run the controllers only, with any API server.",
        facts: include_str!("flags/facts/kube-controller-manager.txt"),
        arguments: ControllerManagerArgs::augment_args,
        run: |matches, spoken| typed::<ControllerManagerArgs>(matches, spoken, crate::controller_manager::run),
    },
    Component {
        name: "kube-scheduler",
        alias: "scheduler",
        about: "Run the scheduler only, with any API server.",
        facts: include_str!("flags/facts/kube-scheduler.txt"),
        arguments: SchedulerArgs::augment_args,
        run: |matches, spoken| typed::<SchedulerArgs>(matches, spoken, crate::scheduler::run),
    },
];

/// Returns the text about them in `kelson help`.
pub fn help() -> String {
    format!(
        "Upstream's components with upstream's flags. A link to this binary with one of these names runs the component:
  kube-apiserver           Run the API server only
  kube-controller-manager  Run the controllers only (also: controller-manager)
  kube-scheduler           Run the scheduler only (also: scheduler){}
  etcd                     Run a single-member store with etcd's API",
        components::HELP
    )
}

/// All components that have a separate name.
pub fn all() -> impl Iterator<Item = &'static Component> {
    CONTROL_PLANE.iter().chain(components::COMPONENTS)
}

/// Returns the component that a command line names, by the program's name or the first word, and the remaining words.
pub fn named(words: &[OsString]) -> Option<(&'static Component, Vec<OsString>)> {
    let (program, rest) = words.split_first()?;
    let program = flags::program(program);
    if let Some(component) = all().find(|c| c.name == program) {
        return Some((component, rest.to_vec()));
    }
    let called = |word: &OsString| all().find(|c| word == c.name || word == c.alias);
    match rest {
        [help, component] if help == "help" => Some((called(component)?, vec!["--help".into()])),
        [first, rest @ ..] => Some((called(first)?, rest.to_vec())),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{ParsedArgs, Table, help, read};

    fn which(words: &[&str]) -> Option<(&'static str, Vec<String>)> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let (component, rest) = named(&words)?;
        Some((component.name, rest.iter().map(|w| w.to_string_lossy().into_owned()).collect()))
    }

    #[test]
    fn names_of_the_binary_and_first_words() {
        let rows = [
            (&["/a/kube-apiserver", "--v=1"][..], Some("kube-apiserver"), &["--v=1"][..]),
            (&["kubelet.exe"], Some("kubelet"), &[]),
            (&["kelson", "kube-scheduler", "--help"], Some("kube-scheduler"), &["--help"]),
            (&["kelson", "controller-manager", "x"], Some("kube-controller-manager"), &["x"]),
            (&["/kube-apiserver/kelson", "server"], None, &[]),
            (&["kelson", "help", "kubelet"], Some("kubelet"), &["--help"]),
            (&["kelson", "help", "server"], None, &[]),
            (&["kelson", "help"], None, &[]),
            (&["kelson"], None, &[]),
            (&[], None, &[]),
        ];
        for (words, name, rest) in rows {
            let want = name.map(|name| (name, rest.iter().map(|w| (*w).to_owned()).collect()));
            assert_eq!(which(words), want, "{words:?}");
        }
    }

    #[test]
    fn tables_are_sorted_facts_and_every_default_can_be_given() {
        for component in all() {
            let lines: Vec<&str> = component.facts.lines().collect();
            assert!(lines.is_sorted() && lines.len() > 50, "{}", component.name);
            component.command().debug_assert();
            let table = Table::of(component.facts, &component.command());
            for name in ["v", "version", "feature-gates", "kubeconfig"] {
                let upstream_has_it = name != "kubeconfig" || component.name != "kube-apiserver";
                assert_eq!(table.named(name).is_some(), upstream_has_it, "{} --{name}", component.name);
            }
            for (name, flag) in table.iter().filter(|(_, flag)| flag.kind.alone().is_some()) {
                let alone = [OsString::from(format!("--{name}"))];
                assert!(read(component.name, &table, alone).is_ok(), "{} {name} {flag:?}", component.name);
            }
        }
    }

    #[test]
    fn every_component_says_what_it_is_asked_and_what_is_wrong() {
        for component in all() {
            let table = Table::of(component.facts, &component.command());
            let asked = |words: &[&str]| read(component.name, &table, words.iter().map(OsString::from));
            for word in ["--help", "-h"] {
                assert!(matches!(asked(&[word]), Ok(ParsedArgs::Help)), "{} {word}", component.name);
            }
            let unknown = asked(&["--no-such-flag"]).expect_err("an error");
            assert!(unknown.contains("no-such-flag"), "{}: {unknown}", component.name);
            let stray = asked(&["help"]).expect_err("an error");
            assert!(stray.contains("help"), "{}: {stray}", component.name);
            let Ok(ParsedArgs::Run(spoken)) = asked(&[]) else { panic!("{} without flags", component.name) };
            let required: Vec<String> = component
                .command()
                .get_arguments()
                .filter(|a| a.is_required_set())
                .filter_map(|a| a.get_long().map(|name| format!("--{name} ")))
                .collect();
            match component.matches(&spoken) {
                Ok(_) => assert!(required.is_empty(), "{}", component.name),
                Err(why) => {
                    assert!(!why.contains('\n') && !why.ends_with(':'), "{why}");
                    for flag in &required {
                        assert!(why.contains(flag.as_str()), "{}: {flag} is missing in {why:?}", component.name);
                    }
                }
            }
        }
        let kubelet = all().find(|c| c.name == "kubelet");
        let Some(kubelet) = kubelet else { return };
        let table = Table::of(kubelet.facts, &kubelet.command());
        let Ok(ParsedArgs::Run(spoken)) = read(kubelet.name, &table, ["--config", "X"].map(OsString::from)) else {
            panic!("a known flag")
        };
        let why = kubelet.matches(&spoken).expect_err("something is missing");
        assert!(why.starts_with("the following required arguments were not provided: --"), "{why}");
    }

    /// The flags that kubeadm, test environments and kwok use.
    #[test]
    fn flags_as_installers_pass_them() {
        let lines = [
            "kube-controller-manager --allocate-node-cidrs=true --authentication-kubeconfig=a --authorization-kubeconfig=a \
             --bind-address=127.0.0.1 --client-ca-file=c --cluster-cidr=10.244.0.0/16 --cluster-name=kubernetes \
             --cluster-signing-cert-file=c --cluster-signing-key-file=k --controllers=*,bootstrapsigner,tokencleaner \
             --kubeconfig=a --leader-elect=true --requestheader-client-ca-file=c --root-ca-file=c \
             --service-account-private-key-file=k --service-cluster-ip-range=10.96.0.0/12 --use-service-account-credentials=true",
            "kube-controller-manager --kubeconfig=a --authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics \
             --node-monitor-period=25s --node-monitor-grace-period=3m20s --root-ca-file=c --kube-api-qps=5000 --kube-api-burst 10000 \
             --controllers -nodeipam,* --horizontal-pod-autoscaler-sync-period=15s --use-service-account-credentials",
            "kube-scheduler --authentication-kubeconfig=a --authorization-kubeconfig=a --bind-address=127.0.0.1 \
             --kubeconfig=a --leader-elect=true -v=2",
            "kube-scheduler --kubeconfig a --leader-elect --secure-port=0 --config=f --authorization-always-allow-paths=/healthz",
            "kubelet --bootstrap-kubeconfig=b --kubeconfig=k --config=c --node-ip=192.0.2.1 \
             --container-runtime-endpoint=unix:///run/containerd/containerd.sock --cgroup-driver=systemd --hostname-override=a",
            "kube-proxy --config=/var/lib/kube-proxy/config.conf --hostname-override=box",
            "kube-apiserver --advertise-address=192.0.2.1 --allow-privileged=true --authorization-mode=Node,RBAC --client-ca-file=c \
             --enable-admission-plugins=NodeRestriction --enable-bootstrap-token-auth=true --etcd-cafile=c --etcd-certfile=c \
             --etcd-keyfile=k --etcd-servers=https://127.0.0.1:2379 --kubelet-client-certificate=c --kubelet-client-key=k \
             --kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname --proxy-client-cert-file=c --proxy-client-key-file=k \
             --requestheader-allowed-names=front-proxy-client --requestheader-client-ca-file=c \
             --requestheader-extra-headers-prefix=X-Remote-Extra- --requestheader-group-headers=X-Remote-Group \
             --requestheader-username-headers=X-Remote-User --secure-port=6443 --service-account-issuer=https://kubernetes.default \
             --service-account-key-file=p --service-account-signing-key-file=k --service-cluster-ip-range=10.96.0.0/12 \
             --tls-cert-file=c --tls-private-key-file=k",
            "kube-apiserver --etcd-servers http://0.0.0.0:2379 --etcd-prefix=/registry --allow-privileged --admission-control= \
             --max-requests-inflight=0 --max-mutating-requests-inflight=0 --enable-priority-and-fairness=false --v=2 \
             --endpoint-reconciler-type=none --profiling=false --runtime-config=api/legacy=true,api/alpha=false --audit-log-path=- \
             --disable-admission-plugins=ServiceAccount --disable-admission-plugins=PodSecurity --feature-gates=WatchList=true",
        ];
        for line in lines {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            let (component, words) = named(&words).expect("a component");
            let table = Table::of(component.facts, &component.command());
            match read(component.name, &table, words) {
                Ok(ParsedArgs::Run(spoken)) => {
                    drop(component.matches(&spoken).unwrap_or_else(|e| panic!("{line}: {e}")))
                }
                other => panic!("{line}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_flag_that_is_true_or_false_may_stand_alone() {
        for component in all() {
            let command = component.command();
            for arg in command.get_arguments().filter(|a| a.get_value_names().is_some_and(|n| n == ["BOOL"])) {
                assert_eq!(arg.get_num_args().map(|n| n.min_values()), Some(0), "{} {arg}", component.name);
            }
        }
    }

    #[test]
    fn help_shows_flags_as_tools_look_for_them() {
        for component in all() {
            let table = Table::of(component.facts, &component.command());
            let text = help::flags(component.name, component.about, &table);
            let starts = |flag: &str| text.lines().any(|line| line.trim_start().starts_with(flag));
            assert!(starts("--feature-gates ") && starts("-h, --help"), "{text}");
            assert!(!starts("--insecure-port"), "a test environment would ask for it");
        }
        assert!(help::version("true").starts_with(&format!("Kubernetes v{}.", kelson_meta::version::SHORT)));
        assert!(
            help::version("raw")
                .starts_with(&format!("version.Info{{Major:\"1\", Minor:\"{}\", ", kelson_meta::version::MINOR))
        );
    }
}
