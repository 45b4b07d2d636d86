package torture

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ago returns the time some seconds ago.
func ago(seconds int) time.Time { return time.Now().Add(-time.Duration(seconds) * time.Second) }

func newTestOracle(t *testing.T) *oracle {
	return newOracle(testModel, newSummary(1, "ext4"), t.Logf)
}

// The verdict on a read, by what happened before it.
func TestJudge(t *testing.T) {
	file := large(t)
	flip := &Diff{Versions: []int{0}, First: 70, Bytes: 4096, Flipped: true, Bit: 2}
	mixture := &Diff{Versions: []int{0, 1}, First: -1}
	superseded := func(inPlace bool, seconds int) func(*oracle) {
		return func(o *oracle) {
			o.versions[file] = append(o.versions[file], change{ago(seconds), ago(seconds), inPlace})
		}
	}
	for _, c := range []struct {
		name   string
		before func(*oracle)
		read   Result
		ok     bool
	}{
		{"right", func(*oracle) {}, Result{Version: 0}, true},
		{"just superseded", superseded(false, 1), Result{Version: 0}, true},
		{"long superseded", superseded(false, 60), Result{Version: 0}, false},
		{"zeros", func(*oracle) {}, Result{Version: -1, Diff: &Diff{First: 0, Bytes: 1, Zeros: true}}, false},
		{"a mixture during a rewrite", superseded(true, 1), Result{Version: -1, Diff: mixture}, true},
		{"a mixture long after it", superseded(true, 60), Result{Version: -1, Diff: mixture}, false},
		{"a mixture after a replacement", superseded(false, 1), Result{Version: -1, Diff: mixture}, false},
		{"a flip at rest", func(o *oracle) { o.flip(file, 70, 2, false) }, Result{Version: -1, Diff: flip}, false},
		{"a flip in use", func(o *oracle) { o.flip(file, 70, 2, true) }, Result{Version: -1, Diff: flip}, true},
		{"a flip after a scrub", func(o *oracle) { o.flip(file, 70, 2, true); o.scrubbed() }, Result{Version: -1, Diff: flip}, false},
		{"a flip after a restart", func(o *oracle) { o.flip(file, 70, 2, true); o.mounted("", false) }, Result{Version: -1, Diff: flip}, false},
		{"a flip at rest after the open", func(o *oracle) { o.flip(file, 70, 2, false); o.flips[0].at = time.Now().Add(time.Hour) }, Result{Version: -1, Diff: flip}, true},
		{"another flip", func(o *oracle) { o.flip(file, 71, 2, true) }, Result{Version: -1, Diff: flip}, false},
		{"an error", func(*oracle) {}, Result{Version: -1, Errno: unix.EIO, Op: "read"}, false},
		{"an error in its window", func(o *oracle) { o.allow(-1, "", 0, unix.EIO) }, Result{Version: -1, Errno: unix.EIO, Op: "read"}, true},
		{"another error in it", func(o *oracle) { o.allow(-1, "", 0, unix.EIO) }, Result{Version: -1, Errno: unix.EPERM, Op: "read"}, false},
		{"the error of another file", func(o *oracle) { o.allow(file+1, "", 0, unix.EIO) }, Result{Version: -1, Errno: unix.EIO, Op: "read"}, false},
		{"an error after its window", func(o *oracle) { o.allow(-1, "", -time.Second, unix.EIO)() }, Result{Version: -1, Errno: unix.EIO, Op: "read"}, false},
		{"ESTALE of a new version", superseded(false, 1), Result{Version: -1, Errno: unix.ESTALE, Op: "read"}, true},
		{"ESTALE without one", func(*oracle) {}, Result{Version: -1, Errno: unix.ESTALE, Op: "read"}, false},
		{"a file closed long ago", func(o *oracle) { o.mounted("", true); o.denied = ago(70); o.closed[file] = ago(60) }, Result{Version: 0}, false},
		{"a file closed just now", func(o *oracle) { o.mounted("", true); o.denied = ago(70); o.close(file) }, Result{Version: 0}, true},
		{"a file closed to others", func(o *oracle) { o.mounted("", false); o.closed[file] = ago(60) }, Result{Version: 0}, true},
		{"a file opened again", func(o *oracle) { o.mounted("", true); o.denied = ago(70); o.closed[file] = ago(60); o.reopen(file) }, Result{Version: 0}, true},
		{"wrong size", func(*oracle) {}, Result{Version: 0, Short: true}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newTestOracle(t)
			c.before(o)
			c.read.File, c.read.Start, c.read.End = file, time.Now(), time.Now()
			o.judge([]Result{c.read})
			if got := o.summary.OK(); got != c.ok {
				t.Errorf("OK: %v, want %v: %+v", got, c.ok, o.summary)
			}
		})
	}
}
