//! Macros: calls that are expanded to loops. Each row has a name, a number of arguments and an expansion. The accumulator has a name
//! that no expression can contain.
use super::build::Builder;
use super::expr::{Call, Expr, Fold, Kind, Literal};

/// The name of every loop's accumulator.
pub(crate) const ACCU: &str = "@result";
/// The name of cel-go's accumulator. No variable may have it.
const RESERVED_ACCU: &str = "__result__";
const SORT_INPUT: &str = "@__sortBy_input__";
const UNUSED: &str = "#unused";

/// An error in the arguments of a macro: the ID of the node and the message.
pub(crate) struct Wrong(pub super::expr::Id, pub String);
type Expanded = Result<Expr, Wrong>;

/// Whether a call is a macro. A member call has a target.
pub(crate) fn is_macro(name: &str, args: usize, member: bool) -> bool {
    if !member {
        return name == "has" && args == 1;
    }
    matches!(
        (name, args),
        ("all" | "exists" | "exists_one" | "existsOne" | "map", 2 | 3)
            | ("filter" | "optMap" | "optFlatMap" | "sortBy", 2)
            | ("transformList" | "transformMap" | "transformMapEntry", 3 | 4)
    )
}

/// Whether a call is `cel.bind(name, value, result)`, which only device selectors have.
pub(crate) fn is_bind(name: &str, args: usize, target: Option<&Expr>) -> bool {
    name == "bind" && args == 3 && target.and_then(Expr::ident) == Some("cel")
}

/// Expands a call for which [`is_bind`] holds.
pub(crate) fn expand_bind(b: &mut Builder, args: Vec<Expr>) -> Expanded {
    let Ok([name, value, result]) = <[Expr; 3]>::try_from(args) else {
        return Err(Wrong(0, "cel.bind() takes three arguments".into()));
    };
    let why = || Wrong(name.id, "cel.bind() variable names must be simple identifiers".into());
    let name = name.ident().ok_or_else(why)?.to_owned();
    Ok(bind(b, &name, value, result))
}

/// Expands a call for which [`is_macro`] holds.
pub(crate) fn expand(b: &mut Builder, name: &str, target: Option<Expr>, args: Vec<Expr>) -> Expanded {
    let Some(target) = target else { return has(b, args) };
    match (name, args.len()) {
        ("map", 2 | 3) => map(b, target, args),
        ("filter", _) => filter(b, target, args),
        ("optMap" | "optFlatMap", _) => opt_map(b, name, target, args),
        ("sortBy", _) => sort_by(b, target, args),
        ("transformList" | "transformMap" | "transformMapEntry", _) => transform(b, name, target, args),
        _ => quantifier(b, name, target, args),
    }
}

fn has(b: &mut Builder, args: Vec<Expr>) -> Expanded {
    let arg = args.into_iter().next();
    match arg {
        Some(Expr { kind: Kind::Select { operand, field, .. }, .. }) => {
            Ok(b.make(Kind::Select { operand, field, test: true }))
        }
        other => Err(Wrong(other.map_or(0, |e| e.id), "invalid argument to has() macro".into())),
    }
}

/// The name of a loop variable.
fn variable(arg: &Expr, otherwise: &str) -> Result<String, Wrong> {
    let name = arg.ident().ok_or_else(|| Wrong(arg.id, otherwise.into()))?;
    if name == RESERVED_ACCU {
        return Err(Wrong(arg.id, "iteration variable overwrites accumulator variable".into()));
    }
    Ok(name.to_owned())
}

/// The variables of a loop: two if `two` is set, otherwise one.
fn variables(args: &[Expr], two: bool, otherwise: &str) -> Result<(String, Option<String>), Wrong> {
    if !two {
        return Ok((variable(&args[0], otherwise)?, None));
    }
    for arg in &args[..2] {
        arg.ident().ok_or_else(|| Wrong(arg.id, "argument must be a simple name".into()))?;
    }
    if args[0].ident() == args[1].ident() {
        let name = args[0].ident().unwrap_or_default();
        return Err(Wrong(args[1].id, format!("duplicate variable name: {name}")));
    }
    Ok((variable(&args[0], otherwise)?, Some(variable(&args[1], otherwise)?)))
}

/// A loop over the whole range that returns the accumulated value.
fn collect(b: &mut Builder, range: Expr, vars: (String, Option<String>), init: Expr, step: Expr) -> Expr {
    let condition = b.literal(Literal::Bool(true));
    let result = b.ident(ACCU);
    let (var, var2) = vars;
    b.make(Kind::Fold(Box::new(Fold { range, var, var2, accu: ACCU.into(), init, condition, step, result })))
}

fn quantifier(b: &mut Builder, name: &str, range: Expr, mut args: Vec<Expr>) -> Expanded {
    let (var, var2) = variables(&args, args.len() == 3, "argument must be a simple name")?;
    let predicate = args.pop().expect("a macro has arguments");
    let (init, condition, step, result);
    match name {
        "all" => {
            init = b.literal(Literal::Bool(true));
            let accu = b.ident(ACCU);
            condition = b.call("@not_strictly_false", vec![accu]);
            let accu = b.ident(ACCU);
            step = b.call("_&&_", vec![accu, predicate]);
            result = b.ident(ACCU);
        }
        "exists" => {
            init = b.literal(Literal::Bool(false));
            let accu = b.ident(ACCU);
            let not = b.call("!_", vec![accu]);
            condition = b.call("@not_strictly_false", vec![not]);
            let accu = b.ident(ACCU);
            step = b.call("_||_", vec![accu, predicate]);
            result = b.ident(ACCU);
        }
        _ => {
            init = b.literal(Literal::Int(0));
            condition = b.literal(Literal::Bool(true));
            let (accu, one, otherwise) = (b.ident(ACCU), b.literal(Literal::Int(1)), b.ident(ACCU));
            let sum = b.call("_+_", vec![accu, one]);
            step = b.call("_?_:_", vec![predicate, sum, otherwise]);
            let (accu, one) = (b.ident(ACCU), b.literal(Literal::Int(1)));
            result = b.call("_==_", vec![accu, one]);
        }
    }
    Ok(b.make(Kind::Fold(Box::new(Fold { range, var, var2, accu: ACCU.into(), init, condition, step, result }))))
}

/// The step `accu + [element]`, only for elements that pass the filter if there is one.
fn append(b: &mut Builder, element: Expr, filter: Option<Expr>) -> Expr {
    let accu = b.ident(ACCU);
    let list = b.make(Kind::List(vec![(element, false)]));
    let step = b.call("_+_", vec![accu, list]);
    only_where(b, step, filter)
}

fn only_where(b: &mut Builder, step: Expr, filter: Option<Expr>) -> Expr {
    match filter {
        None => step,
        Some(filter) => {
            let accu = b.ident(ACCU);
            b.call("_?_:_", vec![filter, step, accu])
        }
    }
}

fn map(b: &mut Builder, range: Expr, mut args: Vec<Expr>) -> Expanded {
    let vars = variables(&args, false, "argument is not an identifier")?;
    let element = args.pop().expect("a macro has arguments");
    let filter = if args.len() == 2 { args.pop() } else { None };
    let init = b.make(Kind::List(Vec::new()));
    let step = append(b, element, filter);
    Ok(collect(b, range, vars, init, step))
}

fn filter(b: &mut Builder, range: Expr, mut args: Vec<Expr>) -> Expanded {
    let vars = variables(&args, false, "argument is not an identifier")?;
    let (predicate, element) = (args.pop(), args.pop().expect("a macro has arguments"));
    let init = b.make(Kind::List(Vec::new()));
    let step = append(b, element, predicate);
    Ok(collect(b, range, vars, init, step))
}

fn transform(b: &mut Builder, name: &str, range: Expr, mut args: Vec<Expr>) -> Expanded {
    let vars = variables(&args, true, "argument must be a simple name")?;
    let value = args.pop().expect("a macro has arguments");
    let filter = if args.len() == 3 { args.pop() } else { None };
    if name == "transformList" {
        let init = b.make(Kind::List(Vec::new()));
        let step = append(b, value, filter);
        return Ok(collect(b, range, vars, init, step));
    }
    let init = b.make(Kind::Map(Vec::new()));
    let accu = b.ident(ACCU);
    let inserted = if name == "transformMap" {
        let key = b.ident(&vars.0);
        vec![accu, key, value]
    } else {
        vec![accu, value]
    };
    let step = b.call("cel.@mapInsert", inserted);
    let step = only_where(b, step, filter);
    Ok(collect(b, range, vars, init, step))
}

/// `result` with `name` bound to `value`, as a loop over an empty range.
fn bind(b: &mut Builder, name: &str, value: Expr, result: Expr) -> Expr {
    let range = b.make(Kind::List(Vec::new()));
    let condition = b.literal(Literal::Bool(false));
    let step = b.ident(name);
    b.make(Kind::Fold(Box::new(Fold {
        range,
        var: UNUSED.into(),
        var2: None,
        accu: name.into(),
        init: value,
        condition,
        step,
        result,
    })))
}

fn opt_map(b: &mut Builder, macro_name: &str, target: Expr, mut args: Vec<Expr>) -> Expanded {
    let name = match args[0].ident() {
        Some(name) => name.to_owned(),
        None => {
            return Err(Wrong(args[0].id, format!("{macro_name}() variable name must be a simple identifier")));
        }
    };
    let body = args.pop().expect("a macro has arguments");
    let copy = b.copy(&target);
    let has_value = b.member("hasValue", target, Vec::new());
    let value = b.member("value", copy, Vec::new());
    let mut present = bind(b, &name, value, body);
    if macro_name == "optMap" {
        present = b.call("optional.of", vec![present]);
    }
    let none = b.call("optional.none", Vec::new());
    Ok(b.call("_?_:_", vec![has_value, present, none]))
}

fn sort_by(b: &mut Builder, target: Expr, args: Vec<Expr>) -> Expanded {
    if !matches!(target.kind, Kind::List(_) | Kind::Select { .. } | Kind::Ident(_) | Kind::Fold(_) | Kind::Call(_)) {
        let why = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
        return Err(Wrong(target.id, why.into()));
    }
    let input = b.ident(SORT_INPUT);
    let keys = map(b, input, args)?;
    let input = b.ident(SORT_INPUT);
    let sorted = b.make(Kind::Call(Box::new(Call {
        function: "@sortByAssociatedKeys".into(),
        target: Some(input),
        args: vec![keys],
    })));
    Ok(bind(b, SORT_INPUT, target, sorted))
}
