//! A kind with few rules: its options, and optional functions for defaults, validation and the table. Metadata, status
//! and generation are handled as for every kind.
use jiff::Timestamp;
use serde_json::Value;

use crate::column::{Column, NAME_AGE};
use crate::options::Options;
use crate::path::Errors;
use crate::strategy::{Context, Strategy, base_create, base_subresource_update, base_update};
use crate::table::{age, created, name};
use crate::tree::ensure;

/// Validates an object, given the old one on update.
type Check = fn(&Value, Option<&Value>, &mut Errors);

/// Derives and drops fields of an object, given the old one on update.
type Prepare = fn(&Context<'_>, &mut Value, Option<&Value>);

/// A kind with few rules.
pub struct Generic {
    options: Options,
    default: fn(&mut Value),
    prepare: Prepare,
    prepare_status: fn(&mut Value, &Value),
    check: Check,
    check_status: Check,
    row: fn(&Value, Timestamp) -> Vec<Value>,
}

impl Strategy for Generic {
    fn options(&self) -> &Options {
        &self.options
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        if self.options.has_status() && self.options.stored {
            ensure(obj, "status");
        }
        (self.default)(obj);
    }
    fn prepare_create(&self, cx: &Context<'_>, obj: &mut Value) {
        base_create(self, obj);
        (self.prepare)(cx, obj, None);
    }
    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        // A derived field is a change as well.
        (self.prepare)(cx, new, Some(old));
        base_update(&self.options, new, old);
    }
    fn prepare_subresource_update(&self, _cx: &Context<'_>, subresource: &str, new: &mut Value, old: &Value) {
        base_subresource_update(&self.options, subresource, new, old);
        if subresource == "status" {
            (self.prepare_status)(new, old);
        }
    }
    fn check_create(&self, obj: &Value, e: &mut Errors) {
        (self.check)(obj, None, e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        (self.check)(new, Some(old), e);
    }
    fn check_subresource_update(&self, subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
        if subresource == "status" {
            (self.check_status)(new, Some(old), e);
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        (self.row)(obj, now)
    }
}

/// Creates a kind without defaults whose table has name and creation time.
pub fn plain(options: Options) -> Generic {
    Generic {
        options,
        default: |_| {},
        prepare: |_, _, _| {},
        prepare_status: |_, _| {},
        check: |_, _, _| {},
        check_status: |_, _, _| {},
        row: |obj, _| vec![name(obj), created(obj)],
    }
}

/// Creates a kind that is answered and never stored.
pub fn asked(group: &'static str, plural: &'static str) -> Generic {
    plain(Options { stored: false, ..Options::of(group, plural) })
}

impl Generic {
    /// Sets the defaults, which are the same in every version.
    pub fn default(mut self, set: fn(&mut Value)) -> Self {
        self.default = set;
        self
    }
    /// Sets how fields are derived or dropped, on create and update.
    pub fn prepared(mut self, prepare: Prepare) -> Self {
        self.prepare = prepare;
        self
    }
    /// Sets how a new status is changed before validation, given the old object.
    pub fn prepared_status(mut self, prepare: fn(&mut Value, &Value)) -> Self {
        self.prepare_status = prepare;
        self
    }
    /// Sets the validation for create and update.
    pub fn checked(mut self, check: Check) -> Self {
        self.check = check;
        self
    }
    /// Sets the validation of the status.
    pub fn checked_status(mut self, check: Check) -> Self {
        self.check_status = check;
        self
    }
    /// Sets the table's columns and cells.
    pub fn table(mut self, columns: &'static [Column], row: fn(&Value, Timestamp) -> Vec<Value>) -> Self {
        self.options.columns = columns.into();
        self.row = row;
        self
    }
    /// Sets a table with name and age.
    pub fn name_and_age(self) -> Self {
        self.table(NAME_AGE, |obj, now| vec![name(obj), age(obj, now)])
    }
}
