#!/bin/bash
# Go module github.com/robfig/cron/v3, version 3.0.1 (what Kubernetes reads the schedules of CronJobs with), beside the Python package
# cronsim, version 2.6, which follows Debian's cron.
# What one would guess: both read the lines of crontab(5) alike, where a day must match both fields if one of them starts with `*`, and
# one of the fields otherwise: `0 0 */2 * MON` is each Monday with an odd date.
# What happens: for robfig a field with a step above 1 does not start with `*`, so this is each odd date and each Monday: some eighteen times
# a month in place of two. `*/1` starts with `*`. And `*-3` is no error but `*`: the end of such a range is ignored.
# Who is hit: a line that moves from a crontab to a CronJob is valid and runs on other days.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
export GOPATH=$dir/go GOFLAGS=-modcacherw GOCACHE=$dir/cache
cat > schedules <<'LIST'
0 0 * * MON
0 0 */1 * MON
0 0 */2 * MON
0 0 1-31/2 * MON
0 0 1-3 * *
0 0 *-3 * *
LIST
cat > go.mod <<'MOD'
module finding

go 1.21

require github.com/robfig/cron/v3 v3.0.1
MOD
cat > main.go <<'GO'
package main

import (
	"bufio"
	"fmt"
	"os"
	"time"

	"github.com/robfig/cron/v3"
)

func main() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		schedule, err := cron.ParseStandard(lines.Text())
		if err != nil {
			fmt.Printf("%s: error\n", lines.Text())
			continue
		}
		fmt.Printf("%s:", lines.Text())
		at := time.Date(2026, 1, 1, 0, 30, 0, 0, time.UTC)
		for i := 0; i < 5; i++ {
			at = schedule.Next(at)
			fmt.Print(at.Format(" 01-02"))
		}
		fmt.Println()
	}
}
GO
go mod tidy >/dev/null 2>&1
python3 -m venv v
v/bin/pip -q install cronsim==2.6 2>/dev/null
cat > main.py <<'PY'
import sys
from datetime import datetime
from itertools import islice

from cronsim import CronSim, CronSimError

for line in map(str.strip, sys.stdin):
    try:
        days = islice(CronSim(line, datetime(2026, 1, 1, 0, 30)), 5)
        print(f"{line}:", *(day.strftime("%m-%d") for day in days))
    except CronSimError:
        print(f"{line}: error")
PY
{
	echo "robfig/cron"
	go run . < schedules
	echo "cronsim"
	v/bin/python main.py < schedules
} > seen
cat seen
cat > expected <<'SEEN'
robfig/cron
0 0 * * MON: 01-05 01-12 01-19 01-26 02-02
0 0 */1 * MON: 01-05 01-12 01-19 01-26 02-02
0 0 */2 * MON: 01-03 01-05 01-07 01-09 01-11
0 0 1-31/2 * MON: 01-03 01-05 01-07 01-09 01-11
0 0 1-3 * *: 01-02 01-03 02-01 02-02 02-03
0 0 *-3 * *: 01-02 01-03 01-04 01-05 01-06
cronsim
0 0 * * MON: 01-05 01-12 01-19 01-26 02-02
0 0 */1 * MON: 01-05 01-12 01-19 01-26 02-02
0 0 */2 * MON: 01-05 01-19 02-09 02-23 03-09
0 0 1-31/2 * MON: 01-03 01-05 01-07 01-09 01-11
0 0 1-3 * *: 01-02 01-03 02-01 02-02 02-03
0 0 *-3 * *: error
SEEN
diff expected seen && echo "as expected"
