//! A compiled stage: its selector, its delay and its steps.
use std::time::Duration;

use jiff::Timestamp;
use rand::Rng;
use serde_json::Value;

use crate::document::{Document, Reference};
use crate::error::StageError;
use crate::selector::Selector;
use crate::step::{Effect, Step};
use crate::template::Templates;
use crate::value::{ExpressionValue, Subject};

/// A compiled stage. It decides whether an object is in the stage, how long the object stays in it, and which writes
/// follow. It is made once from a [`Document`] and is then used for every object of its kind; evaluation changes no
/// state.
#[derive(Debug)]
pub struct Stage {
    name: String,
    of: Reference,
    selector: Selector,
    weight: ExpressionValue,
    delay: Option<(ExpressionValue, ExpressionValue)>,
    steps: Vec<Step>,
    immediate_next: bool,
}

impl Stage {
    /// Compiles a document. Returns `None` for a document without a selector, because it matches no object.
    ///
    /// # Errors
    /// Fails when a part is invalid. The error names the stage and the field.
    pub fn compile(document: &Document, templates: &Templates) -> Result<Option<Self>, StageError> {
        let name = document.metadata.name.clone();
        Self::new(document, name.clone(), templates).map_err(|e| e.within(format_args!("stage {name:?}: spec")))
    }

    fn new(document: &Document, name: String, templates: &Templates) -> Result<Option<Self>, StageError> {
        let spec = &document.spec;
        if spec.resource_ref.kind.is_empty() {
            return Err(StageError::new("resourceRef.kind", "kind is required"));
        }
        let Some(selector) = &spec.selector else { return Ok(None) };
        let delay = spec.delay.as_ref().map(|delay| {
            // An empty delay means no delay.
            let usual = Some(delay.duration_milliseconds.unwrap_or(0));
            let jitter = (delay.jitter_duration_milliseconds, delay.jitter_duration_from.as_ref());
            let duration = ExpressionValue::new(usual, delay.duration_from.as_ref())
                .map_err(|e| e.within("delay.durationFrom"))?;
            let jitter = ExpressionValue::new(jitter.0, jitter.1).map_err(|e| e.within("delay.jitterDurationFrom"))?;
            Ok((duration, jitter))
        });
        let steps = spec.all_steps();
        let steps = steps.iter().enumerate().map(|(i, step)| {
            Step::new(step, &spec.resource_ref, templates).map_err(|e| e.within(format_args!("steps[{i}]")))
        });
        Ok(Some(Self {
            name,
            of: spec.resource_ref.clone(),
            selector: Selector::new(selector)?,
            weight: ExpressionValue::new(Some(spec.weight), spec.weight_from.as_ref())
                .map_err(|e| e.within("weightFrom"))?,
            delay: delay.transpose()?,
            steps: steps.collect::<Result<_, _>>()?,
            immediate_next: spec.immediate_next_stage.unwrap_or(false),
        }))
    }

    /// Returns the name of the Stage object, which is unique among stages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the kind of object that the stage applies to.
    pub fn of(&self) -> &Reference {
        &self.of
    }

    /// Returns whether the next stage is chosen from the response to the write, without waiting for the watch event.
    pub fn is_immediate(&self) -> bool {
        self.immediate_next
    }

    pub(crate) fn matches(&self, subject: &Subject<'_>) -> Result<bool, StageError> {
        self.selector.matches(subject)
    }

    pub(crate) fn weight(&self, subject: &Subject<'_>) -> Result<Option<i64>, StageError> {
        self.weight.number(subject)
    }

    /// Returns how long an object stays in the stage: the duration, or a random time between the duration and the
    /// jitter.
    ///
    /// # Errors
    /// Fails when an expression cannot be evaluated for the object.
    pub fn delay(&self, object: &Value, now: Timestamp, chance: &mut impl Rng) -> Result<Duration, StageError> {
        let Some((duration, jitter)) = &self.delay else { return Ok(Duration::ZERO) };
        let subject = Subject::of(object);
        let Some(least) = duration.duration(&subject, now)? else { return Ok(Duration::ZERO) };
        if jitter.is_empty() {
            return Ok(least);
        }
        Ok(match jitter.duration(&subject, now)? {
            None => least,
            Some(most) if most <= least => most,
            Some(most) => least + (most - least).mul_f64(chance.random_range(0.0..1.0)),
        })
    }

    /// Returns the number of steps.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Returns the writes of a step for an object. Steps are numbered from 0.
    ///
    /// # Errors
    /// Fails when a template cannot be rendered, or when its output is not valid YAML.
    pub fn effects(&self, step: usize, object: &Value) -> Result<Vec<Effect>, StageError> {
        let deleted = self.steps.iter().take(step).any(Step::deletes);
        let effects = self.steps.get(step).map_or(Ok(Vec::new()), |s| s.effects(object, deleted));
        effects.map_err(|e| e.within(format_args!("stage {:?}: steps[{step}]", self.name)))
    }
}
