//! A recursive descent parser for the grammar of CEL. The depth and the number of nodes are bounded, because expressions come from
//! clients and macros copy their arguments.
use super::build::{Builder, NODES};
use super::expr::{Call, Entry, Expr, Field, Kind, Literal, StructLiteral};
use super::macros;
use super::operators::{RELATION, balanced, call, operator};
use super::source::Issue;
use super::token::{Spanned, Token, tokens};

/// The nesting depth of an expression, as in upstream's parser.
const DEPTH: usize = 250;
/// The most code points of an expression, as in upstream's parser.
const CODE_POINTS: usize = 100_000;
/// The number of errors after which parsing stops.
const FAULTS: usize = 100;

pub(super) const EXPRESSION: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, \
                          BYTES, IDENTIFIER}";

/// Reserved words, which cannot be names of variables or functions.
pub(crate) const RESERVED: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "package",
    "namespace",
    "null",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// A tree, and the position of each node in the source (the number of code points before it, by node ID).
#[derive(Debug)]
pub(crate) struct Parsed {
    pub root: Expr,
    pub places: Vec<u32>,
}

/// Parses an expression without `cel.bind`.
#[cfg(test)]
pub(crate) fn parse(source: &str) -> Result<Parsed, Vec<Issue>> {
    parse_with(source, false)
}

/// Parses an expression, or returns its errors. With `bindings`, `cel.bind` is a macro.
pub(crate) fn parse_with(source: &str, bindings: bool) -> Result<Parsed, Vec<Issue>> {
    let size = source.chars().count();
    if size > CODE_POINTS {
        let message = format!("expression code point size exceeds limit: size: {size}, limit {CODE_POINTS}");
        return Err(vec![Issue { offset: None, message }]);
    }
    let mut issues = Vec::new();
    let tokens = tokens(source, &mut issues);
    let mut parser = Parser { source, tokens, at: 0, depth: 0, issues, bindings, b: Builder::new() };
    let root = parser.whole();
    if parser.issues.is_empty()
        && let Ok(root) = root
    {
        return Ok(Parsed { root, places: parser.b.places });
    }
    Err(parser.issues)
}

/// An error was noted and parsing cannot continue.
pub(super) struct Stop;
pub(super) type Parse<T = Expr> = Result<T, Stop>;

pub(super) struct Parser<'s> {
    source: &'s str,
    tokens: Vec<Spanned>,
    pub(super) at: usize,
    depth: usize,
    issues: Vec<Issue>,
    /// Whether `cel.bind` is a macro.
    bindings: bool,
    pub(super) b: Builder,
}

impl Parser<'_> {
    pub(super) fn peek(&self) -> Spanned {
        self.tokens[self.at]
    }
    pub(super) fn text(&self, token: Spanned) -> &str {
        &self.source[token.start..token.end]
    }
    pub(super) fn next(&mut self) -> Spanned {
        let token = self.peek();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }
    fn is(&self, sign: &str) -> bool {
        matches!(self.peek().token, Token::Sign(s) if s == sign)
    }
    pub(super) fn eat(&mut self, sign: &str) -> Option<Spanned> {
        self.is(sign).then(|| self.next())
    }
    pub(super) fn fault(&mut self, offset: u32, message: String) {
        if self.issues.len() < FAULTS {
            self.issues.push(Issue { offset: Some(offset), message });
        }
    }
    pub(super) fn unexpected<T>(&mut self, wanted: &str) -> Parse<T> {
        let token = self.peek();
        let shown = if token.token == Token::End { "<EOF>" } else { self.text(token) };
        let message = format!("Syntax error: mismatched input '{shown}' expecting {wanted}");
        self.fault(token.offset, message);
        Err(Stop)
    }
    fn expect(&mut self, sign: &str) -> Parse<Spanned> {
        match self.eat(sign) {
            Some(token) => Ok(token),
            None => self.unexpected(&format!("'{sign}'")),
        }
    }
    /// Enters one level of nesting, or fails: the bound on the depth protects the stack.
    fn deeper(&mut self) -> Parse<()> {
        self.depth += 1;
        if self.depth > DEPTH || self.b.places.len() > NODES {
            let message = if self.depth > DEPTH {
                format!("expression recursion limit exceeded: {DEPTH}")
            } else {
                format!("expression has more than {NODES} nodes after macros are expanded")
            };
            self.issues.push(Issue { offset: None, message });
            return Err(Stop);
        }
        Ok(())
    }

    fn whole(&mut self) -> Parse {
        let root = self.expression()?;
        let token = self.peek();
        if token.token != Token::End {
            let message = format!("Syntax error: extraneous input '{}' expecting <EOF>", self.text(token));
            self.fault(token.offset, message);
        }
        if self.b.places.len() > NODES {
            self.depth = 0;
            self.deeper()?;
        }
        Ok(root)
    }

    fn expression(&mut self) -> Parse {
        self.deeper()?;
        let condition = self.binary(0)?;
        let result = if let Some(op) = self.eat("?") {
            let id = self.b.id(op.offset);
            let yes = self.binary(0)?;
            self.expect(":")?;
            let no = self.expression()?;
            Expr { id, kind: call("_?_:_", vec![condition, yes, no]) }
        } else {
            condition
        };
        self.depth -= 1;
        Ok(result)
    }

    /// Parses operators by precedence in one function, so that nesting takes few stack frames.
    fn binary(&mut self, least: u8) -> Parse {
        let before = self.depth;
        let mut left = self.unary()?;
        while let Some((tightness, function)) = operator(self.peek().token).filter(|(t, _)| *t >= least) {
            if tightness < RELATION {
                left = self.chain(left, tightness, function)?;
                continue;
            }
            self.deeper()?;
            let token = self.next();
            let id = self.b.id(token.offset);
            let right = self.binary(tightness + 1)?;
            left = Expr { id, kind: call(function, vec![left, right]) };
        }
        self.depth = before;
        Ok(left)
    }

    /// Parses a chain of `||` or `&&` as a balanced tree, so that a long chain is not a deep one.
    fn chain(&mut self, first: Expr, tightness: u8, function: &'static str) -> Parse {
        let mut terms = vec![Some(first)];
        let mut ids = Vec::new();
        while operator(self.peek().token) == Some((tightness, function)) {
            let token = self.next();
            terms.push(Some(self.binary(tightness + 1)?));
            ids.push(self.b.id(token.offset));
        }
        Ok(balanced(function, &mut terms, &ids))
    }

    fn unary(&mut self) -> Parse {
        let (sign, function) = match self.peek().token {
            Token::Sign("!") => ("!", "!_"),
            Token::Sign("-") => ("-", "-_"),
            _ => return self.member(),
        };
        let first = self.peek();
        // A sign before a number is part of the number.
        if sign == "-" && matches!(self.tokens[self.at + 1].token, Token::Int | Token::Float) {
            return self.member();
        }
        let mut signs = 0;
        while self.is(sign) {
            if signs > 0 && sign == "-" && matches!(self.tokens[self.at + 1].token, Token::Int | Token::Float) {
                break;
            }
            self.next();
            signs += 1;
        }
        let operand = self.member()?;
        if signs % 2 == 0 {
            return Ok(operand);
        }
        let id = self.b.id(first.offset);
        Ok(Expr { id, kind: call(function, vec![operand]) })
    }

    fn member(&mut self) -> Parse {
        let before = self.depth;
        let mut expr = self.primary()?;
        loop {
            if let Some(dot) = self.eat(".") {
                self.deeper()?;
                expr = self.select(expr, dot)?;
            } else if let Some(open) = self.eat("[") {
                self.deeper()?;
                let function = if self.eat("?").is_some() { "_[?_]" } else { "_[_]" };
                let id = self.b.id(open.offset);
                let index = self.expression()?;
                self.expect("]")?;
                expr = Expr { id, kind: call(function, vec![expr, index]) };
            } else {
                self.depth = before;
                return Ok(expr);
            }
        }
    }

    fn select(&mut self, operand: Expr, dot: Spanned) -> Parse {
        let optional = self.eat("?").is_some();
        let name = self.next();
        if name.token != Token::Name {
            self.at -= usize::from(name.token != Token::End);
            return self.unexpected("IDENTIFIER");
        }
        let field = self.text(name).to_owned();
        if !optional && self.is("(") {
            let open = self.next();
            let args = self.arguments(")")?;
            return self.called(open.offset, field, Some(operand), args);
        }
        if optional {
            let id = self.b.id(dot.offset);
            let field = self.b.at(name.offset, Kind::Literal(Literal::Text(field.into())));
            return Ok(Expr { id, kind: call("_?._", vec![operand, field]) });
        }
        Ok(self.b.at(dot.offset, Kind::Select { operand: Box::new(operand), field, test: false }))
    }

    fn arguments(&mut self, close: &str) -> Parse<Vec<Expr>> {
        let mut args = Vec::new();
        if self.eat(close).is_some() {
            return Ok(args);
        }
        loop {
            args.push(self.expression()?);
            if self.eat(",").is_none() {
                self.expect(close)?;
                return Ok(args);
            }
        }
    }

    fn called(&mut self, offset: u32, function: String, target: Option<Expr>, args: Vec<Expr>) -> Parse {
        let binds = self.bindings && macros::is_bind(&function, args.len(), target.as_ref());
        if binds || macros::is_macro(&function, args.len(), target.is_some()) {
            self.b.expand_at(offset);
            let expanded = match binds {
                true => macros::expand_bind(&mut self.b, args),
                false => macros::expand(&mut self.b, &function, target, args),
            };
            return match expanded {
                Ok(expr) => Ok(expr),
                Err(macros::Wrong(id, message)) => {
                    let place = self.b.places[id as usize];
                    self.fault(place, message);
                    Ok(self.b.at(place, Kind::Fault))
                }
            };
        }
        Ok(self.b.at(offset, Kind::Call(Box::new(Call { function, target, args }))))
    }

    fn primary(&mut self) -> Parse {
        let token = self.peek();
        match token.token {
            Token::Sign("(") => {
                self.next();
                let inner = self.expression()?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Sign("[") => self.list(),
            Token::Sign("{") => self.map(),
            Token::Sign(".") | Token::Name => self.name(),
            Token::Sign("-") | Token::Int | Token::Uint | Token::Float => self.number(),
            Token::Text | Token::Bytes => Ok(self.string()),
            Token::True | Token::False => {
                self.next();
                Ok(self.b.at(token.offset, Kind::Literal(Literal::Bool(token.token == Token::True))))
            }
            Token::Null => {
                self.next();
                Ok(self.b.at(token.offset, Kind::Literal(Literal::Null)))
            }
            _ => self.unexpected(EXPRESSION),
        }
    }

    fn list(&mut self) -> Parse {
        let open = self.next();
        let id = self.b.id(open.offset);
        let mut items = Vec::new();
        while self.eat("]").is_none() {
            let optional = self.eat("?").is_some();
            items.push((self.expression()?, optional));
            if self.eat(",").is_none() {
                self.expect("]")?;
                break;
            }
        }
        Ok(Expr { id, kind: Kind::List(items) })
    }

    fn map(&mut self) -> Parse {
        let open = self.next();
        let id = self.b.id(open.offset);
        let mut entries = Vec::new();
        while self.eat("}").is_none() {
            let optional = self.eat("?").is_some();
            let key = self.expression()?;
            self.expect(":")?;
            let value = self.expression()?;
            entries.push(Entry { key, value, optional });
            if self.eat(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        Ok(Expr { id, kind: Kind::Map(entries) })
    }

    /// Parses a variable, a call, or the constructor of an object type with a dotted name.
    fn name(&mut self) -> Parse {
        let start = self.peek();
        let dotted = self.eat(".").is_some();
        let token = self.peek();
        if token.token != Token::Name {
            return self.unexpected("IDENTIFIER");
        }
        if let Some(length) = self.constructor() {
            return self.construct(dotted, length);
        }
        self.next();
        let name = self.text(token).to_owned();
        if RESERVED.contains(&name.as_str()) {
            self.fault(start.offset, format!("reserved identifier: {name}"));
            if self.eat("(").is_some() {
                self.arguments(")")?;
            }
            return Ok(self.b.at(start.offset, Kind::Fault));
        }
        if let Some(open) = self.eat("(") {
            let args = self.arguments(")")?;
            return self.called(open.offset, name, None, args);
        }
        Ok(self.b.at(token.offset, Kind::Ident(name)))
    }

    /// The number of tokens of a dotted name before a `{`, if there is one.
    fn constructor(&self) -> Option<usize> {
        let mut at = self.at;
        loop {
            if self.tokens[at].token != Token::Name {
                return None;
            }
            match self.tokens[at + 1].token {
                Token::Sign("{") => return Some(at + 1 - self.at),
                Token::Sign(".") => at += 2,
                _ => return None,
            }
        }
    }

    fn construct(&mut self, dotted: bool, length: usize) -> Parse {
        let mut name = String::from(if dotted { "." } else { "" });
        for _ in 0..length {
            let token = self.next();
            name.push_str(self.text(token));
        }
        let open = self.next();
        let id = self.b.id(open.offset);
        let mut fields = Vec::new();
        while self.eat("}").is_none() {
            let optional = self.eat("?").is_some();
            let token = self.peek();
            if token.token != Token::Name {
                return self.unexpected("{'}', ',', '?', IDENTIFIER}");
            }
            self.next();
            let colon = self.expect(":")?;
            let field = self.text(token).to_owned();
            let field_id = self.b.id(colon.offset);
            fields.push(Field { id: field_id, name: field, value: self.expression()?, optional });
            if self.eat(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        Ok(Expr { id, kind: Kind::Struct(Box::new(StructLiteral { name, fields })) })
    }
}
