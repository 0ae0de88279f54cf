//! Maps verified claims to a user: rules for claims, mappings by claim or by expression, and rules for the user.
use std::collections::BTreeMap;

use kelson_cel::{Activation, Budget, Env, PER_CALL_LIMIT, Program, Type};
use serde_json::{Map, Value, json};

use super::document::{Jwt, Mapping};
use crate::user::{self, UserInfo};

/// The total cost budget for the expressions of one token.
const BUDGET: u64 = 10 * PER_CALL_LIMIT;
/// Domains that extra keys of a configuration may not use.
const RESERVED: [&str; 2] = ["kubernetes.io", "k8s.io"];

/// The compiled rules and mappings of an issuer.
#[derive(Debug)]
pub(super) struct Rules {
    claim_rules: Vec<ClaimRule>,
    username: Option<Source>,
    groups: Option<Source>,
    uid: Option<Source>,
    extra: Vec<(String, Program)>,
    user_rules: Vec<(Program, String)>,
}

#[derive(Debug)]
enum ClaimRule {
    Value { claim: String, required: String },
    Expression { program: Program, message: String },
}

#[derive(Debug)]
enum Source {
    Claim { claim: String, prefix: String },
    Expression(Program),
}

/// Collects the compiled expressions and their errors.
pub(super) struct Compiled<'a> {
    pub at: &'a str,
    pub faults: &'a mut Vec<String>,
}

impl Compiled<'_> {
    fn fault(&mut self, field: &str, why: &str) {
        self.faults.push(format!("{}.{field}: {why}", self.at));
    }

    /// Compiles a rule, which must return a boolean.
    fn rule(&mut self, field: &str, env: &Env, source: &str) -> Option<Program> {
        self.judged(field, source, kelson_cel::admission::compile(env, source, &[Type::Bool]))
    }

    /// Compiles a mapping. Every type is accepted; a token is rejected if the value is not a string or a list of
    /// strings.
    fn mapping(&mut self, field: &str, env: &Env, source: &str) -> Option<Program> {
        self.judged(field, source, env.compile(source).map_err(|e| format!("compilation failed: {e}")))
    }

    fn judged(&mut self, field: &str, source: &str, compiled: Result<Program, String>) -> Option<Program> {
        match compiled {
            Ok(program) => Some(program),
            Err(why) => {
                self.fault(field, &format!("Invalid value: {source:?}: {why}"));
                None
            }
        }
    }

    fn source(&mut self, field: &str, env: &Env, given: &Mapping) -> Option<Source> {
        let prefixed = given.prefix.is_some();
        match (given.claim.as_str(), given.expression.as_str()) {
            ("", "") if prefixed => self.fault(field, "Required value: claim is required when prefix is set"),
            ("", "") => {}
            ("", expression) if !prefixed => {
                return self.mapping(&format!("{field}.expression"), env, expression).map(Source::Expression);
            }
            (claim, "") => {
                if !prefixed && field != "claimMappings.uid" {
                    let why = "Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing";
                    self.fault(&format!("{field}.prefix"), why);
                }
                return Some(Source::Claim { claim: claim.into(), prefix: given.prefix.clone().unwrap_or_default() });
            }
            ("", _) => self.fault(field, "Invalid value: prefix can't be set when expression is set"),
            _ => self.fault(field, "Invalid value: claim and expression can't both be set"),
        }
        None
    }
}

impl Rules {
    /// Compiles the rules of a configuration.
    pub(super) fn new(to: &mut Compiled<'_>, jwt: &Jwt) -> Self {
        let claims = Env::builder().typed("claims", Type::map(Type::String, Type::Dyn)).build();
        let user = Env::builder().typed("user", Type::map(Type::String, Type::Dyn)).build();
        let m = &jwt.claim_mappings;
        let mut claim_rules = Vec::new();
        for (i, rule) in jwt.claim_validation_rules.iter().enumerate() {
            let field = format!("claimValidationRules[{i}]");
            match (rule.claim.as_str(), rule.expression.as_str()) {
                ("", "") => to.fault(&field, "Required value: claim or expression is required"),
                ("", expression) => {
                    if let Some(program) = to.rule(&format!("{field}.expression"), &claims, expression) {
                        claim_rules.push(ClaimRule::Expression { program, message: rule.message.clone() });
                    }
                }
                (claim, "") => {
                    let required = rule.required_value.clone();
                    claim_rules.push(ClaimRule::Value { claim: claim.into(), required });
                }
                _ => to.fault(&field, "Invalid value: claim and expression can't both be set"),
            }
        }
        let username = to.source("claimMappings.username", &claims, &m.username);
        if m.username.claim.is_empty() && m.username.expression.is_empty() {
            to.fault("claimMappings.username", "Required value: claim or expression is required");
        }
        let groups = to.source("claimMappings.groups", &claims, &m.groups);
        let uid = to.source("claimMappings.uid", &claims, &m.uid);
        let mut extra: Vec<(String, Program)> = Vec::new();
        for (i, one) in m.extra.iter().enumerate() {
            let field = format!("claimMappings.extra[{i}]");
            if let Some(why) = bad_key(&one.key) {
                to.fault(&format!("{field}.key"), &format!("Invalid value: {:?}: {why}", one.key));
            }
            if extra.iter().any(|(key, _)| *key == one.key) {
                to.fault(&format!("{field}.key"), &format!("Duplicate value: {:?}", one.key));
            }
            if let Some(program) = to.mapping(&format!("{field}.valueExpression"), &claims, &one.value_expression) {
                extra.push((one.key.clone(), program));
            }
        }
        let mut user_rules = Vec::new();
        for (i, rule) in jwt.user_validation_rules.iter().enumerate() {
            let field = format!("userValidationRules[{i}].expression");
            if let Some(program) = to.rule(&field, &user, &rule.expression) {
                user_rules.push((program, rule.message.clone()));
            }
        }
        let rules = Self { claim_rules, username, groups, uid, extra, user_rules };
        if !rules.asks_whether_email_is_verified() {
            to.fault(
                "claimMappings.username.expression",
                "Invalid value: claims.email_verified must be used in \
                claimMappings.username.expression or claimMappings.extra[*].valueExpression or \
                claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression",
            );
        }
        rules
    }

    /// Returns the claim with the user's groups, unless they are an expression.
    pub(super) fn groups_claim(&self) -> Option<&str> {
        match &self.groups {
            Some(Source::Claim { claim, .. }) => Some(claim),
            _ => None,
        }
    }

    fn asks_whether_email_is_verified(&self) -> bool {
        let uses = |program: &Program, field: &str| program.fields_of("claims").any(|f| f == field);
        let Some(Source::Expression(username)) = &self.username else { return true };
        if !uses(username, "email") {
            return true;
        }
        let rules = self.claim_rules.iter().filter_map(|rule| match rule {
            ClaimRule::Expression { program, .. } => Some(program),
            ClaimRule::Value { .. } => None,
        });
        let extra = self.extra.iter().map(|(_, program)| program);
        std::iter::once(username).chain(rules).chain(extra).any(|program| uses(program, "email_verified"))
    }

    /// Returns the user that claims describe.
    ///
    /// # Errors
    /// Why they do not describe a user; the message contains no values.
    pub(super) fn user(&self, claims: &Map<String, Value>) -> Result<UserInfo, String> {
        let tree = Value::Object(claims.clone());
        let mut budget = Budget::new(BUDGET);
        let mut eval = |program: &Program| evaluate(program, "claims", &tree, &mut budget);
        for rule in &self.claim_rules {
            match rule {
                ClaimRule::Value { claim, required } => match claims.get(claim) {
                    Some(Value::String(found)) if found == required => {}
                    Some(_) => return Err(format!("required claim {claim} has another value")),
                    None => return Err(format!("required claim {claim} not present in ID token")),
                },
                ClaimRule::Expression { program, message } => {
                    if eval(program)? != Value::Bool(true) {
                        return Err(said("validation expression failed", message));
                    }
                }
            }
        }
        let username = match &self.username {
            Some(Source::Claim { claim, prefix }) => {
                if claim == "email" && claims.get("email_verified").is_some_and(|v| *v != Value::Bool(true)) {
                    return Err("email not verified".into());
                }
                match claims.get(claim).and_then(Value::as_str) {
                    Some("") => String::new(),
                    Some(name) => format!("{prefix}{name}"),
                    None => return Err(format!("claim {claim} is not a string")),
                }
            }
            Some(Source::Expression(program)) => text(eval(program)?, "the username")?,
            None => String::new(),
        };
        if username.is_empty() {
            return Err("the username is empty".into());
        }
        let groups = match &self.groups {
            Some(Source::Claim { claim, prefix }) => {
                let found = texts(claims.get(claim).cloned().unwrap_or_default(), "the groups claim")?;
                found.into_iter().map(|group| format!("{prefix}{group}")).collect()
            }
            Some(Source::Expression(program)) => texts(eval(program)?, "the groups")?,
            None => Vec::new(),
        };
        let uid = match &self.uid {
            Some(Source::Claim { claim, .. }) => {
                claims.get(claim).and_then(Value::as_str).ok_or(format!("claim {claim} is not a string"))?.to_owned()
            }
            Some(Source::Expression(program)) => text(eval(program)?, "the uid")?,
            None => String::new(),
        };
        let mut extra = BTreeMap::new();
        for (key, program) in &self.extra {
            let values = texts(eval(program)?, "an extra value")?;
            if !values.is_empty() {
                extra.insert(key.clone(), values);
            }
        }
        if let Some(id) = claims.get("jti").and_then(Value::as_str).filter(|id| !id.is_empty()) {
            extra.insert(user::CREDENTIAL_ID.to_owned(), vec![format!("JTI={id}")]);
        }
        let found = UserInfo { name: username, uid, groups, extra };
        let tree = json!({"username": found.name, "uid": found.uid, "groups": found.groups, "extra": found.extra});
        for (program, message) in &self.user_rules {
            if evaluate(program, "user", &tree, &mut budget)? != Value::Bool(true) {
                return Err(said("the user is not valid", message));
            }
        }
        Ok(found)
    }
}

fn evaluate(program: &Program, name: &str, tree: &Value, budget: &mut Budget) -> Result<Value, String> {
    let mut activation = Activation::new();
    activation.bind(name, kelson_cel::Value::json(tree));
    let value = program.eval(&activation, budget).map_err(|e| format!("an expression failed: {e}"))?;
    value.to_json().ok_or_else(|| "an expression has a value that is not JSON".to_owned())
}

fn said(what: &str, message: &str) -> String {
    if message.is_empty() { what.to_owned() } else { format!("{what}: {message}") }
}

fn text(value: Value, what: &str) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(format!("{what} is not a string")),
    }
}

/// Returns a string or a list of strings; empty strings and null give none.
fn texts(value: Value, what: &str) -> Result<Vec<String>, String> {
    let list = match value {
        Value::Null => Vec::new(),
        Value::Array(list) => list,
        one => vec![one],
    };
    let texts = list.into_iter().map(|one| text(one, what)).collect::<Result<Vec<_>, _>>()?;
    Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
}

/// Returns what is wrong with a key of `extra`.
fn bad_key(key: &str) -> Option<&'static str> {
    let Some((domain, path)) = key.split_once('/') else { return Some("must be a domain-prefixed path") };
    let reserved = RESERVED.iter().any(|r| domain == *r || domain.ends_with(&format!(".{r}")));
    match () {
        () if key.chars().any(char::is_uppercase) => Some("must be lowercase"),
        () if path.is_empty() || kelson_meta::is_dns1123_subdomain(domain).is_err() => {
            Some("must be a domain-prefixed path")
        }
        () if reserved => Some("kubernetes.io and k8s.io are reserved for Kubernetes use"),
        () => None,
    }
}
