//! Programs that measure parts of Kelson, and the one that creates the test images: `cargo run --release --package
//! kelson-bench -- NAME [ARGUMENTS]`. Whole servers are measured by the scripts in this directory.

mod admission;
mod bound;
mod cel;
mod clusters;
mod codec;
mod control_plane;
mod controlled;
mod credentials;
mod curves;
mod decoders;
mod definitions;
mod dns;
mod flowcontrol;
mod growth;
mod image;
mod memory;
mod network;
mod page;
mod rbac;
mod scheduler;
mod servers;
mod sides;
mod starts;
mod store;
mod streams;
mod writes;

/// The allocator of the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Program = fn(&[String]) -> anyhow::Result<()>;

const PROGRAMS: &[(&str, Program, &str)] = &[
    ("admission", admission::run, "what admission costs, against its targets"),
    ("cel", cel::run, "evaluations of expressions a second"),
    ("clusters", clusters::run, "[CLUSTERS]: start, fork and memory of clusters for tests"),
    ("codec", codec::run, "how fast a pod is decoded and encoded"),
    ("credentials", credentials::run, "the promised numbers of pull credentials"),
    ("curves", curves::run, "[PODS]...: how the cost of reads, watches and decisions grows, beside a peer"),
    ("decoders", decoders::run, "[CASE]...: time and memory of the most expensive documents"),
    ("definitions", definitions::run, "[COUNT]: time and memory of custom resource definitions"),
    ("dns", dns::run, "[SECONDS]: queries that cluster DNS answers on one core"),
    ("flowcontrol", flowcontrol::run, "[REQUESTS]: what priority and fairness cost a request"),
    ("image", image::run, "NAME OUT.tar [PATH-IN-IMAGE=FILE]...: writes a small image archive"),
    ("memory", memory::run, "COUNT: what pods cost in memory"),
    ("network", network::run, "policies|services [COUNT]: what a change costs on the node of a large cluster"),
    ("page", page::run, "OUTPUT DIR: a page with tables and plots from the output of make bench"),
    ("rbac", rbac::run, "what a decision costs with 10,000 bindings"),
    ("scheduler", scheduler::run, "scheduling decisions a second"),
    (
        "servers",
        servers::run,
        "[SECONDS] [KILLS]: rates, recovery and memory of three servers on three members of etcd; needs root",
    ),
    ("store", store::run, "DIR: commits, lists, memory, bytes written"),
    ("streams", streams::run, "[pipe|spdy] [MB] [BYTES AT A TIME]: rate and cost of an exec's output"),
    ("writes", writes::run, "create|merge|status|apply COUNT [--no-readers]: what writes cost"),
];

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let named = args.split_first();
    let program = named.and_then(|(name, rest)| Some((PROGRAMS.iter().find(|(known, ..)| known == name)?, rest)));
    let Some(((_, run, _), rest)) = program else {
        let list: String = PROGRAMS.iter().map(|(name, _, what)| format!("\n  {name:<12} {what}")).collect();
        anyhow::bail!("usage: kelson-bench NAME [ARGUMENTS]{list}");
    };
    run(rest)
}

/// Runs a measurement with this number of threads on any machine, so that results are comparable.
fn block_on<T>(threads: usize, work: impl Future<Output = T>) -> T {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(threads).enable_all().build();
    runtime.expect("a runtime").block_on(work)
}
