package placement

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// racyRig makes a rig with a source whose times have a granularity of a second. Its handler
// regards times as racy for 6 seconds.
func racyRig(t *testing.T) *rig {
	r := newRig(t, rigOptions{quotas: []int64{1 << 30}, racy: 6 * time.Second})
	r.mem.Granularity = time.Second
	return r
}

// A file that was rewritten within the granularity of its times is read from the source, and
// copied when its times identify its content. Then every open reads the last content.
func TestRacyFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := racyRig(t)
		first, second := random(1, 3<<20), random(2, 3<<20)
		r.mem.Put("f", first)
		r.wantFile("f", first)
		time.Sleep(100 * time.Millisecond)
		r.mem.Put("f", second) // the same size and times
		for range 4 {
			time.Sleep(time.Second)
			if _, err := r.read("f"); err != nil {
				t.Error(err)
			}
			if got := r.entry("f").Level(); got != tiers.AtSource {
				t.Errorf("level of a racy file: %d", got)
			}
		}
		if got := r.handler.Stats().RacyFiles; got != 1 {
			t.Errorf("%d racy files, want 1", got)
		}
		time.Sleep(4 * time.Second)
		r.wantFile("f", second)
		r.settled()
		r.wantFile("f", second)
		if got := r.entry("f").Level(); got != 1 {
			t.Errorf("level: %d, want 1", got)
		}
		if got := r.handler.Stats().RacyFiles; got != 0 {
			t.Errorf("%d racy files, want 0", got)
		}
	})
}

// A file that was read while it was racy is copied when it settles, also if the kernel's page cache
// serves all later opens of it.
func TestRacyFileIsCopied(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := racyRig(t)
		data := random(1, 3000)
		r.mem.Put("f", data)
		r.wantFile("f", data)
		r.mem.Put("other", random(2, 3000)) // it is not read
		time.Sleep(10 * time.Second)
		r.settled()
		if got := r.entry("f").Level(); got != 1 {
			t.Errorf("level: %d, want 1", got)
		}
		if got := r.entry("other").Level(); got != tiers.AtSource {
			t.Errorf("level of a file that was not read: %d", got)
		}
	})
}

// Many files that cease to be racy at the same time are copied within a few seconds, also while each
// request in the background takes a second because of the reads of a job. Until then, they count as racy
// files or as copies in flight.
func TestManyRacyFilesAreCopied(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := racyRig(t)
		const files = 40
		for i := range files {
			name := fmt.Sprint(i)
			r.wantFile(name, r.put(name, 1000))
		}
		r.from.Add(drivertest.Rule{Op: drivertest.OpStat, Delay: time.Second})
		var entries []*metadata.Entry
		for i := range files {
			entries = append(entries, r.entry(fmt.Sprint(i)))
		}
		for range 13 {
			time.Sleep(time.Second)
			synctest.Wait()
			missing := int64(0)
			for _, e := range entries {
				if e.Level() == tiers.AtSource {
					missing++
				}
			}
			if s := r.handler.Stats(); s.RacyFiles+s.InFlight < missing {
				t.Errorf("%d files have no copy, but %d are racy and %d are in flight", missing, s.RacyFiles, s.InFlight)
			}
		}
		r.settled()
		for _, e := range entries {
			if got := e.Level(); got != 1 {
				t.Errorf("%s: level %d, want 1", e.Path(), got)
			}
		}
		if got := r.handler.Stats().RacyFiles; got != 0 {
			t.Errorf("%d racy files, want 0", got)
		}
	})
}

// When a racy file settles, it is opened again, and the kernel drops its pages, also if its
// version is the same.
func TestRacyFileSettles(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := racyRig(t)
		r.mem.Put("f", random(1, 1000))
		e := r.entry("f")
		r.names.Hold(e) // as a lookup of the kernel
		obj := r.open("f")
		defer obj.Close()
		ctx, cancel := context.WithTimeout(r.ctx, 8*time.Second)
		defer cancel()
		for o := range r.names.Outdated(ctx) {
			if o.Entry == e && o.Name == "" && o.Content {
				if took := r.handler.racy.start.Add(6 * time.Second); time.Now().Before(took) {
					t.Errorf("the pages are dropped before the times are old enough")
				}
				return
			}
		}
		t.Error("the pages are not dropped")
	})
}

// A placement on request waits until the file is not racy any more.
func TestPlaceRacyFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := racyRig(t)
		r.put("f", 1000)
		start := time.Now()
		if got, err := r.handler.Place(t.Context(), r.entry("f")); got != Placed || err != nil {
			t.Errorf("got %v, %v", got, err)
		}
		if took := time.Since(start); took < 5*time.Second || took > 7*time.Second {
			t.Errorf("took %v, want about 6 s", took)
		}
	})
}

// The clock of the source may be ahead, and programs may set any modification time.
func TestRacyTimes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{idle: true, ttl: time.Second})
		now := time.Now()
		racy := func(mtime, ctime time.Time) bool {
			r.mem.PutAt("f", random(1, 1000), mtime)
			r.mem.Chctime("f", ctime)
			time.Sleep(10 * time.Second)
			now = now.Add(10 * time.Second)
			r.handler.racy = newRacyFiles(6 * time.Second)
			return r.handler.racy.has(r.entry("f"), time.Now())
		}
		for name, tt := range map[string]struct {
			mtime, ctime time.Duration // ago, when the file is opened
			want         bool
		}{
			"old":                             {time.Hour, time.Hour, false},
			"rewritten":                       {time.Second, time.Second, true},
			"an old time was set":             {time.Hour, time.Second, true},
			"a future time was set long ago":  {-time.Hour, time.Hour, false},
			"a future time was just set":      {-time.Hour, time.Second, true},
			"at the end of the window":        {6 * time.Second, 6 * time.Second, false},
			"before the end of the window":    {5 * time.Second, 5 * time.Second, true},
			"the clock of the source is fast": {-time.Minute, -time.Minute, true},
			"not the time of a clock":         {time.Hour, -100 * time.Hour, true},
		} {
			opened := now.Add(10 * time.Second)
			if got := racy(opened.Add(-tt.mtime), opened.Add(-tt.ctime)); got != tt.want {
				t.Errorf("%s: got %v, want %v", name, got, tt.want)
			}
			if tt.want {
				time.Sleep(7 * time.Second)
				now = now.Add(7 * time.Second)
				if r.handler.racy.has(r.entry("f"), time.Now()) {
					t.Errorf("%s: racy for ever", name)
				}
			}
		}
	})
}

// The largest change time in the future is reported, also if it does not measure the clock.
func TestClockAhead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := racyRig(t)
		for i, tt := range []struct{ ctime, want time.Duration }{
			{-time.Hour, 0}, {time.Minute, time.Minute}, {time.Second, time.Minute}, {24 * time.Hour, 24 * time.Hour},
		} {
			name := fmt.Sprint(i)
			r.put(name, 1000)
			r.mem.Chctime(name, time.Now().Add(tt.ctime))
			r.handler.racy.has(r.entry(name), time.Now())
			if got := r.handler.Stats().ClockAhead; got != tt.want {
				t.Errorf("after a change time %v in the future: got %v, want %v", tt.ctime, got, tt.want)
			}
		}
	})
}

// Files with versions are never racy.
func TestBucketIsNotRacy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{quotas: []int64{1 << 30}, racy: time.Hour, bucket: &drivertest.Bucket{Length: 1 << 20}})
		data := r.put("f", 1000)
		r.wantFile("f", data)
		r.settled()
		if got := r.entry("f").Level(); got != 1 {
			t.Errorf("level: %d, want 1", got)
		}
	})
}

// A file that was rewritten and whose times were restored is read in its new content although the
// daemon has it open, as soon as its attributes are validated.
func TestRestoredTimeOfAnOpenFile(t *testing.T) {
	r := newRig(t, rigOptions{quotas: []int64{1 << 30}, ttl: time.Millisecond})
	data := r.put("f", 1000)
	r.wantFile("f", data)
	r.settled()
	obj := r.open("f")
	defer obj.Close()
	r.wantAt(obj, 0, 1000, data)
	rewritten := random(5, 1000)
	r.mem.PutAt("f", rewritten, r.entry("f").Info().Mtime)
	time.Sleep(200 * time.Millisecond) // until the TTL of names is over
	r.wantFile("f", rewritten)
	got := make([]byte, 1000)
	if err := readAt(t.Context(), obj, got, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the old handle: %v, or other bytes", err)
	}
}
