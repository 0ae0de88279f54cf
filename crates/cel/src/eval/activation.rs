//! The values of an expression's variables in one evaluation.
use std::cell::RefCell;

use super::program::Program;
use crate::value::Value;
use crate::value::error::{EvalError, Result};

/// The named expressions of a policy. Each of them may use the earlier ones.
pub type NamedPrograms = [(String, Program)];

/// Values of variables that several activations share.
#[derive(Debug, Default)]
pub struct Values<'a>(Vec<(&'a str, Result<Value<'a>>)>);

impl<'a> Values<'a> {
    /// Gives a variable a value, or an error for expressions that use it.
    pub fn bind(&mut self, name: &'a str, value: impl Into<Bound<'a>>) -> &mut Self {
        let Bound(value) = value.into();
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
        self
    }

    fn get(&self, name: &str) -> Option<&Result<Value<'a>>> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }
}

/// The values of an environment's variables. A named expression is evaluated once, when it is first used.
#[derive(Debug, Default)]
pub struct Activation<'a> {
    own: Values<'a>,
    /// The shared values, used for variables without a value in this activation.
    shared: Option<&'a Values<'a>>,
    programs: &'a [(String, Program)],
    /// The results of the named expressions; `None` before the first use.
    memo: RefCell<Vec<Option<Result<Value<'a>>>>>,
}

impl<'a> Activation<'a> {
    /// Makes an activation without values.
    pub fn new() -> Activation<'a> {
        Activation::default()
    }
    /// Makes an activation with shared values. Values of the activation take precedence.
    pub fn over(shared: &'a Values<'a>) -> Activation<'a> {
        Activation { shared: Some(shared), ..Activation::default() }
    }
    /// Gives a variable a value, or an error for expressions that use it.
    pub fn bind(&mut self, name: &'a str, value: impl Into<Bound<'a>>) -> &mut Self {
        self.own.bind(name, value);
        self
    }
    /// Makes the named expressions the fields of `variables`.
    pub fn bind_programs(&mut self, programs: &'a NamedPrograms) -> &mut Self {
        self.programs = programs;
        self.memo = RefCell::new(vec![None; programs.len()]);
        self.bind("variables", Value::Variables)
    }

    pub(crate) fn get(&self, name: &str) -> Result<Value<'a>> {
        match self.own.get(name).or_else(|| self.shared?.get(name)) {
            Some(value) => value.clone(),
            None => Err(EvalError::new(format!("no such attribute(s): {name}"))),
        }
    }
    pub(crate) fn program(&self, name: &str) -> Option<(usize, &'a Program)> {
        self.programs.iter().enumerate().find(|(_, (n, _))| n == name).map(|(i, (_, p))| (i, p))
    }
    pub(crate) fn remembered(&self, index: usize) -> Option<Result<Value<'a>>> {
        self.memo.borrow().get(index).cloned().flatten()
    }
    pub(crate) fn remember(&self, index: usize, value: Result<Value<'a>>) {
        if let Some(place) = self.memo.borrow_mut().get_mut(index) {
            *place = Some(value);
        }
    }
}

/// A value of a variable, or the error for expressions that use it.
pub struct Bound<'a>(Result<Value<'a>>);

impl<'a> From<Value<'a>> for Bound<'a> {
    fn from(value: Value<'a>) -> Self {
        Bound(Ok(value))
    }
}
impl<'a> From<Result<Value<'a>>> for Bound<'a> {
    fn from(value: Result<Value<'a>>) -> Self {
        Bound(value)
    }
}
