package check

import (
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/drivers"
)

func TestGranularity(t *testing.T) {
	at := func(times ...time.Time) (sample []drivers.Info) {
		for _, t := range times {
			sample = append(sample, drivers.Info{Ctime: t, Mtime: time.Unix(1, 7)})
		}
		return sample
	}
	s := func(sec, nsec int64) time.Time { return time.Unix(1e9+sec, nsec) }
	for name, tt := range map[string]struct {
		sample []drivers.Info
		want   time.Duration
	}{
		"nanoseconds":       {at(s(1, 5), s(2, 0), s(3, 0), s(4, 0)), 10 * time.Millisecond},
		"tenths":            {at(s(1, 1e8), s(2, 2e8), s(3, 0), s(4, 9e8)), 100 * time.Millisecond},
		"seconds":           {at(s(1, 0), s(2, 0), s(3, 0), s(4, 0)), time.Second},
		"even seconds":      {at(s(2, 0), s(4, 0), s(6, 0), s(8, 0)), 2 * time.Second},
		"few whole seconds": {at(s(2, 0), s(4, 0)), time.Second},
		"one fine time":     {at(s(2, 123)), 10 * time.Millisecond},
		"one time":          {at(s(2, 0), s(2, 0), s(2, 0), s(2, 0), s(2, 0)), time.Second},
		"no file":           {nil, time.Second},
		"bucket":            {[]drivers.Info{{Version: "etag", Ctime: s(1, 0)}}, 0},
	} {
		if got := Granularity(tt.sample); got != tt.want {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

func TestRacyWindow(t *testing.T) {
	c := config.Default()
	if got := (Service{Granularity: time.Second}).RacyWindow(&c); got != 6*time.Second {
		t.Errorf("got %v, want the granularity and 5 s", got)
	}
	if got := (Service{}).RacyWindow(&c); got != 0 {
		t.Errorf("with versions: got %v, want 0", got)
	}
}
