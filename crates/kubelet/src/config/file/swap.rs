//! Fields about swap.
use super::Layer;
use super::fields::Fields;
use crate::config::cgroups::SwapBehavior;

impl Layer<'_> {
    pub(super) fn swap(&mut self, f: &mut Fields<'_>) {
        let faults = &mut *self.faults;
        self.config.fail_swap_on = f.boolean("failSwapOn", faults).unwrap_or(self.config.fail_swap_on);
        let mut swap = f.below("memorySwap", faults);
        if let Some(name) = swap.string("swapBehavior", faults) {
            match SwapBehavior::parse(name) {
                Some(behavior) => self.config.swap_behavior = behavior,
                None => faults.not_supported(&swap.at("swapBehavior"), name, &["LimitedSwap", "NoSwap"]),
            }
        }
        swap.finish(&[], faults);
    }
}
