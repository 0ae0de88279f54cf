//! The operators: their precedence and their functions.
use super::expr::{Call, Expr, Id, Kind};
use super::token::Token;

/// The precedence of `<` and the other relations. `&&` and `||` have a lower one.
pub(super) const RELATION: u8 = 2;

/// The precedence of an operator, and its function.
pub(super) fn operator(token: Token) -> Option<(u8, &'static str)> {
    Some(match token {
        Token::Sign("||") => (0, "_||_"),
        Token::Sign("&&") => (1, "_&&_"),
        Token::In => (RELATION, "@in"),
        Token::Sign("<") => (RELATION, "_<_"),
        Token::Sign("<=") => (RELATION, "_<=_"),
        Token::Sign(">") => (RELATION, "_>_"),
        Token::Sign(">=") => (RELATION, "_>=_"),
        Token::Sign("==") => (RELATION, "_==_"),
        Token::Sign("!=") => (RELATION, "_!=_"),
        Token::Sign("+") => (3, "_+_"),
        Token::Sign("-") => (3, "_-_"),
        Token::Sign("*") => (4, "_*_"),
        Token::Sign("/") => (4, "_/_"),
        Token::Sign("%") => (4, "_%_"),
        _ => return None,
    })
}

/// The call of an operator's function.
pub(super) fn call(function: &str, args: Vec<Expr>) -> Kind {
    Kind::Call(Box::new(Call { function: function.into(), target: None, args }))
}

/// Combines the terms `0..=n` with the operators between them to a balanced tree.
pub(super) fn balanced(function: &str, terms: &mut [Option<Expr>], ids: &[Id]) -> Expr {
    if ids.is_empty() {
        return terms[0].take().expect("each term is used once");
    }
    let middle = ids.len() / 2;
    let (left, right) = terms.split_at_mut(middle + 1);
    let left = balanced(function, left, &ids[..middle]);
    let right = balanced(function, right, &ids[middle + 1..]);
    Expr { id: ids[middle], kind: call(function, vec![left, right]) }
}
