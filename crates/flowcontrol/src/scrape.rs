//! Metrics that are computed from the levels whenever they are scraped (`apiserver_flowcontrol_*`, with upstream's
//! names).
use kelson_metrics::Families;

use crate::control::FlowControl;
use crate::level::Inner;
use crate::utilization::Utilization;

type ReadLevel = fn(&Inner) -> f64;

const OF_LEVELS: [(&str, &str, ReadLevel); 12] = [
    ("nominal_limit_seats", "Nominal number of seats of the priority level.", |i| i.limits.nominal.into()),
    ("lower_limit_seats", "Lower bound of seats when other priority levels borrow.", |i| i.limits.min.into()),
    ("upper_limit_seats", "Upper bound of seats when the priority level borrows.", |i| i.limits.max.into()),
    ("current_limit_seats", "Current limit of seats of the priority level.", |i| i.limits.current.into()),
    ("demand_seats_high_watermark", "Maximum seat demand in the last adjustment period.", |i| i.demand.high.into()),
    ("demand_seats_average", "Average seat demand in the last adjustment period.", |i| i.demand.average),
    ("demand_seats_stdev", "Standard deviation of seat demand in the last adjustment period.", |i| i.demand.deviation),
    ("demand_seats_smoothed", "Smoothed seat demand.", |i| i.demand.smoothed),
    ("target_seats", "Target of seats at the last adjustment.", |i| i.target),
    ("current_r", "Virtual time of the priority level in seat-seconds.", |i| i.queues.progress_s()),
    ("dispatch_r", "Virtual time of the priority level when a request was last dispatched.", |i| {
        i.queues.last_turn.progress_s
    }),
    ("latest_s", "Virtual time of that request's queue when it was dispatched, in seat-seconds.", |i| {
        i.queues.last_turn.next_at_s
    }),
];

const BOUNDS: [(&str, &str, fn(&Inner) -> [f64; 2]); 2] = [
    (
        "next_s_bounds",
        "Minimum and maximum virtual time of non-empty queues when a request was last dispatched.",
        |i| i.queues.last_turn.bounds_s,
    ),
    (
        "next_discounted_s_bounds",
        "Minimum and maximum virtual time of queues without the estimated work in progress.",
        |i| i.queues.last_turn.discounted_s,
    ),
];

type Part = fn(&mut Inner) -> &mut Utilization;

/// The metric family, the phase, and the exported values.
const USE: [(&str, &str, &[(&str, Part)]); 3] = [
    (
        "priority_level_seat_utilization",
        "Occupied seats as a share of the seat limit, sampled every nanosecond.",
        &[("executing", |i| &mut i.queues.used.seats)],
    ),
    (
        "priority_level_request_utilization",
        "Waiting and executing requests as a share of the limit, sampled every nanosecond.",
        &[("waiting", |i| &mut i.queues.used.waiting), ("executing", |i| &mut i.queues.used.running)],
    ),
    (
        "demand_seats",
        "Seat demand as a share of the seat limit, sampled every nanosecond.",
        &[("", |i| &mut i.queues.used.demand)],
    ),
];

fn name(name: &str) -> String {
    format!("apiserver_flowcontrol_{name}")
}

impl FlowControl {
    pub(crate) fn scrape(&self, families: &mut Families) {
        let levels = self.levels();
        let help = "Fair fraction of the last seat adjustment.";
        families.gauge(&name("seat_fair_frac"), help).sample(&[], self.fair_factor());
        for (metric, help, read) in OF_LEVELS {
            let mut family = families.gauge(&name(metric), help);
            for level in &levels {
                family.sample(&[("priority_level", level.name.as_str())], read(&level.inner.lock()));
            }
        }
        for (metric, help, read) in BOUNDS {
            let mut family = families.gauge(&name(metric), help);
            for level in &levels {
                let bounds = read(&level.inner.lock());
                for (bound, value) in ["max", "min"].into_iter().zip(bounds.into_iter().rev()) {
                    family.sample(&[("bound", bound), ("priority_level", level.name.as_str())], value);
                }
            }
        }
        for (metric, help, parts) in USE {
            let mut family = families.histogram(&name(metric), help);
            for level in &levels {
                let mut inner = level.inner.lock();
                for (phase, part) in parts {
                    let labels = [("phase", *phase), ("priority_level", level.name.as_str())];
                    let labels = if phase.is_empty() { &labels[1..] } else { &labels };
                    part(&mut inner).show(level.now(), &mut family, labels);
                }
            }
        }
    }
}
