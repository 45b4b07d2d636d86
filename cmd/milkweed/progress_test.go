package main

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/placement"
)

// In a log, a warm-up prints a line after a second and then every 10 seconds, with a total and the
// time left once all directories are listed.
func TestWarmupProgressInLog(t *testing.T) {
	const gib = 1 << 30
	for _, test := range []struct {
		name   string
		asJSON bool
		want   string
	}{
		{"text", false, `listing: 200 files (2.0 GiB) found so far, 2 done, 1.0 GiB, 1.0 GiB/s
502 of 1,000 files, 6.0 GiB of 10 GiB (60%), 768 MiB/s, about 5s left
502 of 1,000 files, 6.0 GiB of 10 GiB (60%), 384 MiB/s, about 11s left
`},
		{"JSON", true, `2 true
500 false
500 false
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out strings.Builder
				d := newDisplay(&out, test.asJSON)
				listing := control.Progress{Scanning: true, FilesTotal: 200, FilesDone: 2, BytesTotal: 2 * gib, BytesDone: gib}
				listed := control.Progress{FilesTotal: 1000, FilesDone: 500, FilesSkipped: 2, BytesTotal: 10 * gib, BytesDone: 5 * gib, BytesSkipped: gib}
				for range 105 { // 21 s
					time.Sleep(200 * time.Millisecond)
					d.show(warmupStep(listing))
					if time.Since(time.Unix(946684800, 0)) >= 10*time.Second { // a bubble begins in 2000
						listing = listed
					}
				}
				d.end()
				got := out.String()
				if test.asJSON {
					got = jsonLines(t, got)
				}
				if got != test.want {
					t.Errorf("got\n%swant\n%s", got, test.want)
				}
			})
		})
	}
}

// jsonLines returns files_done and scanning of each line.
func jsonLines(t *testing.T, out string) string {
	var all strings.Builder
	for line := range strings.Lines(out) {
		var p control.Progress
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			t.Errorf("%v: %s", err, line)
		}
		all.WriteString(count(p.FilesDone))
		if p.Scanning {
			all.WriteString(" true\n")
		} else {
			all.WriteString(" false\n")
		}
	}
	return all.String()
}

// The total of a scrub is that of all copies, which is unknown for a part of the dataset.
func TestScrubStep(t *testing.T) {
	r := placement.ScrubReport{CopiesFound: 5, BytesFound: 5000, CopiesRight: 2, BytesRead: 2000}
	if got, want := scrubStep(r).line(0), "2 of 5 copies, 0 corrupt, 2.0 KiB"; got != want {
		t.Errorf("a part: got %q, want %q", got, want)
	}
	r.CopiesExpected, r.BytesExpected = 10, 10_000
	if got, want := scrubStep(r).line(0), "2 of 10 copies, 0 corrupt, 2.0 KiB of 9.8 KiB (20%)"; got != want {
		t.Errorf("the whole dataset: got %q, want %q", got, want)
	}
}
