//! Compiles the rules of one node: checks them against the types of the node, and estimates their cost.
use kelson_cel::{CompileError, DeclType, Env, Program, Type};

use super::field_path::{Brackets, field_path};
use crate::schema::{Node, Rule};

/// The name of the value that a rule is about.
pub(super) const SELF: &str = "self";
/// The name of the previous value.
pub(super) const OLD_SELF: &str = "oldSelf";

/// The result of compiling a rule. An empty rule has neither a program nor an error.
#[derive(Debug, Default)]
pub struct CompiledRule {
    /// The rule itself.
    pub program: Option<Program>,
    /// Why there is no program.
    pub error: Option<String>,
    /// Whether it compares with the old value.
    pub uses_old_self: bool,
    /// The maximum cost of one evaluation.
    pub cost_max: u64,
    /// The maximum number of occurrences of the position in a request, if nothing else bounds it.
    pub cardinality_max: u64,
    /// The expression for the message.
    pub message: Option<Program>,
    /// Why there is no message program, if there should be one.
    pub message_error: Option<String>,
    /// The maximum cost of the message.
    pub message_cost_max: u64,
    /// The field at which errors are reported, as errors print it.
    pub field_path: Option<String>,
}

/// Compiles the rules of a position with the type `decl`.
pub fn compile(node: &Node, decl: &DeclType) -> Vec<CompiledRule> {
    if node.rules().is_empty() {
        return Vec::new();
    }
    let plain = Env::builder().variable(SELF, decl).same_as(OLD_SELF, SELF).build();
    let optional = Env::builder().variable(SELF, decl).optional_of(OLD_SELF, SELF).build();
    let rules = node.rules().iter();
    let compiled = rules.map(|rule| {
        let env = if rule.optional_old_self == Some(true) { &optional } else { &plain };
        let mut compiled = CompiledRule { cardinality_max: decl.max_cardinality(), ..CompiledRule::default() };
        one(rule, env, &mut compiled);
        if compiled.program.is_some() && !rule.field_path.is_empty() {
            let path = field_path(&rule.field_path, node, Brackets::Allowed);
            compiled.field_path = path.ok().map(|(path, _)| path.to_string());
        }
        compiled
    });
    compiled.collect()
}

fn one(rule: &Rule, env: &Env, compiled: &mut CompiledRule) {
    if rule.rule.trim().is_empty() {
        return;
    }
    let program = match env.compile(&rule.rule) {
        Ok(program) => program,
        Err(why @ CompileError::Issues { .. }) => {
            compiled.error = Some(format!("compilation failed: {why}"));
            return;
        }
        Err(why) => {
            compiled.error = Some(format!("program instantiation failed: {why}"));
            return;
        }
    };
    if *program.output_type() != Type::Bool {
        compiled.error = Some("cel expression must evaluate to a bool".to_owned());
        return;
    }
    compiled.uses_old_self = program.uses(OLD_SELF);
    compiled.cost_max = program.cost().max;
    compiled.program = Some(program);
    if rule.message_expression.is_empty() {
        return;
    }
    match env.compile(&rule.message_expression) {
        Ok(message) if *message.output_type() == Type::String => {
            compiled.message_cost_max = message.cost().max;
            compiled.message = Some(message);
        }
        Ok(_) => compiled.message_error = Some("messageExpression must evaluate to a string".to_owned()),
        Err(why @ CompileError::Issues { .. }) => {
            compiled.message_error = Some(format!("messageExpression compilation failed: {why}"));
        }
        Err(why) => compiled.message_error = Some(format!("messageExpression instantiation failed: {why}")),
    }
}
