//! Tests of the crate's public interface: expressions with their values or errors, and their actual and estimated costs.
mod hostile;
mod library_costs;

use serde_json::json;

use super::*;

fn env() -> Env {
    Env::builder()
        .variable(
            "self",
            &DeclType::object([
                ("n", DeclType::int(), false),
                ("s", DeclType::string(Some(10)), false),
                ("list", DeclType::list(DeclType::string(Some(5)), Some(3), ListKind::Atomic), false),
                ("a-b", DeclType::bool(), false),
                ("any", DeclType::dynamic(), false),
            ]),
        )
        .build()
}

fn shown(expression: &str) -> (String, u64) {
    let data = json!({"n": 3, "s": "abc", "list": ["x", "y"], "a-b": true, "any": {"k": [1, 2.5, null]}});
    let decl = DeclType::object([
        ("n", DeclType::int(), false),
        ("s", DeclType::string(Some(10)), false),
        ("list", DeclType::list(DeclType::string(Some(5)), Some(3), ListKind::Atomic), false),
        ("a-b", DeclType::bool(), false),
        ("any", DeclType::dynamic(), false),
    ]);
    let program = match env().compile(expression) {
        Ok(program) => program,
        Err(e) => return (e.to_string(), 0),
    };
    let mut budget = Budget::new(REQUEST_BUDGET);
    let mut activation = Activation::new();
    activation.bind("self", Value::typed(&data, &decl));
    let text = match program.eval(&activation, &mut budget) {
        Ok(value) => value.to_string(),
        Err(e) => format!("error: {e}"),
    };
    (text, budget.spent())
}

#[test]
fn values_and_costs() {
    for (expression, value, cost) in [
        ("1 + 2 * 3", "7", 2),
        ("self.n == 3", "true", 3),
        ("self.s + 'd'", "abcd", 3),
        ("self.a__dash__b", "true", 2),
        ("has(self.s) && !has(self.any.x)", "true", 4),
        ("self.list.all(x, x.size() == 1)", "true", 15),
        ("self.list.map(x, x + '!')", "[x!, y!]", 31),
        ("self.list.filter(x, x == 'x')", "[x]", 20),
        ("self.any.k[1]", "2.5", 4),
        ("self.any.k[self.n - 1] == null", "true", 8),
        ("self.list[5]", "error: index out of bounds: 5", 3),
        ("self.any.missing", "error: no such key: missing", 3),
        ("1 / 0 == 1 || true", "true", 2),
        ("self.?s.orValue('') + self.any[?'q'].orValue('z')", "abcz", 5),
        ("self.n in [1, 2, 3]", "true", 2),
        ("'x' in self.list", "true", 4),
        ("self.list.exists_one(x, x == 'y')", "true", 10),
        ("[1, 2].transformMap(i, v, v * 10)", "{0: 10, 1: 20}", 11),
        ("optional.of(self.n).optMap(v, v + 1).value()", "4", 12),
        ("type(self.n) == int", "true", 4),
        ("self.n > 2 ? 'a' : 'b'", "a", 3),
    ] {
        assert_eq!(shown(expression), (value.into(), cost), "{expression}");
    }
}

#[test]
fn lists_with_nan_are_sorted_too() {
    assert_eq!(shown("[double('NaN'), 2.0, 1.0].sort()").0, "[1, 2, NaN]");
    // With more than twenty elements, a sort checks whether its order is total.
    let values: Vec<String> =
        (0..60).map(|n| if n % 3 == 0 { "double('NaN')".into() } else { format!("{}.0", (n * 37) % 60) }).collect();
    let sorted = format!("[{}].sort()", values.join(", "));
    assert_eq!(shown(&format!("{sorted}.slice(0, 3)")).0, "[1, 2, 4]");
    assert_eq!(shown(&format!("string({sorted}[59])")).0, "NaN");
}

#[test]
fn what_the_checker_says() {
    for (expression, message) in [
        ("self.x", "ERROR: <input>:1:5: undefined field 'x'\n | self.x\n | ....^"),
        ("foo", "ERROR: <input>:1:1: undeclared reference to 'foo' (in container '')\n | foo\n | ^"),
        (
            "self.n + 'a'",
            "ERROR: <input>:1:8: found no matching overload for '_+_' applied to '(int, string)'\n | self.n + 'a'\n | .......^",
        ),
        (
            "self.s.size(1)",
            "ERROR: <input>:1:12: found no matching overload for 'size' applied to 'string.(int)'\n | self.s.size(1)\n | ...........^",
        ),
        ("self.n.x", "ERROR: <input>:1:7: type 'int' does not support field selection\n | self.n.x\n | ......^"),
        ("[1, 'a']", "ERROR: <input>:1:5: expected type 'int' but found 'string'\n | [1, 'a']\n | ....^"),
        ("'a'.matches('(')", "ERROR: <input>:1:13: invalid matches argument\n | 'a'.matches('(')\n | ............^"),
    ] {
        assert_eq!(shown(expression).0, message, "{expression}");
    }
}
