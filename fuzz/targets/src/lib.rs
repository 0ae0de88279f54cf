//! What is done with hostile bytes: one function per kind of input that reaches Kelson from outside. The fuzzer (`fuzz/`, `make fuzz`)
//! and the replay of the corpus in the tests run the same functions. They must not panic, overflow the stack, or take time and
//! memory out of proportion; where two ways must agree, they assert it.

mod documents;
mod identities;
mod input;
mod messages;
mod names;
mod patches;
mod rules;

/// A target: its name, which is that of its corpus, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: &[Target] = &[
    ("cel", documents::cel),
    ("certificate", identities::certificate),
    ("cni", messages::cni),
    ("cri", messages::cri),
    ("csr", identities::csr),
    ("definition", documents::definition),
    ("dns", messages::dns),
    ("field_selector", names::field_selector),
    ("json", documents::json),
    ("json_patch", patches::json),
    ("jwt", identities::jwt),
    ("kubelet_path", names::kubelet_path),
    ("label_selector", names::label_selector),
    ("merge_patch", patches::merge),
    ("protobuf", documents::protobuf),
    ("quantity", names::quantity),
    ("query", names::query),
    ("route", names::route),
    ("rules", rules::rules),
    ("spdy", messages::spdy),
    ("strategic", patches::strategic),
    ("apply", patches::apply),
    ("websocket", messages::websocket),
    ("yaml", documents::yaml),
];

/// Runs a target by its name.
///
/// # Panics
/// There is no such target; or the target found a fault.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|(n, _)| *n == name);
    let (_, run) = target.unwrap_or_else(|| panic!("no target {name}"));
    run(data);
}
