//! What is known of levels, read whenever somebody asks for metrics (`apiserver_flowcontrol_*`, named as upstream's).
use kelson_metrics::Families;

use crate::control::FlowControl;
use crate::level::Inner;
use crate::utilization::Utilization;

type Read = fn(&Inner) -> f64;

const OF_LEVELS: [(&str, &str, Read); 12] = [
    ("nominal_limit_seats", "Seats by the level's shares.", |i| i.limits.nominal.into()),
    ("lower_limit_seats", "Seats that the level keeps when others borrow.", |i| i.limits.min.into()),
    ("upper_limit_seats", "Seats that the level may have when it borrows.", |i| i.limits.max.into()),
    ("current_limit_seats", "Seats of the level now.", |i| i.limits.current.into()),
    ("demand_seats_high_watermark", "The most seats wanted in the last period.", |i| i.demand.high.into()),
    ("demand_seats_average", "Seats wanted in the last period on average.", |i| i.demand.average),
    ("demand_seats_stdev", "Deviation of the seats wanted in the last period.", |i| i.demand.deviation),
    ("demand_seats_smoothed", "Seats wanted, smoothed over periods.", |i| i.demand.smoothed),
    ("target_seats", "Seats that the last adjustment aimed at.", |i| i.target),
    ("current_r", "The common time of the level's queues, in seat-seconds.", |i| i.queues.progress_s()),
    ("dispatch_r", "That time when a request last left a queue to run.", |i| i.queues.last_turn.progress_s),
    ("latest_s", "The time of that request's queue then, in seat-seconds.", |i| i.queues.last_turn.next_at_s),
];

const BOUNDS: [(&str, &str, fn(&Inner) -> [f64; 2]); 2] = [
    ("next_s_bounds", "The least and the most time of queues with requests in them, then.", |i| {
        i.queues.last_turn.bounds_s
    }),
    ("next_discounted_s_bounds", "These without the work that was taken to be under way.", |i| {
        i.queues.last_turn.discounted_s
    }),
];

type Part = fn(&mut Inner) -> &mut Utilization;

/// Family, phase, and what is shown.
const USE: [(&str, &str, &[(&str, Part)]); 3] = [
    (
        "priority_level_seat_utilization",
        "Seats that are taken, as a part of those there are, for each nanosecond.",
        &[("executing", |i| &mut i.queues.used.seats)],
    ),
    (
        "priority_level_request_utilization",
        "Requests that wait or run, as a part of those that may, for each nanosecond.",
        &[("waiting", |i| &mut i.queues.used.waiting), ("executing", |i| &mut i.queues.used.running)],
    ),
    (
        "demand_seats",
        "Seats that are taken or waited for, as a part of those there are, for each nanosecond.",
        &[("", |i| &mut i.queues.used.demand)],
    ),
];

fn name(name: &str) -> String {
    format!("apiserver_flowcontrol_{name}")
}

impl FlowControl {
    pub(crate) fn scrape(&self, families: &mut Families) {
        let levels = self.levels();
        let help = "The factor of the targets by which seats were shared at the last adjustment.";
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
