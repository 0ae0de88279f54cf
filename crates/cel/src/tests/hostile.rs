//! Malicious expressions end with an error: without a panic, a stack overflow or unbounded memory.
use std::time::Instant;

use super::super::*;

/// The error or the value of an expression over `data`, whose elements are numbers.
fn outcome(expression: &str, data: &serde_json::Value) -> String {
    let env = Env::builder().variable("self", &DeclType::dynamic()).build();
    let program = match env.compile(expression) {
        Ok(program) => program,
        Err(e) => return e.to_string(),
    };
    let mut activation = Activation::new();
    activation.bind("self", Value::json(data));
    match program.eval(&activation, &mut Budget::new(REQUEST_BUDGET)) {
        Ok(value) => value.type_name().to_owned(),
        Err(e) => e.to_string(),
    }
}

#[test]
fn depth_and_size_are_bounded() {
    let null = serde_json::Value::Null;
    for expression in [
        format!("{}1{}", "(".repeat(100_000 / 2 - 1), ")".repeat(100_000 / 2 - 1)),
        format!("{}1{}", "[".repeat(5000), "]".repeat(5000)),
        format!("1{}", "+1".repeat(40_000)),
        format!("self{}", ".a".repeat(40_000)),
        format!("self{}", "[0]".repeat(30_000)),
        format!("{}true", "true ? true : ".repeat(5000)),
        format!("self{}", ".map(x, x)".repeat(9_000)),
        format!("{}self{}", "size(".repeat(10_000), ")".repeat(10_000)),
    ] {
        let text = outcome(&expression, &null);
        assert!(text.contains("expression recursion limit exceeded: 250"), "{}…: {text}", &expression[..40]);
    }
    let long = format!("'{}'", "a".repeat(100_000));
    assert!(outcome(&long, &null).contains("expression code point size exceeds limit: size: 100002, limit 100000"));
    let copies = format!("optional.of(1){}", ".optMap(a, a + 1)".repeat(200));
    assert!(outcome(&copies, &null).contains("100000 nodes"), "{}", outcome(&copies, &null));
    // Long expressions that are not deep are accepted.
    assert_eq!(outcome(&format!("true{}", " && true".repeat(10_000)), &null), "bool");
    assert_eq!(outcome(&format!("{}true", "!".repeat(90_000)), &null), "bool");
    for unfinished in
        ["", "(", "[1,", "{'a':", "a.", "a[", "'abc", "b'", "1 +", "?", "a ? b", "x.map(", "0x", "\u{0}", "é"]
    {
        assert!(outcome(unfinished, &null).starts_with("ERROR: <input>:"), "{unfinished:?}");
    }
    // The deepest accepted expression can be evaluated on a stack of the usual size.
    let nested = (0..80).fold(String::from("1"), |inner, _| format!("[{inner}].map(x, x)[0]"));
    assert!(["int", "dyn"].contains(&outcome(&nested, &null).as_str()) || outcome(&nested, &null).contains("limit"));
}

#[test]
fn time_and_memory_are_bounded() {
    let numbers: Vec<i64> = (0..1000).collect();
    let data = serde_json::json!({"list": numbers, "text": "a".repeat(30_000)});
    let limit = "operation cancelled: actual cost limit exceeded";
    let doubled = (0..40).fold(String::from("optional.of([1, 2])"), |e, i| format!("{e}.optMap(a{i}, a{i} + a{i})"));
    let start = Instant::now();
    for (expression, fault) in [
        ("self.list.all(a, self.list.all(b, self.list.all(c, a + b + c >= 0)))", limit),
        ("self.list.exists_one(a, self.list.exists_one(b, self.list.exists_one(c, false)))", limit),
        ("lists.range(1000000000000)", limit),
        ("lists.range(9223372036854775807).size()", limit),
        ("self.list.map(a, self.list).flatten().flatten()", limit),
        ("self.text.replace('', self.text)", limit),
        ("self.text.replace('a', self.text).size()", limit),
        ("self.text.matches('(a*)*(b*)*(a*)*(b*)*c') || self.text.matches('(.*)(.*)(.*)(.*)(.*)[^a]')", ""),
        ("'x'.matches('((((a{1000}){1000}){1000}){1000})')", "invalid matches argument"),
        ("'x'.matches(self.text + '(')", "missing closing"),
        ("self.list.map(a, self.text).join()", limit),
        ("self.list.map(a, string(a)).sort()", limit),
        ("self.list.map(a, string(a)).distinct().size()", limit),
        ("'%.999999999f'.format([1.0])", "precision"),
        (doubled.as_str(), "nodes"),
    ] {
        let text = outcome(expression, &data);
        assert!(text.contains(fault), "{}: {text}", &expression[..expression.len().min(60)]);
    }
    // The bound is much longer than the test takes, and much shorter than without limits.
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}
