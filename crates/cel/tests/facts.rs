//! Expressions over schemas and objects, with Kubernetes' result for each: its value, its actual cost, its maximum cost, or a part of its
//! error. A line of `facts/expressions.jsonl` is a schema with its object and their expressions. Known differences are listed here with
//! their reasons.
use kelson_cel::{
    Activation, Budget, CompileError, DeclType, Env, EvalError, Format, ListKind, PER_CALL_LIMIT, REQUEST_BUDGET, Type,
    Value,
};
use serde_json::{Value as Json, json};

/// Expressions whose results differ from Kubernetes, with the reason.
const KNOWN: &[(&str, &str)] = &[
    (
        "self.val3 == 340282346638528859811704183484516925440.000000 && 340282346638528859811704183484516925440.000000 == \
         self.val3 && self.val3 == self.val4",
        "the table's own JSON is read to within the last bit of a double",
    ),
    ("self.objs[0][0].k! == '1'", "words of a syntax error after a complete expression: 'extraneous' for 'mismatched'"),
];

/// The type that a schema declares. `None` for values that expressions cannot use.
fn decl(schema: &Json, root: bool) -> Option<DeclType> {
    let n = |key: &str| schema[key].as_i64();
    let nullable = schema["nullable"].as_bool().unwrap_or(false);
    let embedded = root || schema["x-kubernetes-embedded-resource"] == json!(true);
    let made = if schema["x-kubernetes-int-or-string"] == json!(true) {
        DeclType::int_or_string(n("maxLength"))
    } else {
        match schema["type"].as_str()? {
            "array" => {
                let kind = match schema["x-kubernetes-list-type"].as_str() {
                    Some("set") => ListKind::Set,
                    Some("map") => {
                        let keys = schema["x-kubernetes-list-map-keys"].as_array()?;
                        ListKind::Map(keys.iter().filter_map(|k| k.as_str().map(str::to_owned)).collect())
                    }
                    _ => ListKind::Atomic,
                };
                DeclType::list(decl(&schema["items"], false)?, n("maxItems"), kind)
            }
            "object" if schema["additionalProperties"].is_object() => {
                DeclType::map(decl(&schema["additionalProperties"], false)?, n("maxProperties"))
            }
            "object" => object(schema, embedded),
            "string" => match schema["format"].as_str() {
                Some("byte") => DeclType::bytes(n("maxLength")),
                Some("duration") => DeclType::duration(),
                Some("date") => DeclType::timestamp(Format::Date),
                Some("date-time") => DeclType::timestamp(Format::DateTime),
                _ => match (n("maxLength"), schema["enum"].as_array()) {
                    (None, Some(values)) => DeclType::string_enum(values.iter().filter_map(Json::as_str)),
                    (length, _) => DeclType::string(length),
                },
            },
            "boolean" => DeclType::bool(),
            "number" => DeclType::double(),
            "integer" => DeclType::int(),
            _ => return None,
        }
    };
    Some(if nullable { made.nullable() } else { made })
}

fn object(schema: &Json, embedded: bool) -> DeclType {
    let required = |name: &str| schema["required"].as_array().is_some_and(|r| r.iter().any(|x| x == name));
    let mut properties = schema["properties"].as_object().cloned().unwrap_or_default();
    if embedded {
        let string = json!({"type": "string"});
        properties.insert("kind".into(), string.clone());
        properties.insert("apiVersion".into(), string.clone());
        let metadata = properties.entry("metadata").or_insert_with(|| json!({}));
        metadata["type"] = json!("object");
        metadata["properties"]["name"] = string.clone();
        metadata["properties"]["generateName"] = string;
    }
    let fields = properties.iter().filter_map(|(name, s)| {
        let always = required(name) && s["default"].is_null();
        Some((name.as_str(), decl(s, false)?, always))
    });
    DeclType::object(fields.collect::<Vec<_>>())
}

struct Evaluation {
    outcome: Result<bool, String>,
    cost: u64,
    max: u64,
}

fn evaluate(line: &Json, decl: &DeclType, expression: &str) -> Evaluation {
    let env = Env::builder().variable("self", decl).same_as("oldSelf", "self").build();
    let fail = |outcome: String| Evaluation { outcome: Err(outcome), cost: 0, max: 0 };
    let program = match env.compile(expression) {
        Ok(program) => program,
        Err(e) => {
            return fail(match &e {
                CompileError::Issues { .. } => format!("compilation failed: {e}"),
                CompileError::Instantiation(_) => format!("program instantiation failed: {e}"),
            });
        }
    };
    if *program.output_type() != Type::Bool {
        return fail(format!("cel expression must evaluate to a bool: {}", program.output_type()));
    }
    let max = program.cost().max;
    let mut activation = Activation::new();
    activation.bind("self", Value::typed(&line["data"], decl));
    if !line["old"].is_null() {
        activation.bind("oldSelf", Value::typed(&line["old"], decl));
    }
    let mut budget = Budget::new(REQUEST_BUDGET).per_call(PER_CALL_LIMIT);
    let outcome = match program.eval(&activation, &mut budget) {
        Ok(Value::Bool(b)) => Ok(b),
        Ok(other) => Err(format!("not a bool: {other}")),
        Err(EvalError::CostLimit) => Err(format!("{} no further validation rules will be run", EvalError::CostLimit)),
        Err(e) => Err(e.to_string()),
    };
    Evaluation { outcome, cost: budget.spent(), max }
}

#[test]
fn hold_here_too() {
    let (mut count, mut wrong) = (0, Vec::new());
    for line in include_str!("facts/expressions.jsonl").lines() {
        let line: Json = serde_json::from_str(line).unwrap();
        let Some(decl) = decl(&line["schema"], true) else { panic!("{}", line["schema"]) };
        for fact in line["facts"].as_array().unwrap() {
            let (expression, expected) = (fact[0].as_str().unwrap(), &fact[1]);
            if KNOWN.iter().any(|(known, _)| *known == expression) || expected["skip"] == json!(true) {
                continue;
            }
            let found = evaluate(&line, &decl, expression);
            let mut differ = |what: String| wrong.push(format!("{expression}\n    {what}"));
            if let Some(error) = expected["error"].as_str() {
                count += 1;
                // The string that the validator of custom resources adds around the error is not part of it here.
                let error = error.strip_prefix("compile error: ").unwrap_or(error);
                let error = error.split(" evaluating rule: ").next().unwrap_or_default();
                match &found.outcome {
                    Err(text) if text.contains(error) => {}
                    other => differ(format!("{other:?}, upstream fails with {error}")),
                }
            } else if expected["true"] == json!(true) || expected["cost"].is_u64() {
                count += 1;
                if expected["true"] == json!(true) && found.outcome != Ok(true) {
                    differ(format!("{:?}", found.outcome));
                } else if expected["cost"].as_u64().is_some_and(|cost| cost != found.cost) {
                    differ(format!("costs {}, upstream {}", found.cost, expected["cost"]));
                }
            }
            if let Some(max) = expected["max"].as_u64() {
                count += 1;
                if max != found.max {
                    differ(format!("can cost {}, upstream {max} ({:?})", found.max, found.outcome));
                }
            }
        }
    }
    assert!(count > 1000, "{count}");
    assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
}
