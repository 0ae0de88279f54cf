//! Evaluations per second of typical rules in custom resources and policies.
use std::time::{Duration, Instant};

use kelson_cel::{Activation, Budget, DeclType, Env, ListKind, REQUEST_BUDGET, Value};
use serde_json::json;

const RULES: &[&str] = &[
    "self.replicas <= self.maxReplicas",
    "self.name.startsWith('web') && self.name.size() < 64",
    "self.ports.all(p, p.port > 0 && p.port < 65536)",
    "self.ports.exists_one(p, p.name == 'http')",
    "has(self.tls) ? self.tls.secret != '' : true",
    "self.labels.all(k, k.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$'))",
    "quantity(self.memory).isLessThan(quantity('8Gi'))",
    "self.ports.map(p, p.port).isSorted() || self.name in ['a', 'b', 'c']",
];

/// Prints rate and cost of each rule.
pub fn run(_: &[String]) -> anyhow::Result<()> {
    let text = || DeclType::string(Some(64));
    let port = DeclType::object([("name", text(), true), ("port", DeclType::int(), true)]);
    let decl = DeclType::object([
        ("name", text(), true),
        ("replicas", DeclType::int(), true),
        ("maxReplicas", DeclType::int(), true),
        ("memory", text(), false),
        ("ports", DeclType::list(port, Some(16), ListKind::Atomic), false),
        ("labels", DeclType::map(text(), Some(16)), false),
        ("tls", DeclType::object([("secret", text(), false)]), false),
    ]);
    let object = json!({
        "name": "web-1", "replicas": 3, "maxReplicas": 10, "memory": "512Mi",
        "ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}, {"name": "metrics", "port": 9090}],
        "labels": {"app": "web", "tier": "front", "zone": "a"},
        "tls": {"secret": "web-tls"},
    });
    let env = Env::builder().variable("self", &decl).build();
    for rule in RULES {
        let program = match env.compile(rule) {
            Ok(program) => program,
            Err(e) => {
                println!("{rule}\n{e}");
                continue;
            }
        };
        let (start, mut rounds, mut cost) = (Instant::now(), 0u64, 0);
        while start.elapsed() < Duration::from_millis(500) {
            for _ in 0..1000 {
                let mut budget = Budget::new(REQUEST_BUDGET);
                let mut activation = Activation::new();
                activation.bind("self", Value::typed(&object, &decl));
                if program.eval(&activation, &mut budget).is_err() {
                    println!("a rule failed: {rule}");
                }
                cost = budget.spent();
            }
            rounds += 1000;
        }
        let rate = rounds as f64 / start.elapsed().as_secs_f64();
        println!("{rate:>12.0}/s  cost {cost:>4}  {rule}");
    }
    Ok(())
}
