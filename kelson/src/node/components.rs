//! Upstream's node components, by their own names.
use clap::Args as _;

use super::kube_proxy::{self, ProxyArgs};
use super::kubelet::KubeletArgs;
use super::run;
use crate::flags::{Component, typed};

/// The kubelet and the service proxy.
pub static COMPONENTS: &[Component] = &[
    Component {
        name: "kubelet",
        alias: "kubelet",
        about: "Run the kubelet of this machine only, as a node of any cluster.",
        facts: include_str!("../flags/facts/kubelet.txt"),
        arguments: KubeletArgs::augment_args,
        run: |matches, spoken| typed::<KubeletArgs>(matches, spoken, run::kubelet),
    },
    Component {
        name: "kube-proxy",
        alias: "proxy",
        about: "Run the service proxy of this machine only.",
        facts: include_str!("../flags/facts/kube-proxy.txt"),
        arguments: ProxyArgs::augment_args,
        run: |matches, spoken| typed::<ProxyArgs>(matches, spoken, kube_proxy::run),
    },
];

/// The text about them in `kelson help`.
pub const HELP: &str = "
  kubelet                  Run the kubelet of this machine only
  kube-proxy               Run the service proxy of this machine only (also: proxy)";
