//! Tables of the internal state for people (`/debug/api_priority_and_fairness/*`).
use crate::control::FlowControl;

/// Formats rows as a table with columns separated by commas and aligned.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|r| r.get(at)).map(|cell| cell.chars().count() + 2).max();
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        for (at, cell) in row.iter().enumerate() {
            if at + 1 == row.len() {
                out.push_str(cell);
                out.push('\n');
            } else {
                let (cell, width) = (format!("{cell},"), widths[at]);
                out.push_str(&format!("{cell:<width$}"));
            }
        }
    }
    out
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

impl FlowControl {
    /// Returns the levels, one per line.
    pub fn dump_priority_levels(&self) -> String {
        let mut rows = vec![row([
            "PriorityLevelName",
            "ActiveQueues",
            "IsIdle",
            "IsQuiescing",
            "WaitingRequests",
            "ExecutingRequests",
            "DispatchedRequests",
            "RejectedRequests",
            "TimedoutRequests",
            "CancelledRequests",
        ])];
        for level in self.levels() {
            let inner = level.inner.lock();
            let (queues, totals) = (&inner.queues, inner.queues.totals);
            let (waiting, running, ..) = queues.counts();
            let active = queues.look().filter(|q| q.waiting > 0).count();
            let mut cells = vec![level.name.clone(), active.to_string()];
            cells.extend([queues.is_idle(), inner.unwanted].map(|b| b.to_string()));
            cells.extend([waiting, running].map(|n| n.to_string()));
            let totals = [totals.dispatched, totals.rejected, totals.timed_out, totals.cancelled];
            cells.extend(totals.map(|n| n.to_string()));
            rows.push(cells);
        }
        table(&rows)
    }

    /// Returns the queues, one per line.
    pub fn dump_queues(&self) -> String {
        let mut rows = vec![row([
            "PriorityLevelName",
            "Index",
            "PendingRequests",
            "ExecutingRequests",
            "SeatsInUse",
            "NextDispatchR",
            "InitialSeatsSum",
            "MaxSeatsSum",
            "TotalWorkSum",
        ])];
        for level in self.levels() {
            for (index, queue) in level.inner.lock().queues.look().enumerate() {
                rows.push(vec![
                    level.name.clone(),
                    index.to_string(),
                    queue.waiting.to_string(),
                    queue.running.to_string(),
                    queue.seats.to_string(),
                    format!("{:.8}ss", queue.next_at_s),
                    queue.first_seats_waiting.to_string(),
                    queue.seats_waiting.to_string(),
                    format!("{:.8}ss", queue.work_waiting_s),
                ]);
            }
        }
        table(&rows)
    }

    /// Returns the waiting requests, one per line, optionally with their details.
    pub fn dump_requests(&self, details: bool) -> String {
        let mut heads = row([
            "PriorityLevelName",
            "FlowSchemaName",
            "QueueIndex",
            "RequestIndexInQueue",
            "FlowDistingsher",
            "WaitedFor",
            "InitialSeats",
            "FinalSeats",
            "AdditionalLatency",
        ]);
        if details {
            let asked = ["UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource", "SubResource"];
            heads.extend(row(asked));
        }
        let mut rows = vec![heads];
        for level in self.levels() {
            for (queue, index, work, waiter) in level.inner.lock().queues.look_waiting() {
                let mut cells = vec![level.name.clone(), waiter.schema.to_string()];
                cells.extend([queue.to_string(), index.to_string(), waiter.flow.to_string()]);
                cells.push(format!("{:?}", waiter.came.elapsed()));
                cells.extend([work.seats.to_string(), work.seats_after.to_string(), format!("{:?}", work.after)]);
                if details {
                    cells.extend(waiter.details.iter().cloned());
                }
                rows.push(cells);
            }
        }
        table(&rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [row(["Name", "N"]), row(["long-name", "7"])];
        assert_eq!(table(&rows), "Name,      N\nlong-name, 7\n");
    }
}
